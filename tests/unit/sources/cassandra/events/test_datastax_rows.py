"""Rows of mirrors of Cassandra as whole rows, without Spark."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import ROW, STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.cassandra.events.recording import _source
from airflow_cdc_provider.sources.cassandra.events.rows import DatastaxRows
from airflow_cdc_provider.sources.cql.events.known_static_columns import NEVER_WRITTEN, KnownStaticColumns
from tests.unit.sources.cassandra.events.datastax_recording import NOW_NS
from tests.unit.sources.cassandra.events.reread_cluster import RECORDING, TABLE
from tests.unit.sources.cassandra.select_pages import select_row, snapshot_records

WRITTEN_US = NOW_NS // 1000 - 5_000_000
KEY = {"p1": "p", "p2": 1, "c1": 0, "c2": "x"}


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
    kept = static["state"][0].as_py() if with_static else None

    def known_of(keys: pa.Array, now_seconds: int) -> KnownStaticColumns:
        """Return static cells as if from the tombstone table."""
        states = pa.array([kept] * len(keys), pa.binary())
        return KnownStaticColumns(states, np.full(len(keys), NEVER_WRITTEN))

    rows = DatastaxRows(connector=connector, codec=codec, excluded=(), known_of=known_of)
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
