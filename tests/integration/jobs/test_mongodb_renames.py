"""MongoDB: a collection renamed to a captured name is captured with its documents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.capturing import capture as capture_stage
from airflow_cdc_provider.jobs.capturing.arrivals import mark_arrivals
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.lake.changes_table import ChangesTable
from server_kit import KafkaServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection
from tests.integration.jobs.publishing import with_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


def declared(database: Any, *tables: str, **more: Any) -> dict[str, Any]:
    names = "|".join(tables) or "(?!tmp).*"
    return {
        "name": f"mongo_{database.name}",
        "source": {"type": "mongodb"},
        "tables": [rf"{database.name}\.({names})"],
        "lake": {"catalog": "lake", "namespace": database.name},
        **more,
    }


def equal(spark: SparkSession, database: Any, name: str) -> int:
    return assert_mirror_equals_collection(spark, database[name], f"{database.name}.{database.name}_{name}")


def test_a_renamed_collection_is_read_again_by_the_same_sync(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    database.a.insert_many([{"_id": n, "of": "a"} for n in range(50)])
    database.b.insert_many([{"_id": n, "of": "b"} for n in range(20, 90)])
    database.separate.insert_many([{"_id": n, "of": "separate"} for n in range(30)])
    shop = declared(database, "a", "b", "sums")
    run_stage("sync", shop, connection)
    assert (equal(spark, database, "a"), equal(spark, database, "b")) == (50, 70)

    # Over a name that is known, with changes before and after it.
    database.a.update_one({"_id": 1}, {"$set": {"more": 1}})
    database.a.rename("b", dropTarget=True)
    database.b.delete_one({"_id": 2})
    database.b.insert_one({"_id": "new"})
    done = run_stage("sync", shop, connection)
    assert equal(spark, database, "b") == 50
    assert equal(spark, database, "a") == 0
    assert done.snapshot is not None
    assert done.snapshot.rows_by_table == {f"{database.name}.b": 50}
    assert not [finding for finding in done.findings if "renamed" in finding]

    # Back to a former name; from a collection that isn't captured; and $out, which renames what it wrote.
    database.b.rename("a")
    database.separate.rename("b")
    database.a.aggregate([{"$group": {"_id": "$of", "n": {"$sum": 1}}}, {"$out": "sums"}])
    run_stage("sync", shop, connection)
    assert [equal(spark, database, name) for name in ("a", "b", "sums")] == [50, 30, 2]
    database.a.delete_many({"of": "a"})
    database.a.aggregate([{"$group": {"_id": "$of", "n": {"$sum": 1}}}, {"$out": "sums"}])
    again = run_stage("sync", shop, connection)
    assert again.snapshot is not None
    assert again.snapshot.rows_by_table == {f"{database.name}.sums": 1}
    assert equal(spark, database, "sums") == 1
    # By a name that is gone again, and to one that a dot in a pattern would miss.
    shop["tables"] = [rf"{database.name}\..*"]
    database.b.rename("passing")
    database.passing.rename("new\nline")
    swapped = run_stage("sync", shop, connection)
    assert not swapped.findings
    name = Connector.from_dict(shop).mirror_table(f"{database.name}.new\nline")
    assert assert_mirror_equals_collection(spark, database["new\nline"], name) == 30
    idle = run_stage("sync", shop, connection)
    assert idle.snapshot is None or not idle.snapshot.tables, "what was read again isn't due again"
    assert run_stage("verify", shop, connection).ok


def test_a_rename_between_databases_leaves_nothing_of_the_name_that_the_server_gives_meanwhile(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    kafka_server: KafkaServer,
) -> None:
    stage = database.client[f"{database.name}_stage"]
    both = with_broker(connection, kafka_server)
    kafka = {"connection": "kafka"}
    publish = {"topic_prefix": database.name, "schema_changes": True, "kafka": kafka}
    shop = {**declared(database, ".*", publish=publish), "tables": [rf"{database.name}(_stage)?\..*"]}
    stage.fresh.insert_many([{"_id": n} for n in range(7)])
    database.a.insert_one({"_id": 1})
    run_stage("sync", shop, both)
    try:
        names = {"to": f"{database.name}.fresh"}
        database.client.admin.command("renameCollection", f"{stage.name}.fresh", **names)
        database.a.aggregate([{"$out": "sums"}])
        done = run_stage("sync", shop, both)
        assert done.ok, done.error
        assert (equal(spark, database, "fresh"), equal(spark, database, "sums")) == (7, 1)
        assert {table.table for table in done.tables} == {
            f"{database.name}.{name}" for name in ("a", "fresh", "sums")
        } | {f"{stage.name}.fresh"}
        topics = AdminClient({"bootstrap.servers": kafka_server.bootstrap}).list_topics(timeout=30).topics
        assert {name for name in topics if name.startswith(f"{database.name}.")} == {
            f"{database.name}.{name}"
            for name in (
                "cdc-positions",
                "schema-changes",
                *(f"{database.name}.{name}" for name in ("a", "fresh", "sums")),
                f"{stage.name}.fresh",
            )
        }
        notices = [json.loads(m.value()) for m in kafka_server.read(f"{database.name}.schema-changes")]
        assert [(n["type"], n["databaseName"], n["collectionName"]) for n in notices] == [
            ("drop", stage.name, "fresh")
        ]
        connector = Connector.from_dict(shop)
        changes = ChangesTable(build_lake(spark, connector), connector)
        kept = changes.table.read(changes.table.head()).where("source_table LIKE '%.tmp%'")
        assert kept.count() == 0
    finally:
        database.client.drop_database(stage)


def test_a_rename_whose_capture_died_before_the_mark_is_recovered(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database.a.insert_many([{"_id": n} for n in range(10)])
    database.b.insert_one({"_id": "b"})
    shop = declared(database)
    run_stage("sync", shop, connection)
    database.a.rename("b", dropTarget=True)

    looks: list[int] = []

    def dies(stores: Any, source: Any, progress: Any, state: Any) -> Any:
        looks.append(state.batch)
        if len(looks) == 2:
            raise ConnectionResetError("the driver is gone")
        return mark_arrivals(stores, source, progress, state)

    with monkeypatch.context() as patched:
        patched.setattr(capture_stage, "mark_arrivals", dies)
        with pytest.raises(ConnectionResetError):
            run_stage("capture", shop, connection)
    connector = Connector.from_dict(shop)
    changes = ChangesTable(build_lake(spark, connector), connector)
    assert changes.table.read(changes.table.head()).where("kind = 'signal'").count() == 1, "it was committed"
    assert not Progress.from_offset(changes.state().offset).snapshots[f"{database.name}.b"].due
    run_stage("sync", shop, connection)
    assert equal(spark, database, "b") == 10


def test_without_snapshots_of_its_own_a_connector_reports_the_rename(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    database.a.insert_many([{"_id": n} for n in range(10)])
    shop = declared(database, snapshot={"mode": "never"})
    run_stage("sync", shop, connection)
    database.a.rename("b")
    reported = run_stage("sync", shop, connection).findings
    assert [f for f in reported if f"{database.name}.a was renamed to it" in f]
    run_stage("snapshot", shop, connection, tables=[f"{database.name}.b"])
    assert equal(spark, database, "b") == 10
    assert not [f for f in run_stage("sync", shop, connection).findings if "renamed" in f]


def test_the_mirror_of_a_dropped_collection_becomes_empty(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    for name in "abc":
        database[name].insert_many([{"_id": n} for n in range(10)])
    shop = declared(database)
    run_stage("sync", shop, connection)
    database.a.insert_one({"_id": "last"})
    database.a.drop()
    database.b.rename("elsewhere")
    done = run_stage("sync", shop, connection)
    assert {t.table.rpartition(".")[2]: t.rows_removed for t in done.tables} == {
        "a": 10,
        "b": 10,
        "c": 0,
        "elsewhere": 0,
    }
    assert [equal(spark, database, name) for name in ("a", "b", "c", "elsewhere")] == [0, 0, 10, 10]
    again = run_stage("sync", shop, connection)
    assert {t.table.rpartition(".")[2] for t in again.tables} == {"c", "elsewhere"}
    database.a.insert_one({"_id": "again"})
    run_stage("sync", shop, connection)
    assert equal(spark, database, "a") == 1
