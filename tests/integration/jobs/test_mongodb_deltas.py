"""MongoDB: updates without documents, applied by the merge to the mirror's documents."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import OperationFailure

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.registry import source_plugin
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection
from tests.integration.jobs.workloads import write_mongodb
from tests.integration.sources.patch_workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


def declaration(database: str, snapshot: str = "initial", **source: Any) -> dict[str, Any]:
    return {
        "name": f"mongo_{database}",
        "source": {"type": "mongodb", "full_document": "none", **source},
        "tables": [rf"{database}\..*"],
        "snapshot": {"mode": snapshot},
        "lake": {"catalog": "lake", "namespace": database},
    }


def update_at_random(collection: Any, workload: Workload, count: int) -> None:
    for _ in range(count):
        update, options = workload.update()
        options = {**options, "filter": {"_id": workload.chance.randrange(40), **options.get("filter", {})}}
        try:
            collection.update_one(update=update, **options)
        except OperationFailure:  # it doesn't fit this document
            continue
        if workload.chance.random() < 0.05:
            collection.delete_one({"_id": workload.chance.randrange(40)})
            collection.replace_one({"_id": workload.chance.randrange(40)}, workload.document(), upsert=True)


@pytest.mark.long
def test_mirror_equals_collection_after_updates_by_every_operator(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop, workload = declaration(database.name), Workload(11)
    mirror = f"{database.name}.{database.name}_things"
    database.things.insert_many([{"_id": n, **workload.document()} for n in range(40)])
    run_stage("capture", shop, connection)
    update_at_random(database.things, workload, 100)
    run_stage("sync", shop, connection)
    assert_mirror_equals_collection(spark, database.things, mirror)

    for _ in range(2):
        update_at_random(database.things, workload, 200)
        write_mongodb(database.others, seed=workload.chance.randrange(99), count=60)
        for outcome in run_stage("sync", shop, connection).tables:
            assert outcome.undecodable == 0
        assert_mirror_equals_collection(spark, database.things, mirror)
        assert_mirror_equals_collection(spark, database.others, f"{database.name}.{database.name}_others")
    assert run_stage("verify", shop, connection).ok


def test_documents_that_are_not_known_are_read_again(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name, snapshot="never")
    identities = [1, 2.5, "three", {"a": 4}, None, True]
    database.things.insert_many([{"_id": identity, "v": 0} for identity in identities])
    database.things.insert_one({"_id": "dots", "a": {"b": 1}, "a.b": 1})
    run_stage("sync", shop, connection)
    for identity in identities:
        database.things.update_one({"_id": identity}, {"$inc": {"v": 1}})
    database.things.delete_one({"_id": "three"})
    database.things.insert_one({"_id": "gone"})
    database.things.update_one({"_id": "dots"}, {"$set": {"a.b": 2}})

    (outcome,) = run_stage("sync", shop, connection).tables

    assert outcome.note.endswith("unresolved keys were reread")
    assert not outcome.unresolved_keys
    mirror = f"{database.name}.{database.name}_things"
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 7

    database.things.update_one({"_id": "dots"}, {"$set": {"a.b": 3}})
    database.things.update_one({"_id": 1}, {"$inc": {"v": 1}})
    capture = run_stage("capture", shop, connection)
    assert capture.changes == 2
    database.things.delete_one({"_id": "dots"})
    (outcome,) = run_stage("sync", shop, connection).tables
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 6


def test_inferred_columns_follow_updates_without_documents(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name, infer={"collections": [".*"]})
    database.things.insert_many([{"_id": n, "v": n} for n in range(3)])
    run_stage("sync", shop, connection)
    database.things.update_one({"_id": 1}, {"$set": {"w": "new", "v": 0.5}})
    run_stage("sync", shop, connection)

    rows = spark.table(f"lake.{database.name}.{database.name}_things").orderBy("_id").collect()
    assert [(row["v"], row["w"], row["_rest"]) for row in rows] == [
        (0.0, None, None),
        (0.5, "new", None),
        (2.0, None, None),
    ]


def test_a_mirror_created_with_documents_continues_without_them(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    database.things.insert_many([{"_id": n, "v": n} for n in range(5)])
    run_stage("sync", declaration(database.name, full_document="lookup"), connection)
    database.things.update_many({"_id": {"$gte": 2}}, {"$inc": {"v": 10}})
    run_stage("sync", declaration(database.name), connection)
    database.things.update_many({"_id": {"$gte": 1}}, {"$set": {"w": 1}})
    (outcome,) = run_stage("sync", declaration(database.name), connection).tables
    assert outcome.note == "", "updates apply to the documents that it stores"
    mirror = f"{database.name}.{database.name}_things"
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 5


def test_capped_collections_are_read_though_not_at_a_cluster_time(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name)
    database.create_collection("capped", capped=True, size=4096)
    for name in ("capped", "plain"):
        database[name].insert_one({"_id": 1, "n": 1})
    (warned,) = [
        one
        for one in check(shop, connection)
        if one.subject == "capped collections" and one.level == "warning"
    ]
    assert f"{database.name}.capped" in warned.message
    assert run_stage("sync", shop, connection).ok
    database.capped.update_one({"_id": 1}, {"$set": {"n": 2}})
    assert run_stage("sync", shop, connection).ok
    for name in ("capped", "plain"):
        mirror = f"{database.name}.{database.name}_{name}"
        assert assert_mirror_equals_collection(spark, database[name], mirror) == 1


def test_updates_whose_post_image_is_missing_reach_the_mirror(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name, full_document="post_image")
    database.things.insert_many([{"_id": n, "n": n} for n in range(3)])
    assert run_stage("sync", shop, connection).ok
    database.things.update_many({}, {"$inc": {"n": 1}})
    database.things.insert_one({"_id": "new", "tags": [1]})
    database.things.update_one({"_id": "new"}, {"$push": {"tags": 2}})
    database.things.delete_one({"_id": 2})
    done = run_stage("sync", shop, connection)
    assert (done.ok, done.findings) == (True, ())
    mirror = f"{database.name}.{database.name}_things"
    assert assert_mirror_equals_collection(spark, database.things, mirror) == 3


def check(declared: dict[str, Any], connection: dict[str, Any]) -> list[Finding]:
    connector = Connector.from_dict(declared)
    with closing(source_plugin("mongodb").source(connector, connection)) as source:
        return source.check()
