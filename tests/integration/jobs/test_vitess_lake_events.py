"""Events of Vitess from the lake: applied in order, they result in VTGate's rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from server_kit import KafkaServer, VitessServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.sources.vitess.workload import create, run, selected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture
def table(vitess_server: VitessServer, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"eventful{abs(hash(request.node.name)) % 10**6}"
    create(vitess_server, name)
    yield name
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"drop table if exists {name}")


def declaration(table: str) -> dict[str, Any]:
    return {
        "name": f"vt_{table}",
        "source": {"type": "vitess", "keyspace": "shop"},
        "tables": [rf"shop\.{table}"],
        "lake": {"catalog": "lake", "namespace": f"vt_{table}"},
        "publish": {
            "topic_prefix": "cdc",
            "headers": False,
            "transactions": True,
            "vitess": {"ordered_transactions": True},
        },
    }


def captured(run_stage: RunStage, table: str, folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    result = run_stage("events", declaration(table), {}, path=str(path), now_ns=10**18, **options)
    assert not [line for line in result.findings if line.startswith("skipped")]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {**record, **{side: record[side] and json.loads(record[side]) for side in ("key", "value")}}
        for record in records
    ]


def folded(records: list[dict[str, Any]], topic: str) -> dict[str, tuple[str | None, ...]]:
    """Apply events: each shard's by themselves, as two shards may hold a key while a row moves."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        if record["topic"] == topic and record["value"]:
            value = record["value"]
            key = value["source"]["shard"], record["key"]["id"]
            if value["op"] == "d":
                rows.pop(key, None)
            else:
                rows[key] = value["after"]
    texts = (
        tuple(None if row[n] is None else str(row[n]) for n in ("id", "name", "amount"))
        for row in rows.values()
    )
    return {str(text[0]): text for text in texts}


@pytest.mark.covers("VIT-KEY-05", "VIT-TXN-08")
def test_events_of_the_lake_applied_in_order_result_in_the_servers_rows(
    spark: SparkSession, run_stage: RunStage, vitess_server: VitessServer, table: str, tmp_path: Path
) -> None:
    run(vitess_server, table, 1, 60)
    run_stage("sync", declaration(table), vitess_server.connection)
    for seed in (2, 3):
        run(vitess_server, table, seed, 60)
        run_stage("sync", declaration(table), vitess_server.connection)

    found = captured(run_stage, table, tmp_path)

    assert folded(found, f"cdc.shop.{table}") == selected(vitess_server, table)
    values = [record["value"] for record in found if record["value"]]
    events = [value for value in values if "op" in value]
    assert {value["op"] for value in events} == {"c", "u", "d"}
    bounds = [value for value in values if "status" in value]
    assert [value["status"] for value in bounds] == ["BEGIN", "END"] * (len(bounds) // 2)
    assert sum(value["event_count"] or 0 for value in bounds) == len(events)

    changes = [value for value in events if value["source"]["ts_ms"]]
    assert changes
    for shard in {value["source"]["shard"] for value in changes}:
        own = [value["transaction"] for value in changes if value["source"]["shard"] == shard]
        ranks = [int.from_bytes(base64.b64decode(block["transaction_rank"]), "big") for block in own]
        places = [(b["transaction_epoch"], r, b["total_order"]) for b, r in zip(own, ranks, strict=True)]
        assert places == sorted(places)
        assert ranks[0] > 0


def test_statements_are_at_their_position_and_rows_of_both_schemas_are_as_published(
    run_stage: RunStage, vitess_server: VitessServer, table: str, tmp_path: Path, kafka_server: KafkaServer
) -> None:
    chosen = declaration(table)
    chosen["publish"] = {"topic_prefix": "cdc", "headers": False, "schema_changes": True}
    run_stage("sync", chosen, vitess_server.connection)
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"insert into {table} (id, name) values (1, 'before')")
        vitess_server.define("shop", f"alter table {table} add column more int")
        cursor.execute(f"insert into {table} (id, name, more) values (1001, 'after', 2)")
    run_stage("sync", chosen, vitess_server.connection)

    path = tmp_path / "events.jsonl"
    run_stage("events", chosen, {}, path=str(path), now_ns=10**18)

    found = [json.loads(json.loads(line)["value"]) for line in path.read_text().splitlines()]
    reported = [value for value in found if "ddl" in value]
    assert {value["source"]["shard"] for value in reported} == {"-80", "80-"}
    assert all(value["ddl"].lower().startswith(f"alter table {table}") for value in reported)
    assert all(value["tableChanges"] == [{"type": "ALTER", "id": f'"shop"."{table}"'}] for value in reported)
    for value in reported:
        vgtid = {entry["shard"]: entry["gtid"] for entry in json.loads(value["source"]["vgtid"])}
        assert set(vgtid) == {"-80", "80-"}
        assert vgtid[value["source"]["shard"]].startswith("MySQL56/")
    for shard in ("-80", "80-"):
        own = [value for value in found if value["source"]["shard"] == shard]
        shapes = ["ddl" if "ddl" in value else "more" in value["after"] for value in own]
        assert shapes == sorted(shapes, key=[False, "ddl", True].index)
    assert sum("op" in value for value in found) == 2

    both = {**vitess_server.connection, "kafka": {"bootstrap.servers": kafka_server.bootstrap}}
    chosen["publish"] |= {"topic_prefix": table, "kafka": {"connection": "kafka"}}
    topic = f"{table}.shop.{table}"
    kafka_server.create_topic(topic, 2)
    kafka_server.create_topic(table)
    run_stage("offsets", chosen, both, action="adopt")
    assert run_stage("publish", chosen, both).ok
    same = run_stage("compare_topics", chosen, both)
    assert (same.ok, [one.mirror_rows for one in same.tables]) == (True, [2]), same.error
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"delete from {table} where id = 1")
        cursor.execute(f"update {table} set more = 3 where id = 1001")
    silent = {**chosen, "publish": {**chosen["publish"], "kafka": {}}}
    assert run_stage("sync", silent, vitess_server.connection).ok
    (differs,) = run_stage("compare_topics", chosen, both).tables
    assert differs.note == '{"equal": 0, "only_topic": 1, "only_mirror": 0, "different": 1}'


def test_rows_after_merges_are_those_of_the_mirror_each_once(
    run_stage: RunStage, vitess_server: VitessServer, table: str, kafka_server: KafkaServer
) -> None:
    chosen = declaration(table)
    kafka = {"connection": "kafka", "mode": "after_merge", "records_per_commit": 2}
    chosen["publish"] = {"topic_prefix": table, "headers": False, "kafka": kafka}
    both = {**vitess_server.connection, "kafka": {"bootstrap.servers": kafka_server.bootstrap}}
    topic = f"{table}.shop.{table}"

    def published() -> int:
        outcome = run_stage("sync", chosen, both)
        assert outcome.ok, outcome.error
        assert outcome.published is not None
        return outcome.published.records

    with vitess_server.connect("shop").cursor() as cursor:
        for number in (1, 2, 1001):
            cursor.execute(f"insert into {table} (id, name) values ({number}, 'first')")
        assert published() == 3
        cursor.execute(f"update {table} set name = 'second' where id = 1")
        cursor.execute(f"delete from {table} where id = 2")
        cursor.execute(f"insert into {table} (id, name) values (3, 'brief'), (1002, 'new')")
        cursor.execute(f"delete from {table} where id = 3")
    assert published() == 4
    assert published() == 0

    messages = kafka_server.read(topic)
    values = [(json.loads(m.key() or b"")["id"], json.loads(m.value() or b"null")) for m in messages]
    later = [(key, value and value["op"]) for key, value in values[3:]]
    assert sorted(later, key=str) == [(1, "u"), (1002, "c"), (2, "d"), (2, None)]
    assert {value["op"] for _, value in values[:3]} == {"c"}
    shards = {value["source"]["shard"] for _, value in values if value}
    assert shards == {"-80", "80-"}
    records = [{"topic": topic, "key": {"id": key}, "value": value} for key, value in values]
    assert folded(records, topic) == selected(vitess_server, table)
    same = run_stage("compare_topics", chosen, both)
    assert (same.ok, [one.mirror_rows for one in same.tables]) == (True, [3]), same.error
