"""Tables that can't be merged: the others are, and the job says what is wrong with which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


def test_tables_that_cannot_be_merged_are_named_and_all_others_follow(
    spark: SparkSession,
    run_stage: RunStage,
    application: Application,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    """One is refused for a column's name, one for its type, one fails in Spark's tasks by a value."""
    shop: dict[str, Any] = {
        "name": f"failing_{keyspace}",
        "source": {
            "type": "cassandra",
            "cdc_raw": str(cassandra_server.cdc_raw),
            "node": cassandra_server.host_id,
        },
        "tables": [rf"{keyspace}\..*"],
        "snapshot": {"mode": "never"},
        "lake": {
            "catalog": "lake",
            "namespace": keyspace,
            "catalog_options": {
                "type": "hadoop",
                "warehouse": spark.conf.get("spark.sql.catalog.lake.warehouse"),
            },
        },
    }
    run = cassandra_session.execute
    good, far, named, typed = (f"{keyspace}.{table}" for table in ("good", "far", "named", "typed"))
    run(f"CREATE TABLE {good} (k int PRIMARY KEY, v int) WITH cdc = true")
    run(f"CREATE TABLE {far} (k int PRIMARY KEY, v timestamp) WITH cdc = true")
    run(f"CREATE TABLE {typed} (k int PRIMARY KEY, v timestamp) WITH cdc = true")
    run(f'CREATE TABLE {named} (k int PRIMARY KEY, "_cdc_note" text) WITH cdc = true')
    run(f"INSERT INTO {good} (k, v) VALUES (1, 1)")
    run(f"INSERT INTO {typed} (k, v) VALUES (1, 1)")
    run(f"INSERT INTO {far} (k, v) VALUES (1, {2**63 - 1})")
    run(f"INSERT INTO {named} (k, \"_cdc_note\") VALUES (1, 'x')")
    cassandra_server.roll_segment(cassandra_session)

    process = application.start("sync", shop, connection)
    outcome = application.wait(process)

    assert process.returncode == 1, application.log_tail()
    assert not outcome.ok
    assert outcome.error_code == "CONFIGURATION"
    assert "2 of 4 tables could not be merged" in outcome.error
    tables = {t.table: t for t in outcome.tables}
    assert (tables[good].rows_written, tables[good].error) == (1, "")
    assert tables[named].error_code == "CONFIGURATION"
    assert "has a column _cdc_note: expected no name that begins with _cdc" in tables[named].error
    assert "exclude the table, or rename the column" in tables[named].error
    assert "timestamp that the lake's type can't hold" in tables[far].error
    assert "set source.advanced.timestamps to milliseconds" in tables[far].error
    for table in (far, named):
        assert f"{table}: {tables[table].error.partition('] ')[2]}" in outcome.error
    assert outcome.offset is not None, "Airflow shows what was done"

    shop["source"]["advanced"] = {"timestamps": "milliseconds"}
    shop["exclude_tables"] = [rf"{keyspace}\.named"]
    run(f"INSERT INTO {good} (k, v) VALUES (2, 2)")
    run(f"INSERT INTO {typed} (k, v) VALUES (2, 2)")
    cassandra_server.roll_segment(cassandra_session)
    outcome = run_stage("sync", shop, connection)
    assert (outcome.ok, outcome.error_code) == (False, "CONFIGURATION")
    assert f"1 of 3 tables could not be merged: {typed}: column v of" in outcome.error
    mirror = f"{keyspace}.{keyspace}_good"
    assert assert_mirror_equals_table(spark, cassandra_session, mirror, good) == 2
    assert [row["v"] for row in spark.table(f"lake.{keyspace}.{keyspace}_far").collect()] == [2**63 - 1]

    spark.sql(f"DROP TABLE lake.{keyspace}.{keyspace}_typed")
    outcome = run_stage("sync", shop, connection)
    assert (outcome.ok, outcome.error) == (True, "")
    found = spark.table(f"lake.{keyspace}.{keyspace}_typed").orderBy("k").collect()
    assert [row["v"] for row in found] == [1, 2]
