"""Log tables of the imitation to events: what the capture reads, the event decoder takes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.scylla.events.records import ScyllaRecords
from airflow_cdc_provider.sources.scylla.events.tables import LogSchemas
from airflow_cdc_provider.sources.scylla.quarantine import payload_rows
from server_kit import CassandraServer
from server_kit.scylla import Column, Preimage
from server_kit.scylla.cluster import token_of_key
from server_kit.scylla.statements import DeletePartition, SetWhole, Update
from tests.integration.imitated_keyspace import imitated_keyspace
from tests.integration.sources.scylla.captured import Captured, row_values, scylla_source
from tests.integration.sources.scylla.logged_tables import NUMBER, imitated, insert, item, log_row

pytestmark = pytest.mark.integration


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    yield from imitated_keyspace(cassandra_session)


def events(captured: Captured, skipped: SkippedRecords, **publish: Any) -> list[dict[str, Any]]:
    """Return the records of all that was captured: topic, key and value as JSON."""
    declaration = {"name": "shop", "source": {"type": "scylla"}, "publish": {"topic_prefix": "my", **publish}}
    schemas = LogSchemas((r["source_table"], 0, r["payload"]) for r in captured.source.schema_records())
    maker = ScyllaRecords(Connector.from_dict(declaration), 0, schemas, skipped)
    changes = pa.Table.from_batches(captured.changes, CHANGE_SCHEMA).sort_by("committed_at")
    (batch,) = changes.combine_chunks().to_batches()
    return [
        {
            "topic": row["topic"],
            "key": json.loads(row["key"]),
            "value": row["value"] and json.loads(row["value"]),
        }
        for row in maker.build(batch).to_pylist()
    ]


@pytest.mark.covers("SCY-IMG-01")
def test_what_is_captured_of_a_table_are_events_of_its_rows(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    images: dict[str, Any] = {
        "preimage": Preimage.ON,
        "preimage_of_partition_deletes": True,
        "postimage": True,
    }
    cluster.create_table(item(keyspace, **images))
    key = (b"\0\0\0\1",)
    cluster.execute("item", insert(1, 5))
    cluster.execute("item", Update(key, (), (SetWhole("qty", b"\0\0\0\6"),)))
    cluster.execute("item", DeletePartition(key))
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    options = {"format": "advanced", "before": "full", "after": "full"}
    found = events(captured, SkippedRecords(strict=True), scylla=options, tombstones=False)
    assert {row["topic"] for row in found} == {f"my.{keyspace}.item"}
    rows = [(r["value"]["op"], r["value"]["before"], r["value"]["after"]) for r in found]
    assert rows == [
        ("c", None, {"sku": 1, "qty": 5}),
        ("u", {"sku": 1, "qty": 5}, {"sku": 1, "qty": 6}),
        ("d", {"sku": 1, "qty": 6}, None),
    ]


@pytest.mark.covers("SCY-LOG-04")
def test_log_rows_name_stream_time_operation_key_and_what_was_modified(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    table = replace(item(keyspace), regular=(Column("qty", NUMBER), Column("price", NUMBER)))
    cluster.create_table(table)
    key = (b"\0\0\0\1",)
    cluster.execute("item", insert(1, 5))
    cluster.execute("item", Update(key, (), (SetWhole("price", b"\0\0\0\6"), SetWhole("qty", None))))
    cluster.execute("item", DeletePartition(key))
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    rows = [
        dict(row_values(row, captured.columns[record["schema_id"]]))
        for record in sorted(captured.records, key=lambda record: record["committed_at"])
        for row in payload_rows(record["payload"])
    ]
    common = {"cdc$stream_id", "cdc$time", "cdc$operation", "cdc$batch_seq_no", "cdc$end_of_batch", "sku"}
    assert [set(row) for row in rows] == [
        common | {"qty"},
        common | {"price", "cdc$deleted_qty"},
        common,
    ]
    assert [row["cdc$operation"][0] for row in rows] == [2, 1, 4]
    assert {row["sku"] for row in rows} == set(key)
    streams = [row["cdc$stream_id"] for row in rows]
    assert streams == [cluster.generations.sets[0].stream_for(token_of_key(table, key))] * 3


@pytest.mark.covers("SCY-EVT-21")
def test_a_change_whose_end_never_comes_stops_the_capture_and_nothing_is_lost(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace, preimage=Preimage.ON, postimage=True))
    cluster.execute("item", insert(1, 5))
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    read_to = captured.offset
    update = Update((b"\0\0\0\1",), (), (SetWhole("qty", b"\0\0\0\6"),))
    change, _ = cluster.execute("item", update, insert(2, 7))
    last = log_row(change).removesuffix("0") + str(len(change.change.rows) - 1)
    written_us = change.change.time
    cassandra_session.execute(
        f"DELETE FROM {keyspace}.item_scylla_cdc_log USING TIMESTAMP {written_us} WHERE {last}"
    )
    committed = list(captured.changes)
    with pytest.raises(CorruptInput) as raised:
        captured.run()
    where = f"stream 0x{change.stream.hex()}, cdc$time {uuid.UUID(bytes=change.timeuuid)}"
    assert f"a change of {keyspace}.item is incomplete" in str(raised.value)
    assert where in str(raised.value)
    assert "nodetool repair" in (raised.value.remedy or "")
    assert captured.offset == read_to
    captured.changes = committed  # what a failed batch read is in no commit
    # The replica that has the row answers again.
    cluster.write_log([replace(change, change=replace(change.change, time=written_us + 1))])
    captured.run()
    found = events(captured, SkippedRecords(strict=True), scylla={"preimages": True})
    assert [(r["value"]["op"], r["key"]) for r in found] == [
        ("c", {"sku": 1}),
        ("u", {"sku": 1}),
        ("c", {"sku": 2}),
    ]
    assert found[1]["value"]["before"] == {"sku": 1, "qty": {"value": 5}}
