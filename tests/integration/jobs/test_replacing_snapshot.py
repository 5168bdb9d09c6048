"""Cassandra: a snapshot that replaces, doubts by the thousand, and counters, against the table itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.changes.contribution import DOUBT
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.cassandra.snapshots.token_ranges import SnapshotReader
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


def declaration(keyspace: str, server: CassandraServer, consistency: str = "ALL") -> dict[str, Any]:
    return {
        "name": f"again_{keyspace}",
        "source": {
            "type": "cassandra",
            "cdc_raw": str(server.cdc_raw),
            "node": server.host_id,
            "consistency": consistency,
        },
        "tables": [rf"{keyspace}\..*"],
        "lake": {"catalog": "lake", "namespace": keyspace},
    }


def create(session: Any, keyspace: str) -> str:
    name = f"{keyspace}.orders"
    session.execute(
        f"CREATE TABLE {name} (k int, c int, a int, b text, m map<text, int>, l list<int>, s text STATIC, "
        "PRIMARY KEY (k, c)) WITH cdc = true"
    )
    return name


def fill(session: Any, name: str, keys: range) -> None:
    insert = session.prepare(f"INSERT INTO {name} (k, c, a, b, m, l, s) VALUES (?, ?, ?, ?, ?, ?, ?)")
    update = session.prepare(f"UPDATE {name} SET a = ? WHERE k = ? AND c = ?")
    for k in keys:
        for c in range(4):
            session.execute(insert, (k, c, c, f"b{c}", {"x": c, "y": k}, [c, k], f"s{k}"))
        session.execute(update, (9, k, 7))  # a row that only an update made


def delete_unseen(session: Any, name: str) -> None:
    for k in range(0, 60, 3):
        session.execute(f"DELETE FROM {name} WHERE k = {k}")
    for k in range(1, 60, 3):
        session.execute(f"DELETE FROM {name} WHERE k = {k} AND c = 1")
        session.execute(f"DELETE a FROM {name} WHERE k = {k} AND c = 7")
        session.execute(f"DELETE s FROM {name} WHERE k = {k}")
        session.execute(f"DELETE b, m['x'], l FROM {name} WHERE k = {k} AND c = 2")
    for k in range(2, 60, 3):
        session.execute(f"DELETE FROM {name} WHERE k = {k} AND c > 1 AND c <= 3")
        session.execute(f"INSERT INTO {name} (k, c, b) VALUES ({k}, 3, 'anew')")
    # Of these nothing but cells.
    for k in range(60, 65):
        session.execute(f"DELETE b, m['x'] FROM {name} WHERE k = {k} AND c = 2")
    for k in range(65, 70):
        session.execute(f"DELETE s FROM {name} WHERE k = {k}")
    for k in range(70, 75):
        session.execute(f"DELETE l[0] FROM {name} WHERE k = {k} AND c = 3")


def test_rows_deleted_while_nobody_looked_are_gone_after_the_next_snapshot(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server)
    name = create(cassandra_session, keyspace)
    mirror = f"{keyspace}.{keyspace}_orders"
    fill(cassandra_session, name, range(75))
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 375
    cassandra_session.execute(f"ALTER TABLE {name} WITH cdc = false")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("capture", shop, connection)
    delete_unseen(cassandra_session, name)
    cassandra_server.roll_segment(cassandra_session)
    cassandra_session.execute(f"ALTER TABLE {name} WITH cdc = true")
    cassandra_session.execute(f"INSERT INTO {name} (k, c, a) VALUES (1000, 0, 1)")
    cassandra_server.roll_segment(cassandra_session)

    outcome = run_stage("sync", shop, connection)

    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 216
    (table,) = outcome.tables
    assert (table.changes, table.snapshot_rows > 0, table.doubtful) == (1, True, 0)
    assert not outcome.findings
    # What is asked for again finds nothing more to settle, and nothing is read twice.
    again = run_stage("snapshot", shop, connection, tables=[name])
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 216
    assert [t.doubtful for t in again.tables] == [0]


def test_a_snapshot_that_may_miss_rows_only_adds(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server, consistency="LOCAL_ONE")
    name = create(cassandra_session, keyspace)
    fill(cassandra_session, name, range(2))
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    cassandra_session.execute(f"ALTER TABLE {name} WITH cdc = false")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("capture", shop, connection)
    cassandra_session.execute(f"DELETE FROM {name} WHERE k = 0")
    cassandra_server.roll_segment(cassandra_session)
    cassandra_session.execute(f"ALTER TABLE {name} WITH cdc = true")
    run_stage("sync", shop, connection)
    assert spark.table(f"lake.{keyspace}.{keyspace}_orders").count() == 10


def test_no_doubt_is_lost_however_many_there_are(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row that a SELECT showed loses its last cell: only the source knows whether it lives."""
    shop = declaration(keyspace, cassandra_server)
    name, mirror = f"{keyspace}.many", f"{keyspace}.{keyspace}_many"
    cassandra_session.execute(
        f"CREATE TABLE {name} (k int, c int, a int, PRIMARY KEY (k, c)) WITH cdc = true"
    )
    write = cassandra_session.prepare(f"UPDATE {name} SET a = 1 WHERE k = ? AND c = ?")
    remove = cassandra_session.prepare(f"DELETE a FROM {name} WHERE k = ? AND c = 0")
    for k in range(3000):
        cassandra_session.execute(write, (k, 0))
        if k % 2:
            cassandra_session.execute(write, (k, 1))
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    for k in range(3000):
        cassandra_session.execute(remove, (k,))
    cassandra_server.roll_segment(cassandra_session)
    # The changes are merged while the cluster can't be asked; what they leave open waits for it.
    run_stage("capture", shop, connection)
    told = run_stage("merge", shop, {**connection, "port": 1})
    assert [t.doubtful for t in told.tables] == [3000]
    assert spark.table(f"lake.{mirror}").count() == 4500

    # One can't be read: those before it are settled, it and the others wait.
    with monkeypatch.context() as patch:
        read = SnapshotReader.read_keys

        def read_some(self: SnapshotReader, table: str, keys: Sequence[bytes], *others: Any) -> Iterator[Any]:
            yield from islice(read(self, table, keys, *others), len(keys) // 4)
            raise TransientError("no answer")

        patch.setattr(SnapshotReader, "read_keys", read_some)
        (table,) = run_stage("sync", shop, connection).tables
    assert 0 < table.doubtful < 3000

    (table,) = run_stage("sync", shop, connection).tables

    assert table.doubtful == 0
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 1500


def test_counters_are_read_again_where_the_log_says_that_they_changed(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    shop = declaration(keyspace, cassandra_server)
    name, mirror = f"{keyspace}.clicks", f"{keyspace}.{keyspace}_clicks"
    cassandra_session.execute(
        f"CREATE TABLE {name} (k int, c int, n counter, m counter, t counter STATIC, PRIMARY KEY (k, c)) "
        "WITH cdc = true"
    )

    def count(key: int, clustering: int, by: int) -> None:
        cassandra_session.execute(
            f"UPDATE {name} SET n = n + {by}, m = m - 1, t = t + 1 WHERE k = {key} AND c = {clustering}"
        )

    for k in range(20):
        for c in range(3):
            count(k, c, k - 5)
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 60
    for k in range(5):
        count(k, 0, 2**40)
        count(100 + k, 0, -1)
    cassandra_session.execute(f"DELETE FROM {name} WHERE k = 6 AND c = 1")
    cassandra_session.execute(f"DELETE FROM {name} WHERE k = 7")
    cassandra_session.execute(f"DELETE n FROM {name} WHERE k = 8 AND c = 0")
    cassandra_session.execute(f"DELETE t FROM {name} WHERE k = 9")
    cassandra_server.roll_segment(cassandra_session)

    (table,) = run_stage("sync", shop, connection).tables

    assert (table.changes > 0, table.snapshot_rows, table.doubtful) == (True, 0, 0)
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 61
    cassandra_session.execute(f"TRUNCATE {name}")
    count(1, 1, 1)
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, name) == 1
    # What was settled is not asked for ever again, and maintenance forgets it.
    side = f"lake.{mirror}__side"
    assert spark.table(side).where(f"scope = {DOUBT}").count() > 0
    run_stage("maintain", shop, connection)
    assert spark.table(side).where(f"scope = {DOUBT}").count() == 0
