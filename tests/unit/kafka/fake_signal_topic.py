"""A topic of signals without a broker: its messages, what consumers did to it, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from airflow_cdc_provider.kafka.partitions import Topic
from tests.unit.kafka.fake_consumer import FakeMessage


@dataclass
class FakeTopic:
    """The topic, as a broker has it: ``low`` is the first offset that it still has."""

    name: str = "shop-signal"
    id: str = "one"
    partitions: int = 1
    messages: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    group_offset: int = -1001
    commits: list[int] = field(default_factory=list)
    refused_commits: KafkaError | None = None
    failures: list[KafkaError] = field(default_factory=list)
    group_failures: list[KafkaError] = field(default_factory=list)
    refused_group: KafkaError | None = None
    opened: int = 0
    asked: int = 0
    away: Exception | None = None

    def add(self, value: str | bytes | None, key: str | None = "shop") -> int:
        """Append a message; return its offset."""
        text = value.encode() if isinstance(value, str) else value
        self.messages[self.high] = (None if key is None else key.encode(), text)
        self.high += 1
        return self.high - 1

    def expire(self, low: int) -> None:
        """Let retention take what is before an offset."""
        self.low = low
        self.messages = {n: m for n, m in self.messages.items() if n >= low}

    def cut(self, high: int) -> None:
        """Lose the end, as brokers do that elect an unclean leader."""
        self.high = high
        self.messages = {n: m for n, m in self.messages.items() if n < high}

    def re_create(self) -> None:
        """Delete the topic and make one of its name."""
        self.id += " more"
        self.messages, self.low, self.high = {}, 0, 0

    def topics(self, patterns: Sequence[str]) -> Mapping[str, Topic]:
        """Describe it, as ``ClusterTopics`` does."""
        self.asked += 1
        if self.away:
            raise self.away
        assert patterns == [self.name.replace("-", r"\-")]
        if not self.partitions:
            return {}
        return {self.name: Topic(self.name, self.id, range(self.partitions))}

    def consumer(self, settings: dict[str, Any]) -> FakeSignalConsumer:
        """Build a consumer."""
        self.opened += 1
        return FakeSignalConsumer(self, settings)


@dataclass
class FakeSignalConsumer:
    """A consumer of it, which librdkafka would be."""

    topic: FakeTopic
    settings: dict[str, Any]
    at: int | None = None
    timeouts: list[float] = field(default_factory=list)
    closed: bool = False

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert (partition.topic, partition.partition) == (self.topic.name, 0)
        assert timeout > 0
        return self.topic.low, self.topic.high

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        if self.topic.group_failures:
            raise KafkaException(self.topic.group_failures.pop(0))
        return [TopicPartition(one.topic, one.partition, self.topic.group_offset) for one in partitions]

    def assign(self, partitions: list[TopicPartition]) -> None:
        (one,) = partitions
        self.at = one.offset

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        assert count > 0
        assert not self.closed
        if self.at is None:
            refused = self.topic.refused_group
            return [] if refused is None else [FakeMessage(-1, failure=refused)]
        self.timeouts.append(timeout)
        if self.topic.failures:
            return [FakeMessage(-1, failure=self.topic.failures.pop(0))]
        if self.at < self.topic.low:
            return [FakeMessage(-1, failure=KafkaError(KafkaError._AUTO_OFFSET_RESET))]
        found = [
            FakeMessage(offset, value, key)
            for offset, (key, value) in sorted(self.topic.messages.items())
            if offset >= self.at
        ][:2]
        self.at = found[-1].offset() + 1 if found else self.topic.high
        if not found:
            found = [FakeMessage(self.topic.high, failure=KafkaError(KafkaError._PARTITION_EOF))]
        return found

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous, "a commit to the group is nothing to wait for"
        (one,) = offsets
        self.topic.commits.append(one.offset)
        if self.topic.refused_commits:
            self.settings["on_commit"](self.topic.refused_commits, offsets)
        else:
            self.topic.group_offset = one.offset

    def close(self) -> None:
        self.closed = True
