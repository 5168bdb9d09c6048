"""A real rollover of MongoDB's oplog: runs react as configured in the declaration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.jobs.spec import JobResult
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection
from tests.integration.jobs.oplog_rollover import roll_over

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    from server_kit import MongoServer

    with MongoServer(oplog_size_mib=1, options=("--syncdelay", "1")) as started:
        yield started


def declaration(name: str, **snapshot: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"type": "mongodb"},
        "tables": [rf"{name}\..*"],
        "snapshot": snapshot,
        "lake": {"catalog": "lake", "namespace": name},
    }


def snapshot_rows(outcome: JobResult) -> dict[str, int]:
    """Return the rows that a run read in full, of tables that it read."""
    return {table.table: table.snapshot_rows for table in outcome.tables if table.snapshot_rows}


@pytest.mark.covers("MDB-SNAP-05", "MDB-SNAP-08", "MDB-FAULT-04", "MDB-FAULT-09", "MDB-XA-05", "MDB-SNAP-16")
def test_a_lost_position_fails_or_is_recovered_as_configured(
    spark: SparkSession, run_stage: RunStage, server: MongoServer
) -> None:
    client = server.client()
    things = client.shop.things
    mirror = "shop.shop_things"
    connection = {"host": server.uri}
    things.insert_many([{"_id": n} for n in range(20)])
    client.shop.others.insert_one({"_id": 1})
    only_things = {"include": [r"shop\.things"]}
    first = run_stage("sync", declaration("shop", **only_things), connection)
    assert snapshot_rows(first) == {"shop.things": 20}
    things.delete_one({"_id": 0})
    things.update_one({"_id": 1}, {"$set": {"x": 1}})
    roll_over(client, first.offset)

    for _ in range(2):  # nothing changes by itself
        with pytest.raises(PositionLost, match="offsets reset"):
            run_stage("sync", declaration("shop", **only_things), connection)
    assert run_stage("offsets", declaration("shop"), connection, action="show").offset == first.offset

    mended = run_stage("sync", declaration("shop", mode="when_needed", **only_things), connection)
    assert snapshot_rows(mended) == {"shop.things": 19}
    assert assert_mirror_equals_collection(spark, things, mirror) == 19
    assert [text for text in mended.findings if "is incomplete" in text and "things" in text] == []
    things.insert_one({"_id": "captured again"})
    client.shop.others.insert_one({"_id": "streamed, though no snapshot includes it"})
    again = run_stage("sync", declaration("shop", mode="when_needed", **only_things), connection)
    assert snapshot_rows(again) == {}
    assert again.changes == 2
    assert assert_mirror_equals_collection(spark, things, mirror) == 20

    things.delete_one({"_id": 2})
    roll_over(client, again.offset)
    going_on = declaration("shop", on_lost_position="continue", **only_things)
    assert run_stage("capture", going_on, connection).changes == 0
    things.insert_one({"_id": "after"})
    outcome = run_stage("sync", going_on, connection)
    assert snapshot_rows(outcome) == {}
    assert spark.table(f"lake.{mirror}").count() == 21, "the lost deletion is missing"
    assert any("shop.things is incomplete until its next snapshot" in text for text in outcome.findings)

    run_stage("snapshot", going_on, connection, tables=["shop.things"])
    assert assert_mirror_equals_collection(spark, things, mirror) == 20


@pytest.mark.covers("MDB-SNAP-06")
def test_initial_only_ends_when_all_is_read_and_another_mode_resumes_from_there(
    spark: SparkSession, run_stage: RunStage, server: MongoServer, tmp_path: Any
) -> None:
    client = server.client()
    things = client.once.things
    connection = {"host": server.uri}
    things.insert_many([{"_id": n} for n in range(10)])
    once = declaration("once", mode="initial_only")
    streamed = run_stage(
        "stream", once, connection, state_path=str(tmp_path / "state.json"), commit_interval_seconds=60
    )
    assert streamed.ok
    assert streamed.changes == 0
    things.delete_one({"_id": 0})
    assert snapshot_rows(run_stage("sync", once, connection)) == {}
    assert spark.table("lake.once.once_things").count() == 10

    run_stage("sync", declaration("once", mode="initial"), connection)
    assert assert_mirror_equals_collection(spark, things, "once.once_things") == 9
