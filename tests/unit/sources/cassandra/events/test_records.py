"""Which records are of which table when events are made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, SNAPSHOT, TRUNCATE
from airflow_cdc_provider.sources.cassandra.events.changes import nodes_of, table_ids_of
from airflow_cdc_provider.sources.cql.describe import parse_cql

PLAIN, COUNTER = "29e3de10e58011f1a764fd2ee712b6e7", "30736700e58011f1a764fd2ee712b6e7"
TABLES = parse_cql(
    """
    CREATE TABLE k.t (p int PRIMARY KEY) WITH ID = 29e3de10-e580-11f1-a764-fd2ee712b6e7;
    CREATE TABLE k.n (p int PRIMARY KEY, c counter) WITH ID = 30736700-e580-11f1-a764-fd2ee712b6e7;
    """
)


def test_a_record_is_of_the_table_that_it_names_and_counters_count_by_snapshots() -> None:
    source: Any = SimpleNamespace(schemas=TABLES, tables=lambda: ["k.n", "k.t"])
    gone = "ff" * 16
    records = [
        {"source_table": "k.t", "kind": CHANGE, "payload": b"\7" + bytes.fromhex(PLAIN) + b"rest"},
        {"source_table": "k.t", "kind": CHANGE, "payload": b"\7" + bytes.fromhex(gone) + b"rest"},
        {"source_table": "k.t", "kind": SNAPSHOT, "schema_id": PLAIN, "payload": b"S"},
        {"source_table": "k.t", "kind": SNAPSHOT, "schema_id": gone, "payload": b"S"},
        {"source_table": "k.t", "kind": SNAPSHOT, "payload": b"S"},
        {"source_table": "k.t", "kind": TRUNCATE, "schema_id": PLAIN, "payload": b"T" + bytes(20)},
        {"source_table": "k.n", "kind": CHANGE, "payload": b"\7" + bytes.fromhex(COUNTER) + b"rest"},
        {"source_table": "k.n", "kind": SNAPSHOT, "schema_id": COUNTER, "payload": b"S"},
    ]
    batch = pa.RecordBatch.from_pylist(records, CHANGE_SCHEMA)
    found = [None if one is None else one.hex() for one in table_ids_of(batch, source).to_pylist()]
    assert found == [PLAIN, gone, PLAIN, gone, PLAIN, None, None, COUNTER]


def test_rows_of_a_snapshot_have_no_node_at_any_position() -> None:
    records = [{"kind": CHANGE, "origin": "a"}, {"kind": SNAPSHOT, "origin": "b"}, {"kind": SNAPSHOT}]
    assert nodes_of(pa.RecordBatch.from_pylist(records, CHANGE_SCHEMA)).to_pylist() == ["a", None, None]
