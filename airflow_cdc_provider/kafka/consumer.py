"""Reading a range of one partition: the same messages at each reading, as long as the broker has them.

A consumer is assigned its partition, belongs to no group and commits nothing. The range ends at or before the
last stable offset, so all transactions in it are committed or aborted. Gaps are normal: compaction removes
messages, and transaction markers occupy offsets.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.kafka import errors
from airflow_cdc_provider.kafka.settings import ClientSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

_AT_ONCE: Final = 5_000
_WAIT_SECONDS: Final = 0.05
"""Maximum time of one call: it holds what arrives meanwhile, and what librdkafka's queue had (64 MiB)."""
_OFFSETS_LOST: Final = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


@dataclass(frozen=True)
class MessageRange:
    """Messages of one partition.

    Args:
        topic: The topic.
        partition: Its partition.
        start: Offset of the first one.
        end: Offset after the last one; at most the end that a consumer of the isolation level could read.
    """

    topic: str
    partition: int
    start: int
    end: int


def read_range(
    settings: ClientSettings,
    messages: MessageRange,
    isolation: str = "read_committed",
    build: Callable[[dict[str, Any]], Any] | None = None,
) -> Iterator[list[Message]]:
    """Read a range.

    Args:
        settings: Client settings.
        messages: The range.
        isolation: ``read_committed`` or ``read_uncommitted``.
        build: Builds the client; librdkafka's consumer by default.

    Yields:
        Batches of messages in the order of their offsets.

    Raises:
        PositionLost: The broker no longer has the start of the range.
        ConfigurationError: The login, a permission or a setting is invalid.
        TransientError: The brokers send nothing for ``settings.retry_timeout_seconds``.
    """
    from confluent_kafka import Consumer, TopicPartition

    last = errors.LastError()
    group = f"airflow-cdc-{uuid.uuid4()}"
    config = {**settings.of_consumer(group, isolation), "auto.offset.reset": "error"}
    consumer = errors.client_of(build or Consumer, config, last)
    try:
        consumer.assign([TopicPartition(messages.topic, messages.partition, messages.start)])
        yield from _until_end(consumer, messages, settings.retry_timeout_seconds, last)
    finally:
        consumer.close()


def _until_end(
    consumer: Any, messages: MessageRange, retry_timeout_seconds: float, last: errors.LastError
) -> Iterator[list[Message]]:
    at = messages.start
    doing = f"reading partition {messages.partition} of topic {messages.topic}"
    deadline = time.monotonic() + retry_timeout_seconds
    while at < messages.end:
        found: list[Message] = []
        transient = None
        for message in consumer.consume(_AT_ONCE, _WAIT_SECONDS):
            error = message.error()
            if error is None:
                at = message.offset() + 1
                if at <= messages.end:
                    found.append(message)
            elif error.name() == "_PARTITION_EOF":
                at = max(at, message.offset())
            elif error.name() in _OFFSETS_LOST:
                raise _lost(messages, at)
            elif error.name() == errors.NO_GROUP:
                continue
            elif error.name() not in errors.TRANSIENT:
                raise errors.error_of(error, doing, last.error, right=f"READ on topic {messages.topic}")
            else:
                transient = error
        if found:
            yield found
            deadline = time.monotonic() + retry_timeout_seconds
        elif at < messages.end and time.monotonic() > deadline:
            from confluent_kafka import KafkaError

            raise errors.error_of(transient or KafkaError(KafkaError._TIMED_OUT), doing, last.error)


def _lost(messages: MessageRange, at: int) -> PositionLost:
    return PositionLost(
        f"partition {messages.partition} of topic {messages.topic} no longer has the messages to read",
        expected=f"messages from offset {at} on",
        remedy="retention deleted them, or the topic was re-created; see snapshot.on_lost_position, and "
        "increase retention.ms or run more often",
    )
