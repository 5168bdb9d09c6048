"""Notifications of MongoDB's jobs, and metrics under Debezium's names, on a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.jobs.spec import SnapshotResult
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.iceberg import IcebergTable
from airflow_cdc_provider.sources.contract import Plan
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration

received: list[dict[str, Any]] = []


def note(notification: dict[str, Any]) -> None:
    """A user's function."""
    received.append(notification)


def fail(notification: dict[str, Any]) -> None:
    """A user's function that can do nothing."""
    raise OSError("nobody listens")


def declaration(database: str, **more: Any) -> dict[str, Any]:
    return {
        "name": f"mongo_{database}",
        "source": {"type": "mongodb"},
        "tables": [rf"{database}\.[a-y]"],
        "lake": {"catalog": "lake", "namespace": database},
        "publish": {"topic_prefix": "shop"},
        **more,
    }


def kinds() -> list[str]:
    found = [f"{n['type']}{n['additional_data'].get('scanned_collection', '')[-2:]}" for n in received]
    received.clear()
    return found


@pytest.mark.covers("MDB-XD-09")
def test_snapshots_are_notified_on_every_channel(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    received.clear()
    channels = {"channels": ["log", "table", "callback"], "callback": f"{__name__}:note"}
    shop = declaration(database.name, notifications=channels)
    database.a.insert_many([{"_id": n} for n in range(2500)])
    database.b.insert_one({"_id": 1})
    append = ChangesTable.append_batch

    def breaks(*arguments: Any, **options: Any) -> Any:
        if len(received) > 1:  # the rows, not the start of the capture
            raise KeyboardInterrupt
        return append(*arguments, **options)

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(ChangesTable, "append_batch", breaks)
        run_stage("sync", shop, connection)
    assert kinds() == ["STARTED", "IN_PROGRESS", "IN_PROGRESS", "ABORTED"]

    with caplog.at_level("INFO"):
        run_stage("sync", shop, connection)
    assert caplog.text.count("notification {") == len(received)
    assert {n["additional_data"]["connector_name"] for n in received} == {"shop"}
    assert [n["additional_data"].get("total_rows_scanned") for n in received[3:5]] == ["2500", "1"]
    assert all(abs(n["timestamp"] / 1000 - time.time()) < 300 for n in received)
    assert kinds() == [
        "STARTED",
        "IN_PROGRESS",
        "IN_PROGRESS",
        "TABLE_SCAN_COMPLETED.a",
        "TABLE_SCAN_COMPLETED.b",
        "COMPLETED",
    ]
    run_stage("sync", shop, connection)
    assert kinds() == ["SKIPPED"]
    run_stage("snapshot", shop, connection, tables=[f"{database.name}.b"])
    assert kinds() == ["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED.b", "COMPLETED"]

    kept = spark.table(f"lake.{database.name}.mongo_{database.name}_notifications")
    rows = kept.orderBy("timestamp").collect()
    assert len(rows) == 4 + 6 + 1 + 4
    assert [row["type"] for row in rows[:4]] == ["STARTED", "IN_PROGRESS", "IN_PROGRESS", "ABORTED"]
    assert rows[1]["additional_data"]["connector_name"] == "shop"
    assert {row["aggregate_type"] for row in rows} == {"Initial Snapshot"}


def test_a_channel_that_fails_stops_no_capture_and_is_a_finding(
    run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    channels = {"channels": ["callback"], "callback": f"{__name__}:fail"}
    database.a.insert_one({})
    outcome = run_stage("sync", declaration(database.name, notifications=channels), connection)
    assert outcome.ok
    assert outcome.tables[0].snapshot_rows == 1
    (finding,) = outcome.findings
    assert "4 notifications could not be sent by channel callback" in finding


def test_without_a_snapshot_its_absence_is_reported(
    run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    received.clear()
    channels = {"channels": ["callback"], "callback": f"{__name__}:note"}
    shop = declaration(database.name, notifications=channels, snapshot={"mode": "never"})
    outcome = run_stage("sync", shop, connection)
    assert kinds() == ["SKIPPED"]
    assert metrics_of(outcome)["snapshot"] == {"SnapshotSkipped": True}


@pytest.mark.covers(
    "MDB-MET-01",
    "MDB-MET-02",
    "MDB-MET-03",
    "MDB-MET-04",
    "MDB-MET-05",
    "MDB-MET-06",
    "MDB-MET-08",
    "MDB-MET-24",
)
def test_a_snapshot_has_debeziums_metrics_and_only_then(
    run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    database.a.insert_many([{"_id": n} for n in range(30)])
    database.b.insert_one({"_id": {"part": "x"}})
    database.z.insert_one({"_id": "not captured"})
    shop = declaration(database.name, snapshot={"filters": {f"{database.name}.a": '{"_id": {"$lt": 20}}'}})

    first = run_stage("sync", shop, connection)
    found = metrics_of(first)["snapshot"]

    tables = [f"{database.name}.{name}" for name in "ab"]
    assert found["CapturedTables"] == tables
    assert found["RowsScanned"] == dict(zip(tables, (20, 1), strict=True))
    assert (found["TotalTableCount"], found["RemainingTableCount"]) == (2, 0)
    assert (found["TotalNumberOfEventsSeen"], found["NumberOfEventsFiltered"]) == (21, 0)
    assert found["NumberOfErroneousEvents"] == 0
    assert found["NumberOfDisconnects"] == 0
    assert found["LastEvent"] in (
        f'operation: read, collection: {database.name}.b, key: {{"_id": {{"part": "x"}}}}',
        f'operation: read, collection: {database.name}.a, key: {{"_id": 19}}',
    ), "the tasks read at once"
    assert 0 < found["MilliSecondsSinceLastEvent"] < 120_000
    states = [found[f"Snapshot{state}"] for state in ("Running", "Paused", "Aborted", "Completed", "Skipped")]
    assert states == [False, False, False, True, False]
    assert metrics_of(run_stage("sync", shop, connection))["snapshot"] == {"SnapshotSkipped": True}
    assert "snapshot" not in metrics_of(run_stage("capture", shop, connection))


@pytest.mark.covers("MDB-MET-14", "MDB-MET-15", "MDB-MET-18", "MDB-MET-19", "MDB-MET-21", "MDB-XD-13")
def test_a_stream_has_debeziums_metrics(
    run_stage: RunStage, database: Any, mongo_client: MongoClient, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name)
    shop["source"]["stream"] = {"pipeline": [{"$match": {}}], "pipeline_order": "user_only"}
    database.a.insert_one({"_id": 0})
    first = metrics_of(run_stage("sync", shop, connection))["streaming"]
    assert (first["LastTransactionId"], first["NumberOfCommittedTransactions"]) == ("", 0)
    before = time.time()
    database.a.insert_many([{"_id": n} for n in range(1, 8)])
    database.a.update_many({"_id": {"$lt": 5}}, {"$set": {"x": 1}})
    database.a.replace_one({"_id": 5}, {"y": 1})
    database.z.insert_many([{"_id": n} for n in range(3)])
    for number in range(3):
        with mongo_client.start_session() as session, session.start_transaction():
            database.a.delete_one({"_id": number}, session=session)
            database.b.insert_one({"_id": number}, session=session)
            number_of_last = session.session_id["id"].hex() if number == 2 else ""
    database.a.insert_one({"_id": "the last"})
    time.sleep(2)

    outcome = run_stage("capture", shop, connection)
    found = metrics_of(outcome)["streaming"]

    assert found["CapturedTables"] == [f"{database.name}.a", f"{database.name}.b"]
    assert found["TotalNumberOfCreateEventsSeen"] == 7 + 3 + 1
    assert found["TotalNumberOfUpdateEventsSeen"] == 5 + 1
    assert found["TotalNumberOfDeleteEventsSeen"] == 3
    assert found["NumberOfEventsFiltered"] == 3
    assert found["TotalNumberOfEventsSeen"] >= 11 + 6 + 3 + 3
    assert found["NumberOfErroneousEvents"] == 0
    assert found["NumberOfCommittedTransactions"] == 3
    assert found["LastTransactionId"].startswith(f"{number_of_last}:")
    seconds, increment = found["SourceEventPosition"]["sec"], found["SourceEventPosition"]["ord"]
    position = found["LastEvent"].rpartition("position: ")[2]
    assert found["LastEvent"].startswith(
        f'operation: insert, collection: {database.name}.a, key: {{"_id": "the last"}}, position: '
    )
    assert position.partition(":")[0] <= seconds
    assert int(increment) > 0
    assert 0 < found["MilliSecondsSinceLastEvent"] < 120_000
    assert (found["Connected"], found["NumberOfDisconnects"]) == (True, 0)
    names = ("MinValue", "P50", "P95", "P99", "MaxValue")
    values = [found[f"MilliSecondsBehindSource{name}"] for name in names]
    assert values == sorted(values)
    assert values[0] >= 2000
    assert 2000 <= found["MilliSecondsBehindSource"] <= (time.time() - before) * 1000 + 1000
    assert values[0] <= found["MilliSecondsBehindSourceAverageValue"] <= values[-1]
    assert values[-1] <= (time.time() - before) * 1000 + 1000

    again = run_stage("capture", {**shop, "lag_statistics": False}, connection)
    assert not any("BehindSourceP" in name for name in metrics_of(again)["streaming"])
    database.a.insert_one({"_id": "later"})
    quiet = run_stage("capture", {**shop, "lag_statistics": False}, connection)
    assert quiet.changes == 1
    assert not any("BehindSourceP" in name for name in metrics_of(quiet)["streaming"])


@pytest.mark.covers("MDB-MET-09", "MDB-MET-10", "MDB-MET-11")
@pytest.mark.long
def test_a_job_reports_the_progress_of_its_snapshot_while_it_runs(
    application: Application, spark: SparkSession, database: Any, connection: dict[str, Any]
) -> None:
    warehouse = spark.conf.get("spark.sql.catalog.lake.warehouse")
    shop = declaration(database.name, notifications={"channels": ["airflow"]})
    shop["lake"]["catalog_options"] = {"type": "hadoop", "warehouse": warehouse}
    shop["source"]["advanced"] = {"ranges_per_snapshot": 40, "fetch_size": 500}
    database.a.insert_many([{"_id": n} for n in range(25_000)])
    database.b.insert_one({})

    outcome = application.wait(application.start("sync", shop, connection))

    assert outcome.ok, outcome.error
    lines = [
        json.loads(line) for line in (application.folder / "snapshot_rows.jsonl").read_text().splitlines()
    ]
    shots = [SnapshotResult(**line["snapshot"]) for line in lines if "snapshot" in line]
    assert shots
    assert (shots[-1].completed, shots[-1].remaining, shots[-1].rows) == (True, 0, 25_001)
    assert outcome.snapshot is not None
    assert 0 < shots[0].seconds <= outcome.snapshot.seconds
    rows = [line["rows"] for line in lines if line.get("table") == f"{database.name}.a"]
    assert rows[-1] == 25_000
    assert all(later - earlier <= 10_000 for earlier, later in zip([0, *rows], rows, strict=False))
    found = metrics_of(outcome)["snapshot"]
    assert found["SnapshotDurationInSeconds"] == int(outcome.snapshot.seconds)
    assert found["SnapshotPausedDurationInSeconds"] == 0
    notifications = (application.folder / "notifications.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in notifications][-1] == "COMPLETED"


@pytest.mark.covers("MDB-MET-13")
def test_connections_that_a_snapshot_and_a_stream_lose_are_counted(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    mongo_client: MongoClient,
    connection: dict[str, Any],
) -> None:
    database.a.insert_many([{"_id": n} for n in range(3000)])
    shop = declaration(database.name)
    shop["source"]["advanced"] = {"connect_backoff_seconds": 0.05, "fetch_size": 500}
    point = {"configureFailPoint": "failCommand", "mode": {"times": 1}}
    hang_up = {"closeConnection": True, "namespace": f"{database.name}.a"}
    mongo_client.admin.command({**point, "data": {**hang_up, "failCommands": ["getMore"]}})

    shot = metrics_of(run_stage("sync", shop, connection))["snapshot"]

    assert (shot["NumberOfDisconnects"], shot["TotalNumberOfEventsSeen"]) == (1, 3000)
    database.a.insert_one({})
    watching = {**point, "data": {"closeConnection": True, "failCommands": ["aggregate"]}}
    mongo_client.admin.command(watching)
    stream = metrics_of(run_stage("sync", shop, connection))["streaming"]
    assert stream["NumberOfDisconnects"] >= 1
    assert_mirror_equals_collection(spark, database.a, f"{database.name}.{database.name}_a")


def test_a_continuous_application_keeps_its_metrics_in_its_state(
    run_stage: RunStage, database: Any, connection: dict[str, Any], tmp_path: Path
) -> None:
    path, stop = tmp_path / "state.json", tmp_path / "stop"
    database.a.insert_one({"_id": 0})
    written = time.time()

    def wait_for(condition: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + 180
        while not (path.exists() and condition(json.loads(path.read_text()))):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop_after_a_change() -> None:
        wait_for(lambda state: state["rounds"] >= 2)
        database.a.insert_one({"_id": 1})
        wait_for(lambda state: state["metrics"]["streaming"]["TotalNumberOfCreateEventsSeen"] == 1)
        stop.touch()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(stop_after_a_change)
        places = {"state_path": str(path), "stop_path": str(stop)}
        outcome = run_stage(
            "stream", declaration(database.name), connection, commit_interval_seconds=0.0, **places
        )
        watching.result()

    assert outcome.ok
    state = json.loads(path.read_text())
    assert state["metrics"]["snapshot"]["SnapshotCompleted"], "of the whole application, not of a round"
    assert 0 <= state["metrics"]["streaming"]["MilliSecondsBehindSource"] < (time.time() - written) * 1000
    assert state["metrics"]["streaming"]["LastEvent"].startswith("operation: insert, ")


@pytest.mark.covers("MDB-STR-03")
@pytest.mark.parametrize("takes_effect", [False, True])
def test_the_position_is_stored_with_the_data_or_not_at_all(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    takes_effect: bool,
) -> None:
    shop = declaration(database.name)
    database.a.insert_one({"_id": 0})
    before = run_stage("sync", shop, connection).offset
    database.a.insert_many([{"_id": n} for n in range(1, 50)])
    commit = IcebergTable.commit

    def dies_at_its_commit(self: Any, *arguments: Any, **options: Any) -> Any:
        is_changes_table = self.name.endswith("_changes")
        if takes_effect or not is_changes_table:
            committed = commit(self, *arguments, **options)
        if is_changes_table:
            raise InterruptedError
        return committed

    with monkeypatch.context() as broken, pytest.raises(InterruptedError):
        broken.setattr(IcebergTable, "commit", dies_at_its_commit)
        run_stage("capture", shop, connection)
    assert (run_stage("offsets", shop, connection, action="show").offset != before) == takes_effect
    stored = spark.table(f"lake.{database.name}.mongo_{database.name}_changes").where("kind = 'change'")
    assert stored.count() == (49 if takes_effect else 0)

    outcome = run_stage("sync", shop, connection)

    assert outcome.offset != before
    assert outcome.changes == (0 if takes_effect else 49)
    assert_mirror_equals_collection(spark, database.a, f"{database.name}.{database.name}_a")


@pytest.mark.covers("MDB-XM-05")
def test_bad_and_oversized_events_stop_no_capture_and_a_lost_token_does_unless_configured_otherwise(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(database.name)
    shop["source"]["pre_images"] = True
    database.create_collection("a", changeStreamPreAndPostImages={"enabled": True})
    database.a.insert_one({"_id": "large", "s": "x" * 9_000_000})
    run_stage("sync", shop, connection)
    database.a.insert_one({"_id": "bad", "ok": True})
    database.a.update_one({"_id": "large"}, {"$set": {"n": 1}})  # 18 MB, before and after
    database.a.insert_one({"_id": "good", "ok": True})
    plan = MongodbSource.plan
    breaks: list[bool] = []

    def damaged(*arguments: Any) -> Plan:
        """Break a truth value inside a document, as a fault of memory or of the network would."""
        whole = plan(*arguments)
        sound, broken = (b"\x02_id\0\x04\0\0\0bad\0\x08ok\0" + bytes([value]) for value in (1, 2))
        slices = [replace(part, events=part.events.replace(sound, broken)) for part in whole.partitions]
        breaks.append([s.events for s in slices] != [p.events for p in whole.partitions])
        return replace(whole, partitions=slices)

    with monkeypatch.context() as faulty:
        faulty.setattr(MongodbSource, "plan", damaged)
        outcome = run_stage("sync", shop, connection)

    assert outcome.ok
    assert sum(breaks) == 1
    assert outcome.changes == 3
    assert outcome.tables[0].undecodable == 1
    assert metrics_of(outcome)["streaming"]["NumberOfErroneousEvents"] == 1
    (letter,) = spark.table(f"lake.{database.name}.mongo_{database.name}_quarantine").collect()
    assert letter["reason"]
    assert b"\x08ok\0\x02" in bytes(letter["payload"])
    mirror = spark.table(f"lake.{database.name}.{database.name}_a")
    assert sorted(row[0] for row in mirror.select("_id").collect()) == ['"good"', '"large"']

    point = {"configureFailPoint": "failCommand", "mode": {"times": 2}}
    refused = {"failCommands": ["aggregate"], "errorCode": 260, "appName": database.name}
    named = {**connection, "extra": {**connection["extra"], "appname": database.name}}
    database.client.admin.command({**point, "data": refused})
    with pytest.raises(PositionLost, match="resume_by_time"):
        run_stage("capture", shop, named)
    shop["source"]["stream"] = {"resume_by_time": True}
    database.a.insert_one({"_id": "later"})
    database.client.admin.command({**point, "data": refused})
    assert 1 <= run_stage("capture", shop, named).changes <= 2, "what was of that very moment comes again"


@pytest.mark.covers("MDB-QUE-01", "MDB-QUE-02", "MDB-QUE-03", "MDB-QUE-04", "MDB-MET-16")
def test_while_commits_are_slow_reading_stops_at_the_limits_and_nothing_is_dropped(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    mongo_client: MongoClient,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(database.name)
    comment = f"slow {database.name}"
    shop["source"] |= {
        "stream": {"comment": comment},
        "advanced": {"batch_events": 100, "read_ahead_events": 450, "backlog_streams": 1},
    }
    run_stage("sync", shop, connection)
    for first in range(0, 3000, 500):
        database.a.insert_many([{"_id": n} for n in range(first, first + 500)])
    append = ChangesTable.append_batch
    sent: list[tuple[int, int]] = []

    def documents_sent() -> int:
        stages: list[dict[str, Any]] = [
            {"$currentOp": {"idleCursors": True, "allUsers": True}},
            {"$match": {"cursor.originatingCommand.comment": f"{comment} capture"}},
        ]
        return sum(op["cursor"]["nDocsReturned"] for op in mongo_client.admin.aggregate(stages))

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(1.0)
        before = documents_sent()
        time.sleep(1.0)
        sent.append((before, documents_sent()))
        return append(*arguments, **options)

    with monkeypatch.context() as slowed:
        slowed.setattr(ChangesTable, "append_batch", slow)
        outcome = run_stage("capture", shop, connection, batch_changes=500)

    assert outcome.changes == 3000
    (stream,) = (one.stream for one in outcome.origins)
    assert stream is not None
    assert 100 < stream.queue_events_max <= 450
    assert len(sent) >= 5
    assert all(before == later for before, later in sent), "the server is asked for nothing meanwhile"
    for number, (before, _) in enumerate(sent[:5], 1):
        assert 500 * number < before <= 500 * number + 450
    found = metrics_of(outcome)["streaming"]
    assert (found["QueueTotalCapacity"], found["QueueRemainingCapacity"]) == (450, 450)
    assert found["MaxQueueSizeInBytes"] == 32 * 1024 * 1024
    assert found["CurrentQueueSizeInBytes"] == 0
    run_stage("sync", shop, connection)
    assert_mirror_equals_collection(spark, database.a, f"{database.name}.{database.name}_a")
