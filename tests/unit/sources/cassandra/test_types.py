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
from tests.unit.sources.cassandra.type_limits import TEXT, TYPE_LIMITS, as_numbers, covers, whole
from tests.unit.sources.cassandra.updates import table

NOW: Final = 1_800_000_000


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


@pytest.mark.parametrize(("cql_type", "lake_type", "event_type", "name", "values"), TYPE_LIMITS)
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
