"""Log tables of the imitation to events: what the capture reads, the event decoder takes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.events.scylla import ScyllaRecords
from airflow_cdc_provider.jobs.offline.recordings import Damage
from airflow_cdc_provider.sources.scylla.event_tables import event_table
from server_kit import CassandraServer
from server_kit.scylla import Preimage, Workload, draw_table
from server_kit.scylla.log_rows import INSERT, PARTITION_DELETE, ROW_DELETE, UPDATE
from server_kit.scylla.statements import DeletePartition, SetWhole, Update
from tests.integration.sources.scylla.captured import Captured, scylla_source
from tests.integration.sources.scylla.test_log_reading import imitated, insert, item

pytestmark = pytest.mark.integration


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"k{random.randrange(10**9)}"
    yield name
    for suffix in ("", "_distributed", "_system", "_schema"):
        cassandra_session.execute(f"DROP KEYSPACE IF EXISTS {name}{suffix}")


def events(captured: Captured, damage: Damage, **publish: Any) -> list[dict[str, Any]]:
    """Return the records of all that was captured: topic, key and value as JSON."""
    told = {"name": "shop", "source": {"type": "scylla"}, "publish": {"topic_prefix": "my", **publish}}
    payloads = {(r["source_table"], r["schema_id"]): r["payload"] for r in captured.source.schema_records()}
    tables = {name: event_table(payload) for name, payload in payloads.items()}
    maker = ScyllaRecords(Connector.from_dict(told), 0, lambda *name: tables[name], damage)
    changes = pa.Table.from_batches(captured.changes, CHANGE_SCHEMA).sort_by("committed_at")
    (batch,) = changes.combine_chunks().to_batches()
    return [
        {
            "topic": row["topic"],
            "key": json.loads(row["key"]),
            "value": row["value"] and json.loads(row["value"]),
        }
        for row in maker.made(batch).to_pylist()
    ]


def test_what_is_captured_of_a_table_are_events_of_its_rows(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace, preimage=Preimage.ON, postimage=True))
    key = (b"\0\0\0\1",)
    cluster.execute("item", insert(1, 5))
    cluster.execute("item", Update(key, (), (SetWhole("qty", b"\0\0\0\6"),)))
    cluster.execute("item", DeletePartition(key))
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    asked = {"format": "advanced", "before": "full", "after": "full"}
    found = events(captured, Damage(strict=True), scylla=asked, tombstones=False)
    assert {row["topic"] for row in found} == {f"my.{keyspace}.item"}
    rows = [(r["value"]["op"], r["value"]["before"], r["value"]["after"]) for r in found]
    before = {"sku": 1, "qty": 6} if cluster.release >= "2026" else None
    assert rows == [
        ("c", None, {"sku": 1, "qty": 5}),
        ("u", {"sku": 1, "qty": 5}, {"sku": 1, "qty": 6}),
        ("d", before, None),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_all_that_random_requests_log_is_shown(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str, seed: int
) -> None:
    chance = random.Random(seed)
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    table = draw_table(chance, keyspace, "drawn")
    cluster.create_table(table)
    logged = [
        change
        for request in Workload(table, chance).requests(60)
        for change in cluster.execute("drawn", request)
    ]
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    damage = Damage(strict=True)
    for form in ("legacy", "advanced"):
        chosen = {"format": form, "source_details": True, "collection_changes": True}
        found = events(captured, damage, scylla=chosen, tombstones=False)
        codes = (INSERT, UPDATE, ROW_DELETE, *(() if table.clustering else (PARTITION_DELETE,)))
        # Rows of one key and change are one event: there is at least one of each key.
        keys = {
            (c.stream, c.timeuuid, row.clustering)
            for c in logged
            for row in c.change.rows
            if row.operation in codes
        }
        times = {(r["value"]["source"]["stream_id"], r["value"]["source"]["time"]) for r in found}
        assert len(found) >= len(keys)
        assert len(times) == len({(stream, time) for stream, time, _ in keys})
