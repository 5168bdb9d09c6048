"""Vitess loses tablets, MySQL servers and VTGate under load: streams resume, mirrors equal a SELECT."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from airflow_cdc_provider.lake.mirror import ID_KEY_BEGINS
from airflow_cdc_provider.sources.vitess.gtid import GtidSet
from airflow_cdc_provider.sources.vitess.states import key_prefix
from server_kit.vitess import Keyspace
from server_kit.vitess_cluster import VitessCluster
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.vitess_mirrors import declaration
from tests.integration.jobs.vitess_streams import Streaming, captured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.long]

TABLE = "failing"
VSCHEMA = {
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {
        name: {"column_vindexes": [{"column": "id", "name": "hash"}]} for name in (TABLE, "resharded")
    },
}


class Load:
    """Writes random rows of both shards until it is stopped; what an outage interrupts is tried no more.

    Args:
        cluster: Where to.
    """

    def __init__(self, cluster: VitessCluster) -> None:
        self.written = 0
        self._cluster = cluster
        self._ending = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Write nothing until :meth:`go_on`, and wait until what was written has reached the replicas."""
        self._idle.clear()
        self._running.clear()
        assert self._idle.wait(60)
        time.sleep(2)

    def go_on(self) -> None:
        self._running.set()

    def stop(self) -> None:
        self._ending.set()
        self._running.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        chance = random.Random(7)
        while not self._ending.is_set():
            try:
                with self._cluster.connect("shop") as connection, connection.cursor() as cursor:
                    while not self._ending.is_set():
                        self._idle.set() if not self._running.is_set() else None
                        self._running.wait()
                        self._write(cursor, chance)
                        self.written += 1
            except pymysql.err.Error:
                time.sleep(0.1)

    @staticmethod
    def _write(cursor: Any, chance: random.Random) -> None:
        key = chance.randrange(300)
        if chance.random() < 0.8:
            cursor.execute(
                f"INSERT INTO {TABLE} (id, name, amount) VALUES (%s, %s, %s) "
                "ON DUPLICATE KEY UPDATE name = VALUES(name), amount = amount + 1",
                (key, f"n{chance.random():.3f}", chance.randrange(100)),
            )
        else:
            cursor.execute(f"DELETE FROM {TABLE} WHERE id = %s", (key,))
        time.sleep(0.01)


@pytest.fixture(scope="module")
def cluster() -> Iterator[VitessCluster]:
    with VitessCluster([Keyspace("shop", ("-80", "80-"), VSCHEMA)], replicas=1) as cluster:
        yield cluster


def rows_of(cluster: VitessCluster) -> dict[int, tuple[Any, ...]]:
    with cluster.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, name, amount FROM {TABLE} ORDER BY id LIMIT 100000")
        return {row[0]: row for row in cursor.fetchall()}


@pytest.mark.covers("VIT-FLT-01", "VIT-FLT-03")
def test_a_stream_gets_over_lost_servers_and_its_mirror_equals_the_table(
    spark: SparkSession, run_stage: RunStage, application: Application, cluster: VitessCluster
) -> None:
    with cluster.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (id bigint PRIMARY KEY, name varchar(200), amount int)")
    shop = declaration(TABLE)
    load = Load(cluster)
    stream = Streaming(application, spark, shop, cluster.connection)
    stream.wait_for_rounds(2)
    before = stream.state["offset"]

    cluster.plan_reparent("shop", "-80")
    stream.wait_for_rounds(3)
    cluster.restart_mysql("shop", "80-")
    stream.wait_for_rounds(3)
    cluster.kill_gate()
    time.sleep(5)
    cluster.start_gate()
    stream.wait_for_rounds(3)
    load.pause()  # without an acknowledgement of replicas, a primary may take what it has with it
    cluster.lose_primary("shop", "80-")
    load.go_on()
    stream.wait_for_rounds(5)
    load.stop()
    stream.stop()
    outcome = run_stage("sync", shop, cluster.connection)

    assert outcome.ok, outcome.error
    assert outcome.offset is not None
    assert load.written > 300
    spark.sql(f"REFRESH TABLE lake.vt_{TABLE}.shop_{TABLE}")
    mirror = spark.table(f"lake.vt_{TABLE}.shop_{TABLE}").select("id", "name", "amount").collect()
    assert {row[0]: tuple(row) for row in mirror} == rows_of(cluster)
    assert mirror
    places = captured(spark, TABLE)
    assert len(set(places)) == len(places) > 200
    for shard in ("shop/-80", "shop/80-"):
        reported = [GtidSet.parse(offset[shard]["gtid"]) for offset in (before, outcome.offset)]
        assert reported[1].contains(reported[0])
        assert len(reported[1].servers) > len(reported[0].servers), "another server has written"
        assert outcome.offset[shard]["epoch"] == before[shard]["epoch"], "its set lacks no server of before"


def test_after_a_reshard_unchanged_rows_are_verified_as_equal(
    spark: SparkSession, run_stage: RunStage, cluster: VitessCluster
) -> None:
    table = "resharded"
    shop = declaration(table)
    with cluster.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, name varchar(200), amount int)")
        rows = ", ".join(f"({number}, 'x', {number})" for number in range(60))
        cursor.execute(f"INSERT INTO {table} (id, name, amount) VALUES {rows}")
    assert run_stage("sync", shop, cluster.connection).tables[0].snapshot_rows == 60
    cluster.reshard("shop", ["-80"], ["-40", "40-80"])
    with cluster.connect("shop") as connection, connection.cursor() as cursor:
        for number in range(0, 60, 7):
            cursor.execute(f"UPDATE {table} SET amount = 1000 WHERE id = {number}")
        for number in range(3, 60, 11):
            cursor.execute(f"DELETE FROM {table} WHERE id = {number}")
        for number in range(100, 130):
            cursor.execute(f"INSERT INTO {table} (id, name, amount) VALUES ({number}, 'new', 1)")

    run_stage("sync", shop, cluster.connection)
    verified = run_stage("verify", shop, cluster.connection)

    assert verified.ok, verified.error
    mirror = spark.table(f"lake.vt_{table}.shop_{table}")
    assert mirror.count() == 60 + 30 - len(range(3, 60, 11))
    old = key_prefix("shop/-80")
    keys = [bytes(row[0])[ID_KEY_BEGINS:] for row in mirror.select("_cdc.id").collect()]
    assert sum(key.startswith(old) for key in keys) > 5, "rows are still under the removed shard"
    with cluster.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET amount = -1 WHERE id IN (1, 2, 4, 5)")
    assert run_stage("verify", shop, cluster.connection).tables[0].differences == 4
