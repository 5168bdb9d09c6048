"""MongoDB: views, time series and collections by choice, read in full at each run."""

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
            "batch_seconds": 0,
        },
        "tables": [rf"{database.name}\..*"],
        "lake": {"catalog": "lake", "namespace": database.name},
    }

    def assert_equal(**counts: int) -> None:
        for name, count in counts.items():
            mirror = f"{database.name}.{database.name}_{name}"
            if name == "metrics":  # _id stands last there, and PyMongo would write it first
                rows = spark.table(f"lake.{mirror}").select("document").collect()
                shown = {m["_id"]: m for m in (json_util.loads(row[0]) for row in rows)}
                assert shown == {m["_id"]: m for m in database.metrics.find()}
                assert len(shown) == len(rows) == count
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
    shop["source"]["batch_seconds"] = 3600
    assert {t.snapshot_rows for t in run_stage("sync", shop, connection).tables} == {0}, "it isn't time yet"
