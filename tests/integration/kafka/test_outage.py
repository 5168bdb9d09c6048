"""Brokers that are away while events of Cassandra and Vitess are published: waited for, within bounds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pytest

from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.jobs.publishing.batches import BatchPublisher, wait_for_servers
from airflow_cdc_provider.jobs.publishing.targets.kafka import Producers
from airflow_cdc_provider.jobs.publishing.targets.slices import start_slices
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import Headers, RecordProducer
from airflow_cdc_provider.kafka.settings import ClientSettings
from server_kit import KafkaServer
from tests.unit.jobs.publishing.sent_records import Sent, by_key, records_of
from tests.unit.sources.lake_records import NOW_NS, LakeRecords, cassandra, vitess

pytestmark = pytest.mark.integration


_UNTIL_KILLED = threading.Lock()
HASTY = KafkaOptions(retry_timeout_seconds=2.0)


@dataclass
class KillsBroker:
    """Sends by a producer; before what one sends as its third, the broker is killed, once.

    Until then one sends at a time, and has its transaction completed: see :mod:`.broker_kills`.
    """

    producer: RecordProducer
    positions: PositionsTopic
    server: KafkaServer
    killed: threading.Event
    sent: int = 0

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        self.sent += 1
        with _UNTIL_KILLED:
            if not self.killed.is_set() and self.sent < 3:
                self.producer.publish(records, headers, position)
                assert self.positions.read() == position
                return
            if not self.killed.is_set():
                self.server.kill()
                self.killed.set()
        self.producer.publish(records, headers, position)


@dataclass
class Publishing:
    """A connector that publishes a recording, as its stage does, in a thread of its own."""

    name: str
    lake: LakeRecords
    server: KafkaServer
    killed: threading.Event
    options: KafkaOptions = KafkaOptions()  # noqa: RUF009  frozen
    tries: list[BatchPublisher] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def once(self) -> None:
        producer = self.producers.of_slice(0)
        try:
            position = producer.take_over() or PublishPosition(self.name, 1)
            sender = KillsBroker(producer, self.producers.topic, self.server, self.killed)
            one = BatchPublisher(
                sender=sender,
                build=self.lake.batches,
                form="form",
                records_per_commit=20,
                position=position,
            )
            self.tries.append(one)
            one.publish(self.lake.through, NOW_NS)
        finally:
            producer.close()

    def run(self) -> None:
        try:
            wait_for_servers(self.once, self.transactions, self.options, lambda: False, self.name)
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.failed.append(error)

    def transactions(self) -> int:
        return sum(one.transactions for one in self.tries)

    @property
    def topic(self) -> str:
        return f"{self.lake.connector.topic_prefix}.all"

    @property
    def producers(self) -> Producers:
        options = self.options
        settings = ClientSettings(
            {"bootstrap.servers": self.server.bootstrap},
            options.producer,
            options.consumer,
            options.retry_interval_seconds,
            options.retry_timeout_seconds,
        )
        return Producers(PositionsTopic(settings, f"{self.name}.positions", self.name), self.name)

    def published(self) -> list[Sent]:
        found = self.server.read(self.topic)
        return [(self.topic, _text(message.key()), _text(message.value()), "") for message in found]


def _started(some: Sequence[Publishing]) -> list[threading.Thread]:
    threads = [threading.Thread(target=one.run) for one in some]
    for thread in threads:
        thread.start()
    return threads


def _run_all(some: Sequence[Publishing]) -> None:
    for thread in _started(some):
        thread.join(90)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def _tries_at(port: int, seconds: float) -> list[float]:
    """Stand where the broker was, hang up on whoever calls, and return when they did."""
    moments = []
    with socket.create_server(("127.0.0.1", port)) as listener:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                listener.accept()[0].close()
            except TimeoutError:
                break
            moments.append(time.monotonic())
    return moments


@pytest.mark.covers("CAS-FAULT-06", "VIT-FLT-08")
def test_events_of_cassandra_and_vitess_wait_for_brokers_and_keep_their_position() -> None:
    killed = threading.Event()
    with KafkaServer() as server:
        both = [
            Publishing("c", cassandra(topic_pattern="{prefix}.all"), server, killed),
            Publishing("v", vitess(topic_pattern="{prefix}.all"), server, killed),
        ]
        for one in both:
            one.producers.topic.make(1)
            server.create_topic(one.topic, 3)
        hasty = [replace(one, name=f"hasty-{one.name}", options=HASTY, tries=[], failed=[]) for one in both]
        for one in hasty:
            one.producers.topic.make(1)
        firsts = [start_slices(one.producers, PublishPosition(one.name, 1), 1) for one in hasty]
        threads = _started(both)
        assert killed.wait(60)
        assert KafkaOptions().retry_interval_seconds == 1.0
        moments = _tries_at(server.port, 4)
        gaps = [after - before for before, after in pairwise(moments)]
        assert len(moments) >= 3, "tried once per second at least"
        assert max(gaps) < 1.6
        began = time.monotonic()
        _run_all(hasty)
        assert 2 <= time.monotonic() - began < 15, "bounded"
        assert all(isinstance(one.failed[0], BrokersUnavailable) for one in hasty), (
            "Airflow tries such a task again"
        )
        assert all(thread.is_alive() for thread in threads), "they wait"
        server.start()
        for thread in threads:
            thread.join(90)
        for one in both:
            assert not one.failed, one.failed
            expected = [(topic, key, value, "") for topic, key, value, _ in records_of(one.lake.made(0, 1))]
            found = one.published()
            assert sorted(map(str, found)) == sorted(map(str, expected)), "each once"
            with_key = [[record for record in some if record[1]] for some in (found, expected)]
            assert by_key(with_key[0]) == by_key(with_key[1]), "in order per key"
            end = one.producers.topic.read()
            assert end is not None
            assert (end.batch, end.records) == (one.lake.through + 1, 0)
        stored = [one.producers.topic.read_all() for one in hasty]
        assert stored == firsts, "the position is where it was"
