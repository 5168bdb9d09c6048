"""Frozen columns: typed in the lake, and in events by their parts or as the bytes that Cassandra stores."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cassandra import cqltypes

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.events.connect import schema_of
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.cql.describe import parse_cql
from tests.unit.sources.cassandra.select_pages import NOW, select_row, snapshot_records

TABLE = parse_cql(
    """
    CREATE TYPE k.u (x int, y text);
    CREATE TABLE k.t (
        p frozen<list<int>>, c frozen<set<text>>, fl frozen<list<bigint>>, fs frozen<set<int>>,
        fm frozen<map<text, blob>>, fu frozen<u>, ff frozen<map<int, frozen<list<text>>>>, plain int,
        PRIMARY KEY (p, c)
    ) WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7
    """
).tables["k.t"]

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
        "c": {"", "ü" * 40_000},
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


def records() -> pa.RecordBatch:
    given = []
    for values in ROWS:
        raw = {name: native(name, values.get(name)) for name in DRIVER_TYPES}
        given.append(select_row(TABLE, raw, dict.fromkeys(DRIVER_TYPES, 5), {}))
    found = snapshot_records(TABLE, given)
    positions = pa.array([bytes(40)] * found.num_rows, pa.binary())
    return found.set_column(CHANGE_SCHEMA.get_field_index("position"), "position", positions)


@pytest.mark.covers("CAS-TYPE-10")
def test_frozen_values_are_restored_from_lake_and_events_in_any_format() -> None:
    batch = records()
    codec = CassandraCodec(TABLE)
    live = reconcile_cells(pa.Table.from_batches([codec.decode(batch, ()).contributions]), NOW).live
    mirror = codec.project(live.combine_chunks().to_batches()[0])
    decoded = EventDecoder(TABLE, EventTypes()).decode(batch).events
    stored = EventDecoder(TABLE, EventTypes(frozen="bytes")).decode(batch).events
    assert mirror.num_rows == decoded.num_rows == stored.num_rows == len(ROWS)
    places = {len(row["p"]): place for place, row in enumerate(ROWS)}
    in_order = [places[len(p)] for p in mirror["p"].to_pylist()]
    for name, of_driver in DRIVER_TYPES.items():
        values = pc.struct_field(stored["after"], [name, "value"])
        assert values.type == pa.binary()
        structured = pc.struct_field(decoded["after"], [name, "value"])
        assert not pa.types.is_binary(structured.type)
        for place, row in enumerate(ROWS):
            expected, written = row.get(name), values[place].as_py()
            assert written == native(name, expected)
            if expected is None:
                continue
            again = plain(of_driver.from_binary(written, 5))
            assert again == plain(of_driver.from_binary(native(name, expected), 5))
            assert rows_of(structured[place], name) == again
            assert rows_of(mirror[name][in_order.index(place)], name) == again
    plain_column = stored.schema.field("after").type.field("plain").type.field("value")
    assert plain_column.type == pa.int32(), "what is not frozen stays as it is"
    key = stored.schema.field("key").type
    assert [schema_of(key.field(i)).type for i in range(2)] == ["bytes", "bytes"]
    assert stored["key"].to_pylist()[1] == {name: native(name, ROWS[1][name]) for name in ("p", "c")}


def rows_of(value: pa.Scalar, name: str) -> Any:
    """Convert a lake's or an event's value to the driver's form."""
    found = value.as_py()
    if name == "ff" and found and isinstance(found[0], dict):
        return {entry["key"]: entry["value"] for entry in found}
    if name in ("fm", "ff"):
        return dict(found)
    return found


def test_an_unfrozen_collection_is_always_structured() -> None:
    table = parse_cql("CREATE TABLE k.t (p int PRIMARY KEY, l list<frozen<set<int>>>, t tuple<int, text>)")
    types = EventTypes(frozen="bytes")
    assert types.event_schema(table.tables["k.t"]) == table.tables["k.t"]
