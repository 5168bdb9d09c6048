"""MongoDB: columns that are inferred from documents, and evolve with them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId, json_util
from pyiceberg.table import StaticTable

from airflow_cdc_provider.changes.inferred_columns import REST, InferredColumns
from airflow_cdc_provider.lake.iceberg import IcebergLake
from airflow_cdc_provider.lake.mirror import Mirror
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.integration


def declaration(database: str, **source: Any) -> dict[str, Any]:
    return {
        "name": f"mongo_{database}",
        "source": {"type": "mongodb", "infer": {"collections": [rf"{database}\..*"]}, **source},
        "tables": [rf"{database}\..*"],
        "lake": {"catalog": "lake", "namespace": database},
    }


def mirror_rows(spark: SparkSession, database: str) -> dict[str, dict[str, Any]]:
    rows = spark.table(f"lake.{database}.{database}_things").drop("_cdc", "document").collect()
    return {row["_id"]: row.asDict() for row in rows}


def column_types(spark: SparkSession, database: str) -> dict[str, str]:
    fields = spark.table(f"lake.{database}.{database}_things").drop("_cdc").schema
    return {field.name: field.dataType.simpleString() for field in fields}


def columns_of_fields(spark: SparkSession, database: str) -> dict[str, str]:
    memory = Mirror(IcebergLake(spark, "lake"), f"{database}.{database}_things").state().memory
    assert memory is not None
    return {one.name: one.column for one in InferredColumns.from_memory(memory).fields}


def is_json(stored: Any, value: Any) -> bool:
    plain = isinstance(value, str | ObjectId | Binary)
    return isinstance(stored, str) and (not plain or stored.startswith(("{", "[", '"')))


def assert_no_value_is_lost(spark: SparkSession, collection: Any) -> None:
    """Each value of each document is in its column, exactly, or in the rest, exactly."""
    rows = mirror_rows(spark, collection.database.name)
    columns = columns_of_fields(spark, collection.database.name)
    options = json_util.JSONOptions(json_mode=json_util.JSONMode.CANONICAL, tz_aware=True)
    for document in collection.find():
        row = rows.pop(json_util.dumps(document["_id"], json_options=options))
        rest = json_util.loads(row[REST] or "{}", json_options=options)
        for name, value in document.items():
            if name == "_id":
                continue
            stored = row.get(columns.get(name, name))
            assert (name in rest) == (stored is None and value is not None), (name, value, row)
            if name in rest:
                assert bson.encode({"v": rest[name]}) == bson.encode({"v": value})
            elif is_json(stored, value):
                assert bson.encode({"v": json_util.loads(stored, json_options=options)}) == bson.encode(
                    {"v": value}
                )
            elif isinstance(value, ObjectId):
                assert stored == str(value)
            elif isinstance(value, Binary) and value.subtype == 4:
                assert stored == str(value.as_uuid())
            elif isinstance(value, Decimal128):
                assert stored == value.to_decimal()
            elif isinstance(value, float) and not isinstance(stored, float):
                assert float(str(stored)) == value
            else:
                assert stored == value
    assert not rows


@pytest.mark.covers("MDB-XF-09")
def test_inferred_columns_grow_with_the_documents_and_lose_no_value(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name)
    database.things.insert_many(
        [
            {"_id": 1, "n": 1, "amount": 5, "name": "one", "tags": ["a", 1]},
            {"_id": 2, "n": 2, "amount": 7, "name": 17, "data": b"\0\1"},
            {"_id": "three", "n": None, "amount": 9, "name": "3", "a.b": "dotted", "owner": ObjectId()},
        ]
    )
    (first,) = run_stage("sync", shop, connection).tables

    assert column_types(spark, database.name) == {
        "_id": "string",
        "document": "string",
        "n": "int",
        "amount": "int",
        "name": "string",
        "tags": "string",
        "a.b": "string",
        "data": "binary",
        "owner": "string",
        REST: "string",
    }
    assert "name is string; values of type int are in _rest" in first.note
    assert_no_value_is_lost(spark, database.things)

    database.things.update_one({"_id": 1}, {"$set": {"n": Int64(2**40), "seen": True}})
    database.things.insert_one({"_id": 4, "n": 4, "amount": 0.25, "Name": "other case"})
    (second,) = run_stage("sync", shop, connection).tables

    types = column_types(spark, database.name)
    assert (types["n"], types["amount"], types["seen"]) == ("bigint", "double", "boolean")
    assert second.rows_written == 4, "all rows are written again with a new type of amount"
    assert_no_value_is_lost(spark, database.things)
    assert_mirror_equals_collection(spark, database.things, f"{database.name}.{database.name}_things")

    database.things.update_one(
        {"_id": 2}, {"$set": {"amount": Decimal128("0.10"), "x": Binary(b"\1" * 16, 4)}}
    )
    (third,) = run_stage("sync", shop, connection).tables

    types = column_types(spark, database.name)
    assert types["amount"] == "decimal(38,18)"
    assert_no_value_is_lost(spark, database.things)
    database.things.delete_one({"_id": 2})
    (fourth,) = run_stage("sync", shop, connection).tables
    assert (fourth.rows_written, fourth.rows_removed) == (0, 1), "nothing else is written again"
    assert run_stage("verify", shop, connection).ok
    assert third.mirror_rows == 4


def read_by_other_engines(
    warehouse: Path, database: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a mirror's rows as PyIceberg and as DuckDB read them."""
    metadata = max(
        (warehouse / database / f"{database}_things" / "metadata").glob("v*.metadata.json"),
        key=lambda path: int(path.name[1:].split(".")[0]),
    )
    scan = StaticTable.from_metadata(str(metadata)).scan()
    own = [name for name in scan.to_arrow().column_names if name not in ("_cdc", "document")]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in own)
    by_duckdb = scan.to_duckdb("mirror").sql(f"SELECT {quoted} FROM mirror")
    return scan.to_arrow().select(own).to_pylist(), by_duckdb.to_arrow_table().to_pylist()


def test_fields_whose_names_engines_confuse_have_columns_that_all_of_them_read(
    spark: SparkSession, warehouse: Path, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    """A column keeps the name that it got first, whatever documents and names come later."""
    shop = declaration(database.name)
    chance = random.Random(11)
    batches: list[list[dict[str, Any]]] = [
        [{"_id": 1, "name": 1, "a": 2, "document": 3, "é": 4}],
        [{"_id": 2, "NAME": 5, "a.b": 6, "name": 7, "NAME__2": 8}, {"_id": 3, "_file": 9, "_cdc": 10}],
        [{"_id": 4, "Name": 11, "_rest": 12, "É": 13, "zip-code": 14, "a`b": 15, 'a"b': 16, "": 17}],
        [{"_id": 25, "${env:HOME}": 18, "${x}b": 19, "${": 20}],
    ]
    for first in (5, 15):
        batch = []
        for key in range(first, first + 10):
            names = {"".join(chance.choices("aAbB1_. -é\n`", k=chance.randrange(4))) for _ in range(6)}
            batch.append({"_id": key, **dict.fromkeys(names, key)})
        batches.append(batch)
    columns: dict[str, str] = {}
    for batch in batches:
        database.things.insert_many(batch)
        (outcome,) = run_stage("sync", shop, connection).tables
        assert not outcome.error
        found = columns_of_fields(spark, database.name)
        assert {name: found[name] for name in columns} == columns
        columns = found
    assert (
        columns
        | {
            "name": "name",
            "NAME": "NAME__2",
            "NAME__2": "NAME__2__2",
            "Name": "Name__3",
            "a": "a",
            "a.b": "a_b",
            "É": "É__2",
            "_file": "_file__2",
        }
        == columns
    )
    documents = {document["_id"]: document for batch in batches for document in batch}
    by_spark = list(mirror_rows(spark, database.name).values())
    for rows in (by_spark, *read_by_other_engines(warehouse, database.name)):
        assert len(rows) == len(documents)
        for row in rows:
            document = documents[int(json.loads(row["_id"])["$numberInt"])]
            shown = {name: row[column] for name, column in columns.items() if row[column] is not None}
            assert {"_id": document["_id"], **shown} == document
    assert run_stage("verify", shop, connection).ok


def test_random_documents_stay_whole_while_columns_grow(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop = declaration(database.name, document_column="none")
    chance = random.Random(5)
    values: list[Any] = [
        lambda: chance.randrange(100),
        lambda: Int64(chance.randrange(2**60)),
        chance.random,
        lambda: chance.choice(["x", "é", ""]),
        lambda: [chance.randrange(3), {"y": None}],
        ObjectId,
        lambda: None,
        lambda: chance.random() < 0.5,
    ]
    for _ in range(3):
        for key in range(40):
            document = {
                name: chance.choice(values)() for name in chance.sample("abcdefgh", chance.randrange(6))
            }
            database.things.replace_one({"_id": chance.randrange(60) + key}, document, upsert=True)
        run_stage("sync", shop, connection)
        assert_no_value_is_lost(spark, database.things)
    assert "document" not in column_types(spark, database.name)


def test_a_merge_that_is_killed_after_its_columns_changed_is_recovered(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = declaration(database.name)
    database.things.insert_many([{"_id": n, "v": n} for n in range(5)])
    run_stage("sync", shop, connection)
    database.things.update_one({"_id": 1}, {"$set": {"v": 0.5}})
    prepare = Mirror.prepare
    columns_changed = iter([False, True])

    def killed(self: Mirror, *arguments: Any, **options: Any) -> Any:
        doubles = "double" in str(arguments[0].field("v").type)
        if not doubles or next(columns_changed):
            prepare(self, *arguments, **options)
        if doubles:
            raise KeyboardInterrupt
        return []

    for _ in range(2):
        with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
            dying.setattr(Mirror, "prepare", killed)
            run_stage("sync", shop, connection)

    run_stage("sync", shop, connection)

    rows = mirror_rows(spark, database.name)
    assert {row["v"] for row in rows.values()} == {0.0, 0.5, 2.0, 3.0, 4.0}
    (after,) = run_stage("sync", shop, connection).tables
    assert after.rows_written == 0


def test_columns_that_get_room_show_what_older_rows_had_in_the_rest(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    few = declaration(database.name, infer={"collections": [".*"], "max_columns": 1})
    database.things.insert_many([{"_id": 1, "a": 1, "b": 2}, {"_id": 2, "a": 3}])
    run_stage("sync", few, connection)
    assert json.loads(mirror_rows(spark, database.name)['{"$numberInt": "1"}'][REST]) == {
        "b": {"$numberInt": "2"}
    }
    database.things.update_one({"_id": 2}, {"$set": {"b": 4}})

    run_stage("sync", declaration(database.name), connection)

    rows = mirror_rows(spark, database.name).values()
    assert sorted((row["a"], row["b"]) for row in rows) == [(1, 2), (3, 4)]
    assert {row[REST] for row in rows} == {None}


def test_columns_declared_later_are_there_for_older_rows(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    table = f"{database.name}.things"
    database.things.insert_many([{"_id": 1, "n": 1, "at": {"city": "Kyiv"}}, {"_id": 2, "n": 2}])
    run_stage("sync", declaration(database.name), connection)
    declared = {table: {"n": "n decimal(9,2)", "city": "at.city string"}}

    (outcome,) = run_stage("sync", declaration(database.name, columns=declared), connection).tables

    assert outcome.rows_written == 2
    assert column_types(spark, database.name)["n"] == "decimal(9,2)"
    rows = mirror_rows(spark, database.name).values()
    assert sorted((float(row["n"]), row["city"] or "") for row in rows) == [(1.0, "Kyiv"), (2.0, "")]

    database.things.insert_one({"_id": 3, "n": 3})
    run_stage("sync", declaration(database.name), connection)
    types = column_types(spark, database.name)
    assert (types["n"], "city" in types) == ("int", False)
    assert_no_value_is_lost(spark, database.things)
