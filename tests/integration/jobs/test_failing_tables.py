"""Tables that can't be merged: the others are, and the job says what is wrong with which."""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spec import DECLARED
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.shop import Shop
from tests.security.leaks import leaks
from tests.unit.sources.cassandra.recordings import recording

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


PLANTED = ("w0rd-of-the-login", "w0rd-of-the-catalog", "w0rd-of-a-header", "w0rd_of_a_column")
"""The last one is in an error of a worker: it is the name of a column."""


def with_planted(declaration: dict[str, Any]) -> Connector:
    """Return the connector with secrets of its catalog, which a catalog of type hadoop ignores."""
    _, of_catalog, of_header, shown = PLANTED
    named = {"credential": of_catalog, "header.X-Mine": of_header, "token": shown}
    options = {**declaration["lake"]["catalog_options"], **named, "uri": f"jdbc:x://me:{of_catalog}@db/x"}
    return Connector.from_dict({**declaration, "lake": {**declaration["lake"], "catalog_options": options}})


def assert_no_secret(application: Application) -> None:
    """Search all that a run of an application wrote."""
    (events,) = (file for file in (application.folder / "events").rglob("events_*") if file.is_file())
    environment = next(line for line in events.read_text().splitlines() if "EnvironmentUpdate" in line)
    settings = json.loads(environment)["Spark Properties"]
    assert settings["spark.sql.catalog.lake.type"] == "hadoop"
    assert {
        settings[f"spark.sql.catalog.lake.{name}"] for name in ("credential", "header.X-Mine", "uri")
    } == {"*********(redacted)"}
    assert not leaks(events.read_text(), *PLANTED[:-1]), "Spark's plans have names of columns"
    for name in ("spec.json", "result.json", "log"):
        found = leaks((application.folder / name).read_text(errors="replace"), *PLANTED)
        assert not found, f"{name}: {found}"


def test_tables_that_cannot_be_merged_are_named_and_all_others_follow(
    shop: Shop, application: Application
) -> None:
    """One fails by a table under its mirror's name, one in Spark's tasks by a value, one by its type."""
    shop.declare(snapshot={"mode": "never"})
    shop.declare_catalog()
    good, far, named, typed = (shop.table_name(table) for table in ("good", "far", "named", "typed"))
    shop.run("CREATE TABLE good (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("CREATE TABLE far (k int PRIMARY KEY, w0rd_of_a_column timestamp) WITH cdc = true")
    shop.run("CREATE TABLE typed (k int PRIMARY KEY, v timestamp) WITH cdc = true")
    shop.run("CREATE TABLE named (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("INSERT INTO good (k, v) VALUES (1, 1)")
    shop.run("INSERT INTO typed (k, v) VALUES (1, 1)")
    shop.run(f"INSERT INTO far (k, w0rd_of_a_column) VALUES (1, {2**63 - 1})")
    shop.run("INSERT INTO named (k, v) VALUES (1, 1)")
    shop.spark.sql(f"CREATE NAMESPACE lake.{shop.keyspace}")
    shop.spark.sql(f"CREATE TABLE lake.{shop.mirror_name('named')} (a int) USING iceberg")
    shop.close_segments()

    events = application.folder / "events"
    events.mkdir()
    logged = f"local[2] --conf spark.eventLog.enabled=true --conf spark.eventLog.dir={events.as_uri()}"
    plain, secrets = with_planted(shop.declaration).split_secrets()
    process = application.start(
        "sync",
        plain,
        {**shop.connection, "password": PLANTED[0], DECLARED: secrets},
        master=f"{logged} --conf spark.eventLog.compress=false",
    )
    outcome = application.wait(process)
    assert_no_secret(application)

    assert process.returncode == 1, application.log_tail()
    assert not outcome.ok
    assert outcome.error_code == "CONFIGURATION"
    assert "2 of 4 tables failed" in outcome.error
    tables = {t.table: t for t in outcome.tables}
    assert (tables[good].rows_written, tables[good].error) == (1, "")
    assert tables[named].error_code == "CONFIGURATION"
    assert "was written by an older release, or not by this provider" in tables[named].error
    assert "drop it, with the other tables of the connector" in tables[named].error
    assert "column ***, has a timestamp out of range of the lake's type" in tables[far].error
    assert "set source.advanced.timestamps to milliseconds" in tables[far].error
    for table in (far, named):
        assert f"{table}: {tables[table].error.partition('] ')[2]}" in outcome.error
    assert outcome.offset is not None, "Airflow shows what was done"

    shop.declare(
        source={"advanced": {"timestamps": "milliseconds"}}, exclude_tables=[rf"{shop.keyspace}\.named"]
    )
    shop.run("INSERT INTO good (k, v) VALUES (2, 2)")
    shop.run("INSERT INTO typed (k, v) VALUES (2, 2)")
    outcome = shop.sync()
    assert (outcome.ok, outcome.error_code) == (False, "CONFIGURATION")
    assert f"1 of 3 tables failed: {typed}: column v of" in outcome.error
    assert shop.assert_equal("good") == 2
    assert [row["w0rd_of_a_column"] for row in shop.mirror("far").collect()] == [2**63 - 1]

    shop.drop_mirror("typed")
    outcome = shop.stage("sync")
    assert (outcome.ok, outcome.error) == (True, "")
    found = shop.mirror("typed").orderBy("k").collect()
    assert [row["v"] for row in found] == [1, 2]


def test_a_node_with_a_segment_that_cannot_be_read_fails_the_run_after_all_others_are_captured(
    spark: SparkSession, run_stage: RunStage, tmp_path: Path
) -> None:
    full = recording("v7-plain")
    full.unpack(tmp_path / "landing" / "good")
    (tmp_path / "landing" / "bad").mkdir()
    os.mkfifo(tmp_path / "landing" / "bad" / "CommitLog-7-1.log")
    name = f"f{uuid.uuid4().hex[:8]}"
    declaration = {
        "name": name,
        "source": {
            "type": "cassandra",
            "cdc_raw": str(tmp_path / "landing"),
            "schema_file": str(full.folder / "schema.cql"),
        },
        "tables": [r"shop_a\.big"],
        "lake": {"catalog": "lake", "namespace": name},
    }
    outcome = run_stage("capture", declaration, {})
    assert (outcome.ok, outcome.error_code) == (False, "CORRUPT-INPUT")
    assert re.search(r"node bad: .*CommitLog-7-1\.log.*it is a named pipe.*remove it", outcome.error)
    changes = spark.table(f"lake.{name}.{name}_changes").where("kind = 'change'")
    assert changes.count() == len([u for u in full.updates() if u["table"] == "big"]) > 0
    assert [row["origin"] for row in changes.select("origin").distinct().collect()] == ["good"]
