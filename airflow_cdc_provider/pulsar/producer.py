"""The producer: sends records as KeyValue messages, each of which is stored once by its sequence id.

Records are Arrow batches with the columns ``topic``, ``key``, ``value`` (null for a deletion),
``headers`` (members of a JSON list of name and JSON text), ``key_schema``, ``value_schema`` (Avro) and
``sequence``.

**Deduplication.** ``sequence`` increases from record to record and is the same each time a record is built. A
broker with deduplication keeps the highest stored sequence id per topic and producer name, and drops messages
with lower or equal ids. All records are sent in order, so the stored messages of a topic are always a prefix
of its sequence, also after a producer was killed, or if a producer that was considered dead is still sending.
So sending again completes a sequence that was sent in part. Messages are not batched, because the broker
deduplicates a batch as a whole.

Without deduplication, records that are sent again are stored again; :attr:`PulsarProducer.undeduplicated`
contains these topics.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import RecordsRejected
from airflow_cdc_provider.formats.protobuf_wire import Value
from airflow_cdc_provider.pulsar import wire
from airflow_cdc_provider.pulsar.connection import Brokers, Connection
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable, TopicRejected, error_of
from airflow_cdc_provider.pulsar.settings import ClientSettings

_IN_FLIGHT: Final = 4_000
"""Maximum number of unacknowledged messages of a topic."""
_SENT_TOGETHER_BYTES: Final = 256 << 10
_METADATA_BYTES: Final = 10 << 10
"""Space that brokers reserve for a message's metadata within the maximum size."""


@dataclass
class _Open:
    """A producer on one topic.

    Args:
        connection: Connection to the topic's broker.
        name: The topic's name in the namespace, without the partition.
        number: The producer's id there.
        schema: The schemas that it was opened with.
        schema_version: The broker's version of them.
        stored: The highest sequence id that the broker had stored when it was opened, -1 for none.
        sent: The last sequence id that was sent since, -1 for none.
        unanswered: Sequence ids without receipts.
        frames: Frames to send.
        frames_bytes: Their size.
    """

    connection: Connection
    name: str
    number: int
    schema: tuple[str, str]
    schema_version: bytes
    stored: int
    sent: int = -1
    unanswered: dict[int, None] = field(default_factory=dict)
    frames: list[bytes] = field(default_factory=list)
    frames_bytes: int = 0


class PulsarProducer:
    """Sends records under one name.

    Args:
        settings: Client settings.
        name: The producer's name, which must be unique.
        namespace: ``tenant/namespace`` of topics.

    Attributes:
        undeduplicated: Topics without deduplication.
    """

    def __init__(self, settings: ClientSettings, name: str, namespace: str) -> None:
        self._settings = settings
        self._name = name
        self._lead = f"persistent://{namespace}/"
        self._known: set[str] = set()
        self.undeduplicated: set[str] = set()

    def send(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Send records, and return when all are stored.

        Args:
            batches: Batches in the order of ``sequence``.

        Raises:
            BrokersUnavailable: Brokers don't answer; some records may be stored: send all of them again.
            RecordsRejected: A permission, a topic or a schema is invalid, or a record is too large; the
                records before it are stored, later ones of its topic are not.
            ConfigurationError: The login is invalid.
            CommitConflict: Another producer uses the name.
        """
        session = _Session(self._settings, self._name, self._lead)
        try:
            for batch in batches:
                for topic, schema, sent in _messages(batch):
                    session.add(topic, schema, sent)
            session.finish()
            self.undeduplicated |= {
                topic for topic in session.topics - self._known if session.lacks_deduplication(topic)
            }
            self._known |= session.topics
        finally:
            session.close()


class _Session:
    """Connections and producers of one call."""

    def __init__(self, settings: ClientSettings, name: str, lead: str) -> None:
        self._brokers = Brokers(settings)
        self._name = name
        self._lead = lead
        self._partitions: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self._opened = 0

    @property
    def topics(self) -> set[str]:
        """Topics, or their partitions, to which messages were sent."""
        return {topic for topic, producer in self._open.items() if producer.sent >= 0}

    def close(self) -> None:
        """Close all connections, and with them the producers."""
        self._brokers.close()

    def add(self, name: str, schema: tuple[str, str], sent: wire.Message) -> None:
        """Enqueue a message to a topic of the namespace; messages are sent in larger frames."""
        topic = self._lead + name
        if topic not in self._partitions:
            self.finish()  # otherwise receipts would arrive before the response
            with _rejections(name):
                self._partitions[topic] = self._brokers.partitions(topic)
        if count := self._partitions[topic]:
            topic = f"{topic}-partition-{partition_of(sent.key or '', count)}"
        # Messages that the broker has received are sent again, because it may not have stored them yet.
        producer = self._producer(topic, name, schema)
        size = len(sent.value or b"") + len(sent.key or "") + len(sent.properties)
        if size > producer.connection.max_message_bytes - _METADATA_BYTES:
            self.finish()
            most = producer.connection.max_message_bytes
            raise RecordsRejected(
                name,
                f"a record of {size} bytes, more than {most} less {_METADATA_BYTES}",
                whole_topic=False,
                remedy="raise maxMessageSize of brokers and nettyMaxFrameSizeBytes of bookies, or leave "
                "large columns out by publish.exclude_columns",
            )
        frame = wire.send(producer.number, self._name, producer.schema_version, sent)
        producer.frames.append(frame)
        producer.frames_bytes += len(frame)
        producer.unanswered[sent.sequence] = None
        producer.sent = sent.sequence
        if producer.frames_bytes >= _SENT_TOGETHER_BYTES or len(producer.unanswered) >= _IN_FLIGHT:
            self._flush(producer)
            while len(producer.unanswered) >= _IN_FLIGHT:
                self._receipt(producer.connection)

    def finish(self) -> None:
        """Send enqueued messages, and wait until all are stored."""
        for producer in self._open.values():
            self._flush(producer)
        for producer in self._open.values():
            while producer.unanswered:
                self._receipt(producer.connection)

    def lacks_deduplication(self, topic: str) -> bool:
        """Return whether the broker doesn't report the sequence id that it has just stored for a topic."""
        producer = self._open[topic]
        self._end(producer, topic)
        return self._begin(topic, producer.name, producer.schema).stored < producer.sent

    def _producer(self, topic: str, name: str, schema: tuple[str, str]) -> _Open:
        producer = self._open.get(topic)
        if producer is not None and producer.schema == schema:
            return producer
        before = -1
        self.finish()  # otherwise receipts would arrive before the response
        if producer is not None:  # the table's schema changed
            self._end(producer, topic)
            before = producer.sent
        self._open[topic] = self._begin(topic, name, schema)
        self._open[topic].sent = before
        return self._open[topic]

    def _begin(self, topic: str, name: str, schema: tuple[str, str]) -> _Open:
        with _rejections(name):
            connection = self._brokers.of_topic(topic)
        self._opened += 1
        record = json.loads(schema[1] or schema[0] or "{}").get("name", "").rpartition(".")[2]
        fields: dict[int, Value] = {
            1: topic,
            2: self._opened,
            4: self._name,
            7: wire.key_value_schema(record, *schema),
            9: 1,
        }
        doing = f"opening a producer on topic {topic}"
        with _rejections(name):
            found = connection.request(wire.PRODUCER, fields, 3, wire.PRODUCER_SUCCESS, doing)
        last, version = found.get(3, (1 << 64) - 1), found.get(4, b"")
        assert isinstance(last, int)
        assert isinstance(version, bytes)
        return _Open(connection, name, self._opened, schema, version, wire.signed(last))

    @staticmethod
    def _end(producer: _Open, topic: str) -> None:
        doing = f"closing the producer on topic {topic}"
        producer.connection.request(wire.CLOSE_PRODUCER, {1: producer.number}, 2, wire.SUCCESS, doing)

    @staticmethod
    def _flush(producer: _Open) -> None:
        if producer.frames:
            producer.connection.send(b"".join(producer.frames))
            producer.frames, producer.frames_bytes = [], 0

    def _receipt(self, connection: Connection) -> None:
        """Wait for one receipt; receipts of a topic arrive in order."""
        kind, found = connection.receive()
        producer = next(
            (p for p in self._open.values() if p.connection is connection and p.number == found.get(1)), None
        )
        if kind == wire.SEND_RECEIPT and producer is not None:
            number = found.get(2, 0)
            assert isinstance(number, int)
            producer.unanswered.pop(number, None)
        elif kind == wire.SEND_ERROR:
            number, text = found.get(3, 0), found.get(4, b"")
            assert isinstance(number, int)
            assert isinstance(text, bytes)
            with _rejections(producer.name if producer else ""):
                raise error_of(number, text.decode(errors="replace"), "sending a record")
        else:
            raise BrokersUnavailable(
                "a topic moved to another broker", found=f"command {kind} of {connection.address}"
            )


@contextmanager
def _rejections(name: str) -> Iterator[None]:
    """Name the topic of records in errors of a broker that rejects it."""
    try:
        yield
    except TopicRejected as error:
        reason = f"{error.message}: {error.found}"
        raise RecordsRejected(name, reason, whole_topic=True, remedy=error.remedy) from error


def partition_of(key: str, count: int) -> int:
    """Return the partition that Java's clients choose for a key: by ``String.hashCode``."""
    number = 0
    for byte in key.encode("ascii"):
        number = (number * 31 + byte) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % count


def _messages(batch: pa.RecordBatch) -> Iterator[tuple[str, tuple[str, str], wire.Message]]:
    """Yield topic, schemas and message of each record."""
    now_ms = time.time_ns() // 1_000_000
    written: dict[str, bytes] = {}
    names = ("topic", "key_schema", "value_schema", "sequence", "key", "value", "headers")
    columns: Mapping[str, list[Any]] = {name: batch[name].to_pylist() for name in names}
    for topic, key_schema, value_schema, sequence, key, value, headers in zip(*columns.values(), strict=True):
        if headers not in written:
            written = {headers: wire.properties(_properties(headers))}
        key_text = None if key is None else b64encode(key).decode()
        sent = wire.Message(sequence, key_text, value, written[headers], now_ms)
        yield topic, (key_schema, value_schema), sent


def _properties(members: str) -> dict[str, str]:
    """Return a message's properties; for a header that is a JSON string, its content."""
    found = {name: json.loads(text) for name, text in json.loads(f"[{members}]") if text is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
