"""Merges that end between their steps: what a reader sees then, and what the next run makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.jobs import merge as merge_stage
from airflow_cdc_provider.lake.iceberg import IcebergTable
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


class Killed(BaseException):
    """Ends a job as a kill does: nothing after it runs."""


def declaration(keyspace: str, server: CassandraServer) -> dict[str, Any]:
    return {
        "name": f"cut_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
        "tables": [rf"{keyspace}\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": keyspace},
    }


def assert_equal(spark: SparkSession, session: Any, keyspace: str, table: str) -> int:
    session.cluster.refresh_table_metadata(keyspace, table)
    return assert_mirror_equals_table(spark, session, f"{keyspace}.{keyspace}_{table}", f"{keyspace}.{table}")


def kill_before_the_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """End merges after their mirrors' columns were fitted."""

    def killed(*arguments: Any) -> None:
        raise Killed

    monkeypatch.setattr(merge_stage, "_merge_all", killed)


def test_statics_written_by_a_killed_merge_never_show_as_another_column(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a first merge, and in one that brings a new column; ``aa`` sorts before ``zz``."""
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    append = IcebergTable.append
    killed: list[str] = []

    def append_and_die(self: IcebergTable, rows: Any) -> None:
        append(self, rows)
        killed.append(self.name)
        raise Killed

    def sync() -> None:
        cassandra_server.roll_segment(cassandra_session)
        run_stage("sync", shop, connection)

    run(f"CREATE TABLE {keyspace}.old (k int, c int, v int, PRIMARY KEY (k, c)) WITH cdc = true")
    run(f"INSERT INTO {keyspace}.old (k, c, v) VALUES (1, 1, 1)")
    sync()
    run(f"ALTER TABLE {keyspace}.old ADD zz text static")
    run(f"CREATE TABLE {keyspace}.new (k int, c int, zz text static, PRIMARY KEY (k, c)) WITH cdc = true")
    for table in ("old", "new"):
        run(f"INSERT INTO {keyspace}.{table} (k, c, zz) VALUES (1, 1, 'zz')")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(IcebergTable, "append", append_and_die)
        sync()
    assert sorted(killed) == [f"{keyspace}.{keyspace}_{table}__side" for table in ("new", "old")]
    for table in ("old", "new"):
        run(f"ALTER TABLE {keyspace}.{table} ADD aa text static")
    for c in (2, 3):
        for table in ("old", "new"):
            run(f"INSERT INTO {keyspace}.{table} (k, c) VALUES (1, {c})")
        sync()
        for table in ("old", "new"):
            assert assert_equal(spark, cassandra_session, keyspace, table) == c


def test_a_column_made_anew_after_a_killed_merge_is_followed(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The killed merge has made the column already, with a type that the new one doesn't fit."""
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    name = f"{keyspace}.t"
    run(f"CREATE TABLE {name} (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"INSERT INTO {name} (k, v) VALUES (1, 1)")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    run(f"ALTER TABLE {name} ADD n timestamp")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kill_before_the_merge(patched)
        run_stage("sync", shop, connection)
    assert "n" in spark.table(f"lake.{keyspace}.{keyspace}_t").columns
    run(f"ALTER TABLE {name} DROP n")
    run(f"ALTER TABLE {name} ADD n bigint")
    run(f"INSERT INTO {name} (k, n) VALUES (1, 7)")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_equal(spark, cassandra_session, keyspace, "t") == 1


@pytest.mark.covers("CAS-GAP-08")
def test_rows_of_a_dropped_table_never_show_under_the_columns_of_its_successor(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fitted to the new columns, each of them would show nothing but nulls, also in its key."""
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    name = f"{keyspace}.t"
    run(f"CREATE TABLE {name} (k int PRIMARY KEY, v int) WITH cdc = true")
    for k in range(3):
        run(f"INSERT INTO {name} (k, v) VALUES ({k}, 1)")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    for kind, value in (("text", "'x'"), ("double", "0.5")):
        run(f"DROP TABLE {name}")
        run(f"CREATE TABLE {name} (k {kind} PRIMARY KEY, v {kind}) WITH cdc = true")
        run(f"INSERT INTO {name} (k, v) VALUES ({value}, {value})")
        cassandra_server.roll_segment(cassandra_session)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_before_the_merge(patched)
            run_stage("sync", shop, connection)
        assert spark.table(f"lake.{keyspace}.{keyspace}_t").count() == 0
    run_stage("sync", shop, connection)
    assert assert_equal(spark, cassandra_session, keyspace, "t") == 1
    assert run_stage("verify", shop, connection).ok


def test_a_mirror_that_was_dropped_begins_without_what_stood_beside_it(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    """The side table names columns by ids that went with the mirror; ``aa`` sorts before ``zz``."""
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    name = f"{keyspace}.t"
    run(f"CREATE TABLE {name} (k int, c int, zz text static, PRIMARY KEY (k, c)) WITH cdc = true")
    run(f"INSERT INTO {name} (k, c, zz) VALUES (1, 1, 'zz')")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    spark.sql(f"DROP TABLE lake.{keyspace}.{keyspace}_t")
    run(f"ALTER TABLE {name} ADD aa text static")
    for c in (2, 3):
        run(f"INSERT INTO {name} (k, c) VALUES (1, {c})")
        cassandra_server.roll_segment(cassandra_session)
        run_stage("sync", shop, connection)
        assert assert_equal(spark, cassandra_session, keyspace, "t") == c
