"""Vitess: the mirror equals VTGate's rows, also after failures."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced
from server_kit import VitessServer
from tests.integration.jobs.conftest import Application, RunStage, merge_and_capture
from tests.integration.jobs.vitess_mirrors import assert_mirror_equals_table, declaration
from tests.integration.sources.vitess.workload import create, run, selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def rows_of_shard(server: VitessServer, table: str, shard: str) -> int:
    with server.connect(f"shop:{shard}").cursor() as cursor:
        cursor.execute(f"select count(*) from {table}")
        return int(cursor.fetchall()[0][0])


@pytest.fixture
def table(vitess_server: VitessServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"t{abs(hash(request.node.name)) % 10**8}"
    create(vitess_server, name)
    yield name
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"drop table if exists {name}")


def test_mirror_equals_table_after_snapshot_and_random_changes(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, table: str
) -> None:
    run(vitess_server, table, 1, 60)
    connection = vitess_server.connection
    writer = threading.Thread(target=run, args=(vitess_server, table, 2, 300))
    writer.start()
    first = run_stage("sync", declaration(table), connection)
    writer.join()
    assert first.tables[0].snapshot_rows

    for seed in (3, 4):
        run(vitess_server, table, seed, 80)
        later = run_stage("sync", declaration(table), connection)

        assert later.changes > 50
        assert not later.tables[0].snapshot_rows
        assert assert_mirror_equals_table(spark, vitess_server, table)


def test_rows_that_a_rerun_snapshot_does_not_see_go(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, table: str
) -> None:
    run(vitess_server, table, 1, 30)
    run_stage("sync", declaration(table), vitess_server.connection)
    run_stage("offsets", declaration(table), vitess_server.connection, action="reset")
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"delete from {table} where id < 30")
    run_stage("sync", declaration(table), vitess_server.connection)
    assert_mirror_equals_table(spark, vitess_server, table)

    run(vitess_server, table, 2, 30)
    run_stage("sync", declaration(table), vitess_server.connection)

    assert assert_mirror_equals_table(spark, vitess_server, table)


def test_a_truncated_table_is_empty_and_fills_again(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, table: str
) -> None:
    run(vitess_server, table, 1, 20)
    run_stage("sync", declaration(table), vitess_server.connection)
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"truncate table {table}")
    run(vitess_server, table, 2, 5)

    run_stage("sync", declaration(table), vitess_server.connection)

    assert assert_mirror_equals_table(spark, vitess_server, table)


def test_a_table_that_is_new_or_altered_between_runs_is_followed(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, table: str
) -> None:
    run(vitess_server, table, 1, 20)
    run_stage("sync", declaration(table), vitess_server.connection)
    vitess_server.define("shop", f"alter table {table} add column more int default 7")
    run(vitess_server, table, 2, 20)
    run_stage("sync", declaration(table), vitess_server.connection)

    assert_mirror_equals_table(spark, vitess_server, table)
    mores = spark.table(f"lake.vt_{table}.shop_{table}").select("more").distinct().collect()
    assert [row[0] for row in mores] == [7]


def _kill_and_recover(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    server: VitessServer,
    table: str,
    kills: int,
) -> None:
    shop = declaration(table)
    warehouse = str(spark.conf.get("spark.sql.catalog.lake.warehouse"))
    shop["lake"]["catalog_options"] = {"type": "hadoop", "warehouse": warehouse}
    namespace = Path(warehouse.removeprefix("file:")) / f"vt_{table}"
    run(server, table, 99, 40)
    assert run_stage("sync", shop, server.connection).ok

    def captured() -> list[tuple[str, bytes]]:
        name = f"lake.vt_{table}.vt_{table}_changes"
        spark.catalog.refreshTable(name)  # other processes write to it
        rows = spark.table(name).where("kind = 'change'").select("origin", "position").collect()
        return [(row[0], bytes(row[1])) for row in rows]

    def begin(number: int) -> subprocess.Popen[bytes]:
        run(server, table, 100 + number, 60)
        return application.start("sync", shop, server.connection, batch_changes=40)

    application.kill_often(kills, begin, merge_and_capture(namespace))
    committed = captured()
    assert committed, "a killed sync had committed changes"
    assert run_stage("sync", shop, server.connection).ok
    assert assert_mirror_equals_table(spark, server, table)
    places = captured()
    assert set(committed) < set(places)
    assert len(set(places)) == len(places) > 100, "what was committed is not captured again"


@pytest.mark.covers("VIT-FLT-01", "VIT-FLT-07")
def test_next_run_completes_a_killed_sync(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    vitess_server: VitessServer,
    table: str,
) -> None:
    _kill_and_recover(spark, run_stage, application, vitess_server, table, kills=2)


@pytest.mark.covers("VIT-FLT-01", "VIT-FLT-07")
@pytest.mark.long
def test_sync_killed_twenty_times_loses_and_doubles_nothing(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    vitess_server: VitessServer,
    table: str,
) -> None:
    _kill_and_recover(spark, run_stage, application, vitess_server, table, kills=20)


def test_a_table_without_a_key_is_read_in_full_at_each_run(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer
) -> None:
    vitess_server.define("lookup", "create table keyless1 (a int, b varchar(9))")
    kept = declaration("keyless1")
    kept["source"] = {"type": "vitess", "keyspace": "lookup", "batch_interval_seconds": 0}
    kept["tables"] = [r"lookup\.keyless1"]
    for values, expected in (("(1, 'x'), (1, 'x'), (2, 'y')", [1, 1, 2]), ("(3, 'z')", [1, 2, 3])):
        with vitess_server.connect("lookup").cursor() as cursor:
            cursor.execute(f"insert into keyless1 values {values}")
            if expected == [1, 2, 3]:
                cursor.execute("delete from keyless1 where a = 1 limit 1")
        run_stage("sync", kept, vitess_server.connection)

        rows = spark.table("lake.vt_keyless1.lookup_keyless1").select("a").collect()
        assert sorted(row[0] for row in rows) == expected


def test_a_statement_that_changes_values_brings_a_snapshot(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, table: str
) -> None:
    run(vitess_server, table, 1, 20)
    run_stage("sync", declaration(table), vitess_server.connection)
    vitess_server.define("shop", f"alter table {table} add column twice int as (amount * 2) stored")

    outcome = run_stage("sync", declaration(table), vitess_server.connection)

    assert outcome.tables[0].snapshot_rows
    assert_mirror_equals_table(spark, vitess_server, table)
    rows = spark.table(f"lake.vt_{table}.shop_{table}").select("amount", "twice").collect()
    assert all(row[1] == (None if row[0] is None else 2 * row[0]) for row in rows)


@pytest.mark.covers(
    "VIT-MET-13",
    "VIT-MET-02",
    "VIT-MET-03",
    "VIT-MET-07",
    "VIT-MET-08",
    "VIT-MET-09",
    "VIT-MET-10",
    "VIT-MET-11",
)
def test_metrics_bear_debeziums_names(run_stage: RunStage, vitess_server: VitessServer, table: str) -> None:
    run(vitess_server, table, 1, 20)
    connection = vitess_server.connection
    rows = len(selected(vitess_server, table))
    shot = metrics_of(run_stage("sync", declaration(table), connection))["snapshot"]
    assert (shot["SnapshotCompleted"], shot["RowsScanned"]) == (True, {f"shop.{table}": rows})
    by_shard = {shard: of[f"shop.{table}"] for shard, of in shot["RowsScannedByOrigin"].items()}
    assert by_shard == {
        f"shop/{shard}": rows_of_shard(vitess_server, table, shard) for shard in ("-80", "80-")
    }
    with vitess_server.connect("shop").cursor() as cursor:
        for statement in (
            f"insert into {table} (id, name) values (7001, 'a'), (7002, 'b')",
            f"update {table} set name = 'c' where id = 7001",
            f"delete from {table} where id = 7002",
        ):
            cursor.execute(statement)
    written = time.time()
    time.sleep(3)
    vitess_server.define("shop", f"alter table {table} comment 'no change of a row'")

    outcome = run_stage("sync", declaration(table), connection)

    found = metrics_of(outcome)["streaming"]
    assert found["TotalNumberOfEventsSeen"] == 4
    assert [found[f"TotalNumberOf{kind}EventsSeen"] for kind in ("Create", "Update", "Delete")] == [2, 1, 1]
    shards = len({row.origin for row in outcome.origins if row.mutations})
    assert 3 <= found["NumberOfCommittedTransactions"] <= 2 + shards
    assert 2000 <= found["MilliSecondsBehindSource"] < (time.time() - written) * 1000 + 1000
    assert 0 < found["MilliSecondsSinceLastEvent"] < (time.time() - written) * 1000
    assert found["Connected"]
    assert found["MaxQueueSizeInBytes"] == VitessAdvanced().read_ahead_bytes
    assert 0 <= found["CurrentQueueSizeInBytes"] < 50_000, "heartbeats alone: one each second"
    assert set(found["SourceEventPosition"]) == {"shop/-80", "shop/80-"}
