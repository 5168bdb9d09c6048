"""Signals from a topic, as Debezium's channel ``kafka`` reads them.

A message's key is the topic prefix of the connector that is meant, its value a signal as one JSON object.
The topic has one partition, which keeps the order of signals. Messages for others are passed over and
counted; one that is no signal becomes a ``NoSignal`` that names its topic and offset.

Where it stands is a *place*, which is committed in the lake together with what was asked for::

    {"topic": "shop-signal", "id": "...", "made": 0, "offset": 12, "passed_over": 3}

``offset`` is that of the next message, ``id`` what the broker calls the topic, ``made`` how often it was made
anew, or cut, meanwhile, ``passed_over`` how many messages were for others. After that the offset is
committed to the consumer group as well, so that Kafka's tools show the lag. The group's offset is asked for
once: by a connector that has no place yet, as one that Debezium ran before.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.kafka.errors import (
    NO_GROUP,
    PASSING,
    LastError,
    client_of,
    error_of,
    require_library,
)
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Topic
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.signals.channels import ChannelRefused
from airflow_cdc_provider.signals.names import KAFKA
from airflow_cdc_provider.signals.signal import Arrived, NoSignal, signal_of_text

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

log = logging.getLogger("airflow_cdc_provider.signals")

_AT_ONCE: Final = 500
_CALL_SECONDS: Final = 5.0
_CATCH_UP_SECONDS: Final = 30.0
"""How long the first look of a job reads towards the topic's end at most."""
_BREATH_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 60.0
"""How long a topic that can't be opened is let alone: nothing is captured while it is tried."""
_STORE_AFTER: Final = 1_000
"""After so many messages for others the place is worth a commit of its own."""
_MOVING: Final = (
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "_TIMED_OUT",
)
"""What a coordinator that is found soon reports, or who looks for it."""
_LOOK_SECONDS: Final = 1.0
"""After which it is looked what became of a question to the coordinator, and asked again."""
_SESSION_MS: Final = 6_000
"""There is no session; but so long a client that ends waits for a commit that brokers don't answer."""
_TO_THE_END: Final = ("latest", "largest", "end")


class Topics(Protocol):
    """What tells of topics: :class:`~airflow_cdc_provider.kafka.partitions.ClusterTopics`."""

    def topics(self, patterns: Sequence[str]) -> Mapping[str, Topic]:
        """Find topics by anchored regular expressions."""
        ...


@dataclass(frozen=True)
class SignalTopic:
    """Where signals of one connector come from.

    Args:
        client: Settings of clients.
        topic: The topic.
        key: Key of the messages that are for it: its topic prefix.
        group_id: The consumer group.
        poll_timeout_seconds: How long one poll waits.
    """

    client: ClientSettings
    topic: str
    key: str
    group_id: str
    poll_timeout_seconds: float


@dataclass(frozen=True)
class _Place:
    """See the module."""

    topic: str
    id: str
    made: int
    offset: int
    passed_over: int = 0


class TopicChannel:
    """Reads signals from a topic; connects when it is first asked for some.

    Args:
        wanted: Where they come from.
        topics: Tells of the topic; by default the brokers.
        build: Makes the consumer; by default librdkafka's.
        clock: Gives seconds that only grow.
    """

    name = KAFKA

    def __init__(
        self,
        wanted: SignalTopic,
        topics: Topics | None = None,
        build: Callable[[dict[str, Any]], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._key = wanted.key.encode()
        hurried = replace(wanted.client, retry_seconds=min(_CALL_SECONDS, wanted.client.retry_seconds))
        self._topics = topics or ClusterTopics(hurried)
        self._build = build
        self._clock = clock
        self._consumer: Any = None
        self._last = LastError()
        self._told_to_begin = False
        self._stored: Mapping[str, Any] | None = None
        self._at: _Place | None = None
        self._group_offset = -1
        self._arrived: list[Arrived] = []
        self._trouble: CdcError | None = None
        self._again_at = 0.0

    def resume(self, place: Mapping[str, Any] | None) -> None:
        """Go on at the place that is committed; what was read behind another one is forgotten."""
        if self._told_to_begin and place == self._stored:
            return
        self.close()
        self._told_to_begin = True
        self._stored = place
        self._at = _Place(**place) if place else None
        self._arrived = []

    @property
    def place(self) -> Mapping[str, Any] | None:
        """Where to go on, if all that :meth:`receive` returned is committed.

        It stays the committed one while there is little behind it but messages for others.
        """
        if self._at is None:
            return self._stored
        at = asdict(self._at)
        if self._stored is None or self._arrived or at["topic"] != self._stored["topic"]:
            return at
        return at if self._at.offset - self._stored["offset"] >= _STORE_AFTER else self._stored

    def receive(self) -> Sequence[Arrived]:
        """Poll once; at the first time until the end that the topic has then.

        Raises:
            ChannelRefused: The topic has several partitions, or librdkafka refuses the settings.
            CdcError: There is no such topic, or the brokers don't answer or don't let us in. A topic that
                could not be opened is tried again after a minute.
        """
        if not self._told_to_begin:
            return ()
        if self._trouble is not None and self._clock() < self._again_at:
            if self._arrived:
                return tuple(self._arrived)
            raise self._trouble.with_traceback(None)
        if self._consumer is not None:
            self._look()
        if self._consumer is None:
            try:
                self._open()
                self._trouble = None
            except CdcError as error:
                self.close()
                self._trouble, self._again_at = error, self._clock() + _PAUSE_SECONDS
                raise
        if not self._arrived:
            self._commit_to_group()
        return tuple(self._arrived)

    def done(self) -> None:
        """Let go of what :meth:`receive` returned: it and the place are committed."""
        self._stored = self.place
        self._arrived = []
        self._commit_to_group()

    def close(self) -> None:
        """End the connection; what was read is kept."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _look(self) -> None:
        """Poll once. After trouble the topic is opened anew: it may have been cut or made anew meanwhile."""
        try:
            trouble = self._poll()
        except CdcError:
            self.close()
            raise
        if trouble is not None or self._last.error is not None:
            self.close()

    def _open(self) -> None:
        """Find the topic and read it up to its end."""
        topic = self._wanted.topic
        doing = f"reading signals of topic {topic}"
        self._consumer = self._new_consumer()
        from confluent_kafka import KafkaException, TopicPartition

        described = self._described()
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_CALL_SECONDS)
            at = self._begin(described.id, low, high)
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        self._last.accepted()
        self._at = at
        self._consumer.assign([TopicPartition(topic, 0, at.offset)])
        deadline = self._clock() + _CATCH_UP_SECONDS
        while at.offset < high:
            trouble = self._poll(until=high)
            if self._clock() > deadline:
                raise self._error(trouble) if trouble else TransientError(f"{doing} takes long")
            if at is self._at:
                time.sleep(_BREATH_SECONDS)
            at = self._at

    def _new_consumer(self) -> Any:
        try:
            require_library()
            from confluent_kafka import Consumer

            self._last = LastError()
            client = self._wanted.client
            config = {"session.timeout.ms": _SESSION_MS, **client.of_consumer(self._wanted.group_id)}
            config |= {"auto.offset.reset": "error", "on_commit": self._committed}
            return client_of(self._build or Consumer, config, self._last)
        except ConfigurationError as error:
            raise ChannelRefused(
                error.message, expected=error.expected, found=error.found, remedy=error.remedy
            ) from None

    def _described(self) -> Topic:
        topic = self._wanted.topic
        described = self._topics.topics([re.escape(topic)]).get(topic)
        if described is None:
            raise TransientError(
                f"there is no topic {topic} for signals",
                expected="a topic of one partition, and the right to describe and to read it",
                remedy="make it; signals are read from then on",
            )
        if len(described.partitions) != 1:
            raise ChannelRefused(
                f"topic {topic} can't keep the order of signals",
                expected="one partition",
                found=str(len(described.partitions)),
                remedy="make a topic with one partition, and name it in signals.kafka.topic",
            )
        return described

    def _begin(self, identity: str, low: int, high: int) -> _Place:
        """Return where to begin, and tell what is missing before that."""
        at, topic = self._at, self._wanted.topic
        if at is None or at.topic != topic:
            return _Place(topic, identity, 0, self._first(low, high))
        other = bool(at.id and identity and at.id != identity)
        if other or (at.offset > high and not (at.id and identity)):
            self._miss(at, f"topic {topic} was made anew: signals are read from its begin")
            return replace(at, id=identity, made=at.made + 1, offset=low)
        if at.offset > high:
            self._miss(at, f"topic {topic} ends at offset {high}, before what was read: its brokers lost it")
            return replace(at, made=at.made + 1, offset=high)
        if at.offset < low:
            self._miss(
                at,
                f"messages {at.offset} to {low - 1} of topic {topic} were gone before they were read: "
                "retention took them; lengthen retention.ms, or let runs follow each other sooner",
            )
            return replace(at, offset=low)
        return replace(at, id=identity or at.id)

    def _first(self, low: int, high: int) -> int:
        """Return where a connector begins that has no place: behind what its group has read."""
        group_offset = self._of_group()
        if low <= group_offset <= high:
            return group_offset
        to_the_end = str(self._wanted.client.consumer.get("auto.offset.reset", "")) in _TO_THE_END
        return high if to_the_end else low

    def _of_group(self) -> int:
        """Return the group's offset, negative for none."""
        from confluent_kafka import KafkaException, TopicPartition

        asked = [TopicPartition(self._wanted.topic, 0)]
        deadline = self._clock() + _CALL_SECONDS
        while True:
            try:
                (group,) = self._consumer.committed(asked, timeout=_LOOK_SECONDS)
            except KafkaException as error:
                # That the group may not be asked for is told by another way, and the call only times out.
                for message in self._consumer.consume(_AT_ONCE, 0):
                    told = message.error()
                    if told is not None and told.name() == NO_GROUP:
                        raise KafkaException(told) from None
                if error.args[0].name() not in _MOVING or self._clock() > deadline:
                    raise
                time.sleep(_BREATH_SECONDS)
            else:
                return int(group.offset)

    def _miss(self, at: _Place, reason: str) -> None:
        self._arrived.append(NoSignal(f"{at.topic}/0/{at.offset}.{at.made}-missed", self.name, reason))

    def _poll(self, until: int | None = None) -> KafkaError | None:
        """Take what came; return what is wrong if it may pass by itself, and raise it if it won't."""
        trouble: KafkaError | None = None
        found: list[Message] = []
        end = -1
        for message in self._consumer.consume(_AT_ONCE, self._wanted.poll_timeout_seconds):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.name() == "_PARTITION_EOF":
                end = message.offset()
            else:
                trouble = error
        self._take(found)
        if (
            self._at is not None and until is not None and end >= until
        ):  # behind the last message there may be marks of transactions
            self._at = replace(self._at, offset=max(self._at.offset, end))
        if trouble is not None and trouble.name() not in PASSING:
            raise self._error(trouble)
        return trouble

    def _error(self, trouble: KafkaError) -> CdcError:
        topic, group = self._wanted.topic, self._wanted.group_id
        right = f"READ on group {group}" if trouble.name() == NO_GROUP else f"READ on topic {topic}"
        return error_of(trouble, f"reading signals of topic {topic}", self._last.error, right=right)

    def _take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            at = self._at
            offset = message.offset()
            if at is None or offset is None or offset < at.offset:
                continue
            at = replace(at, offset=offset + 1)
            value = message.value()
            if message.key() == self._key and value:
                self._arrived.append(self._read(bytes(value), at, offset))
            else:
                at = replace(at, passed_over=at.passed_over + 1)
            self._at = at

    def _read(self, value: bytes, at: _Place, offset: int) -> Arrived:
        own = f"{at.topic}/0/{offset}" + (f".{at.made}" if at.made else "")
        read = signal_of_text(value.decode(errors="replace"), self.name, otherwise=own)
        if isinstance(read, NoSignal):
            return replace(read, reason=f"topic {at.topic}, offset {offset}: {read.reason}")
        return read

    def _commit_to_group(self) -> None:
        """Show Kafka's tools how far signals are read; nothing depends on it."""
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
        """Take note of what became of a commit to the group; librdkafka's ``on_commit``."""
        if error is not None:
            log.warning(
                "the offset of topic %s can't be committed to group %s, so its lag is not shown: %s",
                self._wanted.topic,
                self._wanted.group_id,
                error.str(),
            )
