"""Reads slices of partitions on executors: converts messages to records in bulk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.kafka.consumer import MessageRange, read_range
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics
from airflow_cdc_provider.sources.debezium.converters import (
    Converter,
    FramedConverter,
    JsonConverter,
    TextConverter,
)
from airflow_cdc_provider.sources.debezium.options import ConverterName, DebeziumOptions
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchema, RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import Feed, Messages, read_messages
from airflow_cdc_provider.sources.debezium.registered import Registered, RegisteredSchemas

if TYPE_CHECKING:
    from confluent_kafka import Message

_PORTION_BYTES: Final = 32 << 20
_PORTION_MESSAGES: Final = 10_000
NEW_SCHEMAS: Final = "schemas"
LOOKED_UP: Final = {True: "readable ids ", False: "unreadable ids "}
"""Beginning of the name of an id's count, by whether the registry has a schema: id and topic follow."""
_NO_TIME: Final = 0
"""librdkafka's type of a message without a timestamp."""


@dataclass(frozen=True)
class TopicSlice:
    """A part of one partition.

    Args:
        range: The range of messages.
        epoch: The epoch of the messages.
        partitions: Number of partitions of the topic.
        table: The table of the messages, empty if each event contains its own.
        captured_us: When the batch was planned, µs since 1970.
        slices: Number of slices of the topic in the batch.
    """

    range: MessageRange
    epoch: int
    partitions: int
    table: str
    captured_us: int
    slices: int = 1


@dataclass(frozen=True)
class SliceReader(Reader):
    """Reads slices; picklable.

    Args:
        settings: Settings of the consumer.
        options: The source's options.
        selects: Returns whether a table is captured.
        known: The bytes of each recorded schema.
        owners: The topic of each table that has recorded rows.
        registry: The schema registry of messages with schema ids.
        looked_up: By topic and id that was looked up before, whether the registry had a schema.
        takes_envelopes: Whether unwrapped values may be envelopes.
        build: Builds the consumer; librdkafka's by default.
    """

    settings: ClientSettings
    options: DebeziumOptions
    selects: Callable[[str], bool]
    known: Mapping[RecordedSchema, int] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    registry: Registered | None = None
    looked_up: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    takes_envelopes: bool = False
    build: Callable[[dict[str, Any]], Any] | None = field(default=None, repr=False)

    def read(self, parts: Iterable[TopicSlice], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read slices; count skipped messages, new schemas, and ids that were looked up."""
        for part in parts:
            feed = self.feed(part)
            seen = RecordedSchemas(self.known)
            found = read_range(self.settings, part.range, self.options.isolation, self.build)
            for portion in _portions(message for messages in found for message in messages):
                read = _columns(portion, self.options.advanced.max_message_bytes)
                yield from read_parted(read, feed, seen, metrics.skipped)
            metrics.counts[NEW_SCHEMAS] += seen.added
            for converter in (feed.key_converter, feed.value_converter):
                if isinstance(converter, FramedConverter):
                    ids = converter.schemas.looked_up.items()
                    metrics.counts.update(f"{LOOKED_UP[there]}{one} {part.range.topic}" for one, there in ids)

    def feed(self, part: TopicSlice) -> Feed:
        """Return how a slice's messages are converted."""
        keys, values = self.converters(part.range.topic, part.slices)
        return Feed(
            part.range.topic,
            part.range.partition,
            part.epoch,
            part.captured_us,
            unwrapped=self.options.envelope == "unwrapped",
            table=part.table,
            is_only=part.partitions == 1,
            strict=self.options.advanced.strict,
            selects=self.selects,
            owners=self.owners,
            key_converter=keys,
            value_converter=values,
            takes_envelopes=self.takes_envelopes,
        )

    def converters(self, topic: str, slices: int = 1) -> tuple[Converter, Converter]:
        """Return the converters of keys and values of a topic that is read in so many slices."""
        first, second = (
            self._converter(name, slices, self.looked_up.get(topic, {}))
            for name in (self.options.key_converter, self.options.value_converter)
        )
        return first, second

    def _converter(self, name: ConverterName, slices: int, looked_up: Mapping[int, bool]) -> Converter:
        if name == "json":
            return JsonConverter()
        if name == "string":
            return TextConverter()
        assert self.registry is not None
        return FramedConverter(RegisteredSchemas(self.registry, name, slices, looked_up))


def read_parted(
    messages: Messages, feed: Feed, seen: RecordedSchemas, skipped: Counter[tuple[str, str]]
) -> Iterator[pa.RecordBatch]:
    """Read messages, split into parts if they don't fit one Arrow batch.

    Args:
        messages: In the order of their offsets.
        feed: The feed of the messages.
        seen: As for :func:`~.records.read_messages`.
        skipped: As for :func:`~.records.read_messages`.

    Yields:
        Batches of ``CHANGE_SCHEMA``.
    """
    try:
        records = read_messages(messages, feed, seen, skipped)
    except OverflowError:
        half = len(messages.offsets) // 2
        if not half:
            raise
        for part in (messages.slice(0, half), messages.slice(half)):
            yield from read_parted(part, feed, seen, skipped)
        return
    if records.num_rows:
        yield records


def _portions(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Group messages into batches that fit one Arrow batch."""
    portion: list[Message] = []
    size = 0
    for message in messages:
        own = _bytes(message)
        if portion and (size + own > _PORTION_BYTES or len(portion) == _PORTION_MESSAGES):
            yield portion
            portion, size = [], 0
        portion.append(message)
        size += own
    if portion:
        yield portion


def _bytes(message: Message) -> int:
    return len(message.value() or b"") + len(message.key() or b"")


def _columns(portion: Sequence[Message], most_bytes: int) -> Messages:
    """Return messages as arrays; those of more bytes without key and value."""
    times = [message.timestamp() for message in portion]
    too_large = np.array([_bytes(message) > most_bytes for message in portion], np.bool_)
    sides = [
        (None, None) if large else (one.key(), one.value())
        for one, large in zip(portion, too_large.tolist(), strict=True)
    ]
    return Messages(
        pa.array([key for key, _ in sides], pa.binary()),
        pa.array([value for _, value in sides], pa.binary()),
        np.array([message.offset() for message in portion], np.int64),
        np.array([ms if kind != _NO_TIME else -1 for kind, ms in times], np.int64),
        too_large,
    )


def table_of(topic: str) -> str:
    """Return the table of a topic: its name without the first part, the prefix.

    A topic name with two parts keeps both; one with a single part belongs to the database ``topics``.
    """
    parts = topic.split(".")
    if len(parts) > 2:
        return ".".join(parts[1:])
    return topic if len(parts) == 2 else f"topics.{topic}"
