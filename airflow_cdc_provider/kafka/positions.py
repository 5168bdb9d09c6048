"""Where publishing stands: one record per slice in a compacted topic, in the transaction of what it tells of.

A position is

    {"v": 1, "connector": "...", "slice": 0, "slices": 1, "batch": 12, "records": 2000, "now_ns": 0,
     "form": "...", "state": "..."}

``batch`` is the batch of the changes table that is being published, ``records`` how many of its records were
sent; 0: all before is whole. ``state`` is what the makers of events knew before the batch, null where that
isn't told. The record's key is ``<connector>.<slice>``, and it stands in the partition of the slice's number.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.kafka.errors import (
    NO_GROUP,
    NOT_ALLOWED,
    NOT_THERE,
    BrokersAway,
    LastError,
    client_of,
    error_of,
    require_library,
)
from airflow_cdc_provider.kafka.settings import ClientSettings

_VERSION: Final = 1
_CALL_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 5.0
"""How much later than the client itself a call is given up: its error says why."""
_FIRST_LOOK: Final = 64
"""How many offsets before the end of a partition are looked at first: the newest position is there."""
_MADE_SECONDS: Final = 10.0
"""How long it may take until all brokers know a topic or partition that was made just now."""
_UNKNOWN: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC")


@dataclass(frozen=True)
class PublishPosition:
    """How far one slice is published; see the module."""

    connector: str
    batch: int
    records: int = 0
    now_ns: int = 0
    form: str = ""
    state: str | None = None
    slice: int = 0
    slices: int = 1

    def further(self, records: int) -> PublishPosition:
        """Return the position some records later, in the same batch."""
        return replace(self, records=self.records + records)

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return f"{self.connector}.{self.slice}".encode()

    def to_json(self) -> bytes:
        """Write it as the value of its record."""
        return json.dumps({"v": _VERSION, **asdict(self)}, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> PublishPosition:
        """Read what :meth:`to_json` wrote.

        Raises:
            OffsetMissing: It is something else; going on could lose or double events.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("v") != _VERSION:
                raise ValueError("another version")
            position = cls(**values)
            if not all(isinstance(n, int) for n in (position.batch, position.records, position.now_ns)):
                raise ValueError("no numbers")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OffsetMissing(
                "the stored publishing position can't be read",
                expected=f"a position of version {_VERSION}",
                found=text[:200].decode(errors="replace"),
                remedy="use the version of this package that wrote it, or set one with airflow cdc offsets "
                "publish --batch N",
            ) from error
        return position


class PositionsTopic:
    """The topic of positions of one connector.

    Args:
        settings: Of the clients.
        topic: Its name.
        connector: The connector's name.
        replication: Copies of a new topic; -1: as the brokers have it.
        build: Makes consumers; by default librdkafka's.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        connector: str,
        replication: int = -1,
        build: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        require_library()
        self.settings = settings
        self.topic = topic
        self.connector = connector
        self.replication = replication
        self._build = build
        self._call_seconds = max(5.0, min(_CALL_SECONDS, settings.retry_seconds))

    def make(self, slices: int) -> None:
        """Make the topic, or add the partitions that it lacks.

        Raises:
            ConfigurationError: It can't be made or added to, or is not compacted.
            BrokersAway: The brokers don't answer.
        """
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

        last = LastError()
        admin = client_of(AdminClient, self.settings.of_admin(), last)

        def answer(asked: Mapping[Any, Any], doing: str, right: str, passing: Sequence[str] = ()) -> Any:
            """Return what brokers answer to one question, None for an error that may be passed over."""
            (told,) = asked.values()
            try:
                return told.result(_CALL_SECONDS + _GRACE_SECONDS)
            except KafkaException as error:
                if error.args[0].name() in passing:
                    return None
                right = f"{right} on topic {self.topic}"
                raise error_of(error.args[0], f"{doing} {self.topic}", last.error, right=right) from None

        named = TopicCollection([self.topic])
        found = admin.describe_topics(named, request_timeout=self._call_seconds)
        described = answer(found, "asking for topic", "DESCRIBE", NOT_THERE)
        if described is None:
            config = {"cleanup.policy": "compact", "retention.ms": "-1"}
            new = NewTopic(self.topic, slices, self.replication, config=config)
            made = admin.create_topics([new], request_timeout=_CALL_SECONDS)
            answer(made, "making topic", "CREATE", ("TOPIC_ALREADY_EXISTS",))  # another run was faster
            return
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        told = admin.describe_configs([resource], request_timeout=_CALL_SECONDS)
        settings = answer(told, "asking for settings of topic", "DESCRIBE_CONFIGS")
        policy = settings["cleanup.policy"].value
        if policy != "compact":
            raise ConfigurationError(
                f"topic {self.topic} must keep its newest positions for good",
                expected="cleanup.policy compact",
                found=str(policy),
                remedy="alter the topic, or name another one with publish.kafka.positions_topic",
            )
        if len(described.partitions) < slices:
            more = admin.create_partitions([NewPartitions(self.topic, slices)], request_timeout=_CALL_SECONDS)
            answer(more, f"making {slices} partitions of topic", "ALTER")

    def read_all(self) -> list[PublishPosition]:
        """Return the newest committed position of each slice, in their order; empty if there are none.

        Raises:
            BrokersAway: As :meth:`read`.
            OffsetMissing: A position can't be read, or is missing.
            ConfigurationError: The login or a right is wrong.
        """
        return self.all_slices(self.read)

    def least(self) -> PublishPosition | None:
        """Return the position of the slice that is least far, None for none.

        Raises:
            CdcError: As :meth:`read_all`.
        """
        return min(self.read_all(), key=lambda position: (position.batch, position.records), default=None)

    def all_slices(self, read: Callable[[int], PublishPosition | None]) -> list[PublishPosition]:
        """Collect the positions of all slices.

        How many there are is what slice 0 says; what others say of that may be of a change that was broken
        off.

        Args:
            read: Reads that of a slice.

        Raises:
            OffsetMissing: One is missing.
        """
        first = read(0)
        if first is None:
            return []
        found = [first]
        for number in range(1, first.slices):
            position = read(number)
            if position is None:
                raise OffsetMissing(
                    f"the publishing position of slice {number} of {self.connector} is missing",
                    expected=f"one for each of {first.slices} slices in topic {self.topic}",
                    remedy="airflow cdc offsets publish --batch N begins at a batch anew",
                )
            found.append(position)
        return found

    def read(self, number: int = 0, *, must_exist: bool = False) -> PublishPosition | None:
        """Return the newest committed position of a slice, None for none.

        It is the last word if the slice's producer has called ``init_transactions`` before.

        Args:
            number: Of the slice.
            must_exist: Whether the partition was made: one that a broker doesn't know is no answer then, as
                it may have restarted, or not have heard of it. Else it has no position.

        Raises:
            BrokersAway: The brokers don't answer, don't know a partition that must exist, or another
                transaction holds its end open.
            OffsetMissing: The newest position can't be read.
            ConfigurationError: The login or a right is wrong.
        """
        from confluent_kafka import Consumer, KafkaException

        last = LastError()
        group = f"{self.topic}.reader.{uuid.uuid4()}"
        build = self._build or Consumer
        # A consumer that reads committed records alone is told the end of these, not the partition's.
        looker = client_of(build, self.settings.of_consumer(group, "read_uncommitted"), last)
        reader = client_of(build, self.settings.of_consumer(group), last)
        deadline = time.monotonic() + min(_MADE_SECONDS, self._call_seconds)
        try:
            while True:
                try:
                    return self._read(looker, reader, number)
                except KafkaException as error:
                    told = error.args[0]
                    if told.name() not in _UNKNOWN:
                        looker.poll(0)  # what connections report comes by then
                        right = f"READ on topic {self.topic}"
                        raise error_of(told, f"reading topic {self.topic}", last.error, right=right) from None
                    if not must_exist:
                        return None
                    if time.monotonic() > deadline:
                        raise BrokersAway(
                            f"the brokers don't know partition {number} of topic {self.topic}",
                            expected="it, as it was made: without it nobody knows where publishing stands",
                            found=f"{told.name()}: {told.str()}",
                        ) from None
                    time.sleep(0.2)
        finally:
            looker.close()
            reader.close()

    def _read(self, looker: Any, reader: Any, number: int) -> PublishPosition | None:
        """Look for the newest position from the end of the partition on, ever further back."""
        from confluent_kafka import KafkaException, TopicPartition

        partition = TopicPartition(self.topic, number)
        try:
            low, high = looker.get_watermark_offsets(partition, timeout=self._call_seconds)
        except KafkaException as error:
            if error.args[0].name() in _UNKNOWN:
                self._require_seen(looker)
            raise
        back = _FIRST_LOOK
        while True:
            start = max(low, high - back)
            found = self._newest(reader, number, start, high)
            if found is not None or start == low:
                return found
            back *= 16

    def _require_seen(self, looker: Any) -> None:
        """Raise the client's error where the topic may not be seen: librdkafka takes it for unknown then."""
        from confluent_kafka import KafkaException

        told = looker.list_topics(self.topic, self._call_seconds).topics[self.topic].error
        if told is not None and told.name() == NOT_ALLOWED:
            raise KafkaException(told)

    def _newest(self, reader: Any, number: int, start: int, high: int) -> PublishPosition | None:
        """Read committed records from an offset to the end."""
        from confluent_kafka import KafkaException, TopicPartition

        key = f"{self.connector}.{number}".encode()
        newest: bytes | None = None
        if start >= high:
            return None
        reader.assign([TopicPartition(self.topic, number, start)])
        deadline = time.monotonic() + _CALL_SECONDS
        while time.monotonic() < deadline:
            for message in reader.consume(1000, 0.2):
                error = message.error()
                if error is not None and error.name() == NO_GROUP:
                    continue
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
                if error is None and message.key() == key and message.value() is not None:
                    newest = message.value()
                # What was there when we began is read: at the end, or where somebody goes on to write.
                if message.offset() >= high or (error is None and message.offset() == high - 1):
                    return PublishPosition.from_json(newest) if newest is not None else None
        raise BrokersAway(
            f"the end of topic {self.topic} can't be read",
            expected=f"committed records up to offset {high} of partition {number}",
            remedy="a transaction of another producer is open there, or a broker is away; try again",
        )
