"""Random values of random types, and types that change: a value is in its column as it is, or in the rest."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from airflow_cdc_provider.changes.column_names import clash
from tests.unit.sources.debezium.debezium_messages import Table, column, event, framed, rows, text

ID = column("id", "int32")
PLAIN = ("int32", "int64", "string", "boolean", "double")
HALF = "a\ud800"
"""Half of a surrogate pair, which JSON can have, and UTF-8 can't."""
MISFITS: tuple[Any, ...] = (5, HALF, 1.5, True, [HALF], {HALF: 1}, 2**40, {}, [], [["k0", 1], ["k0", 2]])
Type = dict[str, Any]


class Misfit(Exception):
    """The value isn't one of its type."""


def random_type(chance: random.Random, depth: int) -> Type:
    kind = chance.choice([*PLAIN, *(["array", "map", "entries", "struct"] if depth else [])])
    if kind == "array":
        return {"type": kind, "optional": True, "items": random_type(chance, depth - 1)}
    if kind == "struct":
        names = chance.sample(["a", "b", "c", "A", "d.e"], chance.randint(1, 3))
        fields = [{**random_type(chance, depth - 1), "field": name} for name in names]
        return {"type": kind, "optional": True, "fields": fields}
    if kind in ("map", "entries"):
        keys = {"type": "string" if kind == "map" else "int32"}
        return {"type": "map", "optional": True, "keys": keys, "values": random_type(chance, depth - 1)}
    return {"type": kind, "optional": True}


def random_value(chance: random.Random, own: Type, misfits: float) -> Any:
    if chance.random() < misfits:
        return chance.choice(MISFITS)
    if chance.random() < 0.15:
        return None
    if own["type"] == "array":
        return [random_value(chance, own["items"], misfits) for _ in range(chance.randint(0, 3))]
    if own["type"] == "struct":
        return {f["field"]: random_value(chance, f, misfits) for f in own["fields"] if chance.random() < 0.9}
    if own["type"] == "map":
        values = [random_value(chance, own["values"], misfits) for _ in range(chance.randint(0, 3))]
        if own["keys"]["type"] == "string":
            return {f"k{number}": value for number, value in enumerate(values)}
        return [[number, value] for number, value in enumerate(values)]
    return {
        "int32": chance.randint(-5, 5),
        "int64": chance.choice([1, 2**40]),
        "string": chance.choice(["", "a", "é"]),
        "boolean": chance.random() < 0.5,
        "double": chance.choice([1.5, 2.0, -0.25]),
    }[own["type"]]


def shown(value: Any, own: Type) -> Any:
    """Return a value as the mirror shows it in a column of its type.

    Raises:
        Misfit: It is none of this type.
    """
    kind = own["type"]
    if value is None:
        return None
    if kind == "struct" and clash(f["field"] for f in own["fields"]):
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return text.replace("\ud800", r"\ud800")
    if kind == "struct" and isinstance(value, dict):
        names = [f["field"] for f in own["fields"]]
        if all(name in names or one is None for name, one in value.items()):
            return {f["field"]: shown(value.get(f["field"]), f) for f in own["fields"]}
    if kind == "array" and isinstance(value, list):
        return [shown(one, own["items"]) for one in value]
    if kind == "map":
        return _entries(value, own["values"])
    types: dict[str, Any] = {
        "int32": int,
        "int64": int,
        "string": str,
        "boolean": bool,
        "double": (int, float),
    }
    own_type = kind in types and isinstance(value, types[kind]) and value != HALF
    if not own_type or isinstance(value, bool) != (kind == "boolean"):
        raise Misfit
    if kind == "int32" and not -(2**31) <= value < 2**31:
        raise Misfit
    return value


def _entries(value: Any, of_values: Type) -> list[tuple[str, Any]]:
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise Misfit
    keys = [k if isinstance(k, str) else json.dumps(k, separators=(",", ":")) for k, _ in pairs]
    if len(set(keys)) < len(keys) or HALF in keys or any(k is None for k, _ in pairs):
        raise Misfit
    return [(name, shown(one, of_values)) for name, (_, one) in zip(keys, pairs, strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_random_values_are_in_their_column_or_in_the_rest(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        types = [random_type(chance, 3) for _ in range(chance.choice([1, 1, 2, 3]))]
        table, written = Table(), dict[int, tuple[Any, Type]]()
        for batch in range(2):
            messages = []
            for _ in range(8):
                number, own = chance.randrange(30), chance.choice(types[: batch + 1 + len(types) // 2])
                value = random_value(chance, own, chance.choice([0, 0, 0.1]))
                written[number] = value, own
                row = {"id": number, "v": value}
                fields = [ID, {**own, "field": "v"}]
                messages.append(({"id": number}, framed(event("c", None, row), fields)))
            found = rows(table.take(*messages))
        assert found.keys() == written.keys()
        for number, (value, own) in written.items():
            rest = json.loads(found[number].get("_rest", "{}"))
            held = found[number].get("v")
            assert rest in ({}, {"v": value})
            assert not rest or held is None
            if rest and len(types) > 1:  # perhaps not of the column's newest type
                continue
            if rest:
                with pytest.raises(Misfit):
                    shown(value, own)
                continue
            expected = shown(value, own)
            assert held == expected or held == _as_text(expected), (value, held, own)


def _as_text(value: Any) -> Any:
    """Return a value as it is in a column that is text by now."""
    if isinstance(value, list):
        return [(one[0], _as_text(one[1])) if isinstance(one, tuple) else _as_text(one) for one in value]
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def test_a_map_that_does_not_fit_leaves_the_maps_of_other_rows_alone() -> None:
    numbers = {
        "type": "map",
        "optional": True,
        "field": "v",
        "keys": {"type": "string"},
        "values": {"type": "int32"},
    }

    def message(number: int, value: str) -> tuple[Any, Any]:
        whole = text(framed(event("c", None, {"id": number, "v": "?"}), [ID, numbers]))
        assert whole is not None
        return {"id": number}, whole.replace(b'"?"', value.encode())

    texts = [
        '{"a":1}',
        '{"a":"x","b":2}',
        '{"c":3}',
        '{"a":1,"a":2}',
        '{"a":1,"\\u0061":2}',
        '[["a",1],["a",2]]',
        "{}",
    ]
    found = rows(Table().take(*(message(number, value) for number, value in enumerate(texts))))
    fitting = {0: [("a", 1)], 2: [("c", 3)], 6: []}
    assert {number: row["v"] for number, row in found.items() if "v" in row} == fitting
    for number in found.keys() - fitting:
        assert json.loads(found[number]["_rest"]) == {"v": json.loads(texts[number])}


@pytest.mark.parametrize(
    ("old", "value", "new", "other"),
    [
        (column("v", "double"), -0.25, column("v", "boolean"), True),
        (column("v", "boolean"), True, column("v", "int32"), 5),
        (column("v", "int32"), 5, column("v", "int32", "io.debezium.time.Date"), 0),
        (column("v", "int64"), 5, column("v", "int64", "io.debezium.time.Timestamp"), 0),
        (column("v", "int32", "io.debezium.time.Date"), 5, column("v", "int64"), 0),
        (column("v", "string"), "0x10", column("v", "int32"), 1),
        (column("v", "string"), "1", column("v", "boolean"), True),
    ],
)
def test_a_new_type_gives_old_values_no_other_meaning(old: Any, value: Any, new: Any, other: Any) -> None:
    table = Table()
    table.take(({"id": 1}, framed(event("c", None, {"id": 1, "v": value}), [ID, old])))
    found = rows(table.take(({"id": 2}, framed(event("c", None, {"id": 2, "v": other}), [ID, new]))))
    assert (found[1].get("v"), json.loads(found[1]["_rest"])) == (None, {"v": value})
    assert "v" in found[2]


def test_a_row_without_schema_keeps_members_that_a_struct_has_not() -> None:
    struct = {"type": "struct", "optional": True, "field": "v", "fields": [column("a", "int32")]}
    table = Table()
    table.take(({"id": 1}, framed(event("c", None, {"id": 1, "v": {"a": 1}}), [ID, struct])))
    found = rows(
        table.take(
            ({"id": 2}, event("c", None, {"id": 2, "v": {"x": 1}})),
            ({"id": 3}, event("c", None, {"id": 3, "v": {"a": 2, "x": None}})),
        )
    )
    assert found == {1: {"v": {"a": 1}}, 2: {"_rest": '{"v":{"x":1}}'}, 3: {"v": {"a": 2}}}
