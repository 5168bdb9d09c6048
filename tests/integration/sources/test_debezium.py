"""Topics of Debezium's events on a real broker: plans, slices and lost messages, without Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from server_kit import KafkaServer
from tests.integration.jobs.debezium_mirrors import expected, send
from tests.integration.jobs.debezium_workload import Workload
from tests.integration.sources.debezium_sources import batches, merged, source_of
from tests.unit.sources.debezium.debezium_messages import Table, column, event, everything, feed_of, framed

pytestmark = pytest.mark.integration


def as_mirror(workload: Workload) -> dict[int, dict[str, Any]]:
    shown = expected(workload.rows, schemas=workload.schemas)
    return {number: {n: v for n, v in row.items() if v is not None} for number, row in shown.items()}


@pytest.mark.long
@pytest.mark.parametrize("schemas", [True, False])
def test_mirror_equals_rows_with_restarts_in_the_middle_of_batches(
    kafka_server: KafkaServer, schemas: bool
) -> None:
    topic = f"dzs{int(schemas)}.shop.orders"
    kafka_server.create_topic(topic, 3)
    workload = Workload(topic, 3, 5, schemas=schemas)
    chance = random.Random(6)
    table = Table(feed=feed_of(topic))
    offset: Offset | None = None
    shown: dict[Any, dict[str, Any]] = {}
    for turn in range(4):
        workload.version = 1 + turn // 2
        send(kafka_server, workload.messages(120), transactional=f"{topic}-tx" if turn % 2 else "")
        if turn == 1:
            send(kafka_server, workload.copy().messages(20), transactional=f"{topic}-tx", commit=False)
        with closing(source_of(kafka_server, topic, advanced={"slice_messages": 20})) as source:
            for end, records in batches(source, offset, changes=90, tasks=2):
                if chance.random() < 0.3:  # killed before its commit: the batch is read again, whole
                    break
                shown = merged(table, records) or shown
                if chance.random() < 0.2:  # what a merge that was killed had read is merged again
                    merged(table, chance.sample(table.records, 1))
                offset = end
    with closing(source_of(kafka_server, topic)) as source:
        for _, records in batches(source, offset):
            shown = merged(table, records) or shown

    assert shown == as_mirror(workload)
    assert len(shown) > 30
    assert not table.reasons


def test_a_slice_gives_the_same_records_whenever_it_is_read(kafka_server: KafkaServer) -> None:
    topic = "dzr.shop.orders"
    kafka_server.create_topic(topic, 2)
    workload = Workload(topic, 2, 3, schemas=True)
    send(kafka_server, workload.messages(50), transactional="dzr-tx")
    with closing(source_of(kafka_server, topic)) as source:
        plan = source.plan(None, source.head(), ReadLimit())
        first = list(source.reader().read(plan.partitions, ReadMetrics()))
        send(kafka_server, workload.messages(50), transactional="dzr-tx")
        again = list(source.reader().read(plan.partitions, ReadMetrics()))
    order = [("origin", "ascending"), ("position", "ascending")]
    both = [pa.Table.from_batches(found).sort_by(order) for found in (first, again)]
    assert both[0].equals(both[1])


def test_beginning_at_the_end_or_at_a_moment(kafka_server: KafkaServer) -> None:
    topic = "dzb.shop.orders"
    kafka_server.create_topic(topic)
    send(kafka_server, Workload(topic, 1, 3, schemas=False).messages(5))
    with closing(source_of(kafka_server, topic, start="latest")) as source:
        assert source.start() == source.head()
        assert source.lag(source.start()).seconds == 0.0
        assert source.lag(None).details[f"{topic}/0"]["messages"] >= 5
    with closing(source_of(kafka_server, topic, start="2000-01-01T00:00:00Z")) as source:
        assert source.start() == source.earliest()
    with closing(source_of(kafka_server, topic, start="2999-01-01T00:00:00Z")) as source:
        assert source.start() == source.head()


def test_deleted_and_re_created_topics_are_reported_and_what_is_left_can_be_read(
    kafka_server: KafkaServer,
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = "dzl.shop.orders"
    kafka_server.create_topic(topic)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    workload = Workload(topic, 1, 3, schemas=False)
    send(kafka_server, workload.messages(20))
    with closing(source_of(kafka_server, topic)) as source:
        offset, _ = next(iter(batches(source, None, changes=5)))
        admin.delete_records([TopicPartition(topic, 0, 12)])[TopicPartition(topic, 0)].result(30)
        with pytest.raises(PositionLost, match="starts at 12, after 5"):
            source.plan(offset, source.head(), ReadLimit())
        after = source.offset_after_loss()
        assert after[f"{topic}/0"]["offset"] == 12
        assert after[f"{topic}/0"]["epoch"] == 1
        end, records = next(iter(batches(source, after)))
        assert records[0].column("position")[0].as_py().hex() == "00000001" + "000000000000000c"

        admin.delete_topics([topic])[topic].result(30)
        kafka_server.create_topic(topic)
        send(kafka_server, Workload(topic, 1, 4, schemas=False).messages(100))
        with pytest.raises(PositionLost, match="re-created"):
            source.plan(end, source.head(), ReadLimit())


def test_partitions_that_are_added_are_refused_or_followed(kafka_server: KafkaServer) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = "dzp.shop.orders"
    kafka_server.create_topic(topic)
    workload = Workload(topic, 1, 3, schemas=True)
    send(kafka_server, workload.messages(60))
    table = Table(feed=feed_of(topic))
    with closing(source_of(kafka_server, topic)) as source:
        offset, records = next(iter(batches(source, None)))
        merged(table, records)
        send(kafka_server, workload.messages(30))
        admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
        with pytest.raises(ConfigurationError, match="on_partitions_added"):
            source.plan(offset, source.head(), ReadLimit())
    with closing(source_of(kafka_server, topic, on_partitions_added="follow")) as source:
        for end, records in batches(source, offset, changes=20):
            offset = end
            merged(table, records)
        workload.partitions = 3
        send(kafka_server, workload.messages(120))
        shown = [merged(table, records) for _, records in batches(source, offset)][-1]
    assert {place["epoch"] for place in offset.values()} == {1}
    assert shown == as_mirror(workload)


def test_a_compacted_topic_and_holes_of_transactions_are_read_to_their_end(kafka_server: KafkaServer) -> None:
    topic = "dzc.shop.orders"
    kafka_server.create_topic(topic, cleanup_policy="compact")
    workload = Workload(topic, 1, 8, schemas=False)
    for turn in range(3):
        send(kafka_server, workload.messages(10), transactional="dzc-tx")
        send(kafka_server, workload.copy().messages(3), transactional="dzc-tx", commit=turn > 5)
    with closing(source_of(kafka_server, topic)) as source:
        ((end, records),) = batches(source, None, changes=10**6)
        assert end == source.head()
        assert merged(Table(feed=feed_of(topic)), records) == as_mirror(workload)


def test_check_reports_which_topics_can_and_can_not_be_read(kafka_server: KafkaServer) -> None:
    for name in ("good", "avro"):
        kafka_server.create_topic(f"dzk.shop.{name}")
    send(kafka_server, Workload("dzk.shop.good", 1, 3, schemas=True).messages(3))
    send(kafka_server, [("dzk.shop.avro", 0, b"{}", b"\x00\x00\x00\x00\x07rest")])
    with closing(source_of(kafka_server, r"dzk\..*")) as source:
        found = Counter(finding.level for finding in source.check())
        (error,) = (finding for finding in source.check() if finding.level == "error")
    assert found == {"ok": 2, "error": 1}
    assert "schema registry" in error.remedy
    with closing(source_of(kafka_server, "none")) as source:
        assert [finding.level for finding in source.check()] == ["ok", "error"]
        with pytest.raises(ConfigurationError, match="no topic is selected"):
            source.head()


def test_check_names_columns_whose_names_change(kafka_server: KafkaServer) -> None:
    for name in ("plain", "whole"):
        kafka_server.create_topic(f"dzn.shop.{name}")
    row = {"id": 1, "a.b": 1, "a": {"b": 2}, "name": "x", "NAME": "y"}
    send(kafka_server, [("dzn.shop.plain", 0, b'{"id":1}', json.dumps(event("c", None, row)).encode())])
    fields = [column(name, "int32") for name in ("id", "_file", "ID")]
    whole = framed(event("c", None, {"id": 1, "_file": 2, "ID": 3}), fields)
    send(kafka_server, [("dzn.shop.whole", 0, b'{"id":1}', json.dumps(whole).encode())])
    with closing(source_of(kafka_server, r"dzn\..*")) as source:
        (names,) = (finding for finding in source.check() if finding.level != "ok")
    assert names.message.endswith(
        "shop.plain: a is a__2, NAME is NAME__2; shop.whole: _file is _file__2, ID is ID__2"
    )


def test_brokers_that_do_not_answer_are_a_reason_to_come_again() -> None:
    options = parse(DebeziumOptions, {"topics": ["a"], "advanced": {"retry_timeout_seconds": 1}}, "source")
    lost = {"extra": {"bootstrap.servers": "127.0.0.1:1", "socket.connection.setup.timeout.ms": 1000}}
    with closing(DebeziumSource(options, lost, everything)) as source:
        assert [finding.level for finding in source.check()] == ["error"]
        with pytest.raises(TransientError):
            source.head()
