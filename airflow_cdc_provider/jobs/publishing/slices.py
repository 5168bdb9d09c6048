"""Publishing in slices: tasks of Spark, each a producer with a position of its own.

A slice has all records of each row of the source that it has any of (:mod:`.events.sliced`), and is
published by what publishes the whole (:mod:`.batches`). A task first takes its slice over, which fences
whoever had it, and only then reads the position: so a task that Spark tries again, or a second run, goes on
where the first one came to. Brokers' and registries' logins travel in the pickled task alone, as those of
sources do; neither a plan nor a log shows them.

All slices publish a stretch of batches before one begins the next. How many slices there are is part of their
positions. It changes when all stand at the begin of the same batch: slice 0 is told last, and what it says
counts, so that a change that was broken off is as good as not begun.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.exceptions import CdcError, CommitConflict, ConfigurationError, OffsetMissing
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.events.captured import sliced_records
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.sliced import SliceBuilder, Sliced, SliceRows, batch_ranges
from airflow_cdc_provider.jobs.publishing.batches import WAITED_FOR, BatchPublisher, require_ours
from airflow_cdc_provider.kafka.positions import PositionsTopic, PublishPosition
from airflow_cdc_provider.kafka.producer import Headers, RecordProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.topics import TopicMaker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS_AT_ONCE: Final = 200_000
"""Records of a stretch, for each slice: a clean stop is waited for as long as they take."""
_OUTCOME: Final = pa.schema([pa.field("outcome", pa.binary())])
_DDL: Final = "outcome binary"


@dataclass(frozen=True)
class Producers:
    """Builds the producers of slices. Picklable.

    Args:
        topic: Of positions.
        transactional_id: Leads the slices' ids; empty for delivery at least once.
        topics: Makes topics that are missing; None: brokers or people do.
    """

    topic: PositionsTopic = field(repr=False)
    transactional_id: str
    topics: TopicMaker | None = field(default=None, repr=False)

    def of_slice(self, number: int) -> RecordProducer:
        """Connect the producer of a slice."""
        id_of_slice = f"{self.transactional_id}.{number}" if self.transactional_id else ""
        return RecordProducer(self.topic.settings, self.topic, number, id_of_slice, topics=self.topics)

    def take_all_over(self) -> list[PublishPosition]:
        """Fence all slices' producers, and return where the slices stand; nothing if there are none.

        What is only read may be held back by what a killed task has left open.

        Raises:
            BrokersAway: The brokers don't answer.
            OffsetMissing: A position can't be read, or is missing.
            ConfigurationError: A login, right or setting is wrong.
        """
        return self.topic.all_slices(self.take_over)

    def take_over(self, number: int) -> PublishPosition | None:
        """Fence a slice's producer, and return where the slice stands, None for nowhere."""
        producer = self.of_slice(number)
        try:
            return producer.take_over()
        finally:
            producer.close()


@dataclass(frozen=True)
class SliceOutcome:
    """What a task did.

    Args:
        position: How far its slice came; None if that isn't known.
        damage: What it left out.
        records: How many records it sent.
        transactions: How often it sent something.
        error: What ended it before its time.
    """

    position: PublishPosition | None
    damage: Damage
    records: int = 0
    transactions: int = 0
    error: CdcError | None = None


@dataclass(frozen=True)
class SliceTask:
    """Publishes a stretch of batches of one slice. Picklable, with the secrets of its clients.

    Args:
        producers: Builds its producer.
        registrar: Gives schemas their ids; None for none.
        make: Makes events.
        headers: Of all data records.
        form: Digest of all that decides which records a batch has.
        records_at_once: Records of one transaction.
        slices: How many slices there are.
        after: The stretch begins after this batch: the task is given no records up to it.
        through: The last batch of the stretch.
        now_ns: When events are made.
        strict: Whether what can't be decoded ends it.
    """

    producers: Producers = field(repr=False)
    registrar: Registry | None = field(repr=False)
    make: SliceBuilder = field(repr=False)
    headers: Headers
    form: str
    records_at_once: int
    slices: int
    after: int
    through: int
    now_ns: int
    strict: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Publish the slice of Spark's partition, and tell of it in one row."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        outcome = self.publish(context.partitionId(), batches)
        yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_OUTCOME)

    def publish(self, number: int, batches: Iterator[pa.RecordBatch]) -> SliceOutcome:
        """Publish a slice.

        Args:
            number: Which one.
            batches: Its records, of ``TABLE_SCHEMA`` and in its order; those that are published among them.

        Returns:
            What was done. Errors that have a name are told, not raised: Spark would try in vain again.
        """
        damage = Damage(self.strict)
        publisher: BatchPublisher | None = None
        try:
            producer = self.producers.of_slice(number)
            try:
                position = self._own(producer.take_over(), number)
                if position.batch > self.through:
                    return SliceOutcome(position, damage)
                publisher = BatchPublisher(
                    producer,
                    self._maker(SliceRows(batches), damage),
                    self.headers,
                    self.form,
                    self.records_at_once,
                    lambda: False,
                    None,
                    position,
                )
                publisher.publish(self.through, self.now_ns)
            finally:
                producer.close()
        except CdcError as error:
            return _outcome(publisher, damage, error)
        return _outcome(publisher, damage, None)

    def _maker(self, rows: SliceRows, damage: Damage) -> Callable[[Wanted], Iterator[Made]]:
        def make(wanted: Wanted) -> Iterator[Made]:
            found = rows.between(wanted.after, wanted.until)
            return self.make(found, replace(wanted, registrar=self.registrar), damage)

        return make

    def _own(self, position: PublishPosition | None, number: int) -> PublishPosition:
        """Refuse to go on where another run has parted events otherwise, or set the position back."""
        if position is None or position.slices != self.slices:
            raise CommitConflict(
                f"slice {number} isn't this run's any more",
                expected=f"a position of {self.slices} slices",
                found=f"one of {position.slices}" if position else "none",
                remedy="let only one run publish at a time",
            )
        if position.batch <= self.after:
            raise CommitConflict(
                f"the publishing position of slice {number} was set back while this run published",
                expected=f"a batch from {self.after + 1} on",
                found=str(position.batch),
                remedy="the next run publishes from there",
            )
        if position.batch <= self.through:
            require_ours(position, self.form, self.through)
        return position


@dataclass(frozen=True)
class _WithoutRecords:
    """Publishes a stretch in which there is nothing. Picklable, with the secrets of its clients.

    Args:
        task: Of the stretch.
    """

    task: SliceTask = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do as the task does without records; what Spark's partition has are no records."""
        for _ in batches:
            pass
        return self.task(iter(()))


@dataclass
class SlicedRun:
    """One try to publish all slices; tells what it did also when it fails.

    Args:
        context: The job, for all tables.
        producers: Builds producers.
        registrar: Gives schemas their ids; None for none.
        headers: Of all data records.
        form: Digest of all that decides which records a batch has.
        damage: Collects what is left out.
        positions: How far the slices came, in their order.
        transactions: How often something was sent.
        records: How many records were.
        refused: How many were set apart: none.
    """

    context: JobContext
    producers: Producers
    registrar: Registry | None
    headers: Headers
    form: str
    damage: Damage
    positions: Sequence[PublishPosition]
    transactions: int = 0
    records: int = 0
    refused: int = 0

    @property
    def position(self) -> PublishPosition:
        """The least that a slice came to."""
        return min(self.positions, key=lambda position: (position.batch, position.records))

    def publish(self, through: int) -> None:
        """Publish from the slices' positions to the end of a batch.

        Raises:
            BrokersAway: The brokers don't answer a slice; the others may be whole.
            RegistryAway: The registry doesn't.
            CdcError: As a slice.
        """
        self._require_no_speculation()
        for position in self.positions:
            require_ours(position, self.form, through)
        self._settle()
        after = self.position.batch - 1
        if after >= through:
            return
        sliced = sliced_records(self.context, after, through)
        counts = {row["batch"]: row["count"] for row in sliced.rows.groupBy("batch").count().collect()}
        now_ns = time.time_ns()
        at_once = _ROWS_AT_ONCE * len(self.positions)
        ranges = batch_ranges(counts, after, through, rows_at_once=at_once, isolated=sliced.isolated)
        for start, end in ranges:
            if self.context.stopping():
                return
            has_records = any(start < batch <= end for batch in counts)
            self._publish_range(sliced, start, end, now_ns, has_records=has_records)

    def _publish_range(
        self, sliced: Sliced, after: int, through: int, now_ns: int, *, has_records: bool
    ) -> None:
        slices = len(self.positions)
        options = self.context.connector.publish.kafka
        task = SliceTask(
            self.producers,
            self.registrar,
            sliced.build,
            self.headers,
            self.form,
            options.records_at_once,
            slices,
            after,
            through,
            now_ns,
            self.damage.strict,
        )
        if has_records:
            parted = map_in_arrow(_parted(sliced, after, through, slices), task, _DDL)
        else:  # of nothing adaptive plans make no partitions; positions go on all the same
            parted = map_in_arrow(self.context.spark.range(0, slices, 1, slices), _WithoutRecords(task), _DDL)
        rows = parted.collect()
        # Pickled by this job's own tasks.
        outcomes: list[SliceOutcome] = [pickle.loads(row["outcome"]) for row in rows]  # noqa: S301
        self._note(outcomes)
        told = {one.position.slice: one.position for one in outcomes if one.position is not None}
        whole = sorted(number for number, position in told.items() if position.batch > through)
        if whole != list(range(slices)):
            raise OffsetMissing(
                f"slices of {self.context.connector.name} have not told that batch {through} is published",
                expected=f"slices 0 to {slices - 1}",
                found=str(whole),
            )
        self.positions = [told[number] for number in whole]

    def _note(self, outcomes: Sequence[SliceOutcome]) -> None:
        """Add up what tasks did; raise the error of one, first one that waiting won't mend."""
        for one in outcomes:
            self.records += one.records
            self.transactions += one.transactions
            self.damage.places += one.damage.places
            self.damage.skipped.update(one.damage.skipped)
        errors = [one.error for one in outcomes if one.error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, WAITED_FOR)):
            raise error

    def _settle(self) -> None:
        """Undo what a change of the number of slices that was broken off has told some of them."""
        settled = [replace(position, slices=len(self.positions)) for position in self.positions]
        for wanted, position in zip(settled, self.positions, strict=True):
            if wanted != position:
                log.info("slice %d goes on as one of %d", position.slice, wanted.slices)
                tell(self.producers, wanted, [position])
        self.positions = settled

    def _require_no_speculation(self) -> None:
        speculation = self.context.spark.sparkContext.getConf().get("spark.speculation", "false")
        if speculation == "true":
            raise ConfigurationError(
                "slices are published by tasks, of which Spark must not run a second copy",
                expected="spark.speculation=false, or publish.kafka.slices: 1",
                found="spark.speculation=true",
            )


def begin_slices(producers: Producers, first: PublishPosition, slices: int) -> list[PublishPosition]:
    """Give slices their first position, and return them.

    Raises:
        CommitConflict: Another run has begun.
    """
    positions = [replace(first, slice=number, slices=slices) for number in range(slices)]
    for position in reversed(positions):
        tell(producers, position, None if position.slice else [None])
    return positions


def change_slices(
    producers: Producers, positions: Sequence[PublishPosition], slices: int
) -> list[PublishPosition]:
    """Part events into another number of slices, and return the new positions.

    Slices that are no more are told, too: a task that was believed dead finds that it isn't wanted.

    Args:
        producers: Builds producers.
        positions: Where the old slices stand: all at the begin of one batch.
        slices: How many there are to be.

    Raises:
        CommitConflict: Another run publishes.
    """
    assert {(position.batch, position.records) for position in positions} == {(positions[0].batch, 0)}
    wanted = [
        replace(positions[0], slice=number, slices=slices) for number in range(max(len(positions), slices))
    ]
    for position in reversed(wanted):
        number = position.slice
        tell(producers, position, [positions[number]] if number < len(positions) else None)
    log.info("%s: %d slices from batch %d on", positions[0].connector, slices, positions[0].batch)
    return wanted[:slices]


def tell(
    producers: Producers,
    position: PublishPosition,
    expected: Collection[PublishPosition | None] | None = None,
) -> None:
    """Store the position of a slice, whose producers so far are fenced.

    Args:
        producers: Builds producers.
        position: The position.
        expected: One of them must be stored; None: it doesn't matter what is, or whether it can be read.

    Raises:
        CommitConflict: Something else is stored.
    """
    producer = producers.of_slice(position.slice)
    try:
        stored = producer.take_over(read=expected is not None)
        if expected is not None and stored not in expected:
            raise CommitConflict(
                f"another run publishes slice {position.slice}",
                expected=" or ".join(map(str, expected)),
                found=str(stored),
                remedy="let only one run publish at a time",
            )
        producer.publish((), (), position)
    finally:
        producer.close()


def _parted(sliced: Sliced, after: int, through: int, slices: int) -> DataFrame:
    """Give each slice a partition of its own, whose number is the slice's, in order."""
    from pyspark.sql import functions as f

    number = f.pmod(f.xxhash64(sliced.partition_by), f.lit(slices)).cast("int")
    rows = sliced.rows.where(f.col("batch").between(after + 1, through))
    parted = rows.withColumn("slice", number).repartitionById(slices, "slice")
    return parted.sortWithinPartitions(*sliced.order).drop("slice")


def _outcome(publisher: BatchPublisher | None, damage: Damage, error: CdcError | None) -> SliceOutcome:
    if publisher is None:
        return SliceOutcome(None, damage, error=error)
    return SliceOutcome(publisher.position, damage, publisher.records, publisher.transactions, error)
