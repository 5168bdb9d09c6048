"""The examples in the documentation of Debezium's connectors, checked and run as they are imported.

Their servers are the tests' own, and so are the keyspaces of Cassandra and Vitess.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.migration.settings_file import read_settings
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit import VitessServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_collection
from tests.integration.jobs.shop import Shop
from tests.unit.migration.documented import (
    CASSANDRA_EXAMPLE,
    MONGODB_EXAMPLE,
    VITESS_EXAMPLE,
    VITESS_TASKS_EXAMPLE,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def declared(example: str, namespace: str, **more: str) -> dict[str, Any]:
    """Import an example with further properties."""
    connector = from_debezium({**read_settings(example), **more}).connector.to_dict()
    return {**connector, "name": namespace, "lake": {"catalog": "lake", "namespace": namespace}}


def errors(declaration: dict[str, Any], connection: dict[str, Any]) -> list[str]:
    """Return what ``airflow cdc check`` finds wrong with a source."""
    connector = Connector.from_dict(declaration)
    with closing(source_plugin(connector.type).source(connector, connection)) as source:
        return [finding.message for finding in source.check() if finding.level != "ok"]


@pytest.mark.covers("CAS-IMP-01")
def test_cassandras_example_fills_mirrors_from_snapshot_and_log(shop: Shop) -> None:
    shop.run("CREATE TABLE customers (id int PRIMARY KEY, name text) WITH cdc = true")
    shop.run("INSERT INTO customers (id, name) VALUES (1, 'Anne')")
    imported = declared(CASSANDRA_EXAMPLE, shop.keyspace, **{"keyspace.include.list": shop.keyspace})
    shop.declaration = {**imported, "source": {**shop.declaration["source"], **imported["source"]}}
    assert shop.sync().ok
    shop.run("UPDATE customers SET name = 'Anne Marie' WHERE id = 1")
    shop.close_segments()
    shop.run("INSERT INTO customers (id, name) VALUES (2, 'Bob')")

    assert shop.sync().ok

    assert shop.assert_equal("customers") == 2, "of both segments, not of the latest alone"


@pytest.mark.covers("MDB-IMP-01")
def test_mongodbs_example_selects_nothing_as_in_debezium_and_says_so(
    spark: SparkSession,
    run_stage: RunStage,
    database: Any,
    connection: dict[str, Any],
) -> None:
    """Its pattern, ``inventory[.]*``, matches names of collections nowhere: that of databases was meant."""
    database.customers.insert_one({"_id": 1, "name": "Anne"})
    literal = declared(MONGODB_EXAMPLE, database.name)
    assert "no existing collection is selected" in errors(literal, connection)
    meant = f"{database.name}[.].*"
    fixed = declared(MONGODB_EXAMPLE, database.name, **{"collection.include.list": meant})
    assert "no existing collection is selected" not in errors(fixed, connection)

    assert run_stage("sync", fixed, connection).ok

    mirror = f"{database.name}.{database.name}_customers"
    assert assert_mirror_equals_collection(spark, database.customers, mirror) == 1


@pytest.mark.covers("VIT-IMP-01")
@pytest.mark.parametrize("example", [VITESS_EXAMPLE, VITESS_TASKS_EXAMPLE], ids=["plain", "tasks"])
def test_vitess_examples_fill_mirrors(
    example: str, spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer
) -> None:
    name = f"example_{'tasks' if example is VITESS_TASKS_EXAMPLE else 'plain'}"
    vitess_server.define(
        "shop", f"create table {name} (id bigint primary key, note text)", shard_by={name: "id"}
    )
    try:
        write(vitess_server, f"insert into {name} (id, note) values (1, 'a'), (2, 'b'), (3, 'c')")
        own = {"vitess.keyspace": "shop", "table.include.list": f"shop.{name}"}
        imported = declared(example, name, **own)

        assert run_stage("sync", imported, vitess_server.connection).ok

        mirror = spark.table(f"lake.{name}.shop_{name}")
        assert sorted(row["note"] for row in mirror.collect()) == ["a", "b", "c"]
    finally:
        write(vitess_server, f"drop table {name}")


def write(server: VitessServer, statement: str) -> None:
    with server.connect("shop").cursor() as cursor:
        cursor.execute(statement)
