"""The producer and its positions on a real broker: what readers see, whatever is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from airflow_cdc_provider.events.encoder import Converters
from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, RecordsRejected
from airflow_cdc_provider.jobs.context.clients import Connections
from airflow_cdc_provider.jobs.publishing.targets.kafka import client_settings
from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from server_kit import KafkaServer
from tests.conftest import ROOT
from tests.integration.kafka import publish_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

pytestmark = pytest.mark.integration

SCHEMA = Converters().record_schema
_ENDLESS = 1_000_000_000


def settings(server: KafkaServer, **more: Any) -> ClientSettings:
    return ClientSettings({"bootstrap.servers": server.bootstrap}, **more)


def records(topic: str, *rows: dict[str, Any]) -> list[pa.RecordBatch]:
    shown = [{"topic": topic, "bare": False, "headers": "", **row} for row in rows]
    return [pa.RecordBatch.from_pylist(shown, schema=SCHEMA)]


@pytest.fixture
def name() -> str:
    """A name that no other test has, for topics and transactional ids."""
    return f"n{uuid.uuid4().hex[:12]}"


@pytest.fixture
def producer(kafka_server: KafkaServer, name: str) -> Iterator[Callable[..., RecordProducer]]:
    """Builds producers of that name; its topics are there."""
    kafka_server.create_topic(name, 3)
    positions = PositionsTopic(settings(kafka_server), f"{name}.positions", name)
    positions.make(1)
    made: list[RecordProducer] = []

    def build(client: Callable[[dict[str, Any]], Any] | None = None, **more: Any) -> RecordProducer:
        of = settings(kafka_server, **more)
        one = RecordProducer(of, positions, transactional_id=name, build=client)
        made.append(one)
        return one

    yield build
    for one in made:
        one.close()


@pytest.mark.covers("VIT-EVT-15")
def test_records_have_what_the_encoder_gave_them(
    kafka_server: KafkaServer, producer: Callable[..., RecordProducer], name: str
) -> None:
    one = producer()
    one.take_over()
    before_ms = int(time.time() * 1000) - 1000
    rows: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "partition": 2, "timestamp": 1_700_000_000_000},
        {"key": "k", "value": None, "partition": 2, "bare": True},
        {"key": None, "value": "ünkeyed", "partition": 1, "headers": '["own","{\\"é\\":1}"],["b","null"]'},
    ]
    one.publish(records(name, *rows), [("common", '"c"')], PublishPosition(name, 1))

    seen = kafka_server.read(name)
    found = {(m.partition(), m.key(), m.value()): m for m in seen}
    assert set(found) == {(2, b"k", b"v"), (2, b"k", None), (1, None, "ünkeyed".encode())}
    assert found[2, b"k", b"v"].headers() == [("common", b'"c"')]
    assert found[2, b"k", None].headers() is None
    assert found[1, None, "ünkeyed".encode()].headers() == [
        ("common", b'"c"'),
        ("own", '{"é":1}'.encode()),
        ("b", b"null"),
    ]
    assert found[2, b"k", b"v"].timestamp()[1] == 1_700_000_000_000
    assert found[2, b"k", None].timestamp()[1] >= before_ms


def test_a_key_goes_where_javas_clients_send_it(
    kafka_server: KafkaServer, producer: Callable[..., RecordProducer], name: str
) -> None:
    one = producer()
    one.take_over()
    one.publish(records(name, {"key": "21", "value": "v"}), (), PublishPosition(name, 1))
    # murmur2("21") of Kafka's own UtilsTest is -973932308.
    (seen,) = kafka_server.read(name)
    assert seen.partition() == (-973932308 & 0x7FFFFFFF) % 3


def test_the_position_is_committed_with_its_records(
    kafka_server: KafkaServer, producer: Callable[..., RecordProducer], name: str
) -> None:
    topic = PositionsTopic(settings(kafka_server), f"{name}.positions", name)
    assert topic.read() is None
    first, second = producer(), producer()
    first.take_over()
    for number in range(200):
        first.publish(records(name, {"value": str(number)}), (), PublishPosition(name, 1, number))
    assert topic.read() == PublishPosition(name, 1, 199)
    second.take_over()
    with pytest.raises(CommitConflict, match="another producer took over"):
        first.publish(records(name, {"value": "of a zombie"}), (), PublishPosition(name, 2))
    assert topic.read() == PublishPosition(name, 1, 199)
    second.publish((), (), PublishPosition(name, 3))
    assert topic.read() == PublishPosition(name, 3)
    assert b"of a zombie" not in {m.value() for m in kafka_server.read(name)}
    topic.make(2)
    assert topic.read(1, must_exist=True) is None, "a partition for another slice is there"
    assert topic.read() == PublishPosition(name, 3)
    with pytest.raises(ConfigurationError, match=r"expected cleanup\.policy compact, found delete"):
        PositionsTopic(settings(kafka_server), name, name).make(1)


def test_rejected_records_are_reported_and_the_producer_continues(
    kafka_server: KafkaServer, producer: Callable[..., RecordProducer], name: str
) -> None:
    kafka_server.create_topic(f"{name}.small", 1, max_message_bytes=2_000)
    one = producer(producer={"compression.type": "none"})
    one.take_over()
    small = {"value": "fits"}
    with pytest.raises(
        RecordsRejected, match=rf"topic {name}\.small rejects records: found MSG_SIZE"
    ) as by_broker:
        large = {"value": "x" * 5_000}
        one.publish(records(f"{name}.small", small, large), (), PublishPosition(name, 1))
    assert not by_broker.value.whole_topic
    with pytest.raises(RecordsRejected, match="found MSG_SIZE") as by_client:
        one.publish(records(name, small, {"value": "x" * 2_000_000}), (), PublishPosition(name, 1))
    assert not by_client.value.whole_topic
    with pytest.raises(RecordsRejected, match=rf"topic {name}\.missing rejects .*UNKNOWN_TOPIC") as missing:
        one.publish(records(f"{name}.missing", small), (), PublishPosition(name, 1))
    assert missing.value.whole_topic
    assert PositionsTopic(settings(kafka_server), f"{name}.positions", name).read() is None

    one.publish(records(f"{name}.small", small), (), PublishPosition(name, 2))
    assert [m.value() for m in kafka_server.read(f"{name}.small")] == [b"fits"]
    assert not kafka_server.read(name)


class WaitingForRejection(Producer):
    """Takes no further record after a large one until the broker has rejected that one."""

    def produce(self, topic: str, value: bytes, *record: Any, **more: Any) -> None:
        super().produce(topic, value, *record, **more)
        deadline = time.monotonic() + 30
        while len(value) > 2_000 and not self.has_rejected():
            assert time.monotonic() < deadline, "the broker doesn't reject the record"
            time.sleep(0.01)

    def has_rejected(self) -> bool:
        """Whether the transaction must be aborted."""
        try:
            self.begin_transaction()
        except KafkaException as error:
            return error.args[0].txn_requires_abort()
        raise AssertionError("there is no transaction")


@pytest.mark.parametrize("more", [[], [{"value": "fits"}]])
def test_a_rejection_is_reported_also_if_it_arrives_before_the_last_record_is_sent(
    kafka_server: KafkaServer,
    producer: Callable[..., RecordProducer],
    name: str,
    more: list[dict[str, Any]],
) -> None:
    kafka_server.create_topic(f"{name}.small", 1, max_message_bytes=2_000)
    one = producer(WaitingForRejection, producer={"compression.type": "none"})
    one.take_over()
    rows = [{"value": "fits"}, {"value": "x" * 5_000}, *more]
    with pytest.raises(RecordsRejected, match=rf"topic {name}\.small rejects records: found MSG_SIZE"):
        one.publish(records(f"{name}.small", *rows), (), PublishPosition(name, 1))


@pytest.mark.covers("CAS-DEPLOY-05", "VIT-QUE-06")
@pytest.mark.parametrize(("source", "prefix"), [("Vitess", ""), ("Cassandra", "kafka.")])
def test_debeziums_settings_of_clients_reach_the_clients_as_they_are(
    kafka_server: KafkaServer, name: str, source: str, prefix: str
) -> None:
    kafka_server.create_topic(name, 1)
    connections = Connections(kafka={"bootstrap.servers": kafka_server.bootstrap})

    def imported(**clients: str) -> ClientSettings:
        properties = {
            "connector.class": f"io.debezium.connector.{source.lower()}.{source}Connector",
            "topic.prefix": "shop",
            "vitess.keyspace": "shop",
            **{prefix + setting: value for setting, value in clients.items()},
        }
        kept = {n: v for n, v in properties.items() if source == "Vitess" or not n.startswith("vitess")}
        connector = from_debezium(kept).connector
        kafka = replace(connector.publish.kafka, connection="k")
        return client_settings(
            replace(connector, publish=replace(connector.publish, kafka=kafka)), connections
        )

    def published(of: ClientSettings, size: int) -> None:
        one = RecordProducer(of, PositionsTopic(of, f"{name}.positions", name))
        try:
            one.send(records(name, {"value": "x" * size}))
        finally:
            one.close()

    def consumed(of: ClientSettings) -> list[Message]:
        return [m for batch in read_range(of, MessageRange(name, 0, 0, 1)) for m in batch]

    few = imported(**{"producer.message.max.bytes": "3000", "consumer.fetch.message.max.bytes": "1000"})
    published(few, 1_000)
    with pytest.raises(RecordsRejected, match="found MSG_SIZE"):
        published(few, 5_000)
    assert [m.value() for m in consumed(few)] == [b"x" * 1_000]
    published(imported(), 5_000)
    for setting, value, error in (
        ("fetch.error.backoff.ms", "one", 'Invalid value.*"fetch.error.backoff.ms"'),
        ("queue.buffering.max.ms", "one", 'Invalid value.*"queue.buffering.max.ms"'),
    ):
        with pytest.raises(ConfigurationError, match=error):
            published(imported(**{f"producer.{setting}": value}), 1)
        with pytest.raises(ConfigurationError, match=error):
            consumed(imported(**{f"consumer.{setting}": value}))


def _producer(of: ClientSettings) -> RecordProducer:
    return RecordProducer(of, PositionsTopic(of, "positions", "c"), transactional_id="t")


def test_a_rejected_login_is_reported_without_secrets(tmp_path: Path) -> None:
    with KafkaServer(tmp_path, secured=True) as server:
        for topic in ("t", "positions"):
            server.create_topic(topic, cleanup_policy="compact")
        good = ClientSettings(server.secured_config)
        one = _producer(good)
        one.take_over()
        one.publish(records("t", {"key": "k", "value": "v"}), (), PublishPosition("c", 1))
        assert PositionsTopic(good, "positions", "c").read() == PublishPosition("c", 1)
        one.close()
        wrong = ClientSettings({**server.secured_config, "sasl.password": "s3cret"}, retry_timeout_seconds=5)
        with pytest.raises(ConfigurationError, match="AUTHENTICATION") as refused:
            _producer(wrong).take_over()
        assert "s3cret" not in str(refused.value) + repr(wrong)
        stranger = {**server.secured_config, "ssl.ca.location": str(server.folder / "broker.crt")}
        with pytest.raises(ConfigurationError, match="SSL"):
            _producer(ClientSettings(stranger, retry_timeout_seconds=5)).take_over()


def _start(
    server: KafkaServer, name: str, total: int, *, kills_broker: bool = False, log: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    numbers = [total, server.pid] if kills_broker else [total]
    return subprocess.Popen(
        [sys.executable, str(publish_numbers.__file__), server.bootstrap, name, *map(str, numbers)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=log,
    )


def _numbers(server: KafkaServer, topic: str) -> dict[bytes, list[int]]:
    """Return what readers of committed records see, by key."""
    found: dict[bytes, list[int]] = {}
    for message in server.read(topic):
        found.setdefault(message.key() or b"", []).append(int(message.value() or b"-1"))
    return found


def _assert_each_once(server: KafkaServer, topic: str, total: int) -> None:
    found = _numbers(server, topic)
    assert all(numbers == sorted(numbers) for numbers in found.values()), "in order per key"
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(total)), "each once"


def _publish_with_kills(server: KafkaServer, name: str, kills: int) -> None:
    server.create_topic(name, 3)
    positions = PositionsTopic(settings(server), f"{name}.positions", name)
    positions.make(1)
    rng = random.Random(kills)
    for _ in range(kills):
        process = _start(server, name, _ENDLESS)
        # Read after the start: who was killed holds readers back until the next producer has started.
        before = positions.read()
        deadline = time.monotonic() + 60
        try:
            while (now := positions.read()) == before:
                assert time.monotonic() < deadline, "nothing is published"
            time.sleep(rng.uniform(0, 0.2))
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
    assert now is not None
    total = now.records + 20_000
    with _start(server, name, total) as last:
        try:
            assert last.wait(120) == 0
        finally:
            last.kill()
    _assert_each_once(server, name, total)


def test_killed_publishers_lose_and_double_nothing(kafka_server: KafkaServer, name: str) -> None:
    _publish_with_kills(kafka_server, name, kills=3)


@pytest.mark.long
def test_publishers_killed_often_lose_and_double_nothing(kafka_server: KafkaServer, name: str) -> None:
    _publish_with_kills(kafka_server, name, kills=20)


def test_publishing_continues_when_the_broker_returns(tmp_path: Path) -> None:
    with KafkaServer() as server, (tmp_path / "publisher.log").open("w+b") as log:
        server.create_topic("t", 3)
        PositionsTopic(settings(server), "t.positions", "t").make(1)
        with _start(server, "t", 5_000, kills_broker=True, log=log) as process:
            try:
                deadline = time.monotonic() + 60
                while server.running:
                    assert time.monotonic() < deadline, "nothing is published"
                    time.sleep(0.02)
                time.sleep(2)
                assert process.poll() is None, "it waits"
                server.start()
                assert process.wait(120) == 0
            except (AssertionError, subprocess.TimeoutExpired):
                log.seek(0)
                pytest.fail(log.read().decode())
            finally:
                process.kill()
        _assert_each_once(server, "t", 5_000)


def test_two_publishers_at_once_fence_each_other_and_double_nothing(
    kafka_server: KafkaServer, name: str
) -> None:
    kafka_server.create_topic(name, 3)
    positions = PositionsTopic(settings(kafka_server), f"{name}.positions", name)
    positions.make(1)
    with ExitStack() as stack:
        first = stack.enter_context(_start(kafka_server, name, _ENDLESS))
        stack.callback(first.kill)
        deadline = time.monotonic() + 60
        while positions.read() is None:
            assert time.monotonic() < deadline, "nothing is published"
        ended = publish_numbers.FENCED
        for _ in range(3):
            # The broker may answer the first one's commit with an unknown error: its retry fences the second.
            if ended == publish_numbers.FENCED:
                second = stack.enter_context(_start(kafka_server, name, 60_000))
                stack.callback(second.kill)
                ended = second.wait(120)
        assert ended == 0
        assert first.wait(120) == publish_numbers.FENCED
    end = positions.read()
    assert end is not None
    assert end.records >= 60_000
    _assert_each_once(kafka_server, name, end.records)


def test_brokers_that_do_not_answer_are_an_error_that_may_pass() -> None:
    away = ClientSettings({"bootstrap.servers": "127.0.0.1:1"}, retry_timeout_seconds=2)
    with pytest.raises(BrokersUnavailable, match="taking over transactional id t failed"):
        _producer(away).take_over()
