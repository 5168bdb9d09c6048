"""Kafka in slices as a target: Spark tasks, each with its own producer and position.

A slice has all records of each of its source rows (:mod:`.events.sliced`), and the same code publishes it as
the whole table (:mod:`.batches`). A task first fences the previous producer of its slice, and only then reads
the position: so a task that Spark retries, or a second run, resumes where the first one stopped. Credentials
of brokers and registries are only in the pickled task, as those of sources are; neither plans nor logs show
them.

All slices publish a range of batches before one starts the next. The number of slices is part of their
positions. It changes only when all slices are at the start of the same batch: the position of slice 0 is
stored last and decides, so that an interrupted change has no effect. A single slice is published on the
driver, as :mod:`.kafka` does.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import SliceBuilder, Sliced, SliceRows, batch_ranges
from airflow_cdc_provider.exceptions import (
    CdcError,
    CommitConflict,
    ConfigurationError,
    OffsetMissing,
    RecordsRejected,
)
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.publishing.batches import (
    RETRIED_ERRORS,
    BatchPublisher,
    StoreDeadLetters,
    require_matching,
)
from airflow_cdc_provider.jobs.publishing.origins.changes import Changes
from airflow_cdc_provider.jobs.publishing.publication import Try
from airflow_cdc_provider.jobs.publishing.targets.kafka import KafkaTarget, Producers, registrar_of
from airflow_cdc_provider.kafka.positions import PublishPosition
from airflow_cdc_provider.kafka.producer import Headers
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.sources.encoding import headers_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS_AT_ONCE: Final = 200_000
"""Records of a range, for each slice: a clean stop takes as long as a range."""
_OUTCOME: Final = pa.schema([pa.field("outcome", pa.binary())])
_DDL: Final = "outcome binary"


@dataclass(frozen=True)
class SlicedKafkaTarget(KafkaTarget[Changes]):
    """The connector's topics, by ``publish.kafka.slices`` producers."""

    def publish(self, origin: Changes, tries: list[Try]) -> None:
        """Publish to the last batch in the stored slices, then change their number to the declared one."""
        slices = self.retries.slices
        self.producers.topic.make(slices)
        positions: Sequence[PublishPosition] = () if slices == 1 else self.producers.fence_all()
        if slices == 1 or len(positions) == 1:
            positions = self._publish_single(origin, tries)
        elif not positions:
            positions = start_slices(self.producers, origin.first, slices)
        if len(positions) > 1:
            run = SlicedRun(self, origin, positions)
            tries.append(run)
            run.publish()
            positions = run.positions
        if len(positions) != slices and all(position.batch > origin.through for position in positions):
            change_slices(self.producers, positions, slices)
        self._beat(origin, tries)

    def stored(self) -> PublishPosition | None:
        """Return the least position of all slices, None for none."""
        return self.producers.topic.slowest()

    def reset(self, origin: Changes, batch: int) -> None:
        """Let the next run start with a batch.

        Positions that can't be read are replaced, with the declared number of slices.
        """
        origin.require(batch)
        self.producers.topic.make(1)
        try:
            first = self.producers.fence(0)
        except OffsetMissing as error:
            log.warning("%s: %s", origin.name, error)
            first = None
        slices = first.slices if first else self.retries.slices
        self.producers.topic.make(slices)
        at = replace(origin.at(batch), slices=slices, owners=first.owners if first else ())
        for number in reversed(range(slices)):
            store_position(self.producers, replace(at, slice=number))

    def _publish_single(self, origin: Changes, tries: list[Try]) -> Sequence[PublishPosition]:
        """Publish on the driver if there is one slice; return the positions of all slices."""
        with closing(self.producers.of_slice()) as producer:
            stored = producer.take_over()
            if stored is None or stored.slices == 1:
                return [self._publish_rest(origin, producer, stored, tries).position]
        return self.producers.fence_all()


@dataclass(frozen=True)
class SliceOutcome:
    """The outcome of a task.

    Args:
        position: The position of its slice; None if unknown.
        skipped: Skipped records.
        records: Number of records sent.
        transactions: Number of transactions sent.
        error: The error that ended the task early.
        dead_letters: Number of dead letters.
        refused: By topic whose records are refused, the reason.
    """

    position: PublishPosition | None
    skipped: SkippedRecords
    records: int = 0
    transactions: int = 0
    error: CdcError | None = None
    dead_letters: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SliceTask:
    """Publishes a range of batches of one slice. Picklable, with the secrets of its clients.

    Args:
        producers: Builds its producer.
        registrar: Assigns ids to schemas; None for none.
        build: Builds events.
        headers: Headers of all data records.
        form: Digest of all options that determine the records of a batch.
        records_per_commit: Records of one transaction.
        slices: Number of slices.
        now_ns: Build time of events.
        strict: Whether a record that can't be decoded is an error.
        after: The batch before the range: the task gets no records up to it.
        through: The last batch of the range.
        empty: Whether the range has no records: rows of Spark's partition are ignored.
        owners: The tables of topics that several claim.
        stored_owners: Those of them that positions store.
    """

    producers: Producers = field(repr=False)
    registrar: Registry | None = field(repr=False)
    build: SliceBuilder = field(repr=False)
    headers: Headers
    form: str
    records_per_commit: int
    slices: int
    now_ns: int
    strict: bool
    after: int = 0
    through: int = 0
    empty: bool = False
    owners: Mapping[str, str] = field(default_factory=dict)
    stored_owners: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Publish the slice of Spark's partition, and return the outcome as one row."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if self.empty:
            for _ in batches:
                pass
            batches = iter(())
        outcome = self.publish(context.partitionId(), batches)
        yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_OUTCOME)

    def publish(
        self, number: int, batches: Iterator[pa.RecordBatch], dead_letters: StoreDeadLetters | None = None
    ) -> SliceOutcome:
        """Publish a slice.

        Args:
            number: The number of the slice.
            batches: Its records, of ``TABLE_SCHEMA`` and in its order, including published ones.
            dead_letters: Stores dead letters; None if the first one is an error.

        Returns:
            The outcome. It includes known errors, which aren't raised: a retry by Spark would be in vain.
        """
        skipped = SkippedRecords(self.strict)
        publisher: BatchPublisher | None = None
        error: CdcError | None = None
        try:
            with closing(self.producers.of_slice(number)) as producer:
                position = self._checked(producer.take_over(), number)
                if position.batch > self.through:
                    return SliceOutcome(position, skipped)
                rows = SliceRows(batches)
                publisher = BatchPublisher(
                    sender=producer,
                    build=lambda wanted: self.build(
                        rows.between(wanted.after, wanted.until),
                        replace(wanted, owners=self.owners),
                        skipped,
                    ),
                    registrar=self.registrar,
                    headers=self.headers,
                    form=self.form,
                    records_per_commit=self.records_per_commit,
                    quarantine=dead_letters,
                    position=replace(position, owners=self.stored_owners),
                )
                publisher.publish(self.through, self.now_ns)
        except CdcError as failure:
            error = failure
        if publisher is None:
            return SliceOutcome(None, skipped, error=error)
        return SliceOutcome(
            publisher.position,
            skipped,
            publisher.records,
            publisher.transactions,
            error,
            publisher.dead_letters,
            publisher.refused,
        )

    def _checked(self, position: PublishPosition | None, number: int) -> PublishPosition:
        """Refuse to continue if another run has changed the number of slices, or set the position back."""
        if position is None or position.slices != self.slices:
            raise CommitConflict(
                f"another run has changed slice {number}",
                expected=f"a position of {self.slices} slices",
                found=f"one of {position.slices}" if position else "none",
                remedy="let only one run publish at a time",
            )
        if position.batch <= self.after:
            raise CommitConflict(
                f"the publishing position of slice {number} was set back while this run published",
                expected=f"a batch from {self.after + 1} on",
                found=str(position.batch),
                remedy="the next run resumes from there",
            )
        if position.batch <= self.through:
            require_matching(position, self.form, self.through)
        return position


@dataclass
class SlicedRun:
    """One try to publish all slices; its counters are valid also after a failure.

    Args:
        target: Builds producers, and has the job.
        origin: The changes.
        positions: The positions of the slices, in their order.
        transactions: Number of transactions sent.
        records: Number of records sent.
        dead_letters: Number of dead letters.
        refused: By topic whose records are refused, the reason.
    """

    target: SlicedKafkaTarget
    origin: Changes
    positions: Sequence[PublishPosition]
    transactions: int = 0
    records: int = 0
    dead_letters: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def position(self) -> PublishPosition:
        """The least position of all slices."""
        return min(self.positions, key=lambda position: (position.batch, position.records))

    def publish(self) -> None:
        """Publish from the slices' positions to the last batch of the changes.

        Raises:
            BrokersUnavailable: The brokers don't respond to a slice; the others may be complete.
            RegistryUnavailable: The registry doesn't respond.
            CdcError: Any error of a slice.
        """
        through = self.origin.through
        self._require_no_speculation()
        for position in self.positions:
            require_matching(position, self.origin.form, through)
        self._settle()
        after = self.position.batch - 1
        if after >= through:
            return
        known = dict.fromkeys(table for position in self.positions for table in position.owners)
        stored = self.origin.survey(after, tuple(known))
        sliced = self.origin.sliced(after)
        counts = {row["batch"]: row["count"] for row in sliced.rows.groupBy("batch").count().collect()}
        task = replace(self._task(sliced.build), stored_owners=stored, owners=self.origin.owners)
        at_once = _ROWS_AT_ONCE * len(self.positions)
        ranges = batch_ranges(counts, after, through, rows_at_once=at_once, isolated=sliced.isolated)
        for start, end in ranges:
            if self.target.job.stopping():
                return
            empty = not any(start < batch <= end for batch in counts)
            self._publish_range(sliced, replace(task, after=start, through=end, empty=empty))

    def _task(self, build: SliceBuilder) -> SliceTask:
        connector = self.target.job.connector
        return SliceTask(
            producers=self.target.producers,
            registrar=registrar_of(connector, self.target.connections),
            build=build,
            headers=headers_of(connector),
            form=self.origin.form,
            records_per_commit=connector.publish.kafka.records_per_commit,
            slices=len(self.positions),
            now_ns=time.time_ns(),
            strict=self.origin.skipped.strict,
        )

    def _publish_range(self, sliced: Sliced, task: SliceTask) -> None:
        if task.empty:  # adaptive plans have no partitions for empty input, but positions must advance
            partitioned = self.origin.stores.spark.range(0, task.slices, 1, task.slices)
        else:
            partitioned = _partitioned(sliced, task)
        rows = map_in_arrow(partitioned, task, _DDL).collect()
        # Pickled by this job's own tasks.
        tried: list[SliceOutcome] = [pickle.loads(row["outcome"]) for row in rows]  # noqa: S301
        outcomes = [part for outcome in tried for part in self._with_dead_letters(sliced, task, outcome)]
        self._add_up(outcomes)
        reported = {one.position.slice: one.position for one in outcomes if one.position is not None}
        complete = sorted(number for number, position in reported.items() if position.batch > task.through)
        if complete != list(range(task.slices)):
            raise OffsetMissing(
                f"slices of {self.origin.name} have not reported batch {task.through} as published",
                expected=f"slices 0 to {task.slices - 1}",
                found=str(complete),
            )
        self.positions = [reported[number] for number in complete]

    def _with_dead_letters(
        self, sliced: Sliced, task: SliceTask, outcome: SliceOutcome
    ) -> list[SliceOutcome]:
        """Publish the rest of a slice that has dead letters on the driver, which can write to the lake."""
        refused = isinstance(outcome.error, RecordsRejected)
        if not refused or not self.target.job.connector.publish.writes_dead_letters:
            return [outcome]
        assert outcome.position is not None, "it is known once records are sent"
        number = outcome.position.slice
        log.info("slice %d has dead letters: the driver publishes the rest of its range", number)
        rows = _partitioned(sliced, task, number).toArrow()
        rest = task.publish(number, iter(rows.to_batches()), self.target.dead_letters.add)
        return [replace(outcome, error=None), rest]

    def _add_up(self, outcomes: Sequence[SliceOutcome]) -> None:
        """Add up the outcomes of tasks; raise the error of one, preferably one that a retry can't resolve."""
        for one in outcomes:
            self.records += one.records
            self.transactions += one.transactions
            self.dead_letters += one.dead_letters
            self.refused |= one.refused
            self.origin.skipped.update(one.skipped)
        errors = [one.error for one in outcomes if one.error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, RETRIED_ERRORS)):
            raise error

    def _settle(self) -> None:
        """Undo an interrupted change of the number of slices."""
        settled = [replace(position, slices=len(self.positions)) for position in self.positions]
        for changed, position in zip(settled, self.positions, strict=True):
            if changed != position:
                log.info("slice %d resumes as one of %d", position.slice, changed.slices)
                store_position(self.target.producers, changed, [position])
        self.positions = settled

    def _require_no_speculation(self) -> None:
        speculation = self.origin.stores.spark.sparkContext.getConf().get("spark.speculation", "false")
        if speculation == "true":
            raise ConfigurationError(
                "Spark must not run a second copy of the tasks that publish slices",
                expected="spark.speculation=false, or publish.kafka.slices: 1",
                found="spark.speculation=true",
            )


def start_slices(producers: Producers, first: PublishPosition, slices: int) -> list[PublishPosition]:
    """Store the first positions of slices, and return them.

    Raises:
        CommitConflict: Another run has started.
    """
    positions = [replace(first, slice=number, slices=slices) for number in range(slices)]
    for position in reversed(positions):
        store_position(producers, position, None if position.slice else [None])
    return positions


def change_slices(
    producers: Producers, positions: Sequence[PublishPosition], slices: int
) -> list[PublishPosition]:
    """Change the number of slices, and return the new positions.

    Removed slices get a new position, too, which stops a task that was believed dead.

    Args:
        producers: Builds producers.
        positions: The positions of the old slices: all at the start of one batch.
        slices: The new number of slices.

    Raises:
        CommitConflict: Another run publishes.
    """
    assert {(position.batch, position.records) for position in positions} == {(positions[0].batch, 0)}
    changed = [
        replace(positions[0], slice=number, slices=slices) for number in range(max(len(positions), slices))
    ]
    for position in reversed(changed):
        number = position.slice
        store_position(producers, position, [positions[number]] if number < len(positions) else None)
    log.info("%s: %d slices from batch %d on", positions[0].connector, slices, positions[0].batch)
    return changed[:slices]


def store_position(
    producers: Producers,
    position: PublishPosition,
    expected: Collection[PublishPosition | None] | None = None,
) -> None:
    """Fence the previous producers of a slice, and store its position.

    Args:
        producers: Builds producers.
        position: The position.
        expected: Valid stored positions; None for any, even one that can't be read.

    Raises:
        CommitConflict: Another position is stored.
    """
    with closing(producers.of_slice(position.slice)) as producer:
        stored = producer.take_over(read=expected is not None)
        if expected is not None and stored not in expected:
            raise CommitConflict(
                f"another run publishes slice {position.slice}",
                expected=" or ".join(map(str, expected)),
                found=str(stored),
                remedy="let only one run publish at a time",
            )
        producer.publish((), (), position)


def _partitioned(sliced: Sliced, task: SliceTask, only: int | None = None) -> DataFrame:
    """Partition records by slice, so that the partition's number is the slice's, and sort them.

    With the number of one slice, only its records are returned, in its order.
    """
    from pyspark.sql import functions as f

    number = f.pmod(f.xxhash64(sliced.partition_by), f.lit(task.slices)).cast("int")
    rows = sliced.rows.where(f.col("batch").between(task.after + 1, task.through))
    if only is not None:
        return rows.where(number == only).sort(*sliced.order)
    partitioned = rows.withColumn("slice", number).repartitionById(task.slices, "slice")
    return partitioned.sortWithinPartitions(*sliced.order).drop("slice")
