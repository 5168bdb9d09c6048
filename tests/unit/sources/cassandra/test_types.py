"""Values at the ends of each type, on both ways out of an update: to the lake, and to Debezium's events."""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import recall_codec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME
from tests.oracles.cassandra_read_path import Cell, Liveness, Row
from tests.unit.sources.cassandra.commit_logs import UpdateWriter
from tests.unit.sources.cassandra.decoded_changes import changes
from tests.unit.sources.cassandra.updates import table
from tests.unit.sources.cql.cql_values import parts, varint

NOW: Final = 1_800_000_000
MOST_NANOSECONDS: Final = 86_400 * 10**9 - 1
ASCII: Final = bytes(range(128))
TEXT: Final = "\0ü名🙂\U0010ffff"
LEAST_TIMEUUID: Final = bytes(6) + b"\x10" + bytes(9)
GREATEST_TIMEUUID: Final = b"\xff" * 6 + b"\x1f" + b"\xff" * 9


def covers(feature: str, *values: Any) -> Any:
    """Parameters of one type, marked with its feature."""
    return pytest.param(*values, id=values[0], marks=pytest.mark.covers(feature))


def whole(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def ends(size: int) -> list[tuple[bytes, int, int]]:
    """Least, greatest and middle of a whole number's type, alike everywhere."""
    limit = 1 << (8 * size - 1)
    return [(whole(v, size), v, v) for v in (-limit, limit - 1, 0, -1)]


def decimal(unscaled: int, scale: int) -> bytes:
    return struct.pack(">i", scale) + varint(unscaled)


def out_of_log(cql_type: str, states: list[tuple[Cell, ...]]) -> tuple[pa.Array, pa.Array]:
    """Write a row per state, as the log has it; return the column in the mirror and in the events."""
    schema = table("t", f"p id int\nr v {cql_type}", 0x41)
    keys = [whole(n, 4) for n in range(len(states))]
    rows = [Row(Liveness(1), None, b"", cells) for cells in states]
    payloads = [b"\7" + UpdateWriter(schema).write(key, [row]) for key, row in zip(keys, rows, strict=True)]
    batch = changes(payloads, keys, kind=[CHANGE] * len(keys))
    codec = recall_codec(schema, None)
    decoded = codec.decode(batch, ())
    assert decoded.undecodable == []
    live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW).live.combine_chunks()
    mirror = codec.project(live.to_batches()[0])
    mirror = mirror.take(pa.compute.sort_indices(mirror, [("id", "ascending")]))
    events = EventDecoder(schema).decode(batch)
    assert events.reasons == ()
    return mirror.column("v"), events.events.column("after").field("v").field("value")


def as_numbers(column: pa.Array) -> list[Any]:
    """Convert dates and timestamps to numbers, as they exceed Python's types."""
    if pa.types.is_date32(column.type):
        return list(column.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(column.type):
        return list(column.view(pa.int64()).to_pylist())
    return list(column.to_pylist())


@pytest.mark.parametrize(
    ("cql_type", "lake_type", "event_type", "name", "values"),
    [
        covers(
            "CAS-TYPE-01", "ascii", pa.utf8(), pa.utf8(), "",
            [(b"", "", ""), (ASCII, ASCII.decode(), ASCII.decode())],
        ),
        covers("CAS-TYPE-02", "bigint", pa.int64(), pa.int64(), "", ends(8)),
        covers(
            "CAS-TYPE-03", "blob", pa.binary(), pa.binary(), "",
            [(b"", b"", b""), (bytes(range(256)), bytes(range(256)), bytes(range(256)))],
        ),
        covers(
            "CAS-TYPE-04", "boolean", pa.bool_(), pa.bool_(), "", [(b"\0", False, False), (b"\1", True, True)]
        ),
        covers(
            "CAS-TYPE-06", "date", pa.date32(), pa.int32(), "io.debezium.time.Date:1",
            [
                (bytes(4), -(1 << 31), -(1 << 31)),
                (b"\xff" * 4, (1 << 31) - 1, (1 << 31) - 1),
                (b"\x80\0\0\0", 0, 0),
            ],
        ),
        covers(
            "CAS-TYPE-07", "decimal", pa.utf8(), pa.float64(), "",
            [
                (decimal(-(10**40) - 1, 20), "-100000000000000000000.00000000000000000001", -1e20),
                (decimal(100, 2), "1.00", 1.0),
                (decimal(1, -400), "1E+400", float("inf")),
                (decimal(-1, (1 << 31) - 1), "-1E-2147483647", -0.0),
                (decimal(0, 0), "0", 0.0),
            ],
        ),
        covers(
            "CAS-TYPE-08", "double", pa.float64(), pa.float64(), "",
            [
                (struct.pack(">d", v), v, v)
                for v in (-0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"))
            ],
        ),
        covers(
            "CAS-TYPE-09", "float", pa.float32(), pa.float32(), "",
            [
                (struct.pack(">f", v), v, v)
                for v in (-0.0, 2.0**-149, (2 - 2.0**-23) * 2.0**127, float("-inf"))
            ],
        ),
        covers(
            "CAS-TYPE-11", "inet", pa.utf8(), pa.utf8(), "",
            [
                (b"\1\0\0\0", "1.0.0.0", "/1.0.0.0"),
                (b"\xff" * 4, "255.255.255.255", "/255.255.255.255"),
                (bytes(16), "0:0:0:0:0:0:0:0", "/0:0:0:0:0:0:0:0"),
                (b"\xff" * 16, ":".join(["ffff"] * 8), "/" + ":".join(["ffff"] * 8)),
            ],
        ),
        covers("CAS-TYPE-12", "int", pa.int32(), pa.int32(), "", ends(4)),
        covers("CAS-TYPE-16", "smallint", pa.int32(), pa.int16(), "", ends(2)),
        covers(
            "CAS-TYPE-17", "text", pa.utf8(), pa.utf8(), "", [(b"", "", ""), (TEXT.encode(), TEXT, TEXT)]
        ),
        covers(
            "CAS-TYPE-18", "time", pa.int64(), pa.int64(), "",
            [(whole(v, 8), v, v) for v in (0, MOST_NANOSECONDS)],
        ),
        covers(
            "CAS-TYPE-19", "timestamp", pa.timestamp("us", "UTC"), pa.int64(), "io.debezium.time.Timestamp:1",
            [(whole(v, 8), v * 1000, v) for v in (-9223372036854775, 9223372036854775, 0, -1)],
        ),
        covers(
            "CAS-TYPE-20", "timeuuid", pa.utf8(), pa.utf8(), "io.debezium.data.Uuid:1",
            [
                (LEAST_TIMEUUID, *["00000000-0000-1000-0000-000000000000"] * 2),
                (GREATEST_TIMEUUID, *["ffffffff-ffff-1fff-ffff-ffffffffffff"] * 2),
            ],
        ),
        covers("CAS-TYPE-21", "tinyint", pa.int32(), pa.int8(), "", ends(1)),
        covers(
            "CAS-TYPE-22", "tuple<int, text>",
            pa.struct([("field1", pa.int32()), ("field2", pa.utf8())]),
            pa.struct([("field1", pa.int32()), ("field2", pa.utf8())]),
            "Int32UTF8Tuple",
            [
                (parts([whole(-(1 << 31), 4), b""]), *[{"field1": -(1 << 31), "field2": ""}] * 2),
                (parts([None, None]), *[{"field1": None, "field2": None}] * 2),
            ],
        ),
        covers(
            "CAS-TYPE-23", "uuid", pa.utf8(), pa.utf8(), "io.debezium.data.Uuid:1",
            [
                (bytes(16), *["00000000-0000-0000-0000-000000000000"] * 2),
                (b"\xff" * 16, *["ffffffff-ffff-ffff-ffff-ffffffffffff"] * 2),
            ],
        ),
        covers(
            "CAS-TYPE-24", "varchar", pa.utf8(), pa.utf8(), "", [(b"", "", ""), (TEXT.encode(), TEXT, TEXT)]
        ),
        covers(
            "CAS-TYPE-25", "varint", pa.utf8(), pa.int64(), "",
            [
                (varint(-(1 << 63)), str(-(1 << 63)), -(1 << 63)),
                (varint((1 << 63) - 1), str((1 << 63) - 1), (1 << 63) - 1),
                (varint(10**60), str(10**60), (10**60 + (1 << 63)) % (1 << 64) - (1 << 63)),
                (varint(0), "0", 0),
            ],
        ),
        covers(
            "CAS-C50-05", "vector<float, 3>", pa.list_(pa.float32()), pa.list_(pa.float32()), "",
            [(struct.pack(">3f", 1.5, -0.0, 2.0**-149), *[[1.5, -0.0, 2.0**-149]] * 2)],
        ),
        covers(
            "CAS-C50-05", "vector<text, 2>", pa.list_(pa.utf8()), pa.list_(pa.utf8()), "",
            [(b"\0\2ab", *[["", "ab"]] * 2), (b"\x01a\x80\xc8" + b"b" * 200, *[["a", "b" * 200]] * 2)],
        ),
    ],
)  # fmt: skip
def test_values_at_the_ends_of_a_type_reach_lake_and_events(
    cql_type: str,
    lake_type: pa.DataType,
    event_type: pa.DataType,
    name: str,
    values: list[tuple[bytes, Any, Any]],
) -> None:
    mirror, events = out_of_log(cql_type, [(Cell(1, 5, native),) for native, _, _ in values])
    assert mirror.type.equals(lake_type)
    assert events.type.equals(event_type)
    # repr distinguishes -0.0 from 0.0.
    assert repr(as_numbers(mirror)) == repr([lake for _, lake, _ in values])
    assert repr(events.to_pylist()) == repr([event for _, _, event in values])
    field = EventDecoder(table("t", f"p id int\nr v {cql_type}", 0x41)).decode(changes([])).events
    expected = field.schema.field("after").type.field("v").type.field("value").metadata
    assert expected == ({CONNECT_NAME: name.encode()} if name else None)


def path(number: int) -> bytes:
    """A list element's path: a time UUID."""
    return struct.pack(">IHH", number, 0, 0x1000) + bytes(8)


LEAST, GREATEST = whole(-(1 << 31), 4), whole((1 << 31) - 1, 4)
EMPTIED = (Cell(1, 5, end=9, complex_deletion=True),)


@pytest.mark.parametrize(
    ("cql_type", "cells", "lake", "event"),
    [
        covers(
            "CAS-TYPE-13", "list<int>",
            (Cell(1, 5, GREATEST, path(1)), Cell(1, 5, LEAST, path(2)), Cell(1, 5, GREATEST, path(3))),
            [(1 << 31) - 1, -(1 << 31), (1 << 31) - 1],
            [(1 << 31) - 1, -(1 << 31), (1 << 31) - 1],
        ),
        covers(
            "CAS-TYPE-14", "map<text, int>",
            (Cell(1, 5, GREATEST, b""), Cell(1, 5, LEAST, TEXT.encode())),
            [("", (1 << 31) - 1), (TEXT, -(1 << 31))],
            [("", (1 << 31) - 1), (TEXT, -(1 << 31))],
        ),
        covers(
            "CAS-TYPE-15", "set<int>",
            (Cell(1, 5, path=LEAST), Cell(1, 5, path=GREATEST)),
            [-(1 << 31), (1 << 31) - 1],
            [-(1 << 31), (1 << 31) - 1],
        ),
    ],
)  # fmt: skip
def test_collections_reach_lake_and_events(cql_type: str, cells: Any, lake: Any, event: Any) -> None:
    mirror, events = out_of_log(cql_type, [cells, EMPTIED, cells[:1]])
    assert mirror.to_pylist() == [lake, None, lake[:1]]
    assert events.to_pylist() == [event, [], event[:1]]


KEY_WITH_MAP = whole(1, 4) + (whole(4, 4) + whole(7, 4)) * 2


@pytest.mark.parametrize(
    ("cql_type", "removed", "kept", "expected"),
    [
        ("map<text, int>", b"a", b"b", [("a", None), ("b", 1)]),
        (
            "map<frozen<map<int, int>>, frozen<map<int, int>>>",
            KEY_WITH_MAP,
            KEY_WITH_MAP[:-1] + b"\x08",
            [{"key": [(7, 7)], "value": None}, {"key": [(7, 8)], "value": [(7, 7)]}],
        ),
    ],
)
def test_events_have_a_removed_key_of_a_map_without_value(
    cql_type: str, removed: bytes, kept: bytes, expected: list[Any]
) -> None:
    value = KEY_WITH_MAP if kept != b"b" else whole(1, 4)
    _, events = out_of_log(
        cql_type, [(Cell(1, 5, path=removed, tombstone=True, end=9), Cell(1, 5, value, kept)), EMPTIED]
    )
    assert events.to_pylist() == [expected, []]


def test_events_list_columns_as_the_java_driver_does() -> None:
    schema = table(
        "t", "p id int\nc c int\ns b int\nr \u4e2d set<int>\nr \U0001f600 int\nr \ufb01 int\nr a int", 0x41
    )
    after = EventDecoder(schema).decode(changes([])).events.schema.field("after").type
    assert [f.name for f in after] == ["id", "c", "a", "\u4e2d", "\U0001f600", "\ufb01", "b"]
