"""Tables WITH COMPACT STORAGE: their mirrors have the columns and rows of ``SELECT *``."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

COLUMNS = {
    "flat": {"k": "int", "b": "text", "v": "int"},
    "dense": {"k": "int", "c": "int", "v": "blob"},
    "wide": {"k": "int", "c": "int", "d": "text", "v": "text"},
    "marks": {"k": "int", "c": "int"},
    "counted": {"k": "int", "n": "counter"},
    "plain": {"k": "int", "c": "int", "s": "int", "v": "int"},
}


def create(shop: Shop) -> None:
    keys = {
        "flat": "k",
        "dense": "k, c",
        "wide": "k, c, d",
        "marks": "k, c",
        "counted": "k",
        "plain": "k, c",
    }
    for name, columns in COLUMNS.items():
        listed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        listed = listed.replace("s int", "s int static") if name == "plain" else listed
        compact = "" if name == "plain" else "COMPACT STORAGE AND "
        shop.run(f"CREATE TABLE {name} ({listed}, PRIMARY KEY ({keys[name]})) WITH {compact}cdc = true")


def write(shop: Shop, rng: random.Random, count: int) -> None:
    """Insert, update and delete at random, with write times in any order."""

    def row() -> dict[str, str]:
        return {
            "k": str(rng.randrange(4)),
            "c": str(rng.randrange(3)),
            "d": f"'{rng.choice('xy')}'",
            "b": f"'{rng.randrange(9)}'",
            "s": str(rng.randrange(9)),
        }

    for _ in range(count):
        name = rng.choice([name for name in COLUMNS if name != "counted"])
        keys = [c for c in COLUMNS[name] if c in "kcd"]
        values = [c for c in COLUMNS[name] if c not in keys]
        found = row() | {"v": {"blob": "0x01", "text": "'t'"}.get(COLUMNS[name].get("v", ""), "7")}
        at = f"USING TIMESTAMP {1_700_000_000_000_000 + rng.randrange(1000)}"
        where = " AND ".join(f"{c} = {found[c]}" for c in keys)
        whole = name != "wide" or rng.random() < 0.8  # such a table has nulls in its last key columns
        given = [
            *(keys if whole else keys[:-1]),
            *rng.sample(values, rng.randint(min(len(values), 1), len(values))),
        ]
        value = rng.choice(values) if values else ""
        null = rng.choice([found.get(value, ""), "null"])
        of_row = where if value != "s" else f"k = {found['k']}"
        statements = [
            f"INSERT INTO {name} ({', '.join(given)}) VALUES ({', '.join(found[c] for c in given)}) {at}"
            + rng.choice(["", " AND TTL 90000"]),
            f"DELETE FROM {name} {at} WHERE {where}",
            f"DELETE FROM {name} {at} WHERE k = {found['k']}",
        ]
        if value:
            statements += [
                f"UPDATE {name} {at} SET {value} = {null} WHERE {of_row}",
                f"DELETE {value} FROM {name} {at} WHERE {of_row}",
            ]
        shop.run(rng.choices(statements, [6, 1, 1, 3, 1][: len(statements)])[0])
    shop.run(f"UPDATE counted SET n = n + {rng.randrange(1, 9)} WHERE k = {rng.randrange(3)}")


def require_equal(shop: Shop) -> None:
    for name, columns in COLUMNS.items():
        assert set(shop.mirror(name).columns) == {*columns, "_cdc"}, name
        assert shop.assert_equal(name) > 0, name


def test_compact_tables_have_the_rows_of_a_select_by_the_log_and_by_a_snapshot(
    shop: Shop, tmp_path: Path
) -> None:
    rng = random.Random(8)
    create(shop)
    write(shop, rng, 150)
    shop.declare(snapshot={"mode": "never"})
    assert shop.sync().error == ""
    require_equal(shop)

    for name in COLUMNS:
        shop.drop_mirror(name)
    outcome = shop.stage("snapshot")
    assert outcome.error == ""
    write(shop, rng, 60)
    assert shop.sync().error == ""
    require_equal(shop)
    outcome = shop.stage("verify")
    assert [t.note for t in outcome.tables] == ["equal"] * len(COLUMNS)

    path = tmp_path / "events.jsonl"
    shop.stage("events", path=str(path))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    values = [json.loads(e["value"]) for e in events if e["topic"].endswith(".flat") and e["value"]]
    afters = [after for value in values if (after := value.get("payload", value)["after"])]
    assert any("v" in after for after in afters)
    assert all(set(after) <= {*COLUMNS["flat"], "_range_start", "_range_end"} for after in afters)
