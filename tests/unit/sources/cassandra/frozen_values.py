"""Rows of a table of frozen columns, and what they are in the lake and in events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from cassandra import cqltypes

FIELDS: Final = "(x int, y text)"
"""Those of the type ``u``."""
COLUMNS: Final = """(
    p frozen<list<int>>, c frozen<set<text>>, fl frozen<list<bigint>>, fs frozen<set<int>>,
    fm frozen<map<text, blob>>, fu frozen<u>, ff frozen<map<int, frozen<list<text>>>>, plain int,
    PRIMARY KEY (p, c)
)"""

LONG, INT, TEXT, BLOB = (cqltypes.LongType, cqltypes.Int32Type, cqltypes.UTF8Type, cqltypes.BytesType)
DRIVER_TYPES = {
    "p": cqltypes.ListType.apply_parameters([INT]),
    "c": cqltypes.SetType.apply_parameters([TEXT]),
    "fl": cqltypes.ListType.apply_parameters([LONG]),
    "fs": cqltypes.SetType.apply_parameters([INT]),
    "fm": cqltypes.MapType.apply_parameters([TEXT, BLOB]),
    "fu": cqltypes.UserType.make_udt_class("k", "u", ("x", "y"), (INT, TEXT)),
    "ff": cqltypes.MapType.apply_parameters([INT, cqltypes.ListType.apply_parameters([TEXT])]),
}
LARGEST, SMALLEST = (1 << 31) - 1, -(1 << 31)
ROWS: list[dict[str, Any]] = [
    {"p": [], "c": set(), "fl": [], "fs": set(), "fm": {}, "fu": (None, None), "ff": {}},
    {
        "p": [SMALLEST, LARGEST],
        "c": {"", "ü" * 30_000},
        "fl": [-(1 << 63), 0, (1 << 63) - 1],
        "fs": {SMALLEST, -1, 0, LARGEST},
        "fm": {"": b"", "\U0010ffff": b"\0\xff" * 50_000},
        "fu": (LARGEST, ""),
        "ff": {SMALLEST: [], LARGEST: ["", "a"]},
    },
    {"p": [1], "c": {"a"}, "fl": list(range(70_000)), "fu": (None, "only"), "fs": {7}},
]


def native(name: str, value: Any) -> bytes | None:
    """Write a value as a server does: sets in order."""
    value = sorted(value) if isinstance(value, set) else value
    return None if value is None else DRIVER_TYPES[name].to_binary(value, 5)


def plain(value: Any) -> Any:
    """Convert a value of the driver, or of an event, to a Python type."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if hasattr(value, "items"):
        return {key: plain(one) for key, one in value.items()}
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        return sorted(value) if not isinstance(value, list) else [plain(one) for one in value]
    return value


def assert_restored(
    rows: Sequence[Mapping[str, Any]], mirror: pa.RecordBatch, decoded: pa.RecordBatch, stored: pa.RecordBatch
) -> None:
    """Compare rows with the mirror, with events of decoded values, and with events of stored bytes."""
    assert mirror.num_rows == decoded.num_rows == stored.num_rows == len(rows)
    places = {len(row["p"]): place for place, row in enumerate(rows)}
    in_order = [places[len(p)] for p in mirror["p"].to_pylist()]
    for name, of_driver in DRIVER_TYPES.items():
        values = pc.struct_field(stored["after"], [name, "value"])
        assert values.type == pa.binary()
        structured = pc.struct_field(decoded["after"], [name, "value"])
        assert not pa.types.is_binary(structured.type)
        for place, row in enumerate(rows):
            expected, written = row.get(name), values[place].as_py()
            assert written == native(name, expected)
            if expected is None:
                continue
            again = plain(of_driver.from_binary(written, 5))
            assert again == plain(of_driver.from_binary(native(name, expected), 5))
            assert rows_of(structured[place], name) == again
            assert rows_of(mirror[name][in_order.index(place)], name) == again


def rows_of(value: pa.Scalar, name: str) -> Any:
    """Convert a lake's or an event's value to the driver's form."""
    found = value.as_py()
    if name == "ff" and found and isinstance(found[0], dict):
        return {entry["key"]: entry["value"] for entry in found}
    if name in ("fm", "ff"):
        return dict(found)
    return found
