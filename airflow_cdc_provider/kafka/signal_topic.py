"""Signals from a topic, as Debezium's channel ``kafka`` reads them.

A message's key is the topic prefix of the target connector, its value a signal as one JSON object. The topic
has one partition, which keeps the order of signals. Messages for other connectors are skipped and counted. An
invalid signal becomes a ``MalformedSignal`` that names its topic and offset.

The position is committed in the lake together with the requests that were received::

    {"topic": "shop-signal", "id": "...", "recreated": 0, "offset": 12, "skipped": 3}

``offset`` is that of the next message, ``id`` the broker's topic id, ``recreated`` how often the topic was
re-created or truncated meanwhile, ``skipped`` how many messages were for other connectors. Then the
offset is also committed to the consumer group, so that Kafka's tools show the lag. The group's offset is read
only once, by a connector that has no position yet, such as one that was migrated from Debezium.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.kafka import errors
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Topic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.signals.channels import ChannelRefused
from airflow_cdc_provider.signals.names import KAFKA
from airflow_cdc_provider.signals.signal import (
    LARGEST_BYTES,
    MOST_AT_ONCE,
    MOST_BYTES_AT_ONCE,
    MalformedSignal,
    ReceivedSignal,
    signal_of_text,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

log = logger("airflow_cdc_provider.signals")

_AT_ONCE: Final = 500
_PORTION: Final = 16
"""Messages in memory at once: each may have the largest size of the topic."""
_CALL_SECONDS: Final = 5.0
_CATCH_UP_SECONDS: Final = 30.0
"""Maximum time for which the first poll of a job reads towards the topic's end."""
_BREATH_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 60.0
"""Pause between attempts to open a topic: capture waits during an attempt."""
_STORE_AFTER: Final = 1_000
"""Number of messages for other connectors after which the position is committed."""
_MOVING: Final = (
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "_TIMED_OUT",
)
"""Transient errors of the coordinator or of its lookup."""
_COMMITTED_SECONDS: Final = 1.0
"""Timeout of one attempt to read the committed offset."""
_SESSION_MS: Final = 6_000
"""No session is used, but a closing client waits this long for a commit that brokers don't answer."""
_TO_THE_END: Final = ("latest", "largest", "end")


class Topics(Protocol):
    """Source of topic metadata: :class:`~airflow_cdc_provider.kafka.partitions.ClusterTopics`."""

    def topics(self, patterns: Sequence[str]) -> Mapping[str, Topic]:
        """Find topics by anchored regular expressions."""
        ...


@dataclass(frozen=True)
class SignalTopic:
    """Settings of one connector's signal topic.

    Args:
        client: Client settings.
        topic: The topic.
        key: Key of the connector's messages: its topic prefix.
        group_id: The consumer group.
        poll_timeout_seconds: Timeout of one poll.
    """

    client: ClientSettings
    topic: str
    key: str
    group_id: str
    poll_timeout_seconds: float


@dataclass(frozen=True)
class _Position:
    """See the module."""

    topic: str
    id: str
    recreated: int
    offset: int
    skipped: int = 0


class TopicChannel:
    """Reads signals from a topic; connects on first use.

    Args:
        settings: The signal topic.
        topics: Source of topic metadata; the brokers by default.
        build: Builds the consumer; librdkafka's by default.
        clock: Returns monotonic seconds.
    """

    name = KAFKA

    def __init__(
        self,
        settings: SignalTopic,
        topics: Topics | None = None,
        build: Callable[[dict[str, Any]], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._key = settings.key.encode()
        hurried = replace(
            settings.client, retry_timeout_seconds=min(_CALL_SECONDS, settings.client.retry_timeout_seconds)
        )
        self._topics = topics or ClusterTopics(hurried)
        self._build = build
        self._clock = clock
        self._consumer: Any = None
        self._last = errors.LastError()
        self._resumed = False
        self._stored: Mapping[str, Any] | None = None
        self._at: _Position | None = None
        self._group_offset = -1
        self._arrived: list[ReceivedSignal] = []
        self._size = 0
        self._open_error: CdcError | None = None
        self._retry_at = 0.0

    def resume(self, position: Mapping[str, Any] | None) -> None:
        """Resume at the committed position; signals read after another position are dropped."""
        if self._resumed and position == self._stored:
            return
        self.close()
        self._resumed = True
        self._stored = position
        self._at = _Position(**position) if position else None
        self._arrived, self._size = [], 0

    @property
    def position(self) -> Mapping[str, Any] | None:
        """The position after all signals that :meth:`receive` returned.

        It doesn't change while only few messages for other connectors follow.
        """
        if self._at is None:
            return self._stored
        at = asdict(self._at)
        if self._stored is None or self._arrived or at["topic"] != self._stored["topic"]:
            return at
        return at if self._at.offset - self._stored["offset"] >= _STORE_AFTER else self._stored

    def receive(self) -> Sequence[ReceivedSignal]:
        """Poll once; the first call reads to the present end of the topic.

        Returns:
            The signals that were not acknowledged yet.

        Raises:
            ChannelRefused: The topic has several partitions, or librdkafka rejects the settings.
            CdcError: The topic doesn't exist, the brokers don't answer, or they deny access. A topic that
                could not be opened is tried again after a minute.
        """
        if not self._resumed:
            return ()
        if self._open_error is not None and self._clock() < self._retry_at:
            if self._arrived:
                return tuple(self._arrived)
            raise self._open_error.with_traceback(None)
        if self._room <= 0:  # the others wait until these are committed
            return tuple(self._arrived)
        if self._consumer is not None:
            self._poll_or_close()
        if self._consumer is None:
            try:
                self._open()
                self._open_error = None
            except CdcError as error:
                self.close()
                self._open_error, self._retry_at = error, self._clock() + _PAUSE_SECONDS
                raise
        if not self._arrived:
            self._commit_to_group()
        return tuple(self._arrived)

    def done(self) -> None:
        """Acknowledge the signals that :meth:`receive` returned: they are committed, with the position."""
        self._stored = self.position
        self._arrived, self._size = [], 0
        self._commit_to_group()

    def close(self) -> None:
        """Close the connection; signals that were read are kept."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    @property
    def _room(self) -> int:
        """Number of further messages that fit, whatever their size."""
        room = (MOST_BYTES_AT_ONCE - self._size) // LARGEST_BYTES
        return min(_PORTION, MOST_AT_ONCE - len(self._arrived), room)

    def _poll_or_close(self) -> None:
        """Poll once. After an error, the topic is opened again: it may have been truncated or re-created."""
        try:
            transient = self._poll()
        except CdcError:
            self.close()
            raise
        if transient is not None or self._last.error is not None:
            self.close()

    def _open(self) -> None:
        """Find the topic and read it up to its end."""
        topic = self._settings.topic
        doing = f"reading signals of topic {topic}"
        self._consumer = self._new_consumer()
        from confluent_kafka import KafkaException, TopicPartition

        described = self._described()
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_CALL_SECONDS)
            at = self._start(described.id, low, high)
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        self._last.accepted()
        self._at = at
        self._consumer.assign([TopicPartition(topic, 0, at.offset)])
        start, deadline = at, self._clock() + _CATCH_UP_SECONDS
        while at.offset < high and self._room > 0:
            transient = self._poll(until=high)
            if self._clock() > deadline:
                if self._at is not start:  # later polls continue, also those of the next job
                    break
                raise self._error(transient) if transient else TransientError(f"{doing} takes too long")
            if at is self._at:
                time.sleep(_BREATH_SECONDS)
            at = self._at

    def _new_consumer(self) -> Any:
        try:
            from confluent_kafka import Consumer

            self._last = errors.LastError()
            client = self._settings.client
            config = {"session.timeout.ms": _SESSION_MS, **client.of_consumer(self._settings.group_id)}
            config |= {"auto.offset.reset": "error", "on_commit": self._committed}
            return errors.client_of(self._build or Consumer, config, self._last)
        except ConfigurationError as error:
            raise ChannelRefused(
                error.message, expected=error.expected, found=error.found, remedy=error.remedy
            ) from None

    def _described(self) -> Topic:
        topic = self._settings.topic
        described = self._topics.topics([re.escape(topic)]).get(topic)
        if described is None:
            raise TransientError(
                f"there is no topic {topic} for signals",
                expected="a topic with one partition, and permission to describe and to read it",
                remedy="create it; signals are read from then on",
            )
        if len(described.partitions) != 1:
            raise ChannelRefused(
                f"topic {topic} can't keep the order of signals",
                expected="one partition",
                found=str(len(described.partitions)),
                remedy="create a topic with one partition, and set it in signals.kafka.topic",
            )
        return described

    def _start(self, identity: str, low: int, high: int) -> _Position:
        """Return the start position, and report messages that were missed before it."""
        at, topic = self._at, self._settings.topic
        if at is None or at.topic != topic:
            return _Position(topic, identity, 0, self._first(low, high))
        other = bool(at.id and identity and at.id != identity)
        if other or (at.offset > high and not (at.id and identity)):
            self._miss(at, f"topic {topic} was re-created: signals are read from its start")
            return replace(at, id=identity, recreated=at.recreated + 1, offset=low)
        if at.offset > high:
            self._miss(at, f"topic {topic} ends at offset {high}, before what was read: its brokers lost it")
            return replace(at, recreated=at.recreated + 1, offset=high)
        if at.offset < low:
            self._miss(
                at,
                f"messages {at.offset} to {low - 1} of topic {topic} were deleted before they were read: "
                "retention removed them; increase retention.ms, or run more often",
            )
            return replace(at, offset=low)
        return replace(at, id=identity or at.id)

    def _first(self, low: int, high: int) -> int:
        """Return the start offset of a connector without position: the committed offset of its group."""
        group_offset = self._of_group()
        if low <= group_offset <= high:
            return group_offset
        to_the_end = str(self._settings.client.consumer.get("auto.offset.reset", "")) in _TO_THE_END
        return high if to_the_end else low

    def _of_group(self) -> int:
        """Return the group's committed offset, negative for none."""
        from confluent_kafka import KafkaException, TopicPartition

        partitions = [TopicPartition(self._settings.topic, 0)]
        deadline = self._clock() + _CALL_SECONDS
        while True:
            try:
                (group,) = self._consumer.committed(partitions, timeout=_COMMITTED_SECONDS)
            except KafkaException as error:
                # A missing permission on the group is reported by a poll, while the call only times out.
                for message in self._consumer.consume(_AT_ONCE, 0):
                    reported = message.error()
                    if reported is not None and reported.name() == errors.NO_GROUP:
                        raise KafkaException(reported) from None
                if error.args[0].name() not in _MOVING or self._clock() > deadline:
                    raise
                time.sleep(_BREATH_SECONDS)
            else:
                return int(group.offset)

    def _miss(self, at: _Position, reason: str) -> None:
        self._arrived.append(
            MalformedSignal(f"{at.topic}/0/{at.offset}.{at.recreated}-missed", self.name, reason)
        )

    def _poll(self, until: int | None = None) -> KafkaError | None:
        """Process the received messages; return a transient error, and raise a lasting one."""
        transient: KafkaError | None = None
        end, polled, wanted = -1, 0, self._room
        while wanted > 0 and transient is None:
            found = self._consumer.consume(wanted, self._settings.poll_timeout_seconds)
            for message in found:
                error = message.error()
                if error is None:
                    self._take(message)
                elif error.name() == "_PARTITION_EOF":
                    end = message.offset()
                else:
                    transient = error
            polled += len(found)
            wanted = self._room if len(found) == wanted and polled < _AT_ONCE else 0
        # After the last message there may be transaction markers.
        if self._at is not None and until is not None and end >= until:
            self._at = replace(self._at, offset=max(self._at.offset, end))
        if transient is not None and transient.name() not in errors.TRANSIENT:
            raise self._error(transient)
        return transient

    def _error(self, transient: KafkaError) -> CdcError:
        topic, group = self._settings.topic, self._settings.group_id
        right = f"READ on group {group}" if transient.name() == errors.NO_GROUP else f"READ on topic {topic}"
        return errors.error_of(transient, f"reading signals of topic {topic}", self._last.error, right=right)

    def _take(self, message: Message) -> None:
        at, offset = self._at, message.offset()
        if at is None or offset is None or offset < at.offset:
            return
        at = replace(at, offset=offset + 1)
        value = message.value()
        if message.key() == self._key and value:
            self._arrived.append(self._read(value, at, offset))
        else:
            at = replace(at, skipped=at.skipped + 1)
        self._at = at

    def _read(self, value: bytes, at: _Position, offset: int) -> ReceivedSignal:
        own = f"{at.topic}/0/{offset}" + (f".{at.recreated}" if at.recreated else "")
        self._size += min(len(value), LARGEST_BYTES)
        read = signal_of_text(value, self.name, otherwise=own)
        if isinstance(read, MalformedSignal):
            return replace(read, reason=f"topic {at.topic}, offset {offset}: {read.reason}")
        return read

    def _commit_to_group(self) -> None:
        """Commit the offset to the group, only to show the lag in Kafka's tools."""
        from confluent_kafka import KafkaException, TopicPartition

        at = self._at
        if at is None or self._consumer is None or at.offset == self._group_offset:
            return
        try:
            self._consumer.commit(offsets=[TopicPartition(at.topic, 0, at.offset)], asynchronous=True)
        except KafkaException as error:
            self._committed(error.args[0], [])
        self._group_offset = at.offset

    def _committed(self, error: KafkaError | None, partitions: Sequence[object]) -> None:
        """Log a failed commit to the group; librdkafka's ``on_commit``."""
        if error is not None:
            log.warning(
                "the offset of topic %s can't be committed to group %s, so its lag is not shown: %s",
                self._settings.topic,
                self._settings.group_id,
                error.str(),
            )
