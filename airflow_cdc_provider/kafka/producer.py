"""The producer: records of one slice, and the position after them, to topics: all of them or none.

Records come as Arrow batches with the columns ``topic``, ``partition``, ``timestamp``, ``bare``, ``key``,
``value`` and ``headers`` (see ``events.encoder``). Null keys and values stay null; a null partition is chosen
by the hash of the key as Java's clients do (murmur2), so that what Kafka Connect wrote before and what is
written here of one key share a partition; a null timestamp is the moment of sending.

With a transactional id each call of :meth:`RecordProducer.publish` is a transaction. Without one the position
follows when the brokers have acknowledged the records, so that a killed run sends some again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CdcError, CommitConflict
from airflow_cdc_provider.kafka.errors import (
    FATAL,
    FATAL_SECONDS,
    IDEMPOTENT_WRITE,
    NOT_ALLOWED,
    NOT_THERE,
    LastError,
    client_of,
    error_of,
    refused_by,
    require_library,
    served,
)
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topic_facts import TopicInspector
from airflow_cdc_provider.kafka.topics import TopicMaker

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

Headers = Sequence[tuple[str, str]]
"""Names and values that all data records of a run have."""

_POLL_EVERY: Final = 2_000
_CALL_SECONDS: Final = 2.0
"""After which a call to the coordinator is asked how it goes, and resumed."""
_TOPIC_SECONDS: Final = 5.0
"""How long a topic may take that was made just now, by us or by a broker that was asked for it."""
_NAMED_TOPICS: Final = 3
"""So many topics an error names."""
_NOT_YET: Final = (*NOT_THERE, "LEADER_NOT_AVAILABLE")


class RecordProducer:
    """Sends records of one slice.

    Args:
        settings: Of the client.
        positions: Where positions go; the topic is there.
        slice_number: Which slice's they are.
        transactional_id: Of the slice; empty for delivery at least once.
        build: Makes the client; by default librdkafka's.
        topics: Makes topics that are missing; None: brokers or people do.
    """

    def __init__(
        self,
        settings: ClientSettings,
        positions: PositionsTopic,
        slice_number: int = 0,
        transactional_id: str = "",
        build: Callable[[dict[str, Any]], Any] | None = None,
        topics: TopicMaker | None = None,
    ) -> None:
        require_library()
        self._settings = settings
        self._topics = topics
        self._positions = positions
        self._slice = slice_number
        self._transactional_id = transactional_id
        self._transactional = bool(transactional_id)
        self._build = build
        self._stored: PublishPosition | None = None
        self._spoilt = False
        self._last = LastError()
        self._failed: list[tuple[str, KafkaError]] = []
        self._sending_to: tuple[str, ...] = ()
        self._known: set[str] = set()
        self._missing: set[str] = set()
        self._call_seconds = max(1.0, min(60.0, settings.retry_seconds))
        self._client = self._new_client()

    def take_over(self, *, read: bool = True) -> PublishPosition | None:
        """Fence whoever held the transactional id before; what that one left open is aborted.

        The partition of positions was made before.

        Args:
            read: Whether to read the position; not where another one is to be stored whatever it is.

        Returns:
            The position that is stored, None for none, or if it wasn't read. Nobody else can change it any
            more, but who takes over in their turn.

        Raises:
            BrokersAway: The brokers don't answer.
            OffsetMissing: The position can't be read.
            ConfigurationError: A login, right or setting is wrong.
        """
        if self._transactional:
            doing = f"taking over transactional id {self._transactional_id}"
            self._call(self._client.init_transactions, doing)
        self._stored = self._positions.read(self._slice, must_exist=True) if read else None
        self._last.accepted()
        return self._stored

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        """Send records and the position after them.

        Raises:
            RecordsRefused: The broker won't take one; nothing of these was published, without a transaction
                some may have been. The producer can be asked again.
            CommitConflict: Another producer took over; nothing of these was published.
            BrokersAway: The brokers don't answer. It isn't known whether the transaction is committed:
                close the producer, and read the position with a new one.
            ConfigurationError: A right or a setting is wrong.
        """
        if self._spoilt:
            self._renew()
        self._failed.clear()
        self._require_topics(records)
        self._sending_to += (self._positions.topic,)
        if self._transactional:
            self._call(self._client.begin_transaction, "beginning a transaction")
        try:
            for batch in records:
                self._send(batch, headers)
            if not self._transactional:
                self._flush()
            self._produce(self._positions.topic, position.to_json(), position.key, position.slice, 0, ())
            self._flush()
        except CdcError:
            self._spoilt = True
            self._abort()
            raise
        if self._transactional:
            try:
                self._call(self._client.commit_transaction, "committing a transaction")
            except CdcError:
                self._spoilt = True
                self._raise_failed()
                raise
        self._stored = position

    def send(self, records: Sequence[pa.RecordBatch], headers: Headers = ()) -> None:
        """Send records that no position tells of, by a producer without a transactional id.

        Raises:
            RecordsRefused: The broker won't take one; others may have been sent.
            BrokersAway: The brokers don't answer.
            ConfigurationError: A right or a setting is wrong.
        """
        self._failed.clear()
        self._require_topics(records)
        for batch in records:
            self._send(batch, headers)
        self._flush()

    def close(self) -> None:
        """End it; what wasn't committed is gone.

        A client whose error is fatal tells it here once more: it was raised by the call that met it.
        """
        self._client.purge()
        with suppress(CdcError):
            self._serve(self._client.flush, 0.1)

    def _new_client(self) -> Any:
        from confluent_kafka import Producer

        values = {"partitioner": "murmur2_random", **self._settings.of_producer(self._transactional_id)}
        return client_of(self._build or Producer, {**values, "on_delivery": self._delivered}, self._last)

    def _renew(self) -> None:
        """Go on with a new client after one whose numbering of records a refusal has broken.

        Raises:
            CommitConflict: Another producer has published in between.
        """
        before = self._stored
        self.close()
        self._client = self._new_client()
        if self.take_over() != before and self._transactional:
            raise CommitConflict(
                "another producer published in between",
                expected=f"position {before}",
                found=f"position {self._stored}",
                remedy="let only one run publish at a time",
            )
        self._spoilt = False

    def _send(self, batch: pa.RecordBatch, headers: Headers) -> None:
        """Hand records to the client, no faster than it gets rid of them."""
        common = [(name, value.encode()) for name, value in headers]
        for number, (topic, partition, timestamp, bare, key, value, own) in enumerate(_rows(batch)):
            shown: Sequence[tuple[str, bytes]] = () if bare else common
            if own:
                shown = [*shown, *_own_headers(own)]
            self._produce(topic, value, key, partition, timestamp, shown)
            if number % _POLL_EVERY == 0:
                self._serve(self._client.poll, 0)
                self._raise_failed()

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Sequence[tuple[str, bytes]],
    ) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                self._client.produce(
                    topic, value, key, partition, timestamp=timestamp, headers=headers or None
                )
                return
            except BufferError:  # full: the brokers are slow, or away until the messages' time is over
                self._serve(self._client.poll, 0.1)
                self._raise_failed()
            except KafkaException as error:
                if error.args[0].name() == FATAL:
                    self._serve(self._client.poll, FATAL_SECONDS)
                refused = refused_by(error.args[0], topic)
                raise refused or self._error(error.args[0]) from None

    def _flush(self) -> None:
        """Wait until the brokers have acknowledged or refused everything; messages' own time bounds it."""
        while self._serve(self._client.flush, 0.5):
            self._raise_failed()
            if self._transactional:
                self._require_going_on()
        self._raise_failed()

    def _require_going_on(self) -> None:
        """Raise what has ended the transaction; records that wait may not be told of it before their time.

        None can begin in another one: how this one stands is what the client answers to the try.
        """
        from confluent_kafka import KafkaException

        try:
            self._client.begin_transaction()
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                raise self._error(error.args[0]) from None

    def _serve(self, function: Callable[[float], int], seconds: float) -> int:
        """Let the client call back, and return what it has left to do."""
        return served(function, seconds, self._error)

    def _error(self, error: KafkaError, doing: str = "sending records") -> CdcError:
        """Return our error; it names the right that is missing."""
        if error.name() == NOT_ALLOWED:
            return self._not_allowed(error, doing)
        if self._transactional:
            right = f"WRITE on transactional id {self._transactional_id}"
        else:
            right = f"WRITE on {', '.join(self._sending_to[:_NAMED_TOPICS])}; {IDEMPOTENT_WRITE}"
        return error_of(error, doing, self._last.error, right=right)

    def _not_allowed(self, error: KafkaError, doing: str) -> CdcError:
        """Return the refusal by the topic that is not open to us; of a transaction the client names none."""
        with suppress(CdcError):
            inspector = TopicInspector(self._settings)
            for topic in self._sending_to:
                if inspector.facts(topic).may("WRITE") is False and (refused := refused_by(error, topic)):
                    return refused
        right = f"WRITE on {', '.join(self._sending_to[:_NAMED_TOPICS])}"
        return error_of(error, doing, self._last.error, right=right)

    def _raise_failed(self) -> None:
        """Raise the error of the first record that could not be delivered; a refusal says most."""
        for topic, error in self._failed:
            if refused := refused_by(error, topic):
                raise refused
        if self._failed:
            raise self._error(self._failed[0][1])

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # Those of a batch that were purged with the one that failed say nothing of their own.
        if error is not None and error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            self._failed.append((message.topic() or "", error))

    def _abort(self) -> None:
        """Leave nothing of the transaction; if that can't be, the next producer of the id does it."""
        from confluent_kafka import KafkaException

        if not self._transactional:
            self._serve(self._client.flush, self._call_seconds)  # late errors are not the next records'
        else:
            try:
                self._client.abort_transaction(self._call_seconds)
            except KafkaException:
                return  # brokers are away, or we are fenced: whoever comes next has it aborted
        self._failed.clear()

    def _require_topics(self, records: Sequence[pa.RecordBatch]) -> None:
        """Make topics that are missing, where that is wanted, and refuse those that are not there then.

        The client would wait for them as long as for a broker.
        """
        from confluent_kafka import KafkaException

        named = dict.fromkeys(topic for batch in records for topic in pc.unique(batch["topic"]).to_pylist())
        self._sending_to = tuple(named)
        new = [topic for topic in named if topic not in self._known]
        if new and self._topics is not None:
            self._topics.make_missing(new)
        for topic in new:
            # One that didn't come once isn't waited for again.
            deadline = time.monotonic() + (0.0 if topic in self._missing else _TOPIC_SECONDS)
            while topic not in self._known:
                try:
                    told = self._client.list_topics(topic, self._call_seconds).topics[topic].error
                except KafkaException as error:
                    raise error_of(error.args[0], f"asking for topic {topic}", self._last.error) from None
                if told is None:
                    self._known.add(topic)
                elif time.monotonic() > deadline or told.name() not in _NOT_YET:
                    self._missing.add(topic)
                    raise refused_by(told, topic) or error_of(told, f"asking for topic {topic}")
                else:
                    time.sleep(0.2)

    def _call(self, function: Callable[..., Any], doing: str) -> None:
        """Call the coordinator, again while it says that this may help."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._call_seconds
        timed = function != self._client.begin_transaction
        while True:
            try:
                function(_CALL_SECONDS) if timed else function()
            except KafkaException as error:
                told = error.args[0]
                # What connections report comes by then.
                served(self._client.poll, 0, lambda fatal: self._error(fatal, doing))
                if told.retriable() and time.monotonic() < deadline and not self._last.is_lasting:
                    continue
                if told.txn_requires_abort():
                    self._abort()
                raise self._error(told, doing) from None
            return


def _rows(
    batch: pa.RecordBatch,
) -> Iterator[tuple[str, int, int, bool, bytes | None, bytes | None, str]]:
    """Yield what records are made of; librdkafka takes -1 for any partition and 0 for now."""
    return zip(
        batch["topic"].to_pylist(),
        batch["partition"].fill_null(-1).to_pylist(),
        batch["timestamp"].fill_null(0).to_pylist(),
        batch["bare"].to_pylist(),
        batch["key"].cast(pa.large_binary()).to_pylist(),
        batch["value"].cast(pa.large_binary()).to_pylist(),
        batch["headers"].to_pylist(),
        strict=True,
    )


def _own_headers(members: str) -> list[tuple[str, bytes]]:
    """Return a record's own headers."""
    return [(name, text.encode()) for name, text in json.loads(f"[{members}]")]
