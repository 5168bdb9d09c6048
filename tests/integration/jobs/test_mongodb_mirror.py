"""MongoDB: the mirror equals the collection under faults."""

from __future__ import annotations

import json
import logging
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure

from airflow_cdc_provider.jobs.snapshots import snapshot
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.mongodb.change_stream import backlog
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from tests.integration.jobs.conftest import Application, RunStage, merge_and_capture
from tests.integration.jobs.equality import assert_mirror_equals_collection
from tests.integration.jobs.workloads import write_mongodb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


def declaration(database: str, **lake: Any) -> dict[str, Any]:
    return {
        "name": f"mongo_{database}",
        "source": {"type": "mongodb"},
        "tables": [rf"{database}\..*"],
        "lake": {"catalog": "lake", "namespace": database, **lake},
    }


@pytest.mark.covers("MDB-SNAP-01", "MDB-SNAP-05", "MDB-SNAP-21", "MDB-OFF-05")
def test_mirror_equals_collection_after_snapshot_and_random_changes(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_mongodb(database.things, seed=1, count=150)
    with caplog.at_level(logging.INFO):
        first = run_stage("sync", declaration(database.name), connection)
    rows = first.tables[0].snapshot_rows
    for message in (
        rf"snapshot of {database.name}\.things: 1 ranges",
        rf"snapshot of {database.name}\.things completed: {rows} rows, [0-9.]+ s",
        rf"snapshot completed: 1 tables, {rows} rows, [0-9.]+ s",
    ):
        assert re.search(message, caplog.text)
    assert first.tables[0].snapshot_rows == assert_mirror_equals_collection(
        spark, database.things, f"{database.name}.{database.name}_things"
    )

    write_mongodb(database.things, seed=2, count=300)
    second = run_stage("sync", declaration(database.name), connection)

    assert second.changes > 100
    assert not second.tables[0].snapshot_rows
    assert_mirror_equals_collection(spark, database.things, f"{database.name}.{database.name}_things")
    assert run_stage("verify", declaration(database.name), connection).ok


def test_a_connector_that_captures_nothing_reports_it(
    run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    nothing = {**declaration(database.name), "tables": [r"no_such\..*"]}
    (finding,) = run_stage("sync", nothing, connection).findings
    assert "captures no table" in finding
    database.things.insert_one({})
    assert run_stage("sync", declaration(database.name), connection).findings == ()


def test_changes_during_the_time_when_the_snapshot_was_due_are_not_lost_or_doubled(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name)
    database.things.insert_many([{"_id": n, "v": 0} for n in range(50)])
    run_stage("capture", shop, connection)
    database.things.delete_many({"_id": {"$lt": 10}})
    database.things.update_many({"_id": {"$gte": 40}}, {"$set": {"v": 1}})
    run_stage("sync", shop, connection)

    mirror = f"{database.name}.{database.name}_things"
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 40


@pytest.mark.covers("MDB-SNAP-07")
def test_without_snapshots_the_feed_starts_with_the_first_run_and_misses_nothing_after_it(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = {**declaration(database.name), "snapshot": {"mode": "never"}}
    database.things.insert_one({"_id": "before"})
    assert run_stage("capture", shop, connection).changes == 0
    database.things.insert_one({"_id": "between"})

    run_stage("sync", shop, connection)

    assert spark.table(f"lake.{database.name}.{database.name}_things").count() == 1


def test_rerun_of_a_snapshot_removes_what_the_source_no_longer_has(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name)
    mirror = f"{database.name}.{database.name}_things"
    database.things.insert_many([{"_id": n} for n in range(20)])
    run_stage("sync", shop, connection)
    database.things.delete_many({"_id": {"$gte": 15}})
    run_stage("offsets", shop, connection, action="reset")

    run_stage("sync", shop, connection)

    assert assert_mirror_equals_collection(spark, database.things, mirror) == 15
    database.things.delete_one({"_id": 0})
    again = run_stage("snapshot", shop, connection, tables=[f"{database.name}.things"], mode="replace")
    assert again.tables[0].snapshot_rows == 14
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 14


def test_dropped_collection_empties_its_mirror_and_a_new_one_fills_it(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name)
    mirror = f"{database.name}.{database.name}_things"
    database.things.insert_many([{"_id": n} for n in range(20)])
    run_stage("sync", shop, connection)
    database.things.drop()
    database.things.insert_one({"_id": "new"})

    run_stage("sync", shop, connection)

    assert assert_mirror_equals_collection(spark, database.things, mirror) == 1


@pytest.mark.covers("MDB-XF-07", "MDB-SNAP-05")
def test_a_collection_declared_later_is_read_in_full_while_capture_of_the_others_continues(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    first, both = (
        {**declaration(database.name), "tables": [rf"{database.name}\.[{c}]"]} for c in ("a", "ab")
    )
    for name, count in (("a", 20), ("b", 10)):
        database[name].insert_many([{"_id": n} for n in range(count)])
    run_stage("sync", first, connection)
    database.a.update_one({"_id": 1}, {"$set": {"x": 1}})
    database.b.delete_one({"_id": 1})

    outcome = run_stage("sync", both, connection)

    read = {t.table.rpartition(".")[2]: (t.snapshot_rows, t.rows_written) for t in outcome.tables}
    assert read == {"a": (0, 1), "b": (9, 9)}
    for name in "ab":
        assert_mirror_equals_collection(spark, database[name], f"{database.name}.{database.name}_{name}")


@pytest.mark.covers("MDB-SNAP-02", "MDB-SNAP-05", "MDB-XF-04")
def test_an_interrupted_snapshot_resumes_with_the_remaining_ranges(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(database.name)
    database.things.insert_many([{"_id": n} for n in range(8000)])
    for limit in ("_RANGES_PER_CORE", "_MAX_RANGES_PER_CORE"):
        monkeypatch.setattr(snapshot, limit, 1)
    commits: list[int] = []
    append = ChangesTable.append_batch

    def append_three(*arguments: Any, **options: Any) -> Any:
        if len(commits) == 3:
            raise KeyboardInterrupt
        commits.append(1)
        return append(*arguments, **options)

    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(ChangesTable, "append_batch", append_three)
        run_stage("sync", shop, connection)
    database.things.delete_one({"_id": 7})
    database.things.insert_one({"_id": 8000})
    planned: list[str] = []
    plan = MongodbSource.plan_snapshot

    def noted(self: MongodbSource, table: str, where: str | None = None) -> Any:
        planned.append(table)
        return plan(self, table, where)

    monkeypatch.setattr(MongodbSource, "plan_snapshot", noted)

    (outcome,) = run_stage("sync", shop, connection).tables

    assert planned == []
    assert 8000 <= outcome.snapshot_rows <= 8001, "no range is read twice"
    mirror = f"{database.name}.{database.name}_things"
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 8000


@pytest.mark.covers("CAS-FAULT-03", "MDB-FAULT-05")
def test_a_stream_that_is_stopped_ends_where_the_next_run_resumes(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    database: Any,
    connection: dict[str, Any],
) -> None:
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    shop = declaration(database.name, catalog_options={"type": "hadoop", "warehouse": warehouse})
    database.things.insert_many([{"_id": n} for n in range(10)])
    state_file = application.folder / "state.json"
    process = application.start(
        "stream", shop, connection, state_path=str(state_file), commit_interval_seconds=0.1
    )
    deadline = time.monotonic() + 180
    while not state_file.exists() or json.loads(state_file.read_text())["rounds"] < 2:
        assert time.monotonic() < deadline, application.log_tail()
        assert process.poll() is None, application.log_tail()
        database.things.update_one({"_id": 1}, {"$inc": {"x": 1}})
        time.sleep(0.05)
    process.terminate()
    database.things.insert_one({"_id": "later"})

    outcome = application.wait(process)

    assert outcome.ok, outcome.error
    assert json.loads(state_file.read_text())["status"] == "stopped"
    assert run_stage("offsets", shop, connection, action="show").offset == outcome.offset
    after = run_stage("sync", shop, connection)
    assert not after.tables[0].snapshot_rows
    assert_mirror_equals_collection(spark, database.things, f"{database.name}.{database.name}_things")


def _captured_positions(spark: SparkSession, database: str) -> list[bytes]:
    name = f"lake.{database}.mongo_{database}_changes"
    spark.catalog.refreshTable(name)  # other processes write to it
    changes = spark.table(name)
    return [bytes(row[0]) for row in changes.where("kind = 'change'").select("position").collect()]


@pytest.mark.covers("MDB-XD-29", "MDB-XE-07")
def test_a_backlog_that_several_streams_read_ends_with_the_collection(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(backlog, "MIN_BACKLOG_BYTES", 1)
    shop = declaration(database.name)
    shop["source"]["advanced"] = {"backlog_threshold_seconds": 0.0, "batch_events": 20, "backlog_streams": 3}
    run_stage("sync", shop, connection)
    write_mongodb(database.things, seed=4, count=400)

    with caplog.at_level("INFO", "airflow_cdc_provider"):
        outcome = run_stage("sync", shop, connection, batch_changes=150)

    assert any("with 3 change streams" in message for message in caplog.messages)
    assert outcome.batches >= 3
    assert {f"capture.{stage}" for stage in ("plan", "wait", "parse", "convert", "commit")} <= set(
        outcome.seconds
    )
    state_file = [message for message in caplog.messages if "tasks: bytes" in message]
    assert all(f"{stage} " in state_file[0] for stage in ("committed", "convert", "events", "parse", "wait"))
    (stream,) = (one.stream for one in outcome.origins)
    assert stream is not None
    assert stream.events >= outcome.changes
    positions = (
        f"SELECT position FROM lake.{database.name}.mongo_{database.name}_changes WHERE kind = 'change'"
    )
    captured = [row[0] for row in spark.sql(positions).collect()]
    assert len(set(captured)) == len(captured) == outcome.changes > 200
    assert_mirror_equals_collection(spark, database.things, f"{database.name}.{database.name}_things")


@pytest.mark.long
@pytest.mark.covers("MDB-STR-04", "MDB-FAULT-03")
def test_a_stream_gets_over_lost_primaries_and_its_mirror_equals_the_collection(
    spark: SparkSession, run_stage: RunStage, application: Application
) -> None:
    from server_kit import MongoReplicaSet

    with MongoReplicaSet() as replica_set:
        client = replica_set.client()
        database = client.get_database(f"m{random.randrange(10**9)}", write_concern=WriteConcern("majority"))
        warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
        shop = declaration(database.name, catalog_options={"type": "hadoop", "warehouse": warehouse})
        connection = {"host": replica_set.uri}
        database.things.insert_many([{"_id": n} for n in range(500)])
        state_file = application.folder / "state.json"
        process = application.start(
            "stream", shop, connection, state_path=str(state_file), commit_interval_seconds=0.1
        )

        def wait_for_rounds(count: int) -> None:
            target = (json.loads(state_file.read_text())["rounds"] if state_file.exists() else 0) + count
            deadline = time.monotonic() + 180
            while not state_file.exists() or json.loads(state_file.read_text())["rounds"] < target:
                assert process.poll() is None, application.log_tail()
                assert time.monotonic() < deadline, application.log_tail()
                try:
                    database.things.update_one({"_id": random.randrange(500)}, {"$inc": {"x": 1}})
                    database.things.insert_one({"x": 0})
                except (AutoReconnect, OperationFailure):
                    time.sleep(0.05)  # what an election interrupts may or may not have happened

        wait_for_rounds(2)
        for _ in range(2):
            replica_set.step_down()
            wait_for_rounds(2)
            killed = replica_set.kill_primary()
            wait_for_rounds(2)
            killed.start()
            replica_set.wait_until_whole()
        process.terminate()
        outcome = application.wait(process)
        assert outcome.ok, outcome.error
        assert run_stage("sync", shop, connection).ok
        mirror = f"{database.name}.{database.name}_things"
        assert assert_mirror_equals_collection(spark, database.things, mirror) > 500
        captured = _captured_positions(spark, database.name)
        assert len(set(captured)) == len(captured)


def _kill_and_recover(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    database: Any,
    connection: dict[str, Any],
    kills: int,
) -> None:
    warehouse = str(spark.conf.get("spark.sql.catalog.lake.warehouse"))
    shop = declaration(database.name, catalog_options={"type": "hadoop", "warehouse": warehouse})
    namespace = Path(warehouse.removeprefix("file:")) / database.name
    write_mongodb(database.things, seed=99, count=100)
    assert run_stage("sync", shop, connection).ok

    def begin(number: int) -> subprocess.Popen[bytes]:
        write_mongodb(database.things, seed=100 + number, count=100)
        return application.start("sync", shop, connection, batch_changes=40)

    application.kill_often(kills, begin, merge_and_capture(namespace))
    committed = _captured_positions(spark, database.name)
    assert committed, "a killed sync had committed changes"
    assert run_stage("sync", shop, connection).ok
    mirror = f"{database.name}.{database.name}_things"
    assert assert_mirror_equals_collection(spark, database.things, mirror) > 10
    captured = _captured_positions(spark, database.name)
    assert len(captured) > len(committed)
    assert set(committed) < set(captured)
    assert len(set(captured)) == len(captured), "what was committed is not captured again"


@pytest.mark.covers("MDB-SNAP-04")
def test_mode_always_copies_at_every_run_and_then_streams(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = {**declaration(database.name), "snapshot": {"mode": "always"}}
    mirror = f"{database.name}.{database.name}_things"
    for number in range(1, 3):
        database.things.insert_one({"_id": number})
        outcome = run_stage("sync", shop, connection)
        assert outcome.tables[0].snapshot_rows == number
        assert assert_mirror_equals_collection(spark, database.things, mirror) == number
    database.things.insert_one({"_id": 3})
    assert run_stage("capture", shop, connection).changes == 1


@pytest.mark.covers("MDB-STR-02", "MDB-FAULT-06")
def test_killed_sync_is_recovered_by_the_next_run(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    database: Any,
    connection: dict[str, Any],
) -> None:
    _kill_and_recover(spark, run_stage, application, database, connection, kills=2)


@pytest.mark.covers("MDB-STR-02", "MDB-FAULT-06")
@pytest.mark.long
def test_sync_killed_twenty_times_loses_and_doubles_nothing(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    database: Any,
    connection: dict[str, Any],
) -> None:
    _kill_and_recover(spark, run_stage, application, database, connection, kills=20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB; only root on Linux can have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root's rights")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
def test_a_full_disk_is_reported_and_the_next_run_resumes(
    spark: SparkSession, application: Application, database: Any, connection: dict[str, Any], small_disk: Path
) -> None:
    database.things.insert_many([{"_id": n, "noise": random.randbytes(20_000)} for n in range(400)])
    shop = declaration(database.name, catalog_options={"type": "hadoop", "warehouse": f"file://{small_disk}"})

    failed = application.wait(application.start("sync", shop, connection))

    assert (failed.ok, failed.error_code) == (False, "TRANSIENT")
    assert "a disk is full" in failed.error
    assert "free space on the disk of the lake's warehouse" in failed.error
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    outcome = application.wait(application.start("sync", shop, connection))
    assert outcome.ok, outcome.error
    assert outcome.tables[0].snapshot_rows == 400
    verified = application.wait(application.start("verify", shop, connection))
    assert verified.ok, verified.error
