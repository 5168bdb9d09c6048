"""Tables that a connector selects again: their mirrors equal the source, and runs say what happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.jobs.spec import JobResult
from tests.contract.sources.harness import Delete, Put, Rows, SourceUnderTest
from tests.contract.sources.subjects import SUBJECTS
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

LOST = "is incomplete until its next snapshot: changes were lost: the connector's tables did not select it"
READS_EVERYTHING = {"cassandra": {"consistency": "ALL"}, "scylla": {"snapshot_consistency": "ALL"}}


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda kind: kind.type)
def subject(request: pytest.FixtureRequest) -> Iterator[SourceUnderTest]:
    """Each source with its server."""
    subject: SourceUnderTest = request.param(request.getfixturevalue)
    yield subject
    subject.tear_down()


class Selecting:
    """A connector of a subject's tables, whose declaration selects some of them."""

    def __init__(self, subject: SourceUnderTest, spark: SparkSession, run_stage: RunStage, name: str) -> None:
        self.subject, self.spark, self.run_stage = subject, spark, run_stage
        self.tables = [subject.create(f"{name}{number}") for number in (1, 2)]
        self.namespace = f"{subject.database}_{name}"

    def write(self, *writes: Put | Delete) -> None:
        for table in self.tables:
            self.subject.write(table, *writes)
        self.subject.settle()

    def run(self, stage: str, *patterns: str, **more: Any) -> JobResult:
        source: dict[str, Any] = {"type": self.subject.type, "conn_id": "db"}
        for table in self.tables:
            for name, value in self.subject.options(table).items():
                known = source.get(name, type(value)())
                if name == "topics":
                    source[name] = [*known, *value]
                else:
                    source[name] = {**known, **value} if name == "columns" else value
        source |= READS_EVERYTHING.get(self.subject.type, {})
        lake = {"catalog": "lake", "namespace": self.namespace}
        declaration = {"name": "again", "source": source, "tables": list(patterns), "lake": lake, **more}
        result = self.run_stage(stage, declaration, self.subject.connection())
        assert result.ok, result.error
        return result

    def sync(self, *patterns: str, **more: Any) -> JobResult:
        return self.run("sync", *patterns, **more)

    def mirrored(self, table: str) -> Rows:
        name = table.replace(".", "_")
        rows = self.spark.table(f"lake.{self.namespace}.{name}").select("id", "n", "note").collect()
        return {row.id: (row.n, row.note) for row in rows}


def of(table: str, result: JobResult) -> list[str]:
    return [finding for finding in result.findings if table in finding]


def test_a_table_that_is_selected_again_has_the_changes_of_the_time_between(
    subject: SourceUnderTest, spark: SparkSession, run_stage: RunStage
) -> None:
    chosen = Selecting(subject, spark, run_stage, "back")
    first, second = chosen.tables
    both = [re.sub(r"\d$", r"\\d", re.escape(first))]  # a pattern that covers them
    chosen.write(*(Put(number, 1) for number in range(4)))
    assert not of(first, chosen.sync(*both))
    chosen.write(Put(1, 2), Delete(2), Put(5, 2))
    assert not of(first, chosen.sync(re.escape(second)))
    assert chosen.mirrored(first) != subject.rows(first)
    chosen.write(Put(3, 3), Delete(0))

    again = chosen.sync(*both)

    for table in chosen.tables:
        assert chosen.mirrored(table) == subject.rows(table)
    (finding,) = of(first, again)
    assert finding.startswith(f"{first} is selected again: ")
    assert not of(second, again)

    chosen.write(Put(6, 4))
    calm = chosen.sync(re.escape(first), re.escape(second))  # other patterns, the same tables
    assert not of(first, calm)
    assert not any(table.snapshot_rows for table in calm.tables)
    assert chosen.mirrored(first) == subject.rows(first)


def test_without_snapshots_the_gap_is_reported_by_each_run(
    mongo_server: Any, mongo_client: Any, spark: SparkSession, run_stage: RunStage, request: Any
) -> None:
    del mongo_server, mongo_client
    (mongodb,) = (kind for kind in SUBJECTS if kind.type == "mongodb")
    subject = mongodb(request.getfixturevalue)
    chosen = Selecting(subject, spark, run_stage, "never")
    first, second = map(re.escape, chosen.tables)
    never = {"snapshot": {"mode": "never"}}
    chosen.sync(first, second, **never)
    chosen.write(Put(1, 1))
    chosen.sync(first, second, **never)
    chosen.write(Put(2, 1))
    chosen.sync(second, **never)
    chosen.write(Put(3, 1))
    new = subject.create("never3")
    chosen.tables.append(new)
    (checked,) = chosen.run("check_lake", first, second, re.escape(new), **never).findings
    assert checked.startswith(f"{chosen.tables[0]} is selected again: only a new snapshot has what it missed")
    for _ in range(2):
        result = chosen.sync(first, second, re.escape(new), **never)
        (finding,) = of(chosen.tables[0], result)
        assert LOST in finding
        assert not of(chosen.tables[1], result)
        assert not of(new, result), "it was never captured before"
        chosen.write(Put(4, 1))
    assert set(chosen.mirrored(chosen.tables[0])) == {1, 3, 4}
    assert set(chosen.mirrored(new)) == {4}
    subject.tear_down()


def test_a_collection_that_was_dropped_meanwhile_is_reported_and_read_once_it_is_there_again(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop: dict[str, Any] = {
        "name": f"mongo_{database.name}",
        "source": {"type": "mongodb"},
        "lake": {"catalog": "lake", "namespace": database.name},
    }
    both, one = [rf"{database.name}\..*"], [rf"{database.name}\.kept"]
    database.kept.insert_one({"_id": 1})
    database.gone.insert_one({"_id": 1})
    run_stage("sync", {**shop, "tables": both}, connection)
    database.gone.drop()
    database.kept.insert_one({"_id": 2})
    run_stage("sync", {**shop, "tables": one}, connection)
    for _ in range(2):
        result = run_stage("sync", {**shop, "tables": both}, connection)
        (finding,) = of(f"{database.name}.gone", result)
        assert result.ok
        assert LOST in finding
    database.gone.insert_one({"_id": 2})
    assert not of(f"{database.name}.gone", run_stage("sync", {**shop, "tables": both}, connection))
    for collection in (database.kept, database.gone):
        mirror = f"{database.name}.{database.name}_{collection.name}"
        assert_mirror_equals_collection(spark, collection, mirror)


def test_a_collection_that_was_read_in_batches_is_read_again_before_it_is_streamed(
    spark: SparkSession, run_stage: RunStage, database: Any, connection: dict[str, Any]
) -> None:
    shop: dict[str, Any] = {
        "name": f"mongo_{database.name}",
        "source": {"type": "mongodb", "batch": [rf"{database.name}\.small"]},
        "tables": [rf"{database.name}\..*"],
        "lake": {"catalog": "lake", "namespace": database.name},
    }
    database.small.insert_one({"_id": 1})
    assert run_stage("sync", shop, connection).ok
    database.small.insert_one({"_id": 2})
    assert run_stage("sync", shop, connection).ok  # not yet time for another batch
    shop["source"]["batch"] = []
    database.small.insert_one({"_id": 3})
    assert run_stage("sync", shop, connection).ok
    mirror = f"{database.name}.{database.name}_small"
    assert assert_mirror_equals_collection(spark, database.small, mirror) == 3
