"""Topics of Debezium's events: the mirror equals the rows that they describe, whatever happens."""

from __future__ import annotations

import json
import time
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import Row

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit import KafkaServer, RegistryServer
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.debezium_mirrors import InAvro, connection, declaration, expected, mirror, send
from tests.integration.jobs.debezium_workload import Workload
from tests.unit.sources.debezium.debezium_messages import column, event, framed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.jobs.spec import JobResult

pytestmark = pytest.mark.integration


def test_mirror_equals_the_rows_that_events_describe(
    spark: SparkSession, run_stage: RunStage, kafka_server: KafkaServer, registry_server: RegistryServer
) -> None:
    tables = [
        Workload("dz1.shop.orders", 3, 1, schemas=True),
        Workload("dz1.shop.plain", 2, 2, schemas=False),
    ]
    for table in tables:
        kafka_server.create_topic(table.topic, table.partitions)
    kafka_server.create_topic("dz1.transaction")
    connector = declaration("dz1", [r"dz1\..*"], batch_messages=700, advanced={"slice_messages": 150})
    avro = InAvro("dza.shop.orders", SchemaRegistryClient({"url": registry_server.url}))
    for table in tables:
        made = table.messages(200)
        avro.take(made if table.schemas else [])
        send(kafka_server, made)
    first = run_stage("sync", connector, connection(kafka_server))
    assert first.ok
    assert all(not table.error for table in first.tables), first.tables
    with pytest.raises(ConfigurationError, match="mirrors of source debezium can't be verified"):
        run_stage("verify", connector, connection(kafka_server))

    for table in tables:
        table.version = 2
        made = table.messages(150)
        avro.take(made if table.schemas else [])
        send(kafka_server, made, transactional=f"{table.topic}-tx")
        aborted = Workload(table.topic, table.partitions, 9, schemas=table.schemas)
        send(kafka_server, aborted.messages(20), transactional=f"{table.topic}-tx", commit=False)
    marks = {"status": "BEGIN", "id": "1", "event_count": None, "data_collections": None, "ts_ms": 1}
    send(kafka_server, [("dz1.transaction", 0, b'{"id":"1"}', json.dumps(marks).encode())])
    broken = [("dz1.shop.plain", 1, b"{", b'{"op":"c"}'), ("dz1.shop.plain", 0, b"{}", b"\x00rubbish")]
    send(kafka_server, broken)
    second = run_stage("sync", connector, connection(kafka_server))

    assert sum(origin.errors for origin in second.origins) == 2
    assert second.skipped == {"transaction": 1}
    assert all(not table.error and not table.undecodable for table in second.tables), second.tables
    orders, plain = (mirror(spark, f"dz1.shop_{name}") for name in ("orders", "plain"))
    assert orders == expected(tables[0].rows, schemas=True)
    assert plain == expected(tables[1].rows, schemas=False)
    assert isinstance(next(row["amount"] for row in orders.values() if row["amount"]), Decimal)

    # The very same events, as a registry's converter writes them, give the very same mirror.
    same = declaration(
        "dza",
        [r"dza\..*"],
        key_converter="avro",
        value_converter="avro",
        registry={"url": registry_server.url},
        advanced={"slice_messages": 150},
    )
    kafka_server.create_topic("dza.shop.orders", 3)
    send(kafka_server, avro.messages)
    lost = b"\0\x7f\xff\xff\xff\2"
    send(kafka_server, [("dza.shop.orders", 0, lost, b"\0"), ("dza.shop.orders", 1, None, lost)])
    third = run_stage("sync", same, connection(kafka_server))
    assert sum(origin.errors for origin in third.origins) == 2
    assert mirror(spark, "dza.shop_orders") == orders

    run_stage("offsets", connector, connection(kafka_server), action="reset")
    run_stage("sync", connector, connection(kafka_server))
    assert mirror(spark, "dz1.shop_orders") == orders
    assert mirror(spark, "dz1.shop_plain") == plain


def test_columns_that_engines_confuse_have_other_names(
    spark: SparkSession, run_stage: RunStage, kafka_server: KafkaServer
) -> None:
    topic, connector = "odd.shop.rows", declaration("odd", [r"odd\..*"])
    kafka_server.create_topic(topic)
    kafka_server.create_topic("odd.shop.plain")
    fields = [column("id", "int32"), column("a.b", "int32"), column("name", "string")]
    inside = {"type": "struct", "optional": True, "field": "a", "fields": [column("b", "int32")]}
    first = framed(event("c", None, {"id": 1, "a.b": 1, "a": {"b": 2}, "name": "n"}), [*fields, inside])
    plain = event("c", None, {"id": 1, "a.b": 1, "a": {"b": 2}})
    send(kafka_server, [(topic, 0, b'{"id":1}', json.dumps(first).encode())])
    send(kafka_server, [("odd.shop.plain", 0, b'{"id":1}', json.dumps(plain).encode())])
    assert run_stage("sync", connector, connection(kafka_server)).ok
    fields = [column("NAME", "string"), *fields]
    row = {"id": 2, "NAME": "N", "a.b": 3, "name": "m"}
    send(kafka_server, [(topic, 0, b'{"id":2}', json.dumps(framed(event("c", None, row), fields)).encode())])
    assert run_stage("sync", connector, connection(kafka_server)).ok
    found = mirror(spark, "odd.shop_rows")
    assert found[1] == {"NAME__2": None, "a.b": 1, "a__2": Row(b=2), "name": "n", "_rest": None}
    assert found[2] == {"NAME__2": "N", "a.b": 3, "a__2": None, "name": "m", "_rest": None}
    assert mirror(spark, "odd.shop_plain") == {1: {"a.b": 1, "a__2": '{"b":2}', "_rest": None}}


def test_topics_that_lose_messages_or_are_missing_stop_no_other(
    spark: SparkSession, run_stage: RunStage, kafka_server: KafkaServer
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, NewPartitions

    names = ("deleted", "again", "expired", "ok")
    topics = {name: f"dzm.shop.{name}" for name in names}
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    connector = declaration("dzm", [r"dzm\.shop\..*", "dzm.shop.never"])

    def write(name: str, *rows: int, value: str = "") -> None:
        events = [event("r", None, {"id": row, "v": value}) for row in rows]
        keys = [json.dumps({"id": row}).encode() for row in rows]
        made = zip(keys, events, strict=True)
        send(kafka_server, [(topics[name], 0, key, json.dumps(one).encode()) for key, one in made])

    def create(name: str, partitions: int) -> None:
        """Create a topic, and wait until the broker has forgotten the one that was deleted."""
        kafka_server.create_topic(topics[name], partitions)
        while True:
            there = admin.list_topics(timeout=30).topics.get(topics[name])
            if there is not None and len(there.partitions) == partitions:
                return
            time.sleep(0.05)

    def sync() -> JobResult:
        return run_stage("sync", connector, connection(kafka_server))

    def values(name: str) -> dict[int, str]:
        return {key: row["v"] for key, row in mirror(spark, f"dzm.shop_{name}").items()}

    for name in names:
        kafka_server.create_topic(topics[name])
        write(name, 1, 2, 3)
    first = sync()
    assert first.ok, first.error
    missing = "no topic matches dzm.shop.never of source.topics: nothing is read for it"
    assert missing in first.findings
    source = DebeziumSource(
        parse(DebeziumOptions, {"topics": connector["source"]["topics"]}, "source"),
        connection(kafka_server),
        lambda table: True,
    )
    with closing(source):
        assert missing in [one.message for one in source.check()]

    for name in ("deleted", "again"):
        admin.delete_topics([topics[name]])[topics[name]].result(30)
    create("again", 2)
    write("again", 1, 4, value="new")
    write("expired", 5, 6, value="new")
    expired = TopicPartition(topics["expired"], 0, 4)
    admin.delete_records([expired])[expired].result(30)
    write("ok", 7, value="new")
    outcome = sync()
    assert (outcome.ok, outcome.error_code) == (False, PositionLost.code)
    broken = {table.table.partition(".")[2] for table in outcome.tables if table.error}
    assert broken == set(names) - {"ok"}
    for text in ("deleted/0 was deleted", "again/0 is of a re-created", "expired/0 starts at 4, after 3"):
        assert text in outcome.error
    assert values("ok") == {1: "", 2: "", 3: "", 7: "new"}
    assert values("again") == {1: "new", 2: "", 3: "", 4: "new"}, "what is there is read in the same run"
    assert values("expired") == {1: "", 2: "", 3: "", 6: "new"}

    write("ok", 8)
    outcome = sync()
    assert outcome.ok, outcome.error
    assert any(f"topic {topics['deleted']} was deleted" in finding for finding in outcome.findings)
    create("deleted", 2)
    write("deleted", 1, value="back")
    outcome = sync()
    assert outcome.ok, outcome.error
    assert values("deleted") == {1: "back", 2: "", 3: ""}
    assert not any("was deleted:" in finding for finding in outcome.findings)

    new = NewPartitions(topics["again"], 3)
    admin.create_partitions([new])[topics["again"]].result(30)
    for name in ("again", "ok"):
        write(name, 9)
    outcome = sync()
    assert not outcome.ok
    assert [table.table for table in outcome.tables if table.error] == ["shop.again"]
    assert "set source.on_partitions_added: follow" in outcome.error
    assert (9 in values("ok"), 9 in values("again")) == (True, False)
    connector["source"]["on_partitions_added"] = "follow"
    assert sync().ok
    assert 9 in values("again")


def test_a_table_whose_rows_are_in_two_topics_has_those_of_the_first(
    spark: SparkSession, run_stage: RunStage, kafka_server: KafkaServer
) -> None:
    connector = declaration("two", [r"two[ab]\..*"])
    row = json.dumps(event("c", None, {"id": 1})).encode()
    for topic in ("twoa.shop.rows", "twob.shop.rows", "twob.shop.good"):
        kafka_server.create_topic(topic)
        send(kafka_server, [(topic, 0, b'{"id":1}', row)])
    plugin = source_plugin("debezium")
    declared = Connector.from_dict(connector)
    with closing(plugin.source(declared, connection(kafka_server))) as source:
        (found,) = [one for one in source.check() if one.level != "ok"]
    assert (found.subject, found.level) == ("shop.rows", "warning")
    outcome = run_stage("sync", connector, connection(kafka_server))
    assert outcome.ok
    assert any("shop.rows: 1 changes could not be decoded" in one for one in outcome.findings)
    assert mirror(spark, "two.shop_good") == {1: {"_rest": None}}
    for topic, number in (("twoa.shop.rows", 2), ("twob.shop.rows", 3)):
        send(
            kafka_server,
            [(topic, 0, b'{"id":%d}' % number, json.dumps(event("c", None, {"id": number})).encode())],
        )
    outcome = run_stage("sync", connector, connection(kafka_server))
    assert outcome.ok
    assert any("1 records could not be read" in one for one in outcome.findings)
    assert mirror(spark, "two.shop_rows").keys() == {1, 2}
    # A topic that replaces another one has offsets of its own.
    moved = declaration("moved", [r"twoa\.shop\.rows"])
    assert run_stage("sync", moved, connection(kafka_server)).ok
    moved["source"]["topics"] = [r"twob\.shop\.rows"]
    outcome = run_stage("sync", moved, connection(kafka_server))
    assert any("2 records could not be read" in one for one in outcome.findings)
    assert mirror(spark, "moved.shop_rows").keys() == {1, 2}
