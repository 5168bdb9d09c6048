"""MongoDB: batch reads of views, time series and selected collections at each run."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from bson import json_util

from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


@pytest.mark.covers("MDB-XE-01")
def test_views_time_series_and_chosen_collections_follow_by_full_reads(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    database.create_collection("metrics", timeseries={"timeField": "at", "metaField": "sensor"})
    database.command("create", "open", viewOn="orders", pipeline=[{"$match": {"open": True}}])
    database.orders.insert_many([{"_id": n, "open": n % 2 == 0} for n in range(20)])
    database.metrics.insert_many([{"at": at, "sensor": n % 3, "v": n} for n in range(300)])
    database.small.insert_many([{"_id": n} for n in range(5)])
    shop: dict[str, Any] = {
        "name": f"mongo_{database.name}",
        "source": {
            "type": "mongodb",
            "batch": [rf"{database.name}\.(metrics|open|small)"],
            "batch_interval_seconds": 0,
        },
        "tables": [rf"{database.name}\..*"],
        "lake": {"catalog": "lake", "namespace": database.name},
    }

    def assert_equal(**counts: int) -> None:
        for name, count in counts.items():
            mirror = f"{database.name}.{database.name}_{name}"
            if name == "metrics":  # _id is last there, and PyMongo would write it first
                rows = spark.table(f"lake.{mirror}").select("document").collect()
                mirrored = {m["_id"]: m for m in (json_util.loads(row[0]) for row in rows)}
                assert mirrored == {m["_id"]: m for m in database.metrics.find()}
                assert len(mirrored) == len(rows) == count
                continue
            assert assert_mirror_equals_collection(spark, database[name], mirror) == count

    first = run_stage("sync", shop, connection)
    assert {t.table.rpartition(".")[2] for t in first.tables} == {"metrics", "open", "orders", "small"}
    assert_equal(orders=20, open=10, metrics=300, small=5)

    database.orders.update_one({"_id": 0}, {"$set": {"open": False}})
    database.orders.update_one({"_id": 2}, {"$set": {"more": 1}})
    database.orders.delete_one({"_id": 4})
    database.metrics.insert_one({"at": at, "sensor": 0, "v": -1})
    database.metrics.delete_many({"sensor": 1})
    database.small.delete_one({"_id": 0})
    database.small.insert_one({"_id": "new"})
    second = run_stage("sync", shop, connection)

    assert_equal(orders=19, open=8, metrics=201, small=5)
    read = {t.table.rpartition(".")[2]: (t.changes, t.snapshot_rows) for t in second.tables}
    assert read == {"orders": (3, 0), "open": (0, 8), "metrics": (0, 201), "small": (0, 5)}
    assert run_stage("verify", shop, connection).ok
    third = run_stage("sync", {**shop, "snapshot": {"mode": "never"}}, connection)
    assert {t.snapshot_rows for t in third.tables} == {0, 8, 201, 5}
    shop["source"]["batch_interval_seconds"] = 3600
    assert {t.snapshot_rows for t in run_stage("sync", shop, connection).tables} == {0}, "it isn't time yet"


@pytest.mark.covers("MDB-XE-01")
@pytest.mark.long
def test_by_a_cursor_field_runs_read_what_is_new_and_readings_in_full_see_the_rest(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    name = database.name
    database.create_collection("metrics", timeseries={"timeField": "at", "metaField": "sensor"})
    database.command("create", "open", viewOn="orders", pipeline=[{"$match": {"open": True}}])
    database.orders.insert_many([{"_id": n, "open": n % 2 == 0, "n": {"seq": n}} for n in range(20)])
    database.metrics.insert_many([{"at": at + dt.timedelta(seconds=n // 10), "v": n} for n in range(300)])
    database.small.insert_many([{"v": n} for n in range(5)])
    shop: dict[str, Any] = {
        "name": f"mongo_{name}",
        "source": {
            "type": "mongodb",
            "batch": [rf"{name}\.(metrics|open|small)"],
            "batch_interval_seconds": 0,
            "batch_cursors": {f"{name}.metrics": "at", f"{name}.open": "n.seq", f"{name}.small": "_id"},
        },
        "tables": [rf"{name}\..*"],
        "lake": {"catalog": "lake", "namespace": name},
    }

    def sync(**source: Any) -> dict[str, int]:
        done = run_stage("sync", {**shop, "source": {**shop["source"], **source}}, connection)
        return {t.table.rpartition(".")[2]: t.snapshot_rows for t in done.tables}

    def mirrored(table: str) -> dict[Any, Any]:
        rows = spark.table(f"lake.{name}.{name}_{table}").select("document").collect()
        found = {m["_id"]: m for m in (json_util.loads(row[0]) for row in rows)}
        assert len(found) == len(rows)
        return found

    def there(table: str) -> dict[Any, Any]:
        return {m["_id"]: m for m in database[table].find()}

    assert sync() == {"orders": 20, "open": 10, "metrics": 300, "small": 5}
    assert sync() == {"orders": 0, "open": 1, "metrics": 10, "small": 1}, "those of the last value, again"

    # More of the last value, greater ones, and what such a reading can't see.
    database.metrics.insert_many([{"at": at + dt.timedelta(seconds=s), "v": -s} for s in (29, 29, 30)])
    database.small.insert_one({"v": "new"})
    database.orders.insert_many([{"_id": n, "open": True, "n": {"seq": n}} for n in (20, 21)])
    late = database.metrics.insert_one({"at": at + dt.timedelta(seconds=20), "v": "late"}).inserted_id
    deleted = database.orders.find_one_and_delete({"_id": 0})
    assert sync() == {"orders": 0, "open": 3, "metrics": 13, "small": 2}
    for table in ("open", "metrics", "small"):
        unseen = {deleted["_id"]: deleted} if table == "open" else {}
        expected = {key: value for key, value in there(table).items() if key != late}
        assert mirrored(table) == {**expected, **unseen}

    # An overlap reads back, and a reading in full sees all.
    since = at.replace(second=20, tzinfo=None)  # as PyMongo gives it
    back = [measured for measured in there("metrics").values() if measured["at"] >= since]
    assert sync(batch_overlap_seconds=10)["metrics"] == len(back)
    assert mirrored("metrics") == there("metrics")
    assert sync(batch_full_refresh_seconds=0.001) == {"orders": 0, "open": 11, "metrics": 304, "small": 6}
    assert mirrored("open") == there("open")
    assert sync() == {"orders": 0, "open": 1, "metrics": 1, "small": 1}
    run_stage("offsets", shop, connection, tables=[f"{name}.open"], action="reset")
    assert sync()["open"] == 11


@pytest.mark.covers("MDB-XM-02")
def test_copies_have_stages_of_their_own(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any], mongo_client: Any
) -> None:
    database.orders.insert_many(
        [{"_id": n, "open": n % 2 == 0, "secret": "x" * 1000, "n": n} for n in range(4000)]
    )
    database.people.insert_one({"_id": 1, "name": "Ann"})
    database.logs.insert_one({"_id": 1})
    stages: list[dict[str, Any]] = [
        {"$match": {"open": {"$ne": False}}},
        {"$lookup": {"from": "people", "localField": "_id", "foreignField": "_id", "as": "who"}},
        {"$sort": {"secret": 1, "n": -1}},
        {"$unset": "secret"},
    ]
    shop: dict[str, Any] = {
        "name": f"mongo_{database.name}",
        "source": {"type": "mongodb", "copy": {"pipeline": stages}},
        "tables": [rf"{database.name}\..*"],
        "snapshot": {"include": [rf"{database.name}\.(orders|p.*)"]},
        "lake": {"catalog": "lake", "namespace": database.name},
    }
    on_memory = {**shop, "source": {**shop["source"], "copy": {"pipeline": stages, "allow_disk_use": False}}}
    parameter = "internalQueryMaxBlockingSortMemoryUsageBytes"
    before = mongo_client.admin.command("getParameter", 1, **{parameter: 1})[parameter]
    mongo_client.admin.command("setParameter", 1, **{parameter: 200_000})
    try:
        outcome = run_stage("sync", on_memory, connection)
        assert f"{database.name}.orders: its snapshot failed" in outcome.error
        assert "ort exceeded memory limit" in outcome.error
        assert run_stage("sync", shop, connection).ok
    finally:
        mongo_client.admin.command("setParameter", 1, **{parameter: before})

    def mirrored(table: str) -> dict[Any, Any]:
        rows = spark.table(f"lake.{database.name}.{database.name}_{table}").select("document").collect()
        return {m["_id"]: m for m in (json_util.loads(row[0]) for row in rows)}

    copied = {m["_id"]: m for m in database.orders.aggregate(stages)}
    assert len(copied) == 2000
    assert mirrored("orders") == copied
    assert mirrored("people") == {1: {"_id": 1, "name": "Ann", "who": [{"_id": 1, "name": "Ann"}]}}
    assert not mirrored("logs"), "snapshot.include doesn't select it"
    copied_tables = [f"{database.name}.{table}" for table in ("orders", "people")]
    assert run_stage("verify", shop, connection, tables=copied_tables).ok

    # The stream has stages of its own: what changes comes as it is.
    database.orders.update_one({"_id": 1}, {"$set": {"n": -1}})
    database.orders.delete_one({"_id": 2})
    run_stage("sync", shop, connection)
    del copied[2]
    assert mirrored("orders") == {**copied, 1: database.orders.find_one({"_id": 1})}
    again = run_stage("snapshot", shop, connection, tables=[f"{database.name}.orders"])
    assert again.tables[0].snapshot_rows == 1999
    assert mirrored("orders") == copied, "a copy that replaces has what its stages leave, and no more"
