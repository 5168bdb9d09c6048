"""Reading a range of one partition: the same messages whenever it is read, as long as the broker has them.

A consumer is given its partition, belongs to no group and commits nothing. The range ends at an offset that a
reader with ``read_committed`` may pass: so whether a transaction is committed is decided for all of it. Holes
are normal: compaction takes messages out, and marks of transactions take places.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.kafka.errors import (
    NO_GROUP,
    PASSING,
    LastError,
    client_of,
    error_of,
    require_library,
)
from airflow_cdc_provider.kafka.settings import ClientSettings

if TYPE_CHECKING:
    from confluent_kafka import Message

_AT_ONCE: Final = 5_000
_WAIT_SECONDS: Final = 0.5
_GONE: Final = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


@dataclass(frozen=True)
class MessageRange:
    """Messages of one partition.

    Args:
        topic: The topic.
        partition: Its partition.
        start: Offset of the first one.
        end: Offset behind the last one; what a reader of its isolation could read when it was told.
    """

    topic: str
    partition: int
    start: int
    end: int


def read_range(
    settings: ClientSettings,
    wanted: MessageRange,
    isolation: str = "read_committed",
    build: Callable[[dict[str, Any]], Any] | None = None,
) -> Iterator[list[Message]]:
    """Read a range.

    Args:
        settings: Of the client.
        wanted: The range.
        isolation: ``read_committed`` or ``read_uncommitted``.
        build: Makes the client; by default librdkafka's.

    Yields:
        Messages in the order of their offsets, some at a time.

    Raises:
        PositionLost: The broker no longer has the range's begin.
        ConfigurationError: The login, a right or a setting is wrong.
        TransientError: The brokers send nothing for ``settings.retry_seconds``.
    """
    require_library()
    from confluent_kafka import Consumer, TopicPartition

    last = LastError()
    group = f"airflow-cdc-{uuid.uuid4()}"
    config = {**settings.of_consumer(group, isolation), "auto.offset.reset": "error"}
    consumer = client_of(build or Consumer, config, last)
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        yield from _until_end(consumer, wanted, settings.retry_seconds, last)
    finally:
        consumer.close()


def _until_end(
    consumer: Any, wanted: MessageRange, patience_seconds: float, last: LastError
) -> Iterator[list[Message]]:
    at = wanted.start
    doing = f"reading partition {wanted.partition} of topic {wanted.topic}"
    deadline = time.monotonic() + patience_seconds
    while at < wanted.end:
        found: list[Message] = []
        trouble = None
        for message in consumer.consume(_AT_ONCE, _WAIT_SECONDS):
            error = message.error()
            if error is None:
                at = message.offset() + 1
                if at <= wanted.end:
                    found.append(message)
            elif error.name() == "_PARTITION_EOF":
                at = max(at, message.offset())
            elif error.name() in _GONE:
                raise _lost(wanted, at)
            elif error.name() == NO_GROUP:
                continue
            elif error.name() not in PASSING:
                raise error_of(error, doing, last.error, right=f"READ on topic {wanted.topic}")
            else:
                trouble = error
        if found:
            yield found
            deadline = time.monotonic() + patience_seconds
        elif at < wanted.end and time.monotonic() > deadline:
            from confluent_kafka import KafkaError

            raise error_of(trouble or KafkaError(KafkaError._TIMED_OUT), doing, last.error)


def _lost(wanted: MessageRange, at: int) -> PositionLost:
    return PositionLost(
        f"partition {wanted.partition} of topic {wanted.topic} no longer has what was to be read",
        expected=f"messages from offset {at} on",
        remedy="retention took them, or the topic was made anew; see snapshot.on_lost_position, and lengthen "
        "retention.ms or let runs follow each other sooner",
    )
