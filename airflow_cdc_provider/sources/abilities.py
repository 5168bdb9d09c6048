"""Optional capabilities of a source, its reader or its codec, in addition to :mod:`.base`.

Each capability is a protocol. Jobs test for it with ``isinstance`` and work without it, so a new source only
has to implement :class:`.base.Source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from airflow_cdc_provider.signals.signal import ReceivedSignal
from airflow_cdc_provider.sources.base import ChunkPlan, Codec, Offset, SnapshotPlan
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics

SkippedCounts = Counter[tuple[str, str]]
"""Number of skipped updates or messages, by origin and reason."""


@runtime_checkable
class ReadsPartitions(Protocol):
    """A reader that can read several partitions over one connection."""

    def read_sequentially(self, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Read partitions in sequence, over one connection."""
        ...


@runtime_checkable
class CountsSkipped(Protocol):
    """A reader that counts what it skips."""

    def read_with_skip_counts(self, part: Any, skipped: SkippedCounts) -> Iterator[pa.RecordBatch]:
        """Read one partition; add the skipped updates to ``skipped`` when the partition is exhausted."""
        ...


ReadMetrics = Counter[str]
"""Metrics of the tasks that read a batch.

``wait_us`` is the time spent waiting for the server, ``parse_us`` and ``convert_us`` the processing time.
Tasks with streams of their own add ``events``, ``bytes`` and ``disconnects``. ``creates``, ``updates``,
``deletes``, ``filtered``, ``broken`` and ``transactions`` are those of
:class:`.stream_metrics.StreamMetrics`. A source that paces each table separately adds ``events <table>`` and
``bytes <table>``.
"""


@runtime_checkable
class ReportsReadMetrics(Protocol):
    """A reader that reports metrics of its reads."""

    def read_with_metrics(self, part: Any, counts: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read one partition; add its metrics to ``counts`` when the partition is exhausted."""
        ...


@runtime_checkable
class BatchReadListener(Protocol):
    """A source that adapts its next batch to the metrics of the last one."""

    def on_batch_read(self, reading: ReadMetrics) -> None:
        """Process the metrics of a committed batch."""
        ...


@runtime_checkable
class DescribesRows(Protocol):
    """A snapshot reader that can describe a row in readable form."""

    def describe_row(self, rows: pa.RecordBatch) -> str:
        """Describe the last row of a batch in a line of at most 1000 characters."""
        ...


@runtime_checkable
class HasReplacedFeeds(Protocol):
    """A codec whose row keys contain names of feeds that other feeds have replaced."""

    def families(self, keys: pa.Array) -> pa.Array | None:
        """Return keys that are the same for a row under all feed names; None if no feed was replaced."""
        ...


@runtime_checkable
class ReportsDisconnects(Protocol):
    """A snapshot reader that reconnects after lost connections."""

    def counting_disconnects(self, lost: Callable[[int], None]) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return a reader that calls the picklable function ``lost`` with 1 for each lost connection."""
        ...


@runtime_checkable
class ReportsStreamMetrics(Protocol):
    """A source that reads a server's stream and reports its metrics."""

    def stream_metrics(self) -> Mapping[str, StreamMetrics]:
        """Return the metrics of this process' streams so far, per origin."""
        ...


@runtime_checkable
class HasManyFeeds(Protocol):
    """A source with thousands of ordered feeds per table: metrics are reported per table."""

    many_feeds: bool


@runtime_checkable
class Cancellable(Protocol):
    """A source that may wait long for its server and can be cancelled while it waits."""

    def cancel_when(self, stopping: Callable[[], bool]) -> None:
        """Set the function that returns whether a clean stop was requested."""
        ...


@runtime_checkable
class SnapshotsFromOffset(Protocol):
    """A source whose snapshots are aligned with the position of its feed."""

    def seek_to(self, offset: Offset) -> None:
        """Set the stored offset; called before a snapshot is planned."""
        ...


@runtime_checkable
class HasSchemaHistory(Protocol):
    """A source whose changes can only be decoded with a schema history, which the source itself may not have.

    Its reader quarantines changes that match no known schema (kind ``quarantine``) and emits schema changes
    (kind ``schema``). Both are stored in the changes table: quarantined changes until they can be read,
    schemas for good.
    """

    learned_through: int
    """The batch through which a job has passed the recorded schema; -1 before."""

    def learn(self, records: pa.Table) -> None:
        """Load all records of kind ``schema``; records of other kinds are skipped."""
        ...

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Yield records of the schema changes since the schema was last recorded."""
        ...

    def resumed_at(self, table: str) -> int:
        """Return when capture of a table was re-enabled after a pause, µs since 1970; 0 for never.

        Only a snapshot contains the changes that were written during the pause.
        """
        ...

    def schema_findings(self) -> list[str]:
        """Return messages about parts of the schema that keep mirrors from being updated."""
        ...

    def may_become_readable(self, reason: str) -> bool:
        """Return whether more schemas may make records readable that were quarantined for a reason code."""
        ...

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the picklable function that retries records of kind ``quarantine``.

        It decodes them with the schemas that are known now and yields changes, and records of kind
        ``quarantine`` for those that still can't be read.
        """
        ...


@runtime_checkable
class RewritesRows(Protocol):
    """A codec that may require rows without pending changes to be rewritten."""

    @property
    def rows_to_rewrite(self) -> str:
        """SQL predicate of the mirror's rows that must be rewritten, empty for none."""
        ...


@runtime_checkable
class InfersColumns(RewritesRows, Protocol):
    """A codec that infers columns from the rows."""

    @property
    def infers_columns(self) -> bool:
        """Whether the columns of this table are inferred."""
        ...

    def tally(self, contributions: pa.RecordBatch) -> pa.RecordBatch:
        """Count the fields of contributions, as a batch of :data:`.inferred_columns.FIELD_COUNTS`.

        Runs on executors.
        """
        ...

    def learn(self, counts: pa.Table) -> Codec:
        """Return a codec that has columns for the counted fields; the same one if nothing changes."""
        ...

    def findings(self) -> list[str]:
        """Return messages about values that don't fit their columns."""
        ...


@runtime_checkable
class PollsTables(Protocol):
    """A source with tables that have no change feed and are polled in batches."""

    def in_batches(self, table: str) -> bool:
        """Return whether a table is polled at each run; its snapshot is never finished for good."""
        ...

    def plan_batch(self, table: str, where: str | None, resume_at: str) -> SnapshotPlan:
        """Plan the next read of a polled table: all of it, or what was added since the last read.

        Args:
            table: The table.
            where: A filter in the source's own language.
            resume_at: ``SnapshotPlan.resume_at`` of the last plan; empty to read all.
        """
        ...

    @property
    def batch_interval_seconds(self) -> float:
        """Minimum time between the starts of two reads, in seconds."""
        ...


@runtime_checkable
class FindsGaps(Protocol):
    """A source whose database may drop changes before they are read; capture continues after the gap."""

    def gaps(self, offset: Offset | None) -> tuple[Sequence[str], Offset]:
        """Return what was lost after an offset.

        Returns:
            A message per gap, and the offset after the gaps. Only a snapshot can restore the lost changes.
        """
        ...


@runtime_checkable
class FeedIsComplete(Protocol):
    """A source whose feed is complete, so that tables are never read directly."""

    @property
    def feed_is_complete(self) -> bool:
        """Whether the feed is complete."""
        ...


@runtime_checkable
class RenamesTables(Protocol):
    """A source whose tables can be renamed to a captured name, with rows that have no events.

    Its reader emits a record of kind ``signal`` for such a table, after the fence of the table that it
    replaces. Changes of dropped tables can be decoded up to the drop.
    """

    def describe_arrival(self, payload: bytes) -> str:
        """Describe how the rows arrived, given the payload of such a record."""
        ...


@runtime_checkable
class Rereads(Protocol):
    """A source whose merges may leave unresolved keys, which are then read again.

    A SELECT doesn't return tombstones; an update without its document may belong to an unknown document.
    """

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table, as :meth:`Source.codec` does."""
        ...

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read all rows of some keys again, as snapshot changes. Runs on the driver: unresolved keys are few.

        Yields:
            Batches of one key each, in the order of the keys.
        """
        ...

    def state_payload(self, codec: Codec, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes exactly this state."""
        ...


@runtime_checkable
class ReadsChunks(Protocol):
    """A source that reads a table in key order, a chunk at a time.

    Without it, an incremental snapshot reads the ranges of :meth:`Source.plan_snapshot`. Keys are in the
    source's own format, as text that can be stored.
    """

    def maximum_key(self, table: str, where: str) -> str:
        """Return the largest key of a table now, empty if it has no rows.

        Raises:
            ConfigurationError: The filter is invalid, or the table can't be read.
        """
        ...

    def plan_chunks(
        self,
        table: str,
        where: str,
        *,
        start: str,
        maximum: str,
        position: Offset,
        parts: int,
        chunks: int,
        chunk_size: int,
        number: int,
    ) -> ChunkPlan:
        """Plan the next chunks of a table.

        The chunks contain all changes up to ``position``. They may contain later changes, which the feed
        delivers again after them: no newer change precedes a chunk in the feed.

        Args:
            table: The table.
            where: A filter in the source's own language, empty for none.
            start: ``next`` of the previous plan, empty for the first one.
            maximum: From :meth:`maximum_key`; rows beyond it come from the feed.
            position: The committed offset.
            parts: Number of ranges.
            chunks: Number of chunks per range.
            chunk_size: Rows per chunk before the filter is applied; also the number of rows per request.
            number: Sequence number of the connector's plan.
        """
        ...

    def format_key(self, key: str) -> str:
        """Format a key for display; empty for an empty key."""
        ...


@runtime_checkable
class CarriesSignals(Protocol):
    """A source whose feed may contain signals, as rows of one table."""

    def parse_signals(self, payloads: Sequence[bytes]) -> Sequence[ReceivedSignal]:
        """Parse signals from the payloads of changes of that table, in the order of the feed."""
        ...


@runtime_checkable
class WritesWatermarks(Protocol):
    """A source that can write watermarks around chunks into its feed."""

    def write_watermarks(self, table: str, chunks: Sequence[str], strategy: str, *, opening: bool) -> None:
        """Write the opening or closing watermarks of chunks.

        Args:
            table: The table that gets the watermarks.
            chunks: Names of the chunks.
            strategy: ``insert_insert`` or ``insert_delete``.
            opening: Whether these are opening watermarks.

        Raises:
            ConfigurationError: The user has no write permission on the table.
        """
        ...
