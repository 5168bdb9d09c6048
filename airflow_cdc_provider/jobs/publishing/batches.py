"""Publishing of batches of a changes table in sequence: the records of each transaction, and its position.

This module uses neither Spark nor a broker's client. A function builds the events, a producer sends records
and the position after them atomically, and publishing resumes at any position: the next run sends what an
interrupted run has not sent, each record once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector.publish.kafka import KafkaOptions
from airflow_cdc_provider.connector.publish.pulsar import PulsarOptions
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.exceptions import (
    CommitConflict,
    ConfigurationError,
    CorruptInput,
    OffsetMissing,
    RecordsRejected,
    SchemaRejected,
    error_from_text,
)
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.kafka.registry import RegistryUnavailable
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.pulsar.errors import BrokersUnavailable as PulsarBrokersUnavailable

log = logger("airflow_cdc_provider.jobs")

_MOST_REFUSED: Final = 1_000

BuildEvents = Callable[[EventRequest], Iterator[EventBatch]]
"""Builds the events of batches, oldest first."""
StoreDeadLetters = Callable[[pa.Table, np.ndarray, int, pa.ChunkedArray], None]
"""Stores dead letters: the records, their numbers in their batch, the batch, and their reasons."""


class Sender(Protocol):
    """Sends records, such as :class:`~airflow_cdc_provider.kafka.producer.RecordProducer`."""

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        """Send records and the position after them."""
        ...


def _never() -> bool:
    return False


@dataclass(kw_only=True)
class BatchPublisher:
    """Publishes the batches of one connector.

    Args:
        sender: Sends records.
        build: Builds events.
        form: Digest of all options that determine the records of a batch.
        records_per_commit: Maximum number of records in a transaction.
        position: The published position.
        registrar: Assigns ids to schemas; None for none.
        headers: Headers of all data records.
        stopping: Returns whether a clean stop was requested.
        quarantine: Stores dead letters; None if the first one is an error.
        passes_topics: Whether all records of a topic that the broker refuses are dead letters, not an error.
        transactions: Number of transactions sent.
        records: Number of records sent.
        dead_letters: Number of dead letters: records that can't be built or that are refused.
        refused: By topic whose records, or their schemas, are refused, the reason; at most 1,000 topics, and
            records of further ones are refused in each transaction.
    """

    sender: Sender
    build: BuildEvents
    form: str
    records_per_commit: int
    position: PublishPosition
    registrar: Registrar | None = None
    headers: Headers = ()
    stopping: Callable[[], bool] = _never
    quarantine: StoreDeadLetters | None = None
    passes_topics: bool = True
    transactions: int = 0
    records: int = 0
    dead_letters: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set, init=False)

    def keep_position(self) -> None:
        """Store the current position."""
        self._send([], self.position, self.position)

    def publish(self, through: int, now_ns: int) -> None:
        """Publish from the position to the end of a batch.

        Args:
            through: The batch.
            now_ns: Build time of events; the rest of an interrupted batch keeps its build time.

        Raises:
            RecordsRejected: The broker refuses records, or records can't be built, and they don't become dead
                letters.
            CorruptInput: A batch has fewer records than were sent of it.
            CdcError: As the sender, and the function that builds events.
        """
        if self.position.records:
            batch = self.position.batch
            request = self._request(through, self.position.now_ns, first_only=True)
            self._send_events(_only(batch, self.build(request)), now_ns=request.now_ns, last=batch)
        at = self.position
        if at.batch <= through and not at.records and not self.stopping():
            self._send_events(self.build(self._request(through, now_ns)), now_ns=now_ns, last=through)

    def _request(self, through: int, now_ns: int, *, first_only: bool = False) -> EventRequest:
        at = self.position
        return EventRequest(
            at.batch - 1,
            through,
            now_ns,
            by_batch=True,
            state=at.state,
            registrar=self.registrar,
            first_only=first_only,
        )

    def _send_events(self, found: Iterator[EventBatch], *, now_ns: int, last: int) -> None:
        """Send events in transactions, each with records of one batch."""
        skip = self.position.records
        at = replace(self.position, now_ns=now_ns, form=self.form, records=0)
        buffered: list[pa.RecordBatch] = []
        state = at.state
        for events in found:
            if events.batch != at.batch:
                _require_skipped(at, skip)
                after = replace(at, batch=events.batch, records=0, state=state)
                if buffered:
                    self._send(buffered, at, after)
                    buffered = []
                    if self.stopping():
                        return
                at = after
            state = events.state
            skipped = min(skip, events.records.num_rows)
            skip -= skipped
            at = at.advanced_by(skipped)
            rest = events.records.slice(skipped)
            while rest.num_rows:
                free = self.records_per_commit - _count(buffered)
                buffered.append(rest.slice(0, free))
                rest = rest.slice(free)
                if _count(buffered) < self.records_per_commit:
                    continue
                after = at.advanced_by(self.records_per_commit)
                self._send(buffered, at, after)
                at, buffered = after, []
                if self.stopping():
                    return
        _require_skipped(at, skip)
        after = replace(at, batch=last + 1, records=0, state=state)
        if buffered or after.batch != self.position.batch:
            self._send(buffered, at, after)

    def _send(
        self, records: Sequence[pa.RecordBatch], start: PublishPosition, after: PublishPosition
    ) -> None:
        """Send records of one batch, except dead letters."""
        numbers = np.arange(_count(records)) + start.records
        if any(part["fault"].null_count != part.num_rows for part in records):
            table = pa.Table.from_batches(records).combine_chunks()
            records, numbers = self._without_dead_letters(table, table["fault"], numbers, start.batch)
        if self._closed and records:
            table = pa.Table.from_batches(records).combine_chunks()
            closed = sorted(self._closed)
            topics = pa.array(closed, table["topic"].type)
            known = pa.array([self.refused[topic] for topic in closed])
            reasons = pc.take(known, pc.index_in(table["topic"], value_set=topics))
            records, numbers = self._without_dead_letters(table, reasons, numbers, start.batch)
        self._send_some(records, numbers, start, after)

    def _without_dead_letters(
        self, table: pa.Table, reasons: pa.ChunkedArray, numbers: np.ndarray, batch: int
    ) -> tuple[Sequence[pa.RecordBatch], np.ndarray]:
        """Store records that have a reason as dead letters; return the others and their numbers."""
        valid = reasons.is_null()
        letters, why = table.filter(reasons.is_valid()), reasons.drop_null()
        kept = valid.to_numpy()
        if len(letters):
            if self.quarantine is None:
                raise RecordsRejected(letters["topic"][0].as_py(), why[0].as_py(), whole_topic=False)
            self.quarantine(letters, numbers[~kept], batch, why)
        for topic, reason in set(zip(letters["topic"].to_pylist(), why.to_pylist(), strict=True)):
            if isinstance(error_from_text(reason), SchemaRejected):
                self._refuse(topic, reason)
        self.dead_letters += len(letters)
        return table.filter(valid).to_batches(), numbers[kept]

    def _refuse(self, topic: str, reason: str) -> bool:
        """Keep why a topic is refused; return whether it is kept: rows of an outbox name any number."""
        is_kept = topic in self.refused or len(self.refused) < _MOST_REFUSED
        if is_kept:
            self.refused[topic] = reason
        return is_kept

    def _send_some(
        self,
        records: Sequence[pa.RecordBatch],
        numbers: np.ndarray,
        start: PublishPosition,
        after: PublishPosition,
    ) -> None:
        """Send records with their numbers in the batch; if some are refused, halve down to single ones."""
        try:
            self.sender.publish(records, self.headers, after)
        except RecordsRejected as refusal:
            if self.quarantine is None or not len(numbers):
                raise
            table = pa.Table.from_batches(records).combine_chunks()
            refusals = (refusal, *refusal.others)
            reasons = _reasons(table, refusals)
            if reasons.null_count == len(reasons) or (refusal.whole_topic and not self.passes_topics):
                raise
            if not refusal.whole_topic and refusal.partitions is None and len(numbers) > 1:
                half = len(numbers) // 2
                middle = replace(start, records=int(numbers[half]), form=after.form, now_ns=after.now_ns)
                self._send_some(table.slice(0, half).to_batches(), numbers[:half], start, middle)
                self._send_some(table.slice(half).to_batches(), numbers[half:], middle, after)
                return
            for one in refusals:
                if one.whole_topic and self._refuse(one.topic, str(one)):
                    self._closed.add(one.topic)
            records, numbers = self._without_dead_letters(table, reasons, numbers, start.batch)
            self._send_some(records, numbers, start, after)
            return
        self.position = after
        self.transactions += 1
        self.records += len(numbers)


RETRIED_ERRORS: Final = (BrokersUnavailable, PulsarBrokersUnavailable, RegistryUnavailable)
"""Errors of servers that don't respond, after which publishing retries."""


def wait_for_servers(
    publish: Callable[[], None],
    sent: Callable[[], int],
    options: KafkaOptions | PulsarOptions,
    stopping: Callable[[], bool],
    name: str,
) -> None:
    """Publish, and retry while brokers or the registry don't respond.

    It retries for at most ``retry_timeout_seconds`` at a time.

    Records that were sent stay sent: each try starts at the stored position.

    The first try after an outage may be fenced by the broker itself, which aborts the transaction that the
    outage left open; it is repeated once. A producer that is fenced otherwise has a rival.

    Args:
        publish: Publishes from the stored position, each time with a new producer.
        sent: Returns the number of transactions so far.
        options: Duration and interval of retries.
        stopping: Returns whether a clean stop was requested.
        name: The connector's name.

    Raises:
        BrokersUnavailable: The brokers didn't respond for that long.
        RegistryUnavailable: The registry didn't respond for that long.
        CommitConflict: Another producer took over.
        CdcError: As ``publish``.
    """
    waited_since, before = 0.0, -1
    after_outage = False
    while True:
        try:
            publish()
        except CommitConflict as error:
            if not after_outage or sent() > before:
                raise
            after_outage = False
            log.warning("%s: retrying after an outage: %s", name, error)
        except RETRIED_ERRORS as error:
            after_outage = True
            now = time.monotonic()
            if sent() > before:
                before, waited_since = sent(), now
            if now - waited_since >= options.retry_timeout_seconds or stopping():
                raise
            log.warning("%s: retrying: %s", name, error)
            time.sleep(options.retry_interval_seconds)
        else:
            return


def require_matching(position: PublishPosition, form: str, through: int) -> None:
    """Refuse a position of another changes table, or within a batch that was built with other options.

    Args:
        position: The stored position.
        form: Current digest of all options that determine the records of a batch.
        through: The newest batch.

    Raises:
        OffsetMissing: The position is beyond the changes table.
        ConfigurationError: The options changed within a batch.
    """
    name = position.connector
    if position.batch > through + 1:
        raise OffsetMissing(
            f"the publishing position of {name} is beyond its changes table",
            expected=f"a batch up to {through + 1}",
            found=str(position.batch),
            remedy="the table was re-created: airflow cdc offsets publish-from --batch 1 publishes all of it",
        )
    if position.records and position.form != form:
        raise ConfigurationError(
            f"the form of events of {name} changed while batch {position.batch} was being published",
            expected="the options of publish, and the tables, of its first records",
            found=f"other options after {position.records} records",
            remedy="publish once with the old options; or send the batch again in the new form, some of "
            f"its records a second time, by: airflow cdc offsets publish-from --batch {position.batch}",
        )


def _reasons(table: pa.Table, refusals: Sequence[RecordsRejected]) -> pa.ChunkedArray:
    """Return why records are refused; null for records that none of the errors is about."""
    number = pc.index_in(table["topic"], pa.array([one.topic for one in refusals], table["topic"].type))
    reasons = pc.take(pa.array([str(one) for one in refusals]), number)
    first = pc.take(pa.array([-1 if one.partitions is None else one.partitions for one in refusals]), number)
    refused = pc.greater_equal(table["partition"].fill_null(-1), first)
    return pc.if_else(refused, reasons, pa.scalar(None, pa.utf8()))


def _count(records: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in records)


def _only(batch: int, found: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Yield the events of one batch, which is the first."""
    for events in found:
        if events.batch != batch:
            return
        yield events


def _require_skipped(at: PublishPosition, skip: int) -> None:
    """Refuse to continue if a batch has fewer records than were sent of it."""
    if skip:
        raise CorruptInput(
            f"batch {at.batch} has fewer records than were sent of it",
            expected=f"{skip} more",
            remedy="its records changed; send it again by: airflow cdc offsets publish-from "
            f"--batch {at.batch}",
        )
