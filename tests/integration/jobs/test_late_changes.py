"""Changes that land from quarantine after deletions that cover them were to be forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


def forgetful(keyspace: str, server: CassandraServer) -> dict[str, Any]:
    return {
        "name": f"late_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
        "tables": [rf"{keyspace}\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": keyspace, "tombstone_retention_seconds": 0},
    }


@pytest.mark.covers("CAS-GAP-05")
def test_what_could_not_be_decoded_revives_nothing_that_was_deleted_since(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = forgetful(keyspace, cassandra_server)
    run = cassandra_session.execute
    table, mirror = f"{keyspace}.t", f"{keyspace}.{keyspace}_t"
    codec = CassandraSource.codec

    def outdated(self: CassandraSource, name: str, memory: Any = None) -> CassandraCodec:
        schema = codec(self, name, memory).schema
        columns = tuple(column for column in schema.columns if column.name != "n")
        return recall_codec(replace(schema, columns=columns), memory)

    def sync() -> None:
        cassandra_server.roll_segment(cassandra_session)
        run_stage("sync", shop, connection)

    run(f"CREATE TABLE {table} (k int PRIMARY KEY, v int, n int) WITH cdc = true")
    run(f"INSERT INTO {table} (k, v) VALUES (0, 0)")
    run(f"INSERT INTO {table} (k, n) VALUES (1, 1) USING TIMESTAMP 10")
    run(f"INSERT INTO {table} (k, n) VALUES (2, 2) USING TIMESTAMP 10")
    run(f"DELETE FROM {table} USING TIMESTAMP 20 WHERE k = 1")
    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "codec", outdated)
        sync()  # sets them apart
        run(f"DELETE FROM {table} USING TIMESTAMP 20 WHERE k = 2")
        sync()  # while they are

    sync()

    assert spark.table(f"lake.{keyspace}.late_{keyspace}_quarantine").count() == 0
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, table) == 1
    remembered = spark.table(f"lake.{mirror}__side").count()
    # Of other tables that were dropped on this server; they hold deletions back for all.
    spark.sql(f"DELETE FROM lake.{keyspace}.late_{keyspace}_changes WHERE kind = 'quarantine'")
    run(f"DELETE FROM {table} WHERE k = 0")
    sync()
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, table) == 0
    assert spark.table(f"lake.{mirror}__side").count() == remembered, "deletions are forgotten again"


@pytest.mark.covers("CAS-GAP-05")
def test_what_was_set_apart_at_capture_revives_nothing_that_was_deleted_since(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mutation that begins with a table that no schema knows hides what it holds of others."""
    shop = forgetful(keyspace, cassandra_server)
    run = cassandra_session.execute
    for name in ("goes", "stays"):
        run(f"CREATE TABLE {keyspace}.{name} (k int PRIMARY KEY, v int) WITH cdc = true")
    both = " ".join(f"INSERT INTO {keyspace}.{name} (k, v) VALUES (1, 1);" for name in ("goes", "stays"))
    run(f"BEGIN BATCH USING TIMESTAMP 10 {both} APPLY BATCH")
    run(f"DROP TABLE {keyspace}.goes")
    run(f"DELETE FROM {keyspace}.stays USING TIMESTAMP 20 WHERE k = 1")
    cassandra_server.roll_segment(cassandra_session)
    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "learn", lambda self, records: None)
        outcome = run_stage("sync", shop, connection)
    assert any("quarantine" in finding for finding in outcome.findings)

    again = run_stage("sync", shop, connection)

    assert not again.findings
    assert {t.table: t.changes for t in again.tables} == {f"{keyspace}.stays": 1}
    mirror = f"{keyspace}.{keyspace}_stays"
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, f"{keyspace}.stays") == 0
