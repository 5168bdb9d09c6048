"""A database whose changes are captured: how they are discovered, planned and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost
from airflow_cdc_provider.signals.signal import ReceivedSignal
from airflow_cdc_provider.sources.contract.codec import Codec
from airflow_cdc_provider.sources.contract.reader import Reader, ReadMetrics
from airflow_cdc_provider.sources.contract.values import (
    ChunkPlan,
    ChunkRequest,
    Finding,
    Lag,
    Offset,
    Plan,
    ReadLimit,
    SchemaLimit,
    SnapshotPlan,
)
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics


class Source(ABC):
    """One connector's database, as the driver sees it. The package's docstring has the order of calls.

    It opens connections when they are first needed, so decoding works without any, and :meth:`close` releases
    them.

    Attributes:
        has_schema_history: Whether the reader emits records of kind ``schema``, which :meth:`learn` gets
            back: changes can't be decoded without them.
        schema_limits: Which of these records :meth:`learn` gets, one limit after the other; all by default.
        learned_through: The batch through which a job has passed the recorded schema; set by jobs.
        renames_tables: Whether a table can get a captured name by a rename, with rows that have no events.
            The reader then emits a record of kind ``signal``, after the fence of the table that it replaces;
            and changes of dropped tables can be decoded up to the drop.
        feed_is_complete: Whether the feed has all rows, so that tables are never read directly.
        resumes_tables: Whether offsets keep the positions of tables that aren't selected, so that none of
            their changes is missing once they are selected again.
        planned_ranges: Converts the ranges of :meth:`plan_snapshot` to JSON and back.
        reads_chunks: Whether :meth:`maximum_key` and :meth:`plan_chunks` read a table in key order. Otherwise
            an incremental snapshot reads the ranges of :meth:`plan_snapshot`.
        rereads_keys: Whether merges may leave unresolved keys, which :meth:`read_keys` reads again.
        many_feeds: Whether a table has thousands of ordered feeds, so that metrics are counted per table.
    """

    has_schema_history: ClassVar[bool] = False
    schema_limits: ClassVar[Sequence[SchemaLimit]] = ()
    learned_through: int = -1
    renames_tables: ClassVar[bool] = False
    feed_is_complete: ClassVar[bool] = False
    resumes_tables: bool = False
    planned_ranges: ClassVar[PlannedRanges] = PlannedRanges({})
    reads_chunks: ClassVar[bool] = False
    rereads_keys: ClassVar[bool] = False
    many_feeds: ClassVar[bool] = False

    # Set-up.

    @abstractmethod
    def check(self) -> list[Finding]:
        """Verify the prerequisites of capture: server, permissions, tables, retention.

        Called by ``airflow cdc check`` and the hook's connection test, never by a run. Problems are returned
        as findings, not raised.
        """

    def cancel_when(self, stopping: Callable[[], bool]) -> None:
        """Set the function that returns whether a clean stop was requested.

        Called once, first. A source that waits for its server calls the function while it waits, and returns
        early. Default: ignored.
        """
        del stopping

    def close(self) -> None:  # noqa: B027 - not every source has connections
        """Release all connections. Called once, last, also after an error. Default: there are none."""

    # Schema.

    @abstractmethod
    def tables(self) -> list[str]:
        """Return the tables that the declaration selects, sorted."""

    def requires_name(self, table: str) -> bool:
        """Return whether only its literal name selects a table, not a pattern. Default: False."""
        return False

    @abstractmethod
    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table for its current schema. Called for every table of every merge.

        Args:
            table: A name from :meth:`tables`.
            memory: :meth:`.codec.Codec.remember` of when the mirror was last written: it preserves what must
                not change under stored states (column ids). None for a new mirror.

        Raises:
            SchemaUnknown: The source has no such table, or nothing of it was captured. The table's merge
                fails; other tables are merged.
        """

    def learn(self, records: pa.Table) -> None:
        """Load the records of kind ``schema``; skip other kinds. Default: nothing.

        Called before :meth:`tables`, and again when further ones are committed; each call replaces the last.
        """
        del records

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Yield records of the schema changes since the schema was last recorded. Default: none.

        Called once per capture, after :meth:`head`; the first batch contains them.
        """
        return iter(())

    def resumed_at(self, table: str) -> int:
        """Return when capture of a table was re-enabled after a pause, µs since 1970. Default: 0, never.

        Only a snapshot contains the changes that were written during the pause: one that started earlier is
        repeated.
        """
        return 0

    def schema_findings(self) -> list[str]:
        """Return messages about parts of the schema that keep mirrors from being updated. Default: none."""
        return []

    def describe_arrival(self, payload: bytes) -> str:
        """Describe how the rows of a renamed table arrived, given the payload of its record.

        Called if ``renames_tables``.
        """
        raise NotImplementedError

    def may_become_readable(self, reason: str) -> bool:
        """Return whether more schemas may make records readable that were quarantined for a reason code.

        While there are such records, mirrors keep their tombstones. Default: False.
        """
        return False

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the picklable function that retries records of kind ``quarantine``, on executors.

        It decodes them with the schemas that are known now and yields changes, and records of kind
        ``quarantine`` for those that still can't be read. Called after each capture if ``has_schema_history``
        and there are such records. Default: a function that returns them unchanged.
        """
        return _unchanged

    # Snapshot.

    def seek_to(self, offset: Offset) -> None:
        """Set the stored offset, at which a snapshot must be aligned. Default: it needn't be.

        Called before :meth:`plan_snapshot`, unless nothing was captured yet.
        """
        del offset

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Split a table into ranges that are read in parallel and committed separately.

        Called once per snapshot and table, right before its first range is read; the ranges are stored, and a
        later run resumes with those that are left. Default: refuses snapshots.

        Args:
            table: A name from :meth:`tables`.
            where: A filter in the source's own language.
        """
        raise ConfigurationError(f"{table} can't be read: this source takes no snapshots")

    def snapshot_reader(self) -> Reader:
        """Return the reader of ranges and chunks, as records of kind ``snapshot``. Called for each commit."""
        raise NotImplementedError

    def in_batches(self, table: str) -> bool:
        """Return whether a table has no feed and is read at each run. Default: False.

        Its snapshot is never finished for good.
        """
        return False

    @property
    def batch_interval_seconds(self) -> float:
        """Minimum time between the starts of two reads of such a table, in seconds."""
        return 0.0

    def plan_batch(self, table: str, where: str | None, resume_at: str) -> SnapshotPlan:
        """Plan the next read of such a table: all of it, or what was added since the last read.

        Default: all of it.

        Args:
            table: A table that is read in batches.
            where: A filter in the source's own language.
            resume_at: ``SnapshotPlan.resume_at`` of the last plan; empty to read all.
        """
        return self.plan_snapshot(table, where)

    def refused_filter(self, where: str) -> str:
        """Return why a signal may not have a filter of rows; empty if it may. Default: it may.

        A signal is written by others than the declaration. Called when it is received, unless option
        ``signals.unrestricted_filters`` is set; whatever this raises refuses the filter, too.
        """
        del where
        return ""

    # Incremental snapshot: chunks between two batches of the capture.

    def maximum_key(self, table: str, where: str) -> str:
        """Return the largest key of a table now, in the source's own format as text; empty without rows.

        Called once per table, before its first chunk; like the next methods only if ``reads_chunks``.

        Raises:
            ConfigurationError: The filter is invalid, or the table can't be read. The request fails, and
                capture continues.
        """
        raise NotImplementedError

    def plan_chunks(self, request: ChunkRequest) -> ChunkPlan:
        """Plan the next chunks of a table; their ranges are read at once and committed together.

        The chunks contain all changes up to the request's ``position``. They may contain later changes, which
        the feed delivers again after them: no newer change precedes a chunk in the feed.

        Raises:
            ConfigurationError: As for :meth:`maximum_key`.
        """
        raise NotImplementedError

    def format_key(self, key: str) -> str:
        """Format a key for display; empty for an empty key. Default: the key."""
        return key

    def write_watermarks(self, table: str, chunks: Sequence[str], strategy: str, *, opening: bool) -> None:
        """Write the opening or closing watermarks of chunks into the feed. Default: nothing.

        Called around each commit of chunks if option ``snapshot.incremental.watermarks`` isn't ``none``.

        Args:
            table: The table that gets the watermarks.
            chunks: Names of the chunks.
            strategy: ``insert_insert`` or ``insert_delete``.
            opening: Whether these are opening watermarks.
        """
        del table, chunks, strategy, opening

    # Capture.

    def start(self) -> Offset | None:
        """Return where a new connector starts to capture. Default: None, the earliest position.

        Called once in the connector's life, before its first snapshot or capture, with or without snapshots.
        A source whose history is expensive to read starts at its head: the snapshots cover everything before.
        """
        return None

    @abstractmethod
    def head(self) -> Offset:
        """Return the position up to which changes exist now. Called once per capture: it ends there."""

    @abstractmethod
    def validate_offset(self, offset: Offset) -> None:
        """Validate the format of an offset that an operator supplies.

        Raises:
            ConfigurationError: The offset is invalid.
        """

    def gaps(self, offset: Offset | None) -> tuple[Sequence[PositionLost], Offset]:
        """Return which changes were dropped before they were read; capture continues after them.

        Called once per capture, after :meth:`head`. Only a snapshot can restore the lost changes. Default:
        none, a source that can't continue raises ``PositionLost`` in :meth:`plan`.

        Returns:
            An error per gap, and the offset after the gaps. Either all errors name the tables with the gap,
            each a table of its own, or none does: then all tables have it.
        """
        return (), offset or {}

    def offset_after_loss(self) -> Offset | None:
        """Return where capture resumes if the data after its offset are lost. Default: None, the earliest."""
        return None

    @abstractmethod
    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch.

        Called in a loop, each time with the end of the last plan once that is committed, until a plan is at
        the head; a run that died in between plans the same batch again.

        Args:
            start: The stored offset, None to start at the earliest position.
            head: Where to stop; from :meth:`head`. A source that gets changes in groups stops after the group
                that contains the head.
            limit: The size of the batch.

        Raises:
            PositionLost: The source no longer has the data after ``start``. If the exception names tables,
                the next plans, up to the head, have the changes of all other tables.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """Return the reader of partitions.

        Called once per capture, before the first plan, and after a batch if :meth:`on_batch_read` says so.
        """

    def left_out(self) -> Mapping[str, CdcError]:
        """Return the tables that the last plan left out, with the reason. Default: none.

        Called once per capture, last. All other tables are captured.
        """
        return {}

    def on_batch_read(self, metrics: ReadMetrics) -> bool:
        """Adapt the next batch to the metrics of the last one, which is committed. Default: nothing.

        Returns:
            Whether the next batch needs another :meth:`reader`, which knows the schemas of this one.
        """
        del metrics
        return False

    # Re-reads.

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read all rows of some keys again, as snapshot changes. Runs on the driver: unresolved keys are few.

        Called after a merge, if ``rereads_keys``. A SELECT doesn't return tombstones; an update without its
        document may belong to an unknown document. After a ``TransientError`` the keys that are left stay
        unresolved until the next run, which continues normally.

        Yields:
            Batches of one key each, in the order of the keys.
        """
        raise NotImplementedError

    # Signals.

    def parse_signals(self, payloads: Sequence[bytes]) -> Sequence[ReceivedSignal]:
        """Parse signals from payloads of changes of table ``signals.collection``, in the order of the feed.

        Called after each capture that read some; the plug-in's options decide whether a declaration may name
        such a table. Default: none.
        """
        return ()

    # Metrics.

    @abstractmethod
    def lag(self, offset: Offset | None) -> Lag:
        """Return how far an offset is behind the head. Called at the end of each run, and by sensors."""

    def stream_metrics(self) -> Mapping[str, StreamMetrics]:
        """Return the metrics of this process' streams so far, per origin. Default: there are none."""
        return {}


def _unchanged(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield records
