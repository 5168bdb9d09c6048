"""Publishing positions: one record per slice in a compacted topic, written in the transaction of its records.

A position is

    {"v": 1, "connector": "...", "slice": 0, "slices": 1, "batch": 12, "records": 2000, "now_ns": 0,
     "form": "...", "state": "...", "owners": ["db.orders"]}

``batch`` is the batch of the changes table that is being published, ``records`` the number of its records
that were sent; 0 means that all earlier batches are complete. ``state`` is the state of the event builders
before the batch, null if there is none. ``owners``, if there are any, are the tables that keep topics that
other tables claim, too. The record's key is ``<connector>.<slice>``, and its partition is the
slice's number.
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
    BrokersUnavailable,
    LastError,
    client_of,
    error_of,
)
from airflow_cdc_provider.kafka.settings import ClientSettings

_VERSION: Final = 1
_CALL_SECONDS: Final = 30.0
_GRACE_SECONDS: Final = 5.0
"""Extra timeout on top of the client's own, so that the client's error with its reason comes first."""
_TAIL_OFFSETS: Final = 64
"""Number of offsets before the end of a partition to read first: the newest position is usually there."""
_PROPAGATION_SECONDS: Final = 10.0
"""How long it may take until all brokers know a new topic or partition."""
_UNKNOWN: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC")


@dataclass(frozen=True)
class PublishPosition:
    """Publishing position of one slice; see the module."""

    connector: str
    batch: int
    records: int = 0
    now_ns: int = 0
    form: str = ""
    state: str | None = None
    slice: int = 0
    slices: int = 1
    owners: tuple[str, ...] = ()

    def advanced_by(self, records: int) -> PublishPosition:
        """Return the position after more records of the same batch."""
        return replace(self, records=self.records + records)

    @property
    def key(self) -> bytes:
        """Key of its record."""
        return f"{self.connector}.{self.slice}".encode()

    def to_json(self) -> bytes:
        """Write it as the value of its record."""
        values = {name: value for name, value in asdict(self).items() if name != "owners" or value}
        return json.dumps({"v": _VERSION, **values}, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, text: bytes) -> PublishPosition:
        """Read the output of :meth:`to_json`.

        Raises:
            OffsetMissing: The value is invalid or has another version; continuing could lose or duplicate
                events.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("v") != _VERSION:
                raise ValueError("another version")
            position = cls(**{**values, "owners": tuple(values.get("owners", ()))})
            if not all(isinstance(n, int) for n in (position.batch, position.records, position.now_ns)):
                raise ValueError("not numbers")
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
    """The positions topic of one connector.

    Args:
        settings: Client settings.
        topic: Its name.
        connector: The connector's name.
        replication: Replication factor of a new topic; -1 for the brokers' default.
        build: Builds consumers; librdkafka's by default.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        connector: str,
        replication: int = -1,
        build: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.settings = settings
        self.topic = topic
        self.connector = connector
        self.replication = replication
        self._build = build
        self._call_seconds = max(5.0, min(_CALL_SECONDS, settings.retry_timeout_seconds))

    def make(self, slices: int) -> None:
        """Create the topic, or add missing partitions.

        Args:
            slices: The number of partitions.

        Raises:
            ConfigurationError: It can't be created or extended, or is not compacted.
            BrokersUnavailable: The brokers don't answer.
        """
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

        last = LastError()
        admin = client_of(AdminClient, self.settings.of_admin(), last)

        def result(futures: Mapping[Any, Any], doing: str, right: str, ignored: Sequence[str] = ()) -> Any:
            """Return the result of one call, None for an ignored error."""
            (future,) = futures.values()
            try:
                return future.result(_CALL_SECONDS + _GRACE_SECONDS)
            except KafkaException as error:
                if error.args[0].name() in ignored:
                    return None
                right = f"{right} on topic {self.topic}"
                raise error_of(error.args[0], f"{doing} {self.topic}", last.error, right=right) from None

        named = TopicCollection([self.topic])
        found = admin.describe_topics(named, request_timeout=self._call_seconds)
        described = result(found, "describing topic", "DESCRIBE", NOT_THERE)
        if described is None:
            config = {"cleanup.policy": "compact", "retention.ms": "-1"}
            new = NewTopic(self.topic, slices, self.replication, config=config)
            created = admin.create_topics([new], request_timeout=_CALL_SECONDS)
            result(created, "creating topic", "CREATE", ("TOPIC_ALREADY_EXISTS",))  # another run was faster
            return
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        configs = admin.describe_configs([resource], request_timeout=_CALL_SECONDS)
        settings = result(configs, "reading settings of topic", "DESCRIBE_CONFIGS")
        policy = settings["cleanup.policy"].value
        if policy != "compact":
            raise ConfigurationError(
                f"topic {self.topic} must be compacted, to keep the newest positions",
                expected="cleanup.policy compact",
                found=str(policy),
                remedy="alter the topic, or name another one with publish.kafka.positions_topic",
            )
        if len(described.partitions) < slices:
            more = admin.create_partitions([NewPartitions(self.topic, slices)], request_timeout=_CALL_SECONDS)
            result(more, f"creating {slices} partitions of topic", "ALTER")

    def read_all(self) -> list[PublishPosition]:
        """Return the newest committed position of each slice, in order; empty if there are none.

        Raises:
            BrokersUnavailable: As in :meth:`read`.
            OffsetMissing: A position can't be read, or is missing.
            ConfigurationError: The login or a permission is invalid.
        """
        return self.all_slices(self.read)

    def slowest(self) -> PublishPosition | None:
        """Return the position of the slice that is furthest behind, None for none.

        Raises:
            CdcError: As in :meth:`read_all`.
        """
        return min(self.read_all(), key=lambda position: (position.batch, position.records), default=None)

    def all_slices(self, read: Callable[[int], PublishPosition | None]) -> list[PublishPosition]:
        """Collect the positions of all slices.

        Slice 0 has the number of slices; other slices may have the number of a change that was interrupted.

        Args:
            read: Reads the position of a slice.

        Returns:
            One position per slice; empty if slice 0 has none.

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
                    remedy="publish again from a batch with airflow cdc offsets publish-from --batch N",
                )
            found.append(position)
        return found

    def read(self, number: int = 0, *, must_exist: bool = False) -> PublishPosition | None:
        """Return the newest committed position of a slice, None for none.

        It is final if the slice's producer has called ``init_transactions`` before.

        Args:
            number: Number of the slice.
            must_exist: Whether the partition was created. Then a broker that doesn't know it is retried,
                since it may have restarted or lack the newest metadata. Otherwise there is no position.

        Raises:
            BrokersUnavailable: The brokers don't answer, don't know a partition that must exist, or another
                transaction at its end is open.
            OffsetMissing: The newest position can't be read.
            ConfigurationError: The login or a permission is invalid.
        """
        from confluent_kafka import Consumer, KafkaException

        last = LastError()
        group = f"{self.topic}.reader.{uuid.uuid4()}"
        build = self._build or Consumer
        # With read_committed, a consumer gets the end of the committed records, not that of the partition.
        end_reader = client_of(build, self.settings.of_consumer(group, "read_uncommitted"), last)
        reader = client_of(build, self.settings.of_consumer(group), last)
        deadline = time.monotonic() + min(_PROPAGATION_SECONDS, self._call_seconds)
        try:
            while True:
                try:
                    return self._read(end_reader, reader, number)
                except KafkaException as error:
                    cause = error.args[0]
                    if cause.name() not in _UNKNOWN:
                        end_reader.poll(0)  # serves errors of the connections
                        right = f"READ on topic {self.topic}"
                        raise error_of(
                            cause, f"reading topic {self.topic}", last.error, right=right
                        ) from None
                    if not must_exist:
                        return None
                    if time.monotonic() > deadline:
                        raise BrokersUnavailable(
                            f"the brokers don't know partition {number} of topic {self.topic}",
                            expected="the partition, which was created: without it the position is unknown",
                            found=f"{cause.name()}: {cause.str()}",
                        ) from None
                    time.sleep(0.2)
        finally:
            end_reader.close()
            reader.close()

    def _read(self, end_reader: Any, reader: Any, number: int) -> PublishPosition | None:
        """Search the newest position backwards from the end of the partition."""
        from confluent_kafka import KafkaException, TopicPartition

        partition = TopicPartition(self.topic, number)
        try:
            low, high = end_reader.get_watermark_offsets(partition, timeout=self._call_seconds)
        except KafkaException as error:
            if error.args[0].name() in _UNKNOWN:
                self._require_permission(end_reader)
            raise
        back = _TAIL_OFFSETS
        while True:
            start = max(low, high - back)
            found = self._newest(reader, number, start, high)
            if found is not None or start == low:
                return found
            back *= 16

    def _require_permission(self, end_reader: Any) -> None:
        """Raise an error without permission on the topic: librdkafka reports it as unknown then."""
        from confluent_kafka import KafkaException

        error = end_reader.list_topics(self.topic, self._call_seconds).topics[self.topic].error
        if error is not None and error.name() == NOT_ALLOWED:
            raise KafkaException(error)

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
                # All records up to the initial end are read, also if a producer is still writing.
                if message.offset() >= high or (error is None and message.offset() == high - 1):
                    return PublishPosition.from_json(newest) if newest is not None else None
        raise BrokersUnavailable(
            f"the end of topic {self.topic} can't be read",
            expected=f"committed records up to offset {high} of partition {number}",
            remedy="a transaction of another producer is open there, or a broker is unavailable; try again. "
            "If it stays open beyond its timeout, abort it with kafka-transactions.sh, in all its partitions",
        )
