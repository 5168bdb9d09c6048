"""Several keyspaces of Vitess in one capture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer
from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _tables(vitess_server: VitessServer) -> Iterator[None]:
    """A table of one name in both keyspaces, and one that is left out in each."""
    statements = [f"create table {name} (id bigint primary key, note text)" for name in ("pair", "alone")]
    vitess_server.define("lookup", *statements)
    vitess_server.define("shop", *statements, shard_by={"pair": "id", "alone": "id"})
    write(vitess_server, "old", range(1, 6))
    yield
    for keyspace in ("shop", "lookup"):
        with vitess_server.connect(keyspace) as connection, connection.cursor() as cursor:
            cursor.execute("drop table pair")
            cursor.execute("drop table alone")


def write(server: VitessServer, note: str, ids: range) -> None:
    values = ", ".join(f"({number}, '{note}')" for number in ids)
    for keyspace in ("shop", "lookup"):
        with server.connect(keyspace) as connection, connection.cursor() as cursor:
            for table in ("pair", "alone"):
                cursor.execute(f"insert into {table} (id, note) values {values}")


@pytest.mark.covers("VIT-SCO-22")
def test_keyspaces_by_an_expression_are_streamed_to_topics_of_their_own(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, tmp_path: Path
) -> None:
    properties = {
        "connector.class": "io.debezium.connector.vitess.VitessConnector",
        "name": "vt_keyspaces",
        "topic.prefix": "cdc",
        "vitess.keyspace": "/^(shop|look.*)$",
        "table.include.list": r"shop\.pair,lookup\.pair,lookup\.alone",
    }
    imported = from_debezium(properties).connector
    lake = {"catalog": "lake", "namespace": "vt_keyspaces"}
    connector: dict[str, Any] = {**imported.to_dict(), "lake": lake}
    first_run = run_stage("sync", connector, vitess_server.connection)
    assert first_run.offset is not None
    assert set(first_run.offset) == {"lookup/0", "shop/-80", "shop/80-"}
    assert {t.table: t.snapshot_rows for t in first_run.tables} == dict.fromkeys(
        ("shop.pair", "lookup.pair", "lookup.alone"), 5
    )
    write(vitess_server, "new", range(6, 9))

    run_stage("sync", connector, vitess_server.connection)

    for table in ("shop_pair", "lookup_pair", "lookup_alone"):
        rows = spark.table(f"lake.vt_keyspaces.{table}").select("id", "note").collect()
        notes = {row[0]: row[1] for row in rows}
        assert notes == {number: "old" if number < 6 else "new" for number in range(1, 9)}, table
    path = tmp_path / "events.jsonl"
    run_stage("events", connector, {}, path=str(path), now_ns=10**18)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    topics: dict[str, int] = {}
    for record in found:
        topics[record["topic"]] = topics.get(record["topic"], 0) + 1
        source = json.loads(record["value"])["source"]
        assert record["topic"] == f"cdc.{source['keyspace']}.{source['table']}"
    assert topics == dict.fromkeys(("cdc.shop.pair", "cdc.lookup.pair", "cdc.lookup.alone"), 8)

    source = VitessSource(imported.source, vitess_server.connection, imported.selects)  # type: ignore[arg-type]
    findings = source.check(first_run.offset)
    source.close()
    assert [f.message for f in findings if f.level == "error"] == []
    assert {f.message.partition(" ")[0] for f in findings if f.subject == "keyspace"} == {"lookup", "shop"}
