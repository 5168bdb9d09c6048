"""What every table format promises: see :mod:`airflow_cdc_provider.lake.table`."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions
from pyspark.sql.types import IntegerType, StructField, StructType

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError
from airflow_cdc_provider.lake.iceberg import IcebergLake, IcebergTable
from airflow_cdc_provider.lake.table import Head
from tests.contract.lake.frames import frame_of

pytestmark = pytest.mark.integration

SCHEMA = "id int, name string, `dotted.name` string, _cdc struct<key: binary, state: binary>"


@pytest.fixture
def table(lake: IcebergLake, namespace: str) -> IcebergTable:
    created = lake.table(f"{namespace}.people")
    created.create(StructType.fromDDL(SCHEMA))
    return created


def people(spark: Any, *ids: int, name: str = "a") -> Any:
    rows = [(i, name, f"d{i}", (str(i).encode(), b"s")) for i in ids]
    return frame_of(spark, rows, SCHEMA)


def keys(spark: Any, *ids: int) -> Any:
    return frame_of(spark, [(str(i).encode(),) for i in ids], "k binary")


def found(rows: Any) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in rows.collect())


def same(one: Head, other: Head) -> bool:
    """Return whether two heads are the same; how many rows a commit added doesn't count."""
    return (one.snapshot, dict(one.properties)) == (other.snapshot, dict(other.properties))


@pytest.mark.each_catalog
def test_a_table_is_there_from_create_to_drop(lake: IcebergLake, namespace: str) -> None:
    table = lake.table(f"{namespace}.people")
    assert not table.exists()
    table.create(StructType.fromDDL(SCHEMA))
    assert table.exists()
    assert table.schema().simpleString() == StructType.fromDDL(SCHEMA).simpleString()
    table.drop()
    assert not table.exists()


def test_creating_again_leaves_rows_and_columns_alone(table: IcebergTable) -> None:
    table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    table.create(StructType.fromDDL("other int"))
    assert found(table.read()) == [(1, "a")]


@pytest.mark.each_catalog
def test_a_missing_table_is_named(lake: IcebergLake, namespace: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"no table {lake.catalog}\.{namespace}\.nothing"):
        lake.table(f"{namespace}.nothing").head()


def test_a_new_table_has_rows_and_properties_of_none(table: IcebergTable) -> None:
    assert found(table.read()) == []
    assert dict(table.head().properties) == {}


@pytest.mark.each_catalog
def test_the_first_commit_goes_into_an_empty_table(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1, 2), properties={"cdc.n": "1"})
    assert found(table.read()) == [(1, "a"), (2, "a")]
    assert same(table.head(), head)
    assert head.added_rows == 2
    assert dict(head.properties) == {"cdc.n": "1"}


@pytest.mark.each_format
def test_rows_are_deleted_before_others_are_added(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1, 2, 3), properties={"cdc.n": "1"})
    table.commit(head, delete="id = 1", append=people(table.spark, 1, name="b"), properties={"cdc.n": "2"})
    assert found(table.read()) == [(1, "b"), (2, "a"), (3, "a")]


@pytest.mark.each_format
@pytest.mark.parametrize("column", ["_cdc.key", "dotted.name"])
def test_rows_are_deleted_by_keys(table: IcebergTable, column: str) -> None:
    spark = table.spark
    head = table.commit(table.head(), append=people(spark, *range(20)), properties={"cdc.n": "1"})
    frame = keys(spark, 3, 4, 99)
    if column == "dotted.name":
        frame = frame.select(functions.expr("concat('d', cast(k as string))").alias("k"))
    table.commit(
        head, delete_keys=(column, frame), append=people(spark, 4, name="b"), properties={"cdc.n": "2"}
    )
    assert found(table.read()) == sorted([(i, "a") for i in range(20) if i not in {3, 4}] + [(4, "b")])


def test_a_deletion_alone_carries_its_properties(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1, 2), properties={"cdc.n": "1"})
    table.commit(head, delete="id = 2", properties={"cdc.n": "2"})
    assert found(table.read()) == [(1, "a")]
    assert dict(table.head().properties) == {"cdc.n": "2"}


@pytest.mark.each_catalog
@pytest.mark.parametrize("rows", ["none", "empty"])
def test_a_commit_may_change_properties_only(table: IcebergTable, rows: str) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    frame = people(table.spark, 1).where("id < 0") if rows == "empty" else None
    table.commit(head, append=frame, properties={"cdc.n": "2", "cdc.text": "ü'\"{}\n"})
    assert dict(table.head().properties) == {"cdc.n": "2", "cdc.text": "ü'\"{}\n"}
    assert found(table.read()) == [(1, "a")]


@pytest.mark.each_format
def test_a_deletion_that_meets_nothing_commits(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    head = table.commit(head, delete_keys=("_cdc.key", keys(table.spark)), properties={"cdc.n": "2"})
    table.commit(head, delete="id = 7", append=people(table.spark, 2), properties={"cdc.n": "3"})
    assert found(table.read()) == [(1, "a"), (2, "a")]


@pytest.mark.each_catalog
def test_commits_chain_without_reading_the_head_again(table: IcebergTable) -> None:
    head = table.head()
    for number in range(4):
        head = table.commit(head, append=people(table.spark, number), properties={"cdc.n": str(number)})
    assert [i for i, _ in found(table.read())] == [0, 1, 2, 3]


@pytest.mark.each_catalog
def test_a_second_writer_from_the_same_head_conflicts_and_leaves_nothing(table: IcebergTable) -> None:
    base = table.head()
    winner = table.commit(base, append=people(table.spark, 1), properties={"cdc.n": "1"})
    with pytest.raises(CommitConflict):
        table.commit(base, append=people(table.spark, 2), delete="id = 1", properties={"cdc.n": "2"})
    assert found(table.read()) == [(1, "a")]
    assert same(table.head(), winner)


@pytest.mark.each_catalog
def test_another_writers_blind_append_is_a_conflict(table: IcebergTable) -> None:
    base = table.head()
    table.append(people(table.spark, 1))
    with pytest.raises(CommitConflict):
        table.commit(base, append=people(table.spark, 2), properties={"cdc.n": "1"})


@pytest.mark.each_catalog
def test_blind_appends_keep_the_properties_of_the_newest_commit(table: IcebergTable) -> None:
    table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    table.append(people(table.spark, 2))
    assert dict(table.head().properties) == {"cdc.n": "1"}
    assert found(table.read()) == [(1, "a"), (2, "a")]
    table.commit(table.head(), properties={"cdc.n": "2"})


@pytest.mark.each_catalog
def test_maintenance_between_head_and_commit_is_no_conflict(table: IcebergTable) -> None:
    head = table.head()
    for number in range(6):
        head = table.commit(head, append=people(table.spark, number), properties={"cdc.n": str(number)})
    report = table.maintain(retain_seconds=3600)
    assert report.rewritten_files == 6
    assert table.head().snapshot != head.snapshot
    table.commit(head, delete="id = 0", append=people(table.spark, 6), properties={"cdc.n": "6"})
    assert [i for i, _ in found(table.read())] == [1, 2, 3, 4, 5, 6]


@pytest.mark.each_catalog
def test_a_writers_commit_under_maintenance_is_still_a_conflict(table: IcebergTable) -> None:
    base = table.head()
    head = base
    for number in range(6):
        head = table.commit(head, append=people(table.spark, number), properties={"cdc.n": str(number)})
    assert table.maintain(retain_seconds=3600).rewritten_files == 6
    with pytest.raises(CommitConflict):
        table.commit(base, append=people(table.spark, 9), properties={"cdc.n": "9"})


@pytest.mark.each_format
def test_properties_survive_maintenance_that_expires_everything(table: IcebergTable) -> None:
    head = table.head()
    for number in range(6):
        head = table.commit(head, append=people(table.spark, number), properties={"cdc.n": str(number)})
    for _ in range(2):
        table.maintain(retain_seconds=0)
        assert dict(table.head().properties) == {"cdc.n": "5"}
    assert [i for i, _ in found(table.read())] == [0, 1, 2, 3, 4, 5]
    table.commit(table.head(), append=people(table.spark, 6), properties={"cdc.n": "6"})
    assert dict(table.head().properties) == {"cdc.n": "6"}


@pytest.mark.each_format
def test_maintenance_folds_deletions_in(table: IcebergTable) -> None:
    spark = table.spark
    head = table.commit(table.head(), append=people(spark, *range(50)), properties={"cdc.n": "1"})
    for number in range(6):
        head = table.commit(
            head,
            delete_keys=("_cdc.key", keys(spark, number)),
            append=people(spark, number, name="b"),
            properties={"cdc.n": "2"},
        )
    table.maintain(retain_seconds=0)
    assert found(table.read()) == sorted((i, "b" if i < 6 else "a") for i in range(50))


@pytest.mark.each_format
def test_rows_at_a_head_stay_what_they_were(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    before = table.read(head)
    table.commit(head, delete="true", append=people(table.spark, 2), properties={"cdc.n": "2"})
    assert found(before) == [(1, "a")]
    assert found(table.read(head)) == [(1, "a")]
    assert found(table.read()) == [(2, "a")]


@pytest.mark.each_catalog
def test_a_failing_frame_leaves_nothing(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    failing = people(table.spark, 2).withColumn("name", functions.expr("raise_error('on purpose')"))
    with pytest.raises(Exception, match="on purpose"):
        table.commit(head, delete="id = 1", append=failing, properties={"cdc.n": "2"})
    assert same(table.head(), head)
    assert found(table.read()) == [(1, "a")]


@pytest.mark.parametrize("name", ["offset", "cdc.Batch", "cdc.", "cdc.maintenance"])
def test_a_property_must_have_a_name_that_survives(table: IcebergTable, name: str) -> None:
    with pytest.raises(ConfigurationError, match="property"):
        table.commit(table.head(), properties={name: "1"})


@pytest.mark.each_format
def test_columns_are_added_and_widened_at_any_depth(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    wanted = StructType.fromDDL(
        "first date, id bigint, name string, price decimal(10,2), `dotted.name` string, "
        "_cdc struct<key: binary, expires_at: bigint, state: binary>"
    )
    changes = table.evolve(wanted)
    assert changes == [
        "added first date",
        "widened id from int to bigint",
        "added price decimal(10,2)",
        "added _cdc.expires_at bigint",
    ]
    assert table.schema().simpleString() == wanted.simpleString()
    assert table.evolve(wanted) == []
    assert same(table.head(), head)
    rows = table.read(head)
    assert rows.schema.simpleString() == wanted.simpleString()
    assert found(rows) == [(1, "a")]
    assert table.evolve(StructType.fromDDL("price decimal(20,2)")) == [
        "widened price from decimal(10,2) to decimal(20,2)"
    ]
    state = "named_struct('key', _cdc.key, 'expires_at', 5L, 'state', _cdc.state) _cdc"
    older = people(table.spark, 2).selectExpr("id", "name", "`dotted.name`", state)  # lacks the new columns
    table.commit(head, append=older, properties={"cdc.n": "2"})
    assert found(table.read()) == [(1, "a"), (2, "a")]


def test_columns_that_are_missing_or_narrower_stay(table: IcebergTable) -> None:
    table.evolve(StructType.fromDDL("id bigint"))
    assert table.evolve(StructType.fromDDL("id int")) == []
    assert [field.name for field in table.schema()] == ["id", "name", "dotted.name", "_cdc"]


@pytest.mark.each_format
def test_columns_are_renamed_replaced_and_dropped_and_rows_keep_what_is_theirs(table: IcebergTable) -> None:
    head = table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    before = table.schema()
    wanted = StructType(
        [
            StructField("number", before["id"].dataType),
            StructField("name", IntegerType()),
            before["_cdc"],
        ]
    )
    drift = Drift(keys=1, replaced=frozenset({"name"}), exact=True)
    assert table.evolve(wanted, drift) == [
        "dropped name",
        "dropped dotted.name",
        "renamed id to number",
        "added name int",
    ]
    assert [field.name for field in table.schema()] == ["number", "name", "_cdc"]
    assert [(r["number"], r["name"]) for r in table.read().collect()] == [(1, None)]
    rows = table.read(head).selectExpr("number + 1 number", "5 name", "_cdc")
    table.commit(head, append=rows, properties={"cdc.n": "2"})
    assert sorted((r["number"], r["name"]) for r in table.read().collect()) == [(1, None), (2, 5)]


@pytest.mark.each_format
def test_names_that_change_hands_stay_with_their_values(table: IcebergTable) -> None:
    table.commit(table.head(), append=people(table.spark, 1), properties={"cdc.n": "1"})
    kind = {field.name: field.dataType for field in table.schema()}
    swapped = StructType(
        [StructField("name", kind["id"]), StructField("id", kind["name"]), StructField("_cdc", kind["_cdc"])]
    )
    before = table.read().select("id", "name").collect()
    table.evolve(swapped, Drift(keys=2, exact=True))
    assert [(r["name"], r["id"]) for r in table.read().collect()] == [(r["id"], r["name"]) for r in before]
    given_up = StructType(
        [StructField("key", kind["id"]), StructField("name", IntegerType()), *swapped.fields[2:]]
    )
    table.evolve(given_up, Drift(keys=1, replaced=frozenset({"id"}), exact=True))
    assert [(r["key"], r["name"]) for r in table.read().collect()] == [(r["id"], None) for r in before]


@pytest.mark.parametrize(
    "ddl", ["id string", "name int", "id decimal(10,0)", "_cdc struct<key: string>", "_cdc string"]
)
def test_a_type_that_cannot_follow_is_refused_whole(table: IcebergTable, ddl: str) -> None:
    before = table.schema()
    with pytest.raises(ConfigurationError, match="can't change its type"):
        table.evolve(StructType.fromDDL(f"new_column int, {ddl}"))
    assert table.schema() == before


@pytest.mark.each_format
def test_a_table_is_partitioned_as_requested(lake: IcebergLake, namespace: str) -> None:
    table = lake.table(f"{namespace}.parts")
    table.create(StructType.fromDDL("id bigint, day date"), partition_by=["day"])
    rows = table.spark.range(20).selectExpr("id", "date'2026-01-01' day")
    table.commit(table.head(), append=rows, properties={"cdc.n": "1"})
    assert table.read().count() == 20
    assert [field.name() for field in table.load().spec().fields()] == ["day"]


@pytest.mark.each_catalog
def test_discarding_partitions_is_no_conflict(lake: IcebergLake, namespace: str) -> None:
    table = lake.table(f"{namespace}.batches")
    table.create(StructType.fromDDL("batch bigint, kind string"), partition_by=["batch", "kind"])
    head: Head = table.head()
    for number in range(1, 5):
        rows = table.spark.range(3).selectExpr(
            f"cast({number} as bigint) batch", "if(id = 0, 'kept', 'other') kind"
        )
        head = table.commit(head, append=rows, properties={"cdc.n": str(number)})
    table.discard("batch", 2, sparing=("kind", ["kept"]))
    assert dict(table.head().properties) == {"cdc.n": "4"}
    table.commit(head, properties={"cdc.n": "5"})
    left = {(row["batch"], row["kind"]) for row in table.read().collect()}
    assert sorted(left) == [(1, "kept"), (2, "kept"), (3, "kept"), (3, "other"), (4, "kept"), (4, "other")]
