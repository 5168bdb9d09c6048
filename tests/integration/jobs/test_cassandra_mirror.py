"""Cassandra: the mirror equals the table, whatever happens."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs import snapshot
from airflow_cdc_provider.jobs import sync as sync_stage
from airflow_cdc_provider.lake.changes_table import ChangesTable
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table
from tests.integration.jobs.workloads import CASSANDRA_TABLES, create_cassandra, write_cassandra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"k{random.randrange(10**9)}"
    create_cassandra(cassandra_session, name)
    yield name
    cassandra_session.execute(f"DROP KEYSPACE {name}")


def declaration(keyspace: str, server: CassandraServer, **more: Any) -> dict[str, Any]:
    return {
        "name": f"cassandra_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
        "tables": [rf"{keyspace}\..*"],
        "lake": {"catalog": "lake", "namespace": keyspace},
        **more,
    }


def assert_mirrors_equal(spark: SparkSession, session: Any, keyspace: str) -> int:
    return sum(
        assert_mirror_equals_table(spark, session, f"{keyspace}.{keyspace}_{table}", f"{keyspace}.{table}")
        for table in CASSANDRA_TABLES
    )


def settle(server: CassandraServer, session: Any) -> None:
    """Let short TTLs run out, and close the segment so that everything written is readable."""
    time.sleep(3)
    server.roll_segment(session)


@pytest.mark.covers(
    "CAS-LIM-06", "CAS-UNSUP-01", "CAS-UNSUP-02", "CAS-GAP-02", "CAS-GAP-03", "DSX-CON-08", "CAS-SNAP-03"
)
def test_mirrors_equal_tables_after_random_statements_read_from_the_log_alone(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server, snapshot={"mode": "never"})
    for seed in range(3):
        write_cassandra(cassandra_session, keyspace, seed, count=400)
        settle(cassandra_server, cassandra_session)
        outcome = run_stage("sync", shop, connection)
        assert outcome.changes > 300
        assert not any(t.undecodable or t.snapshot_rows or t.doubtful for t in outcome.tables)
        assert not any("read again" in t.note for t in outcome.tables), "nothing is asked of the tables"
        assert assert_mirrors_equal(spark, cassandra_session, keyspace) > 10
    assert run_stage("verify", shop, connection).ok


def test_growing_segment_is_read_up_to_what_is_durable(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server, snapshot={"mode": "never"})
    for seed in range(10, 14):
        write_cassandra(cassandra_session, keyspace, seed, count=60)
        time.sleep(3)
        run_stage("sync", shop, connection)
        assert_mirrors_equal(spark, cassandra_session, keyspace)


@pytest.mark.covers("CAS-C50-01")
def test_rows_that_never_were_in_the_log_are_found_by_verify_and_brought_by_a_snapshot(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server, snapshot={"mode": "never"})
    insert = f"INSERT INTO {keyspace}.plain (id, a) VALUES (%s, 'x')"
    cassandra_session.execute(insert, (1,))
    # As what a repair brings with cdc_on_repair_enabled: false.
    cassandra_session.execute(f"ALTER KEYSPACE {keyspace} WITH durable_writes = false")
    cassandra_session.execute(insert, (2,))
    cassandra_session.execute(f"ALTER KEYSPACE {keyspace} WITH durable_writes = true")
    cassandra_session.execute(insert, (3,))
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert spark.table(f"lake.{keyspace}.{keyspace}_plain").count() == 2

    verified = run_stage("verify", shop, connection)
    assert not verified.ok
    assert {t.table: t.differences for t in verified.tables if t.differences} == {f"{keyspace}.plain": 1}
    run_stage("snapshot", shop, connection, (f"{keyspace}.plain",))
    run_stage("merge", shop, connection)

    assert run_stage("verify", shop, connection).ok
    assert_mirrors_equal(spark, cassandra_session, keyspace)


@pytest.mark.covers("CAS-GAP-09")
def test_rows_that_expire_leave_the_mirror_with_the_next_run(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server, snapshot={"mode": "never"})
    cassandra_session.execute(f"INSERT INTO {keyspace}.plain (id, a) VALUES (1, 'stays')")
    cassandra_session.execute(f"INSERT INTO {keyspace}.plain (id, a) VALUES (2, 'goes') USING TTL 20")
    time.sleep(1)
    run_stage("sync", shop, connection)
    assert spark.table(f"lake.{keyspace}.{keyspace}_plain").count() == 2
    time.sleep(20)

    run_stage("sync", shop, connection)

    assert spark.table(f"lake.{keyspace}.{keyspace}_plain").count() == 1
    assert_mirrors_equal(spark, cassandra_session, keyspace)


@pytest.mark.covers("CAS-SNAP-01", "DSX-CON-08", "DSX-CON-09", "CAS-SNAP-02", "CAS-SNAP-09")
def test_snapshot_and_log_together_equal_the_table(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server)
    write_cassandra(cassandra_session, keyspace, 20, count=300)
    cassandra_session.execute(f"CREATE TABLE {keyspace}.late (id int PRIMARY KEY, v int)")
    for number in range(10):
        cassandra_session.execute(f"INSERT INTO {keyspace}.late (id, v) VALUES ({number}, 0)")
    settle(cassandra_server, cassandra_session)
    first = run_stage("sync", shop, connection)
    assert {t.table: bool(t.snapshot_rows) for t in first.tables} == {
        f"{keyspace}.{table}": True for table in CASSANDRA_TABLES
    }
    assert_mirrors_equal(spark, cassandra_session, keyspace)

    write_cassandra(cassandra_session, keyspace, 21, count=200)
    cassandra_session.execute(f"ALTER TABLE {keyspace}.late WITH cdc = true")
    cassandra_session.execute(f"INSERT INTO {keyspace}.late (id, v) VALUES (1, 1)")
    settle(cassandra_server, cassandra_session)
    second = run_stage("sync", shop, connection)

    read = {t.table: t.snapshot_rows for t in second.tables if t.snapshot_rows}
    assert read == {f"{keyspace}.late": 10}, "what was read once is not read again"
    assert_mirrors_equal(spark, cassandra_session, keyspace)
    late = f"{keyspace}.late"
    assert assert_mirror_equals_table(spark, cassandra_session, f"{keyspace}.{keyspace}_late", late) == 10


@pytest.mark.covers("CAS-FAULT-05", "CAS-SNAP-08")
def test_a_sync_that_ends_at_any_boundary_is_made_good_by_the_next(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(keyspace, cassandra_server)
    for limit in ("_RANGES_PER_CORE", "_MOST_RANGES_PER_CORE"):
        monkeypatch.setattr(snapshot, limit, 4)

    def ended(*_: Any, **__: Any) -> None:
        raise InterruptedError

    def ends_at(target: Any, name: str, value: Any = ended) -> None:
        with monkeypatch.context() as interrupted, pytest.raises(InterruptedError):
            interrupted.setattr(target, name, value)
            run_stage("sync", shop, connection)

    write_cassandra(cassandra_session, keyspace, 30, count=300)
    settle(cassandra_server, cassandra_session)
    append = ChangesTable.append_batch
    commits: list[int] = []

    def append_four(*arguments: Any, **options: Any) -> Any:
        if len(commits) == 4:
            raise InterruptedError
        commits.append(1)
        return append(*arguments, **options)

    ends_at(ChangesTable, "append_batch", append_four)  # in the middle of the tables' snapshots
    ends_at(sync_stage, "capture")
    ends_at(sync_stage, "merge_tables")
    run_stage("sync", shop, connection)
    assert_mirrors_equal(spark, cassandra_session, keyspace)
    seen = spark.table(f"lake.{keyspace}.cassandra_{keyspace}_changes").where("kind = 'snapshot'")
    assert seen.count() == seen.select("source_table", "origin", "position").distinct().count()

    write_cassandra(cassandra_session, keyspace, 31, count=200)
    settle(cassandra_server, cassandra_session)
    ends_at(sync_stage, "merge_tables")
    ends_at(sync_stage, "report")
    write_cassandra(cassandra_session, keyspace, 32, count=50)
    settle(cassandra_server, cassandra_session)
    run_stage("sync", shop, connection)
    assert_mirrors_equal(spark, cassandra_session, keyspace)


@pytest.mark.covers("CAS-FAULT-01")
def test_a_wrong_address_is_named_and_the_next_run_goes_on(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = {**declaration(keyspace, cassandra_server), "tables": [rf"{keyspace}\.plain"]}
    table, mirror = f"{keyspace}.plain", f"{keyspace}.{keyspace}_plain"
    cassandra_session.execute(f"INSERT INTO {table} (id, a) VALUES (1, 'before')")
    settle(cassandra_server, cassandra_session)

    with pytest.raises(TransientError, match=rf"{connection['host']}', 1\)"):
        run_stage("sync", shop, {**connection, "port": 1})
    run_stage("sync", shop, connection)
    cassandra_session.execute(f"INSERT INTO {table} (id, a) VALUES (2, 'after')")
    settle(cassandra_server, cassandra_session)
    (outcome,) = run_stage("sync", shop, connection).tables

    assert (outcome.snapshot_rows, outcome.rows_written) == (0, 1)
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, table) == 2


def _kill_and_recover(
    spark: SparkSession,
    application: Application,
    server: CassandraServer,
    session: Any,
    keyspace: str,
    connection: dict[str, Any],
    kills: int,
) -> None:
    shop = declaration(keyspace, server)
    shop["lake"]["catalog_options"] = {
        "type": "hadoop",
        "warehouse": spark.conf.get("spark.sql.catalog.lake.warehouse"),
    }

    def begin(number: int) -> subprocess.Popen[bytes]:
        write_cassandra(session, keyspace, 100 + number, count=100)
        return application.start("sync", shop, connection, batch_bytes=20_000)

    application.kill_often(kills, begin)
    settle(server, session)
    outcome = application.wait(application.start("sync", shop, connection))
    assert outcome.ok, outcome.error
    assert_mirrors_equal(spark, session, keyspace)
    changes = spark.table(f"lake.{keyspace}.cassandra_{keyspace}_changes").where("kind = 'change'")
    places = changes.select("source_table", "origin", "position")
    assert places.distinct().count() == places.count() > 100, "what was committed is not captured again"


@pytest.mark.covers("CAS-FAULT-04", "CAS-FAULT-05", "DSX-AGT-01", "CAS-SNAP-08")
def test_killed_sync_is_made_good_by_the_next_run(
    spark: SparkSession,
    application: Application,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    _kill_and_recover(spark, application, cassandra_server, cassandra_session, keyspace, connection, kills=2)


@pytest.mark.covers("CAS-FAULT-05")
@pytest.mark.faults
def test_sync_killed_twenty_times_loses_and_doubles_nothing(
    spark: SparkSession,
    application: Application,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    _kill_and_recover(spark, application, cassandra_server, cassandra_session, keyspace, connection, kills=20)
