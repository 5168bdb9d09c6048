"""Cassandra: capture goes on through schema changes, and the mirror's columns follow the table's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from server_kit.ports import free_port
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"d{random.randrange(10**9)}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra_session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
    yield name
    cassandra_session.execute(f"DROP KEYSPACE {name}")


@pytest.fixture
def connection(cassandra_server: CassandraServer) -> dict[str, Any]:
    return {"host": cassandra_server.host, "port": cassandra_server.port}


def declaration(keyspace: str, server: CassandraServer) -> dict[str, Any]:
    return {
        "name": f"drift_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
        "tables": [rf"{keyspace}\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": keyspace},
    }


def assert_same_columns_and_rows(spark: SparkSession, session: Any, keyspace: str, table: str) -> int:
    mirror = f"{keyspace}.{keyspace}_{table}"
    session.cluster.refresh_table_metadata(keyspace, table)
    columns = list(session.cluster.metadata.keyspaces[keyspace].tables[table].columns)
    found = spark.table(f"lake.{mirror}").columns
    assert sorted(found) == sorted([*columns, "_cdc"])
    return assert_mirror_equals_table(spark, session, mirror, f"{keyspace}.{table}")


def captured(spark: SparkSession, keyspace: str) -> dict[str, int]:
    """Count the changes in the changes table."""
    changes = spark.table(f"lake.{keyspace}.drift_{keyspace}_changes").where("kind = 'change'")
    return {row["source_table"]: row["count"] for row in changes.groupBy("source_table").count().collect()}


@pytest.mark.covers("CAS-SCHEMA-01", "CAS-LIM-04", "CAS-LIM-05", "CAS-GAP-08")
def test_mirror_follows_columns_that_come_go_and_are_renamed(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server)
    name = f"{keyspace}.evo"
    run = cassandra_session.execute
    run(f"CREATE TYPE {keyspace}.pair (x int, y text)")
    run(
        f"CREATE TABLE {name} (k int, c int, a int, b text, p frozen<{keyspace}.pair>, m map<text, int>, "
        "PRIMARY KEY (k, c)) WITH cdc = true"
    )
    number = 0

    def write(columns: str, *values: Any) -> None:
        nonlocal number
        for _ in range(3):
            number += 1
            run(
                f"INSERT INTO {name} ({columns}) VALUES ({', '.join(['%s'] * len(values))})",
                (*values[:1], number, *values[2:]),
            )

    def synced() -> None:
        cassandra_server.roll_segment(cassandra_session)
        outcome = run_stage("sync", shop, connection)
        assert not any(t.undecodable for t in outcome.tables)
        assert not outcome.findings
        assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "evo") == number

    write("k, c, a, b, m", 1, 0, 7, "old", {"x": 1})
    run(f"INSERT INTO {name} (k, c, p) VALUES (9, 9, {{x: 1, y: 'one'}})")
    number += 1
    synced()
    # One statement after the other, each between writes, all captured at once.
    run(f"ALTER TABLE {name} ADD n frozen<list<int>>")
    write("k, c, n", 2, 0, [1, 2])
    run(f"ALTER TABLE {name} DROP b")
    write("k, c, a", 3, 0, 5)
    run(f"ALTER TABLE {name} DROP m")
    run(f"ALTER TYPE {keyspace}.pair ADD z bigint")
    run(f"INSERT INTO {name} (k, c, p) VALUES (9, 10, {{x: 2, y: 'two', z: 3}})")
    number += 1
    synced()
    run(f"ALTER TABLE {name} ADD b text")
    write("k, c, b", 4, 0, "new")
    run(f"ALTER TABLE {name} RENAME c TO place")
    write("k, place, a", 5, 0, 6)
    run(f"ALTER TYPE {keyspace}.pair RENAME y TO why")
    run(f"INSERT INTO {name} (k, place, p) VALUES (9, 11, {{x: 3, why: 'three'}})")
    number += 1
    synced()


@pytest.mark.covers("CAS-GAP-05", "CAS-GAP-08")
def test_table_that_was_dropped_and_made_anew_begins_again(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    name = f"{keyspace}.reborn"

    def create(kind: str) -> None:
        run(f"CREATE TABLE {name} (k int PRIMARY KEY, v {kind}) WITH cdc = true")

    def fill(first: int, value: Any) -> None:
        for k in range(first, first + 5):
            run(f"INSERT INTO {name} (k, v) VALUES (%s, %s)", (k, value))

    create("int")
    fill(0, 1)
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "reborn") == 5
    # Three more lives between two runs, the first two never seen at the source by any of them.
    fill(5, 2)
    for kind, value in (("text", "a"), ("double", 0.5), ("text", "z")):
        run(f"DROP TABLE {name}")
        create(kind)
        fill(90, value)
        run(f"TRUNCATE {name}")
        fill(3, value)
    cassandra_server.roll_segment(cassandra_session)
    outcome = run_stage("sync", shop, connection)

    assert not outcome.findings
    assert captured(spark, keyspace) == {name: 2 * 5 + 6 * 5}, "also what dropped tables had"
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "reborn") == 5
    assert run_stage("verify", shop, connection).ok


@pytest.mark.covers("CAS-GAP-05")
def test_what_was_set_apart_lands_once_its_schema_is_known(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    run(f"CREATE TABLE {keyspace}.stays (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"CREATE TABLE {keyspace}.goes (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"INSERT INTO {keyspace}.goes (k, v) VALUES (1, 1)")
    both = " ".join(f"INSERT INTO {keyspace}.{t} (k, v) VALUES (2, 2);" for t in ("goes", "stays"))
    run(f"BEGIN BATCH {both} APPLY BATCH")
    run(f"DROP TABLE {keyspace}.goes")
    cassandra_server.roll_segment(cassandra_session)
    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "learn", lambda self, records: None)
        outcome = run_stage("sync", shop, connection)
    assert any("quarantine" in finding for finding in outcome.findings)

    again = run_stage("sync", shop, connection)

    assert not again.findings
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "stays") == 1
    assert captured(spark, keyspace) == {f"{keyspace}.goes": 2, f"{keyspace}.stays": 1}
    changes = spark.table(f"lake.{keyspace}.drift_{keyspace}_changes")
    assert changes.where(f"kind = '{record.QUARANTINE}'").count() == 0


@pytest.mark.covers("CAS-GAP-05")
def test_what_a_merge_could_not_decode_lands_once_the_definition_is_another(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    run(f"CREATE TABLE {keyspace}.grows (k int PRIMARY KEY, v int, n int) WITH cdc = true")
    run(f"INSERT INTO {keyspace}.grows (k, v) VALUES (1, 1)")
    run(f"INSERT INTO {keyspace}.grows (k, n) VALUES (2, 2)")
    cassandra_server.roll_segment(cassandra_session)
    codec = CassandraSource.codec

    def outdated(self: CassandraSource, table: str, memory: Any = None) -> CassandraCodec:
        schema = codec(self, table, memory).schema
        return recall_codec(
            replace(schema, columns=tuple(c for c in schema.columns if c.name != "n")), memory
        )

    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "codec", outdated)
        for _ in range(2):
            outcome = run_stage("sync", shop, connection)
            assert spark.table(f"lake.{keyspace}.{keyspace}_grows").count() == 1
    quarantine = spark.table(f"lake.{keyspace}.drift_{keyspace}_quarantine")
    assert [row["reason"].partition(":")[0] for row in quarantine.collect()] == ["unknown-column"]

    outcome = run_stage("sync", shop, connection)

    assert not outcome.findings
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "grows") == 2
    assert spark.table(f"lake.{keyspace}.drift_{keyspace}_quarantine").count() == 0


@pytest.mark.covers("CAS-SCHEMA-03", "CAS-FAULT-08")
def test_table_whose_capture_pauses_loses_nothing_and_is_read_again_afterwards(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = {**declaration(keyspace, cassandra_server), "snapshot": {"mode": "initial"}}
    run = cassandra_session.execute
    name = f"{keyspace}.pauses"

    def sync() -> Any:
        cassandra_server.roll_segment(cassandra_session)
        return run_stage("sync", shop, connection)

    run(f"CREATE TABLE {name} (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"INSERT INTO {name} (k, v) VALUES (1, 1)")
    assert not sync().findings
    run(f"INSERT INTO {name} (k, v) VALUES (2, 2)")
    run(f"ALTER TABLE {name} WITH cdc = false")
    paused = sync()
    assert [f for f in paused.findings if f"{name} has cdc = false" in f]
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "pauses") == 2

    run(f"INSERT INTO {name} (k, v) VALUES (3, 3)")
    cassandra_server.roll_segment(cassandra_session)
    run(f"ALTER TABLE {name} WITH cdc = true")
    run(f"INSERT INTO {name} (k, v) VALUES (4, 4)")
    sync()
    again = sync()  # knows the pause from what the run before has captured

    assert [t.snapshot_rows for t in again.tables] == [4]
    assert not again.findings
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "pauses") == 4
    assert [t.snapshot_rows for t in sync().tables] == [0]


@pytest.mark.covers("CAS-FAULT-02")
def test_capture_goes_on_while_the_cluster_does_not_answer(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = {**declaration(keyspace, cassandra_server), "snapshot": {"mode": "initial"}}
    shop["source"] = {**shop["source"], "advanced": {"request_timeout_seconds": 2}}
    nowhere = {**connection, "port": free_port()}
    run = cassandra_session.execute
    run(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"INSERT INTO {keyspace}.t (k, v) VALUES (1, 1)")
    cassandra_server.roll_segment(cassandra_session)
    with pytest.raises(TransientError):
        run_stage("sync", shop, nowhere)
    assert not run_stage("sync", shop, connection).findings
    run(f"INSERT INTO {keyspace}.t (k, v) VALUES (2, 2)")
    run(f"DELETE FROM {keyspace}.t WHERE k = 1")
    cassandra_server.roll_segment(cassandra_session)

    outcome = run_stage("sync", shop, nowhere)

    assert len(outcome.findings) == 1
    assert "doesn't answer" in outcome.findings[0]
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "t") == 1


@pytest.mark.covers("CAS-UNSUP-06")
def test_indexes_add_nothing_to_what_is_captured(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    run = cassandra_session.execute
    run(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v int, w text) WITH cdc = true")
    run(f"CREATE INDEX ON {keyspace}.t (v)")
    run(f"CREATE CUSTOM INDEX ON {keyspace}.t (w) USING 'StorageAttachedIndex'")
    for k in range(20):
        run(f"INSERT INTO {keyspace}.t (k, v, w) VALUES ({k}, {k % 3}, 'w')")
    cassandra_server.roll_segment(cassandra_session)

    outcome = run_stage("sync", declaration(keyspace, cassandra_server), connection)

    assert not outcome.findings
    assert captured(spark, keyspace) == {f"{keyspace}.t": 20}
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "t") == 20
