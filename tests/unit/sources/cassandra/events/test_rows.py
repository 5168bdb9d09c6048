"""Rows of mirrors of Cassandra as events of cells, without Spark: of a snapshot, or what became of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes.cell_row import CellRow, write_cell_row
from airflow_cdc_provider.changes.cells import ROW_DELETION
from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, ROW, STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.cassandra.events.changes import EventSettings
from airflow_cdc_provider.sources.cassandra.events.recording import _source
from airflow_cdc_provider.sources.cassandra.events.records import build_events
from airflow_cdc_provider.sources.cassandra.events.rows import CassandraCells
from airflow_cdc_provider.sources.cql.events.known_static_columns import (
    NEVER_WRITTEN,
    KnownStaticColumns,
    static_columns_of,
)
from airflow_cdc_provider.sources.cql.events.rows import KnownOf
from tests.unit.sources.cassandra.events.datastax_recording import NOW_NS
from tests.unit.sources.cassandra.events.reread_cluster import RECORDING
from tests.unit.sources.cassandra.select_pages import NOW, select_row, snapshot_records
from tests.unit.sources.cql.cql_values import parts

WRITTEN_US = NOW_NS // 1000 - 5_000_000
TTL = 1000
CLUSTERED = {"p1": b"p", "p2": b"\0\0\0\1", "c1": b"\0\0\0\0", "c2": b"x", "st": b"\0\0\0\7", "v": b"now"}
COLLS = {"k": b"k", "fl": b"\0\0\0\1" + parts([b"\0\0\0\5"]), "s": b"\0\0\0\2" + parts([b"a", b"b"])}
ROWS = {"clustered": CLUSTERED, "colls": COLLS}
TIMES: dict[str, dict[str, Any]] = {
    "clustered": {"v": WRITTEN_US, "st": WRITTEN_US + 1},
    "colls": {"fl": WRITTEN_US, "s": [WRITTEN_US, WRITTEN_US]},
}
TTLS: dict[str, dict[str, Any]] = {"clustered": {"v": TTL}, "colls": {"s": [None, None]}}


def known(static: bytes | None) -> KnownOf:
    """Return static cells as if from the tombstone table: of each partition the same."""
    written = NEVER_WRITTEN if static is None else WRITTEN_US + 1

    def known_of(keys: pa.Array, now_seconds: int) -> KnownStaticColumns:
        return KnownStaticColumns(pa.array([static] * len(keys), pa.binary()), np.full(len(keys), written))

    return known_of


def declared(**publish: Any) -> Connector:
    return Connector.from_dict(
        {
            "name": "p",
            "source": {"type": "cassandra", "cluster": "c"},
            "publish": {"tombstones": True, **publish},
        }
    )


def printed(records: pa.RecordBatch) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(to_lines(records, ())).splitlines()]


def read(connector: Connector, table: str) -> list[dict[str, Any]]:
    """Return the events of a row that a snapshot reads, and of its static columns."""
    source = _source(connector, RECORDING)
    schema = source.schemas.tables[f"shop_e.{table}"]
    found = snapshot_records(schema, [select_row(schema, ROWS[table], TIMES[table], TTLS[table])])
    settings = EventSettings(connector, source, "c", NOW_NS)
    (made,) = build_events(settings, [(1, found)], SkippedRecords(strict=True))
    return printed(made.records)


def merged(
    connector: Connector, table: str, *ops: tuple[str, bool], with_static: bool = True
) -> list[dict[str, Any]]:
    """Return the events of that row, or of its partition's static columns, after the given operations."""
    source = _source(connector, RECORDING)
    schema = source.schemas.tables[f"shop_e.{table}"]
    codec = source.codec_of(schema)
    found = snapshot_records(schema, [select_row(schema, ROWS[table], TIMES[table], TTLS[table])])
    kept = codec.decode(found, ()).contributions
    row, static = (kept.filter(pc.equal(kept["scope"], scope)) for scope in (ROW, STATIC))
    of_partition = known(static["state"][0].as_py() if with_static and static.num_rows else None)
    events = CassandraCells(connector=connector, codec=codec, excluded=(), cluster="c", known_of=of_partition)
    batch = pa.RecordBatch.from_pydict(
        {
            "op": pa.array([op for op, _ in ops]),
            "key": pa.array([row["key"][0].as_py()] * len(ops), pa.binary()),
            "state": pa.array([None if s else row["state"][0].as_py() for _, s in ops], pa.binary()),
        }
    )
    return printed(events.builder(NOW_NS, None, SkippedRecords(strict=True))(batch))


def cell(value: Any, ends: int | None = None) -> dict[str, Any]:
    return {"value": value, "deletion_ts": ends, "set": True}


@pytest.mark.parametrize("table", ["clustered", "colls"])
@pytest.mark.parametrize(
    "publish", [{}, {"envelope": "datastax-cells"}, {"value": "avro", "cassandra": {"operations": "common"}}]
)
def test_rows_that_are_read_have_events_of_a_snapshot(publish: dict[str, Any], table: str) -> None:
    connector = declared(**publish)
    expected = read(connector, table)
    ops = [("r", False), ("r", True)] if table == "clustered" else [("r", False)]
    assert len(expected) == len(ops)
    shown = merged(connector, table, *ops)
    assert sorted(shown, key=repr) == sorted(expected, key=repr)


def test_rows_that_changed_have_all_of_their_columns_whatever_changed() -> None:
    read_row, created, updated = merged(
        declared(), "clustered", ("r", False), ("c", False), ("u", False), with_static=False
    )
    values = [json.loads(event["value"]) for event in (read_row, created, updated)]
    assert [(v["op"], v["source"]["snapshot"]) for v in values] == [
        ("i", "true"),
        ("i", "false"),
        ("u", "false"),
    ]
    for value in values:
        assert value["after"]["v"] == cell("now", (NOW + TTL) * 1_000_000)
        assert (value["after"]["w"], value["after"]["st"]) == (cell(None), None)
        assert value["source"]["ts_us"] == WRITTEN_US
        assert (value["source"]["file"], value["source"]["pos"]) == ("", -1)
    assert {event["key"] for event in (created, updated)} == {read_row["key"]}


def test_a_deleted_row_is_a_deletion_with_its_tombstone_at_its_newest_write() -> None:
    gone, tombstone = merged(declared(), "clustered", ("d", False))
    value = json.loads(gone["value"])
    ended = {name: cell(None, WRITTEN_US) for name in ("v", "w", "st")}
    keys = {"p1": cell("p"), "p2": cell(1), "c1": cell(0), "c2": cell("x")}
    assert value["after"] == {**keys, **ended, "_range_start": None, "_range_end": None}
    assert (value["op"], value["source"]["ts_us"]) == ("d", WRITTEN_US)
    assert (tombstone["key"], tombstone["value"]) == (gone["key"], None)


def test_static_columns_are_an_event_of_their_partition_and_are_deleted_with_it() -> None:
    there, emptied, gone, tombstone = (
        *merged(declared(), "clustered", ("c", True)),
        *merged(declared(), "clustered", ("u", True), with_static=False),
        *merged(declared(), "clustered", ("d", True), with_static=False),
    )
    values = [json.loads(event["value"]) for event in (there, emptied, gone)]
    assert [value["op"] for value in values] == ["u", "u", "d"]
    assert [value["after"]["st"]["value"] for value in values] == [7, None, None]
    assert values[0]["source"]["ts_us"] == WRITTEN_US + 1
    assert [value["after"]["c1"] for value in values] == [None, None, cell(None, NOW_NS // 1000)]
    assert [value["after"]["v"] for value in values] == [None, None, cell(None, NOW_NS // 1000)]
    assert {json.dumps(json.loads(event["key"])) for event in (there, emptied, gone, tombstone)} == {
        json.dumps({"p1": "p", "p2": 1, "c1": None, "c2": None})
    }
    assert tombstone["value"] is None


def test_kinds_of_events_can_be_skipped() -> None:
    connector = declared(skipped_operations=["d"])
    (left,) = merged(connector, "clustered", ("d", False), ("u", False))
    assert json.loads(left["value"])["op"] == "u"


def test_static_columns_of_a_deleted_partition_are_deleted_at_the_deletions_time() -> None:
    source = _source(declared(), RECORDING)
    codec = source.codec_of(source.schemas.tables["shop_e.clustered"])
    found = snapshot_records(
        codec.schema, [select_row(codec.schema, CLUSTERED, TIMES["clustered"], TTLS["clustered"])]
    )
    kept = pa.Table.from_batches([codec.decode(found, ()).contributions])
    static = kept.filter(pc.equal(kept["scope"], STATIC))
    keys = pa.array([static["key"][0].as_py(), b"another"], pa.binary())
    known = static_columns_of(static, codec, keys, NOW)
    assert known.states.is_valid().to_pylist() == [True, False]
    assert known.written_us.tolist() == [WRITTEN_US + 1, NEVER_WRITTEN]
    ended_us = WRITTEN_US + 2
    deletion = CellRow(ROW_DELETION, deletion_us=ended_us, deletion_seconds=ended_us // 1_000_000)
    ended = {**static.to_pylist()[0], "scope": PARTITION_DELETION, "state": write_cell_row(deletion)}
    both = pa.concat_tables([static, pa.Table.from_pylist([ended], static.schema)])
    known = static_columns_of(both, codec, keys, NOW)
    assert known.states.is_valid().to_pylist() == [False, False]
    assert known.written_us.tolist() == [ended_us, NEVER_WRITTEN]
