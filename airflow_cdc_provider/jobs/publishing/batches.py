"""Batches of a changes table, sent one after the other: which records go together, and what position follows.

Nothing here knows Spark or a broker's client. Events are made by a function, sent by a producer that sends
all it is given with the position after it or nothing, and begun anew at any position: what a run has not sent
when it is ended, the next one sends, each record once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector.publish_kafka import KafkaOptions
from airflow_cdc_provider.connector.publish_pulsar import PulsarOptions
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, OffsetMissing
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.kafka.errors import BrokersAway, RecordsRefused
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.kafka.registry import RegistryAway
from airflow_cdc_provider.pulsar.errors import BrokersAway as PulsarBrokersAway

log = logging.getLogger("airflow_cdc_provider.jobs")

MakeEvents = Callable[[Wanted], Iterator[Made]]
"""Makes the events of batches, oldest first."""
SetApart = Callable[[pa.Table, np.ndarray, int, str], None]
"""Keeps refused records: they, their numbers in their batch, the batch, and why."""


class Sender(Protocol):
    """What sends records: :class:`~airflow_cdc_provider.kafka.producer.RecordProducer`."""

    def publish(self, records: Sequence[pa.RecordBatch], headers: Headers, position: PublishPosition) -> None:
        """Send records and the position after them."""
        ...


@dataclass
class BatchPublisher:
    """Publishes the batches of one connector.

    Args:
        sender: Sends records.
        make: Makes events.
        headers: Of all data records.
        form: Digest of all that decides which records a batch has.
        records_at_once: Records that are sent together at most.
        stopping: Tells whether a clean stop was asked for.
        set_apart: Keeps what is refused; None: what is refused ends it.
        position: How far it came.
        transactions: How often something was sent.
        records: How many records were.
        refused: How many were set apart, since they can't be made or the broker refused them.
    """

    sender: Sender
    make: MakeEvents
    headers: Headers
    form: str
    records_at_once: int
    stopping: Callable[[], bool]
    set_apart: SetApart | None
    position: PublishPosition
    transactions: int = 0
    records: int = 0
    refused: int = 0

    def keep_position(self) -> None:
        """Store the position as it is."""
        self._send(_Stretch([], self.position, self.position))

    def publish(self, through: int, now_ns: int) -> None:
        """Publish from the position to the end of a batch.

        Args:
            through: The batch.
            now_ns: When events are made; the rest of a batch that was begun is made as it was begun.

        Raises:
            RecordsRefused: The broker refuses records, and nothing keeps them.
            CorruptInput: A batch has fewer records than were sent of it.
            CdcError: As the sender, and the function that makes events.
        """
        at = self.position
        if at.records:
            wanted = Wanted(at.batch - 1, through, at.now_ns, by_batch=True, state=at.state, first_only=True)
            self._send_made(_only(at.batch, self.make(wanted)), now_ns=at.now_ns, last=at.batch)
        at = self.position
        if at.batch <= through and not at.records and not self.stopping():
            wanted = Wanted(at.batch - 1, through, now_ns, by_batch=True, state=at.state)
            self._send_made(self.make(wanted), now_ns=now_ns, last=through)

    def _send_made(self, found: Iterator[Made], *, now_ns: int, last: int) -> None:
        """Send what was made, a stretch of one batch after the other."""
        skip = self.position.records
        at = replace(self.position, now_ns=now_ns, form=self.form, records=0)
        waiting: list[pa.RecordBatch] = []
        state = at.state
        for made in found:
            if made.batch != at.batch:
                _require_passed(at, skip)
                after = replace(at, batch=made.batch, records=0, state=state)
                if waiting:
                    self._send(_Stretch(waiting, at, after))
                    waiting = []
                    if self.stopping():
                        return
                at = after
            state = made.state
            passed = min(skip, made.records.num_rows)
            skip -= passed
            at = at.further(passed)
            rest = made.records.slice(passed)
            while rest.num_rows:
                free = self.records_at_once - _count(waiting)
                waiting.append(rest.slice(0, free))
                rest = rest.slice(free)
                if _count(waiting) < self.records_at_once:
                    continue
                stretch = _Stretch(waiting, at, at.further(self.records_at_once))
                self._send(stretch)
                at, waiting = stretch.after, []
                if self.stopping():
                    return
        _require_passed(at, skip)
        after = replace(at, batch=last + 1, records=0, state=state)
        if waiting or after.batch != self.position.batch:
            self._send(_Stretch(waiting, at, after))

    def _send(self, stretch: _Stretch) -> None:
        """Send a stretch, all of it or what the broker takes of it."""
        numbers = np.arange(_count(stretch.records)) + stretch.begin.records
        records, numbers = self._without_faults(stretch.records, numbers, stretch.begin.batch)
        self._send_some(records, numbers, stretch.begin, stretch.after)
        self.position = stretch.after

    def _without_faults(
        self, records: Sequence[pa.RecordBatch], numbers: np.ndarray, batch: int
    ) -> tuple[Sequence[pa.RecordBatch], np.ndarray]:
        """Set apart what could not be made, and return the others and their numbers."""
        if all(part["fault"].null_count == part.num_rows for part in records):
            return records, numbers
        assert self.set_apart is not None, "only made where they are set apart"
        table = pa.Table.from_batches(records).combine_chunks()
        sound = table["fault"].is_null().to_numpy()
        for reason in pc.unique(table["fault"]).drop_null().to_pylist():
            alike = pc.equal(table["fault"], reason).fill_null(False)
            self.set_apart(table.filter(alike), numbers[alike.to_numpy()], batch, reason)
        self.refused += int((~sound).sum())
        return table.filter(pa.array(sound)).to_batches(), numbers[sound]

    def _send_some(
        self,
        records: Sequence[pa.RecordBatch],
        numbers: np.ndarray,
        begin: PublishPosition,
        after: PublishPosition,
    ) -> None:
        """Send records by their numbers in the batch; where some are refused, halves, down to single ones."""
        try:
            self.sender.publish(records, self.headers, after)
        except RecordsRefused as refusal:
            if self.set_apart is None or not len(numbers):
                raise
            table = pa.Table.from_batches(records).combine_chunks()
            refused = pc.equal(table["topic"], refusal.topic).to_numpy()
            if not refused.any():
                raise
            if not refusal.whole_topic and len(numbers) > 1:
                half = len(numbers) // 2
                middle = replace(begin, records=int(numbers[half]), form=after.form, now_ns=after.now_ns)
                self._send_some(table.slice(0, half).to_batches(), numbers[:half], begin, middle)
                self._send_some(table.slice(half).to_batches(), numbers[half:], middle, after)
                return
            apart = table.filter(pa.array(refused))
            self.set_apart(apart, numbers[refused], begin.batch, refusal.reason)
            self.refused += apart.num_rows
            left = table.filter(pa.array(~refused)).to_batches()
            self._send_some(left, numbers[~refused], begin, after)
            return
        self.transactions += 1
        self.records += len(numbers)


WAITED_FOR: Final = (BrokersAway, PulsarBrokersAway, RegistryAway)
"""What publishing waits for: servers that don't answer."""


def wait_for_servers(
    publish: Callable[[], None],
    sent: Callable[[], int],
    options: KafkaOptions | PulsarOptions,
    stopping: Callable[[], bool],
    name: str,
) -> None:
    """Publish; again while brokers or the registry don't answer, for at most ``retry_seconds`` at a time.

    What was sent before stays sent: each try begins at the stored position.

    Args:
        publish: Publishes from the stored position on; each time with a new producer.
        sent: Tells how many transactions there were so far.
        options: Say how long and how often.
        stopping: Tells whether a clean stop was asked for.
        name: The connector's.

    Raises:
        BrokersAway: The brokers didn't answer for that long.
        RegistryAway: The registry didn't.
        CdcError: As ``publish``.
    """
    waited_since, before = 0.0, -1
    while True:
        try:
            publish()
        except WAITED_FOR as error:
            now = time.monotonic()
            if sent() > before:
                before, waited_since = sent(), now
            if now - waited_since >= options.retry_seconds or stopping():
                raise
            log.warning("%s: waits and tries again: %s", name, error)
            time.sleep(options.retry_interval_seconds)
        else:
            return


def require_ours(position: PublishPosition, form: str, through: int) -> None:
    """Refuse a position of another changes table, or of a batch whose rest would be another one.

    Args:
        position: The stored one.
        form: Digest of all that decides which records a batch has now.
        through: The newest batch.

    Raises:
        OffsetMissing: It is beyond the changes table.
        ConfigurationError: The form changed in the middle of a batch.
    """
    name = position.connector
    if position.batch > through + 1:
        raise OffsetMissing(
            f"the publishing position of {name} is beyond its changes table",
            expected=f"a batch up to {through + 1}",
            found=str(position.batch),
            remedy="the table was made anew: airflow cdc offsets publish --batch 1 publishes all of it",
        )
    if position.records and position.form != form:
        raise ConfigurationError(
            f"the form of events of {name} changed while batch {position.batch} was being published",
            expected="the options of publish, and the tables, with which it was begun",
            found=f"others, {position.records} records after its begin",
            remedy="publish once with the old options; or send the batch anew in the new form, some of "
            f"its records a second time, by: airflow cdc offsets publish --batch {position.batch}",
        )


@dataclass(frozen=True)
class _Stretch:
    """Records of one batch that are sent together.

    Args:
        records: They; may be none.
        begin: The position of the first.
        after: That after the last.
    """

    records: list[pa.RecordBatch]
    begin: PublishPosition
    after: PublishPosition


def _count(records: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in records)


def _only(batch: int, found: Iterator[Made]) -> Iterator[Made]:
    """Yield what is of one batch, the first."""
    for made in found:
        if made.batch != batch:
            return
        yield made


def _require_passed(at: PublishPosition, skip: int) -> None:
    """Refuse to go on where a batch doesn't have what was sent of it."""
    if skip:
        raise CorruptInput(
            f"batch {at.batch} has fewer records than were sent of it",
            expected=f"{skip} more",
            remedy=f"its records changed; send it anew by: airflow cdc offsets publish --batch {at.batch}",
        )
