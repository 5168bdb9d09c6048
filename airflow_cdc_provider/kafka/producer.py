"""The producer: sends records of one slice and the position after them, atomically with transactions.

Records are Arrow batches with the columns ``topic``, ``partition``, ``timestamp``, ``bare``, ``key``,
``value`` and ``headers`` (see ``events.encoder``). Null keys and values stay null. For a null partition, the
key's hash decides as in Java's clients (murmur2), so that records of one key go to the same partition as
those that Kafka Connect wrote before. A null timestamp is the time of sending.

With a transactional id each call of :meth:`RecordProducer.publish` is a transaction. Without one, the
position is sent after the brokers have acknowledged the records, so a killed run sends some records again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import CdcError, CommitConflict
from airflow_cdc_provider.kafka import errors
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.kafka.topic_facts import TopicInspector
from airflow_cdc_provider.kafka.topics import TopicCreator

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

Headers = Sequence[tuple[str, str]]
"""Names and values of headers of all data records of a run."""

_POLL_EVERY: Final = 2_000
_CALL_SECONDS: Final = 2.0
"""Timeout of one attempt of a call to the coordinator, which is then resumed."""
_TOPIC_SECONDS: Final = 5.0
"""How long to wait for a topic that this provider or a broker has just created."""
_NAMED_TOPICS: Final = 3
"""Maximum number of topics that an error names."""
_NOT_YET: Final = (*errors.NOT_THERE, "LEADER_NOT_AVAILABLE")


class RecordProducer:
    """Sends records of one slice.

    Args:
        settings: Client settings.
        positions: The positions topic, which exists.
        slice_number: The slice.
        transactional_id: Transactional id of the slice; empty for at-least-once delivery.
        build: Builds the client; librdkafka's producer by default.
        topics: Creates missing topics; None leaves this to brokers or users.
    """

    def __init__(
        self,
        settings: ClientSettings,
        positions: PositionsTopic,
        slice_number: int = 0,
        transactional_id: str = "",
        build: Callable[[dict[str, Any]], Any] | None = None,
        topics: TopicCreator | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._positions = positions
        self._slice = slice_number
        self._transactional_id = transactional_id
        self._transactional = bool(transactional_id)
        self._build = build
        self._stored: PublishPosition | None = None
        self._spoilt = False
        self._last = errors.LastError()
        self._failed: list[tuple[str, KafkaError]] = []
        self._sending_to: tuple[str, ...] = ()
        self._missing: set[str] = set()
        self._partitions: dict[str, int] = {}
        self._call_seconds = max(1.0, min(60.0, settings.retry_timeout_seconds))
        self._client = self._new_client()

    def take_over(self, *, read: bool = True) -> PublishPosition | None:
        """Fence the previous producer with this transactional id; its open transaction is aborted.

        The partition of the positions topic must exist.

        Args:
            read: Whether to read the position; False if it will be replaced in any case.

        Returns:
            The stored position, None for none or if it wasn't read. It can only change when another producer
            takes over.

        Raises:
            BrokersUnavailable: The brokers don't answer.
            OffsetMissing: The position can't be read.
            ConfigurationError: A login, permission or setting is invalid.
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
            RecordsRejected: The broker rejects a record. None of the records was published; without a
                transaction, some may have been. The producer can be used again.
            CommitConflict: Another producer took over; none of the records was published.
            BrokersUnavailable: The brokers don't answer. It is unknown whether the transaction is committed:
                close the producer, and read the position with a new one.
            ConfigurationError: A permission or a setting is invalid.
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
        """Send records without a position, with a producer without a transactional id.

        Raises:
            RecordsRejected: The broker rejects a record; others may have been sent.
            BrokersUnavailable: The brokers don't answer.
            ConfigurationError: A permission or a setting is invalid.
        """
        self._failed.clear()
        self._require_topics(records)
        for batch in records:
            self._send(batch, headers)
        self._flush()

    def close(self) -> None:
        """Close the producer; uncommitted records are dropped.

        A fatal error is reported here again and suppressed: an earlier call raised it.
        """
        self._client.purge()
        with suppress(CdcError):
            self._serve(self._client.flush, 0.1)

    def _new_client(self) -> Any:
        from confluent_kafka import Producer

        values = {"partitioner": "murmur2_random", **self._settings.of_producer(self._transactional_id)}
        return errors.client_of(
            self._build or Producer, {**values, "on_delivery": self._delivered}, self._last
        )

    def _renew(self) -> None:
        """Replace a client whose sequence numbers are broken after a rejected record.

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
                remedy="run only one publisher at a time",
            )
        self._spoilt = False

    def _send(self, batch: pa.RecordBatch, headers: Headers) -> None:
        """Enqueue records in the client; waits while its queue is full."""
        common = [(name, value.encode()) for name, value in headers]
        for number, (topic, partition, timestamp, bare, key, value, own) in enumerate(_rows(batch)):
            all_headers: Sequence[tuple[str, bytes]] = () if bare else common
            if own:
                all_headers = [*all_headers, *_own_headers(own)]
            self._produce(topic, value, key, partition, timestamp, all_headers)
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
            except BufferError:  # full: the brokers are slow, or unavailable until messages time out
                self._serve(self._client.poll, 0.1)
                self._raise_failed()
            except KafkaException as error:
                if error.args[0].name() in errors.ENDED:
                    self._raise_cause()
                rejection = errors.rejection_of(error.args[0], topic)
                raise rejection or self._error(error.args[0]) from None

    def _raise_cause(self) -> None:
        """Raise the earlier error that made the client refuse a record; return if the client reports none."""
        deadline = time.monotonic() + errors.CAUSE_SECONDS
        while time.monotonic() < deadline:
            self._serve(self._client.poll, errors.CAUSE_SECONDS)
            self._raise_failed()
        if self._transactional:
            self._require_open_transaction()

    def _flush(self) -> None:
        """Wait until the brokers have acknowledged or rejected all records, or their timeout expires."""
        while self._serve(self._client.flush, 0.5):
            self._raise_failed()
            if self._transactional:
                self._require_open_transaction()
        self._raise_failed()

    def _require_open_transaction(self) -> None:
        """Raise the error that has ended the transaction, which pending records may report only at timeout.

        Beginning a transaction within another one fails; the client's error shows the state of the open one.
        """
        from confluent_kafka import KafkaException

        try:
            self._client.begin_transaction()
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                raise self._error(error.args[0]) from None

    def _serve(self, function: Callable[[float], int], seconds: float) -> int:
        """Serve the client's callbacks, and return the result of the call."""
        return errors.serve_callbacks(function, seconds, self._error)

    def _error(self, error: KafkaError, doing: str = "sending records") -> CdcError:
        """Convert an error; the result names the missing permission."""
        if error.name() == errors.NOT_ALLOWED:
            return self._not_allowed(error, doing)
        if self._transactional:
            right = f"WRITE on transactional id {self._transactional_id}"
        else:
            right = f"WRITE on {', '.join(self._sending_to[:_NAMED_TOPICS])}; {errors.IDEMPOTENT_WRITE}"
        return errors.error_of(error, doing, self._last.error, right=right)

    def _not_allowed(self, error: KafkaError, doing: str) -> CdcError:
        """Return the error of the topic without permission; for a transaction, the client doesn't name it."""
        with suppress(CdcError):
            inspector = TopicInspector(self._settings)
            for topic in self._sending_to:
                if inspector.facts(topic).may("WRITE") is False and (
                    rejection := errors.rejection_of(error, topic)
                ):
                    return rejection
        right = f"WRITE on {', '.join(self._sending_to[:_NAMED_TOPICS])}"
        return errors.error_of(error, doing, self._last.error, right=right)

    def _raise_failed(self) -> None:
        """Raise the error of the first undelivered record; rejections take precedence."""
        for topic, error in self._failed:
            if rejection := errors.rejection_of(error, topic):
                raise rejection
        if self._failed:
            raise self._error(self._failed[0][1])

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        # Records that were purged along with the failed one are not errors themselves.
        if error is not None and error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            self._failed.append((message.topic() or "", error))

    def _abort(self) -> None:
        """Abort the transaction; if that fails, the next producer with the id aborts it."""
        from confluent_kafka import KafkaException

        if not self._transactional:
            self._serve(self._client.flush, self._call_seconds)  # so that late errors don't hit later records
        else:
            try:
                self._client.abort_transaction(self._call_seconds)
            except KafkaException:
                return  # brokers are unavailable, or this producer is fenced: the next one aborts it
        self._failed.clear()

    def _require_topics(self, records: Sequence[pa.RecordBatch]) -> None:
        """Create missing topics if configured; refuse topics, and partitions, that still don't exist.

        The client would wait for them as long as for a broker.
        """
        largest: dict[str, int] = {}
        if records:
            named = pa.Table.from_batches([batch.select(["topic", "partition"]) for batch in records])
            found = named.group_by("topic", use_threads=False).aggregate([("partition", "max")])
            largest = {one["topic"]: one["partition_max"] or 0 for one in found.to_pylist()}
        self._sending_to = tuple(largest)
        new = [topic for topic in largest if topic not in self._partitions]
        if new and self._topics is not None:
            self._topics.create_missing(new)
        beyond = [
            topic for topic, partition in largest.items() if partition >= self._partitions.get(topic, 0)
        ]
        failures = self._look_up(beyond) or [
            errors.no_partition(topic, largest[topic], self._partitions[topic])
            for topic in beyond
            if largest[topic] >= self._partitions[topic]
        ]
        if failures:
            raise errors.rejection_of_all(failures)

    def _look_up(self, topics: Sequence[str]) -> list[CdcError]:
        """Look up the partitions of topics, and return the errors of those that don't exist.

        Topics are waited for together, for some seconds after the last one that appeared: brokers may create
        many of them, and create each one when it is first asked for.
        """
        failures: list[CdcError] = []
        waiting, since = list(topics), float("inf")
        while waiting:
            missing = {}
            for topic in waiting:
                described = self._described(topic)
                if described.error is None:
                    self._partitions[topic] = len(described.partitions)
                else:
                    missing[topic] = described.error
            if len(missing) < len(waiting) or since == float("inf"):
                since = time.monotonic()
            is_late = time.monotonic() - since > _TOPIC_SECONDS
            waiting = []
            for topic, failure in missing.items():
                # A topic that was not created in time once isn't waited for again.
                if is_late or topic in self._missing or failure.name() not in _NOT_YET:
                    self._missing.add(topic)
                    found = errors.rejection_of(failure, topic)
                    failures.append(found or errors.error_of(failure, f"describing topic {topic}"))
                else:
                    waiting.append(topic)
            if waiting:
                time.sleep(0.2)
        return failures

    def _described(self, topic: str) -> Any:
        """Return the metadata of a topic."""
        from confluent_kafka import KafkaException

        try:
            return self._client.list_topics(topic, self._call_seconds).topics[topic]
        except KafkaException as error:
            raise errors.error_of(error.args[0], f"describing topic {topic}", self._last.error) from None

    def _call(self, function: Callable[..., Any], doing: str) -> None:
        """Call the coordinator, and retry while its error is retriable."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._call_seconds
        timed = function != self._client.begin_transaction
        while True:
            try:
                function(_CALL_SECONDS) if timed else function()
            except KafkaException as error:
                cause = error.args[0]
                # Serves the errors of connections.
                errors.serve_callbacks(self._client.poll, 0, lambda fatal: self._error(fatal, doing))
                if cause.retriable() and time.monotonic() < deadline and not self._last.is_lasting:
                    continue
                if cause.txn_requires_abort():
                    self._abort()
                raise self._error(cause, doing) from None
            return


def _rows(
    batch: pa.RecordBatch,
) -> Iterator[tuple[str, int, int, bool, bytes | None, bytes | None, str]]:
    """Yield the fields of records; for librdkafka, partition -1 is any and timestamp 0 is now."""
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
