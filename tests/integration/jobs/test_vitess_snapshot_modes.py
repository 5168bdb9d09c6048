"""Vitess: which tables are copied first, which are only streamed, and where transaction events start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.migration.debezium.properties import from_debezium
from server_kit import VitessServer
from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

NAMES = ("mode_a", "mode_b")


@pytest.fixture(scope="module", autouse=True)
def _tables(vitess_server: VitessServer) -> Iterator[None]:
    for name in NAMES:
        vitess_server.define(
            "shop", f"create table {name} (id bigint primary key, note text)", shard_by={name: "id"}
        )
    yield
    for name in NAMES:
        write(vitess_server, f"drop table {name}")


@pytest.fixture(autouse=True)
def _rows(vitess_server: VitessServer, _tables: None) -> None:
    """Three rows of each table, which are there before the capture."""
    for name in NAMES:
        write(vitess_server, f"delete from {name}")
        write(vitess_server, f"insert into {name} (id, note) values (1, 'old'), (2, 'old'), (3, 'old')")


def write(server: VitessServer, statement: str) -> None:
    with server.connect("shop").cursor() as cursor:
        cursor.execute(statement)


def declared(name: str, **properties: str) -> dict[str, Any]:
    """Import a declaration of Debezium's."""
    least = {
        "connector.class": "io.debezium.connector.vitess.VitessConnector",
        "name": name,
        "topic.prefix": name,
        "vitess.keyspace": "shop",
        "table.include.list": r"shop\.mode_.",
    }
    connector = from_debezium({**least, **properties}).connector.to_dict()
    return {**connector, "lake": {"catalog": "lake", "namespace": name}}


def ids(spark: SparkSession, namespace: str, table: str) -> list[int]:
    return sorted(row[0] for row in spark.table(f"lake.{namespace}.shop_{table}").select("id").collect())


def events(run_stage: RunStage, connector: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    run_stage("events", connector, {}, path=str(path), now_ns=10**18)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {"topic": record["topic"], "value": json.loads(record["value"])}
        for record in found
        if record["value"]
    ]


@pytest.mark.covers("VIT-SNP-01", "VIT-TXN-04", "VIT-HBT-02")
def test_without_a_snapshot_only_changes_after_the_start_are_captured_and_have_transactions(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, tmp_path: Path
) -> None:
    chosen = {"snapshot.mode": "never", "provide.transaction.metadata": "true"}
    connector = declared("vt_never", **chosen, **{"heartbeat.interval.ms": "2000"})
    first_run = run_stage("sync", connector, vitess_server.connection)
    assert first_run.snapshot is None
    assert (first_run.changes, first_run.snapshot_skipped) == (0, True)
    assert first_run.offset is not None
    assert set(first_run.offset) == {"shop/-80", "shop/80-"}
    assert all(place["gtid"].startswith("MySQL56/") for place in first_run.offset.values())

    write(vitess_server, "insert into mode_a (id, note) values (4, 'new')")
    write(vitess_server, "update mode_b set note = 'new' where id = 1")
    outcome = run_stage("sync", connector, vitess_server.connection)

    assert not any(table.snapshot_rows for table in outcome.tables)
    assert ids(spark, "vt_never", "mode_a") == [4]
    assert ids(spark, "vt_never", "mode_b") == [1], "what changed is known, what stayed isn't"
    found = events(run_stage, connector, tmp_path)
    changes = [record["value"] for record in found if "op" in record["value"]]
    assert sorted((value["source"]["table"], value["op"]) for value in changes) == [
        ("mode_a", "c"),
        ("mode_b", "u"),
    ]
    assert {value["source"]["snapshot"] for value in changes} == {"false"}
    bounds = [record["value"] for record in found if record["topic"] == "vt_never.transaction"]
    # Three inserts of each table were committed before the start and have no events.
    assert [value["status"] for value in bounds] == ["BEGIN", "END"] * 2
    assert [value["event_count"] for value in bounds if value["status"] == "END"] == [1, 1]
    assert {value["transaction"]["id"] for value in changes} == {value["id"] for value in bounds}
    beats = [record for record in found if record["topic"] == "__debezium-heartbeat.vt_never"]
    reported = {f"{s['keyspace']}/{s['shard']}": s["gtid"] for s in json.loads(beats[-1]["value"]["vgtid"])}
    assert outcome.offset is not None
    assert reported == {shard: place["gtid"] for shard, place in outcome.offset.items()}
    led = declared(
        "vt_never", **chosen, **{"heartbeat.interval.ms": "2000", "heartbeat.topics.prefix": "beat"}
    )
    assert events(run_stage, led, tmp_path)[-1]["topic"] == "beat.vt_never"


@pytest.mark.covers("VIT-SNP-02")
def test_an_initial_snapshot_copies_all_tables_in_key_order_and_continues_streaming(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer
) -> None:
    connector = declared("vt_initial")
    assert connector.get("snapshot", {}).get("mode", "initial") == "initial"
    write(
        vitess_server,
        "insert into mode_a (id, note) values " + ", ".join(f"({n}, 'x')" for n in range(4, 60)),
    )

    first_run = run_stage("sync", connector, vitess_server.connection)

    assert {table.table: table.snapshot_rows for table in first_run.tables} == {
        "shop.mode_a": 59,
        "shop.mode_b": 3,
    }
    changes = spark.table("lake.vt_initial.vt_initial_changes")
    copied = changes.where("kind = 'snapshot' and source_table = 'shop.mode_a'").orderBy("origin", "position")
    rows = copied.select("origin", "payload").collect()
    for shard in ("shop/-80", "shop/80-"):
        keys = [payload_id(bytes(row["payload"])) for row in rows if row["origin"] == shard]
        assert len(keys) > 10
        assert keys == sorted(keys)
    write(vitess_server, "delete from mode_b where id = 2")
    later = run_stage("sync", connector, vitess_server.connection)
    assert not any(table.snapshot_rows for table in later.tables)
    assert ids(spark, "vt_initial", "mode_b") == [1, 3]


def payload_id(payload: bytes) -> int:
    from airflow_cdc_provider.sources.vitess.protocol import RowChange

    after = RowChange.FromString(payload).after
    return int(after.values[: after.lengths[0]])


@pytest.mark.covers("VIT-SNP-03")
def test_of_some_tables_a_snapshot_is_taken_and_the_others_stream_from_now(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer
) -> None:
    connector = declared("vt_some", **{"snapshot.include.collection.list": r"shop\.mode_a"})
    first_run = run_stage("sync", connector, vitess_server.connection)
    assert {t.table: t.snapshot_rows for t in first_run.tables if t.snapshot_rows} == {"shop.mode_a": 3}
    for name in NAMES:
        write(vitess_server, f"insert into {name} (id, note) values (4, 'new')")

    run_stage("sync", connector, vitess_server.connection)

    assert ids(spark, "vt_some", "mode_a") == [1, 2, 3, 4]
    assert ids(spark, "vt_some", "mode_b") == [4]
