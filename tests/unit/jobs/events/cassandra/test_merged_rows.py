"""Rows of mirrors of Cassandra as whole rows, without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import ROW, STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.jobs.events.cassandra.merged_rows import CassandraRows
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.offline.cassandra import _source
from airflow_cdc_provider.lake.mirror import MirrorState
from airflow_cdc_provider.lake.table import Head
from tests.unit.jobs.events.cassandra.reread_cluster import RECORDING, TABLE
from tests.unit.jobs.offline.datastax_recording import NOW_NS
from tests.unit.jobs.runs import stores_of
from tests.unit.sources.cassandra.select_pages import select_row, snapshot_records

WRITTEN_US = NOW_NS // 1000 - 5_000_000
KEY = {"p1": "p", "p2": 1, "c1": 0, "c2": "x"}


@dataclass(frozen=True)
class Rows(CassandraRows):
    """Returns static cells as if from the tombstone table."""

    static_states: pa.Array

    def _static_columns(self, keys: pa.Array, now_seconds: int) -> pa.Array:
        return self.static_states


def made(
    *ops: str, with_static: bool = True, partition: bool = False, **cassandra: Any
) -> list[dict[str, Any]]:
    """Make events of one row of a mirror as if it had become what ops say, or of its partition alone."""
    connector = Connector.from_dict(
        {
            "name": "p",
            "source": {"type": "cassandra"},
            "publish": {"envelope": "datastax", "cassandra": cassandra},
        }
    )
    source = _source(connector, RECORDING)
    schema = source.schemas.tables[TABLE]
    numbers = {"p2": 1, "c1": 0, "st": 7}
    raw = {name: number.to_bytes(4, "big") for name, number in numbers.items()}
    raw |= {"p1": b"p", "c2": b"x", "v": b"now"}
    read = snapshot_records(schema, [select_row(schema, raw, {"v": WRITTEN_US, "st": WRITTEN_US}, {})])
    codec = source.codec_of(schema)
    found = codec.decode(read, ()).contributions
    row, static = (found.filter(pc.equal(found["scope"], scope)) for scope in (ROW, STATIC))
    state = None if partition else row["state"][0].as_py()
    kept = [static["state"][0].as_py() if with_static else None] * len(ops)
    rows = Rows(
        connector,
        stores_of(connector),
        source,
        TABLE,
        codec,
        MirrorState(Head(None)),
        pa.array(kept, pa.binary()),
    )
    assert rows.columns == ("st",)
    batch = pa.RecordBatch.from_pydict(
        {
            "op": pa.array(ops),
            "key": pa.array([row["key"][0].as_py()] * len(ops), pa.binary()),
            "state": pa.array([state] * len(ops), pa.binary()),
        }
    )
    records = rows.builder(NOW_NS, None, SkippedRecords(strict=True))(batch)
    return [json.loads(line) for line in text_of(to_lines(records, ())).splitlines()]


def test_rows_have_whole_events_with_their_static_columns_or_deletions() -> None:
    read, changed, gone = made("r", "u", "d")
    for event in (read, changed):
        assert json.loads(event["key"]) == KEY
        assert json.loads(event["value"]) == {"v": "now", "w": None, "st": 7}
        assert event["headers"] == [["writetime", f'"{WRITTEN_US}"']]
    assert (json.loads(gone["key"]), gone["value"]) == (KEY, None)
    assert gone["headers"] == [["writetime", f'"{NOW_NS // 1000}"']], "when it went isn't known"
    (bare,) = made("c", with_static=False)
    assert json.loads(bare["value"])["st"] is None


def test_partitions_with_only_static_columns_have_an_event_with_them() -> None:
    there, now_with_rows = made("c", "d", partition=True)
    for event in (there, now_with_rows):
        assert json.loads(event["key"]) == {**KEY, "c1": None, "c2": None}
        assert json.loads(event["value"]) == {"st": 7}, "rows that came don't take them away"
    (gone,) = made("d", with_static=False, partition=True)
    assert gone["value"] is None


def test_the_format_without_keys_in_messages_has_them_in_values() -> None:
    changed, gone = made("u", "d", key_in_value=True)
    assert json.loads(changed["value"]) == {**KEY, "v": "now", "w": None, "st": 7}
    assert gone["value"] == "{}"
