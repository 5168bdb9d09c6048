"""Reading slices of partitions on executors: messages in bulk, records out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.abilities import PassedOver
from airflow_cdc_provider.sources.debezium.converters import (
    Converter,
    FramedConverter,
    JsonConverter,
    TextConverter,
)
from airflow_cdc_provider.sources.debezium.options import ConverterName, DebeziumOptions
from airflow_cdc_provider.sources.debezium.records import Feed, Messages, read_messages
from airflow_cdc_provider.sources.debezium.registered import Registered, RegisteredSchemas

if TYPE_CHECKING:
    from confluent_kafka import Message

_PORTION_BYTES: Final = 32 << 20
_PORTION_MESSAGES: Final = 10_000
_NO_TIME: Final = 0
"""How librdkafka says that a message bears no time."""


@dataclass(frozen=True)
class TopicSlice:
    """A part of one partition.

    Args:
        range: Its messages.
        epoch: Of them.
        partitions: How many the topic has.
        table: Their table, empty where each event tells its own.
        captured_us: When the batch was planned, µs since 1970.
    """

    range: MessageRange
    epoch: int
    partitions: int
    table: str
    captured_us: int


@dataclass(frozen=True)
class SliceReader:
    """Reads slices; picklable.

    Args:
        settings: Of the consumer.
        options: The source's.
        selects: Whether a table is captured.
        known: Tables with the names of schemas that need no record.
        registry: Has the schemas of messages that bring their ids alone.
        takes_envelopes: Whether values that should be rows may be envelopes.
        build: Makes the consumer; by default librdkafka's.
    """

    settings: ClientSettings
    options: DebeziumOptions
    selects: Callable[[str], bool]
    known: frozenset[tuple[str, str]] = frozenset()
    registry: Registered | None = None
    takes_envelopes: bool = False
    build: Callable[[dict[str, Any]], Any] | None = field(default=None, repr=False)

    def __call__(self, part: TopicSlice) -> Iterator[pa.RecordBatch]:
        """Read one slice."""
        return self.read_counting(part, Counter())

    def read_counting(self, part: TopicSlice, passed_over: PassedOver) -> Iterator[pa.RecordBatch]:
        """Read one slice; add what becomes no record."""
        feed = self.feed(part)
        seen: set[tuple[str, str]] = set()
        found = read_range(self.settings, part.range, self.options.isolation, self.build)
        for some in _portions(message for messages in found for message in messages):
            yield from read_parted(_columns(some), feed, seen, passed_over)

    def feed(self, part: TopicSlice) -> Feed:
        """Tell what is to be made of a slice's messages."""
        keys, values = self.converters()
        return Feed(
            part.range.topic,
            part.range.partition,
            part.epoch,
            part.captured_us,
            unwrapped=self.options.envelope == "unwrapped",
            table=part.table,
            is_only=part.partitions == 1,
            strict=self.options.advanced.strict,
            wanted=self.selects,
            known=self.known,
            key_converter=keys,
            value_converter=values,
            takes_envelopes=self.takes_envelopes,
        )

    def converters(self) -> tuple[Converter, Converter]:
        """Make what reads keys, and what reads values."""
        return self._converter(self.options.key_converter), self._converter(self.options.value_converter)

    def _converter(self, name: ConverterName) -> Converter:
        if name == "json":
            return JsonConverter()
        if name == "string":
            return TextConverter()
        assert self.registry is not None
        return FramedConverter(RegisteredSchemas(self.registry, name))


def read_parted(
    messages: Messages, feed: Feed, seen: set[tuple[str, str]], passed_over: PassedOver
) -> Iterator[pa.RecordBatch]:
    """Read messages, in parts where all together are too much for one Arrow batch.

    Args:
        messages: In the order of their offsets.
        feed: What they are of.
        seen: As for :func:`~.records.read_messages`.
        passed_over: Likewise.

    Yields:
        Batches of ``CHANGE_SCHEMA``.
    """
    try:
        records = read_messages(messages, feed, seen, passed_over)
    except OverflowError:
        half = len(messages.offsets) // 2
        if not half:
            raise
        for part in (messages.slice(0, half), messages.slice(half)):
            yield from read_parted(part, feed, seen, passed_over)
        return
    if records.num_rows:
        yield records


def _portions(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Put messages together that fit one Arrow batch."""
    some: list[Message] = []
    size = 0
    for message in messages:
        own = len(message.value() or b"") + len(message.key() or b"")
        if some and (size + own > _PORTION_BYTES or len(some) == _PORTION_MESSAGES):
            yield some
            some, size = [], 0
        some.append(message)
        size += own
    if some:
        yield some


def _columns(some: Sequence[Message]) -> Messages:
    times = [message.timestamp() for message in some]
    return Messages(
        pa.array([message.key() for message in some], pa.binary()),
        pa.array([message.value() for message in some], pa.binary()),
        np.array([message.offset() for message in some], np.int64),
        np.array([ms if kind != _NO_TIME else -1 for kind, ms in times], np.int64),
    )


def table_of(topic: str) -> str:
    """Return the table that a topic is of: all but its first part, the prefix.

    A topic of two parts keeps both, one of a single part stands in the database ``topics``.
    """
    parts = topic.split(".")
    if len(parts) > 2:
        return ".".join(parts[1:])
    return topic if len(parts) == 2 else f"topics.{topic}"
