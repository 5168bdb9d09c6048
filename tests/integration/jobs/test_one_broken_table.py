"""One broken table among others, at each stage: the others go on, and the run names it and the cause."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.hooks._of_connector import check_connector
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit.scylla import CdcOptions, Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import Insert
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, settled
from tests.integration.jobs.printed_events import number
from tests.integration.jobs.publishing import declaration
from tests.integration.jobs.shop import Shop

if TYPE_CHECKING:
    from pymongo.database import Database
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.jobs.spec import JobResult, TableResult

pytestmark = pytest.mark.integration


def by_table(outcome: JobResult) -> dict[str, TableResult]:
    """Return the results of tables by the part of their names after the first dot."""
    return {table.table.partition(".")[2]: table for table in outcome.tables}


def broken(outcome: JobResult) -> set[str]:
    """Return the tables that failed, each of which the run's error must name with its cause."""
    assert outcome.ok == (not outcome.error)
    failed = {name: table.error for name, table in by_table(outcome).items() if table.error}
    assert all(text.partition("] ")[2] in outcome.error for text in failed.values())
    return set(failed)


def test_one_collection_that_cannot_be_planned_read_merged_published_or_verified_stops_no_other(
    spark: SparkSession,
    run_stage: RunStage,
    database: Database,
    both: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"c{number}" for number in range(10)]
    for name in names:
        database[name].insert_one({"_id": 1})
    filters = {f"{database.name}.c4": "{", f"{database.name}.c7": '{"$nope": 1}'}
    declared = declaration(
        database, {"mode": "after_merge"}, transactions=False, mongodb={"json": "extended"}
    )

    declared["tables"] += [f"{database.name}.never"]

    def mirror(name: str) -> str:
        return f"{database.name}.{database.name}_{name}"

    outcome = run_stage("sync", {**declared, "snapshot": {"filters": filters}}, both)
    assert broken(outcome) == {"c4", "c7"}
    assert "2 of 10 tables failed" in outcome.error
    assert any(f"matches {database.name}.never in tables" in finding for finding in outcome.findings)
    assert "its snapshot failed: the snapshot filter is not valid" in by_table(outcome)["c4"].error
    assert "unknown top level operator: $nope" in by_table(outcome)["c7"].error
    assert outcome.snapshot is not None
    assert outcome.published is not None
    assert (outcome.snapshot.rows, outcome.snapshot.remaining, outcome.published.records) == (8, 2, 8)
    assert outcome.seconds["merge"] == pytest.approx(sum(t.seconds for t in outcome.tables), abs=0.01)
    for name in set(names) - broken(outcome):
        assert_mirror_equals_collection(spark, database[name], mirror(name))

    # The next run reads only what is left. Its source is away when all is done.
    def away(*_: Any) -> Any:
        raise TransientError("the server is unreachable")

    database.c1.insert_one({"_id": 2})
    with monkeypatch.context() as patched:
        patched.setattr(MongodbSource, "lag", away)
        outcome = run_stage("sync", declared, both)
    assert (outcome.ok, outcome.lag_seconds, outcome.changes) == (True, None, 1)
    assert any("the lag is unknown: [CDC-TRANSIENT] the server is unreachable" in f for f in outcome.findings)
    assert {n: t.rows_written for n, t in by_table(outcome).items() if t.rows_written} == {
        "c1": 1,
        "c4": 1,
        "c7": 1,
    }
    assert outcome.published is not None
    assert outcome.published.records == 3

    # Somebody's table has the name of a mirror.
    spark.sql(f"DROP TABLE lake.{mirror('c4')}")
    spark.sql(f"CREATE TABLE lake.{mirror('c4')} (a int) USING iceberg")
    for name in ("c3", "c4", "c5"):
        database[name].insert_one({"_id": 2})
    outcome = run_stage("sync", declared, both)
    assert broken(outcome) == {"c4"}
    assert "not by this provider" in by_table(outcome)["c4"].error
    assert "its rows can't be published" in by_table(outcome)["c4"].error
    assert outcome.published is not None
    assert outcome.published.records == 2
    assert broken(run_stage("maintain", declared, both)) == {"c4"}
    shown = run_stage("offsets", declared, both, action="status").status
    assert {one.table.partition(".")[2] for one in shown} == set(names) - {"c4"}

    spark.sql(f"DROP TABLE lake.{mirror('c4')}")
    outcome = run_stage("verify", declared, both, tables=[f"{database.name}.{n}" for n in ("c3", "c4", "c5")])
    assert broken(outcome) == {"c4"}
    assert "c4 has no mirror" in outcome.error
    assert [by_table(outcome)[name].note for name in ("c3", "c5")] == ["equal", "equal"]


def test_one_table_that_cannot_be_read_or_has_the_name_of_another_stops_no_other(shop: Shop) -> None:
    pair = {"pair", "pair__tombstones"}
    for name in ("good", "unread", *pair):
        shop.run(f"CREATE TABLE {name} (k int PRIMARY KEY, v int) WITH cdc = true")
        shop.run(f"INSERT INTO {name} (k, v) VALUES (1, 1)")
    shop.run(
        "CREATE MATERIALIZED VIEW seen AS SELECT * FROM good WHERE v IS NOT NULL AND k IS NOT NULL "
        "PRIMARY KEY (v, k)"
    )
    tables = [rf"{shop.keyspace}\..*"]
    shop.declare(
        snapshot={"filters": {shop.table_name("unread"): "nope = 1"}},
        tables=[*tables, rf"{shop.keyspace}\.seen"],
    )
    outcome = shop.sync()
    assert broken(outcome) == {"unread", "seen", *pair}
    assert "ALTER MATERIALIZED VIEW" in by_table(outcome)["seen"].error
    found = by_table(outcome)
    assert "Undefined column name nope" in found["unread"].error
    assert "would both be stored in" in found["pair"].error
    assert "another lake.namespace" in outcome.error
    assert shop.assert_equal("good") == 1
    # What was captured is merged: the snapshot alone is missing, and due again.
    assert shop.mirror("unread").count() == 1

    outcome = shop.stage("verify")
    assert broken(outcome) == {"seen", *pair}
    assert (found["good"].error, by_table(outcome)["good"].note) == ("", "equal")

    shop.declare(snapshot={"filters": {}}, tables=tables, exclude_tables=[rf"{shop.keyspace}\.pair__.*"])
    outcome = shop.sync()
    assert outcome.ok, outcome.error
    assert [shop.assert_equal(name) for name in ("good", "unread", "pair")] == [1, 1, 1]


def checked(connector: Connector, values: dict[str, Any]) -> list[str]:
    """Return the problems that a check finds beforehand."""
    with closing(source_plugin(connector.type).source(connector, values)) as source:
        return [found.message for found in check_connector(connector, source) if found.level != "ok"]


def test_tables_of_cassandra_that_are_named_without_cdc_or_do_not_exist_stop_no_other(shop: Shop) -> None:
    for name, option in (("good", "true"), ("silent", "false"), ("gone", "true")):
        shop.run(f"CREATE TABLE {name} (k int PRIMARY KEY, v int) WITH cdc = {option}")
        shop.run(f"INSERT INTO {name} (k, v) VALUES (1, 1)")
    names = [shop.table_name(name) for name in ("good", "silent", "gone", "never")]
    shop.declare(tables=names)
    refusal = f"the table {names[1]} is named but doesn't have cdc = true"
    never = f"no table that can be captured matches {names[3]} in tables"
    assert refusal in checked(Connector.from_dict(shop.declaration), shop.connection)
    outcome = shop.sync()
    assert broken(outcome) == {"silent"}
    assert refusal in outcome.error
    assert f"ALTER TABLE {names[1]} WITH cdc = true" in outcome.error
    assert any(never in finding for finding in outcome.findings)
    assert [shop.assert_equal(name) for name in ("good", "gone")] == [1, 1]

    shop.run("DROP TABLE gone")
    shop.run("INSERT INTO good (k, v) VALUES (2, 2)")
    outcome = shop.sync()
    assert broken(outcome) == {"silent"}
    assert any(f"matches {names[2]} in tables" in finding for finding in outcome.findings)
    assert shop.assert_equal("good") == 2

    shop.run("ALTER TABLE silent WITH cdc = true")
    assert never in checked(Connector.from_dict(shop.declaration), shop.connection)
    outcome = shop.sync()
    assert outcome.ok, outcome.error
    assert shop.assert_equal("silent") == 1


def test_tables_of_scylla_that_are_named_without_a_log_or_lose_it_stop_no_other(
    shop: Shop, names: SystemKeyspaces
) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    integer = CqlType("int")
    tables = {name: shop.table_name(name) for name in ("good", "silent", "off", "gone", "never")}

    def write(key: int, *names: str) -> None:
        for name in names:
            cluster.execute(name, Insert((number(key),), (), {"v": number(key)}))

    for name in ("good", "silent", "off", "gone"):
        columns = (Column("k", integer),), (), (), (Column("v", integer),)
        cluster.create_table(Table(shop.keyspace, name, *columns, cdc=CdcOptions(enabled=name != "silent")))
        write(1, name)
    declare(shop, names, tables=list(tables.values()))
    refusal = f"the table {tables['silent']} is named but its changes aren't logged"
    never = f"no table that can be captured matches {tables['never']} in tables"
    assert f"{refusal}: found no log" in checked(Connector.from_dict(shop.declaration), shop.connection)
    outcome = settled(shop)
    assert broken(outcome) == {"silent"}
    assert refusal in outcome.error
    assert f"ALTER TABLE {tables['silent']} WITH cdc = {{'enabled': true}}" in outcome.error
    assert any(never in finding for finding in outcome.findings)
    assert [shop.mirror(name).count() for name in ("good", "off", "gone")] == [1, 1, 1]

    cluster.alter_cdc("off", enabled=False)
    cluster.drop_table("gone")
    cluster.alter_cdc("silent", enabled=True)
    write(2, "good", "silent", "off")
    outcome = settled(shop)
    assert outcome.ok, outcome.error
    assert any(f"the log of {tables['off']} is disabled" in finding for finding in outcome.findings)
    assert any(f"matches {tables['gone']} in tables" in finding for finding in outcome.findings)
    for name in ("good", "silent"):
        assert assert_mirror_equals_model(shop, name, cluster.tables[name]) == 2
    cluster.alter_cdc("off", enabled=True)
    assert never in checked(Connector.from_dict(shop.declaration), shop.connection)


def test_a_mirror_of_another_connector_is_refused_and_stops_no_other(
    spark: SparkSession, run_stage: RunStage, database: Database, connection: dict[str, Any]
) -> None:
    other = database.client[f"{database.name}_x"]
    database["x_t"].insert_one({"_id": 1, "of": "first"})
    other.t.insert_one({"_id": 2, "of": "second"})
    database.good.insert_one({"_id": 3})
    declared = {**declaration(database), "publish": {}, "tables": [rf"{database.name}\.x_t"]}
    second = {**declared, "name": "second", "tables": [rf"{other.name}\.t", rf"{database.name}\.good"]}
    try:
        assert run_stage("sync", declared, connection).ok
        for stage in ("check_lake", "sync", "verify"):
            outcome = run_stage(stage, second, connection)
            text = " ".join(outcome.findings) if stage == "check_lake" else outcome.error
            assert f"expected table {other.name}.t of connector second" in text
            assert f"found table {database.name}.x_t of connector shop_{database.name}" in text
            assert stage == "check_lake" or broken(outcome) == {"t"}
        assert run_stage("sync", declared, connection).ok
        for name in ("x_t", "good"):
            mirror = f"{database.name}.{database.name}_{name}"
            assert_mirror_equals_collection(spark, database[name], mirror)
    finally:
        database.client.drop_database(other)
