"""Cassandra: capture goes on through schema changes, and the mirror's columns follow the table's."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
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


@pytest.mark.covers("CAS-LIM-04", "CAS-LIM-05", "CAS-GAP-08")
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


def test_rows_that_lived_by_a_dropped_column_alone_leave_the_mirror(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    """An UPDATE writes no row marker: with its last cells the row goes, at once or with a later change."""
    shop = declaration(keyspace, cassandra_server)
    run = cassandra_session.execute
    name = f"{keyspace}.t"
    run(f"CREATE TABLE {name} (k int, c int, a int, b int, s int static, PRIMARY KEY (k, c)) WITH cdc = true")
    run(f"UPDATE {name} SET b = 1 WHERE k = 1 AND c = 1")
    run(f"UPDATE {name} SET b = 1 WHERE k = 2 AND c = 1")
    run(f"UPDATE {name} SET a = 1, b = 1 WHERE k = 3 AND c = 1")
    run(f"UPDATE {name} SET s = 1 WHERE k = 4")
    run(f"INSERT INTO {name} (k, c, b) VALUES (5, 1, 1)")
    run(f"UPDATE {name} SET a = 1, b = 1 WHERE k = 6 AND c = 1")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "t") == 6
    run(f"ALTER TABLE {name} DROP b")
    run(f"ALTER TABLE {name} DROP s")
    run(f"DELETE a FROM {name} WHERE k = 2 AND c = 1")
    run(f"DELETE a FROM {name} WHERE k = 3 AND c = 1")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "t") == 2
    run(f"DELETE a FROM {name} WHERE k = 6 AND c = 1")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "t") == 1


@pytest.mark.covers("CAS-GAP-08")
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


@pytest.mark.covers("CAS-GAP-05", "CAS-SCHEMA-01")
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


@pytest.mark.covers("CAS-GAP-05", "CAS-LIM-04")
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
    again = sync()

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


def test_indexes_and_views_add_nothing_to_what_is_captured_and_are_counted(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    tmp_path: Path,
) -> None:
    run = cassandra_session.execute
    run(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v int, w text, x text) WITH cdc = true")
    run(f"CREATE TABLE {keyspace}.unasked (k int PRIMARY KEY)")
    run(f"CREATE INDEX ON {keyspace}.t (v)")
    run(f"CREATE CUSTOM INDEX ON {keyspace}.t (w) USING 'StorageAttachedIndex'")
    run(
        f"CREATE MATERIALIZED VIEW {keyspace}.by_v AS SELECT * FROM {keyspace}.t "
        "WHERE v IS NOT NULL AND k IS NOT NULL PRIMARY KEY (v, k) WITH cdc = true"
    )
    for k in range(20):
        run(f"INSERT INTO {keyspace}.t (k, v, w) VALUES ({k}, {k % 3}, 'w')")
    run(f"UPDATE {keyspace}.t SET v = 9 WHERE k = 0")
    run(f"DELETE FROM {keyspace}.t WHERE k = 1")
    for k in range(5):
        run(f"INSERT INTO {keyspace}.unasked (k) VALUES ({k})")
    cassandra_server.roll_segment(cassandra_session)
    shop = declaration(keyspace, cassandra_server)

    outcome = run_stage("sync", shop, connection)

    assert not outcome.findings
    assert captured(spark, keyspace) == {f"{keyspace}.t": 22}
    # A view has an update for each insert and the deletion, and two, in one mutation, for the row that moved;
    # an index has none. What else there is belongs to Cassandra, and to other tests' keyspaces.
    assert outcome.passed_over["view"] >= 20
    assert outcome.passed_over["unselected"] >= 5
    assert set(outcome.passed_over) <= {"view", "unselected", "system", "counter"}
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "t") == 19
    path = tmp_path / "events.jsonl"
    run_stage("events", shop, connection, path=str(path))
    assert {json.loads(line)["topic"] for line in path.read_text().splitlines()} == {
        f"{shop['name']}.{keyspace}.t"
    }
    assert len(path.read_text().splitlines()) == 22 + 1, "each change, and the tombstone of the deletion"


def test_counts_of_what_is_passed_over_are_exact(
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    run = cassandra_session.execute
    shop = declaration(keyspace, cassandra_server)
    run(f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"CREATE TABLE {keyspace}.n (k int PRIMARY KEY, v counter)")
    run(
        f"CREATE MATERIALIZED VIEW {keyspace}.by_v AS SELECT * FROM {keyspace}.t "
        "WHERE v IS NOT NULL AND k IS NOT NULL PRIMARY KEY (v, k)"
    )
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    for k in range(7):
        run(f"INSERT INTO {keyspace}.t (k, v) VALUES ({k}, {k})")
    for _ in range(3):
        run(f"UPDATE {keyspace}.n SET v = v + 1 WHERE k = 1")
    cassandra_server.roll_segment(cassandra_session)

    passed_over = run_stage("sync", shop, connection).passed_over

    assert (passed_over["view"], passed_over["counter"]) == (7, 3)


@pytest.mark.covers("CAS-SCHEMA-01", "CAS-SCHEMA-02")
def test_a_running_stream_takes_columns_and_tables_that_come_in_the_middle(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    tmp_path: Path,
) -> None:
    run = cassandra_session.execute
    publish = {"key": "avro", "value": "avro", "schemas": True}
    shop = {**declaration(keyspace, cassandra_server), "publish": publish}
    name = f"{keyspace}.evo"
    run(f"CREATE TABLE {name} (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"INSERT INTO {name} (k, v) VALUES (1, 1)")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    before = avro_events(run_stage, shop, connection, tmp_path)
    changes = f"lake.{keyspace}.drift_{keyspace}_changes"

    def apart() -> int:
        return spark.table(changes).where(f"kind = '{record.QUARANTINE}'").count()

    of_others = apart()  # tables of other tests whose definitions this node's log has no more
    state, stop = tmp_path / "state.json", tmp_path / "stop"
    ended: list[Any] = []

    def stream() -> None:
        paths = {"state_path": str(state), "stop_path": str(stop)}
        ended.append(run_stage("stream", shop, connection, commit_interval_seconds=0.5, **paths))

    def wait_for(what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not holds():
            assert thread.is_alive(), f"the stream ended before {what}"
            assert time.monotonic() < deadline, f"no {what}"
            time.sleep(0.2)

    def rounds() -> int:
        return int(json.loads(state.read_text())["rounds"]) if state.exists() else 0

    def rows(table: str) -> int:
        mirror = f"lake.{keyspace}.{keyspace}_{table}"
        return spark.table(mirror).count() if spark.catalog.tableExists(mirror) else 0

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        wait_for("first round", lambda: rounds() >= 1)
        run(f"ALTER TABLE {name} ADD n text")
        run(f"INSERT INTO {name} (k, v, n) VALUES (2, 2, 'two')")
        run(f"CREATE TABLE {keyspace}.late (k int PRIMARY KEY, v int) WITH cdc = true")
        run(f"INSERT INTO {keyspace}.late (k, v) VALUES (1, 1)")
        cassandra_server.roll_segment(cassandra_session)
        wait_for("row with the new column", lambda: rows("evo") == 2)
        wait_for("row of the new table", lambda: rows("late") == 1)
        # Once more, so that nothing of the first change's reading is left over.
        run(f"ALTER TABLE {name} ADD m bigint")
        run(f"INSERT INTO {name} (k, m) VALUES (3, 3)")
        cassandra_server.roll_segment(cassandra_session)
        wait_for("row with the second new column", lambda: rows("evo") == 3)
    finally:
        stop.touch()
        thread.join(240)
    assert [outcome.ok for outcome in ended] == [True]
    assert apart() == of_others
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "evo") == 3
    assert assert_same_columns_and_rows(spark, cassandra_session, keyspace, "late") == 1

    # The schema in Avro has grown likewise: who reads by it reads what was written before too.
    after = avro_events(run_stage, shop, connection, tmp_path)
    old, new = (events[f"{shop['name']}.{name}"] for events in (before, after))
    assert [columns(schema) for schema, _ in old] == [{"k", "v", "_range_start", "_range_end"}]
    assert [columns(schema) for schema, _ in new] == [columns(old[0][0]) | {"m", "n"}] * 3
    told = [read(data, schema)["after"] for schema, data in new]
    values = [{c: told_cell and told_cell["value"] for c, told_cell in one.items()} for one in told]
    assert [(one["k"], one["v"], one["n"], one["m"]) for one in values] == [
        (1, 1, None, None),
        (2, 2, "two", None),
        (3, None, None, 3),
    ]
    grown = read(old[0][1], old[0][0], new[0][0])
    assert grown["after"]["v"]["value"] == 1
    assert grown["after"]["n"] is grown["after"]["m"] is None


def avro_events(
    run_stage: RunStage, shop: dict[str, Any], connection: dict[str, Any], folder: Path
) -> dict[str, list[tuple[Any, bytes]]]:
    """Return schema and bytes of each value that the lake's changes make, by topic."""
    path = folder / "events.jsonl"
    run_stage("events", shop, connection, path=str(path))
    found: dict[str, list[tuple[Any, bytes]]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        schema = fastavro.parse_schema(line["value_schema"])
        found.setdefault(line["topic"], []).append((schema, base64.b64decode(line["value"])))
    return found


def read(data: bytes, schema: Any, reader: Any = None) -> dict[str, Any]:
    found = fastavro.schemaless_reader(io.BytesIO(data), schema, reader)
    assert isinstance(found, dict)
    return found


def columns(schema: Any) -> set[str]:
    (after,) = [field["type"] for field in schema["fields"] if field["name"] == "after"]
    return {field["name"] for field in after["fields"]}
