"""The interface of a source: how a database's changes are discovered, read and decoded.

The driver builds a source from its options and the connection's values. Every run of the capture job calls,
in this order::

    check() -> head() -> plan(start, head, limit) -> read(partition) on executors -> ... -> plan(...)

:meth:`Source.plan` and :meth:`Source.plan_snapshot` return plain data: it can be pickled and stored, and the
same partition always yields the same changes. :meth:`Source.codec` returns the decoder, which does no I/O and
works on executors and offline.

Optional capabilities of a source are protocols in :mod:`.abilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pyarrow as pa

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges

Offset = Mapping[str, Any]
"""Where a run resumes: origin -> position, in the source's own JSON. ``json.dumps(o, sort_keys=True)`` is its
text; each origin's value has a format number under ``"v"``."""


@dataclass(frozen=True)
class Finding:
    """One result of :meth:`Source.check`.

    Args:
        level: ``ok``, ``warning`` (capture works, but needs attention) or ``error`` (capture can't work).
        subject: What was checked, in a few words.
        message: The result of the check.
        remedy: What to do; empty for ``ok``.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class ReadLimit:
    """The size limits of one batch; a source ends a batch at the first limit that it reaches.

    Args:
        bytes: Approximate size in the source's native encoding.
        changes: Approximate number of changes, for sources that know it before reading.
        tasks: How many tasks read a batch in parallel: the most partitions that a source splits it into.
    """

    bytes: int = 256 * 1024 * 1024
    changes: int = 1_000_000
    tasks: int = 1


@dataclass(frozen=True)
class SegmentCounts:
    """The segments of one feed, as seen by a batch.

    Args:
        waiting: Segments with changes before the head that no earlier batch has read.
        taken: The pending segments that this batch reads from.
        read: The pending segments that this batch reads to their end, or up to the head if they still grow.
        kept: Segments that an earlier batch read to their end or that aren't selected, and that still exist.
    """

    waiting: int = 0
    taken: int = 0
    read: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Plan:
    """One bounded batch.

    Args:
        end: The offset after the batch; stored in the same commit as its data.
        partitions: Arguments for the function of :meth:`Source.reader`. Executors read each of them at least
            once, and again after a failure.
        at_head: Whether ``end`` is the requested head.
        records: Change records that the source created during planning, by column name; part of the batch.
        segments: Segment counts per origin, for sources that read segments.
    """

    end: Offset
    partitions: Sequence[Any]
    at_head: bool
    records: Sequence[Mapping[str, Any]] = ()
    segments: Mapping[str, SegmentCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class Lag:
    """How far an offset is behind the source.

    Args:
        seconds: Age of the oldest uncaptured change, None if the source doesn't know it.
        bytes: Uncaptured bytes, None if unknown.
        details: Human-readable details per origin. Sources that read segments report ``file``, ``position``,
            ``segments`` and ``kept``.
        remarks: Messages that need an operator's attention.
    """

    seconds: float | None
    bytes: int | None
    details: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class SnapshotPlan:
    """A snapshot of one table, split into ranges that are read in parallel and resumed separately.

    Args:
        table: The table.
        ranges: Arguments for the function of :meth:`Source.snapshot_reader`.
        position: The position of the source's feed at planning: a replacing snapshot's fence.
        origin: The feed of that position, empty if a snapshot can't replace rows (cell-level sources).
        estimated_rows: Estimate for the progress display, None if unknown.
        read_after_us: For cell-level sources: every row has a read time after this, µs by the source's clock,
            and the snapshot is complete, so older rows of the mirror that it doesn't contain must be read
            again. 0 if the snapshot may be incomplete.
        resume_at: The position at which the next read of a polled table resumes
            (:meth:`.abilities.PollsTables.plan_batch`).
        partial: Whether it reads only a part of the table and so never replaces rows.
        other_positions: Positions of further feeds with rows of the table; the snapshot fences them too.
    """

    table: str
    ranges: Sequence[Any]
    position: bytes
    origin: str
    estimated_rows: int | None = None
    read_after_us: int = 0
    resume_at: str = ""
    partial: bool = False
    other_positions: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ChunkPlan:
    """The next chunks of an incremental snapshot of a table.

    Args:
        ranges: Arguments for the function of :meth:`Source.snapshot_reader`, in key order.
        next: The start of the following chunks, for the next plan.
        done: Whether these are the last chunks.
    """

    ranges: Sequence[Any]
    next: str
    done: bool


@dataclass(frozen=True)
class Decoded:
    """The decoded changes of one table.

    Args:
        contributions: Batch of :data:`~airflow_cdc_provider.changes.contribution.CONTRIBUTION_SCHEMA`.
        undecodable: Indexes of the input rows that could not be decoded.
        reasons: A text per undecodable row, which begins with a code.
        rows: Per contribution the index of its input row; empty if the source doesn't report it.
    """

    contributions: pa.RecordBatch
    undecodable: Sequence[int] = ()
    reasons: Sequence[str] = ()
    rows: Sequence[int] = ()


class Codec(Protocol):
    """Decodes the changes of one table and projects its rows. Picklable, without I/O or connections.

    ``model`` is how conflicting contributions are resolved: ``row`` (the row with the greatest version wins)
    or ``cell`` (each cell by its write time, under the rule set ``rules``).
    """

    table: str
    model: Literal["row", "cell"]
    rules: str

    @property
    def drift(self) -> Drift:
        """Schema changes of the table since the memory was stored."""
        ...

    @property
    def created_us(self) -> int:
        """When the table was created, in us since 1970; 0 if the source doesn't report it."""
        ...

    @property
    def column_ids(self) -> frozenset[int] | None:
        """Ids of the columns in states; None if no column was dropped, or if states have no column ids."""
        ...

    @property
    def static_columns(self) -> StaticColumns | None:
        """The table's static columns; None if the source has no such concept."""
        ...

    @property
    def liveness_columns(self) -> tuple[str, ...] | None:
        """The columns that kept rows alive at the last merge and still do; None if that is all of them."""
        ...

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot``.

        Args:
            changes: Batch of ``CHANGE_SCHEMA`` (further columns are ignored), all of this table.
            fences: The table's fences; they give each contribution its generation.
        """
        ...

    def mirror_schema(self) -> pa.Schema:
        """Return the mirror's columns without ``_cdc``: the source's names, lake types."""
        ...

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows (``LIVE_ROW_SCHEMA``) to the mirror's columns, one per row, in the same order."""
        ...

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Yield live rows as the database's own JSON: ``SELECT JSON *``, canonical Extended JSON."""
        ...


class Source(Protocol):
    """A database whose changes are captured. Built once per job; :meth:`close` releases its connections.

    Attributes:
        type: The source's name in declarations.
        planned_ranges: Converts the ranges of :meth:`plan_snapshot` to JSON and back.
    """

    type: str
    planned_ranges: PlannedRanges

    def check(self) -> list[Finding]:
        """Verify the prerequisites of capture. Problems are returned as findings, not raised."""
        ...

    def tables(self) -> list[str]:
        """Return the tables that the declaration selects, sorted."""
        ...

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table for its current schema.

        Args:
            table: A name from :meth:`tables`.
            memory: The result of :meth:`remember` for this table when its mirror was last written: it
                preserves what must not change under stored states (column ids). None for a new mirror.

        Raises:
            SchemaUnknown: The source has no such table.
        """
        ...

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return the JSON that the mirror stores for the next :meth:`codec` call."""
        ...

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory that the mirror must store before output of a codec is written.

        With it, the next :meth:`codec` call is consistent with what an unfinished merge has written: rows in
        other tables, or changes of the mirror's columns.

        Args:
            codec: From :meth:`codec`.
            memory: The mirror's, from which the codec was built.

        Returns:
            The memory; None if the given one suffices.
        """
        ...

    def start(self) -> Offset | None:
        """Return where a new connector starts to capture, with or without snapshots; None: the earliest.

        A source whose history is expensive to read starts at its head: the snapshots cover everything before.
        """
        ...

    def offset_after_loss(self) -> Offset | None:
        """Return where capture resumes if the data after its offset are lost; None: the earliest position."""
        ...

    def head(self) -> Offset:
        """Return the position up to which changes exist now."""
        ...

    def earliest(self) -> Offset:
        """Return the first position from which capture can start."""
        ...

    def lag(self, offset: Offset | None) -> Lag:
        """Return how far an offset is behind the head."""
        ...

    def validate_offset(self, offset: Offset) -> None:
        """Validate the format of an offset that an operator supplies.

        Raises:
            ConfigurationError: The offset is invalid.
        """
        ...

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch.

        Args:
            start: The stored offset, None to start at the earliest position.
            head: Where to stop; from :meth:`head`.
            limit: The size of the batch.

        Raises:
            PositionLost: The source no longer has the data after ``start``.
        """
        ...

    def reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one partition of a plan as ``CHANGE_SCHEMA`` batches."""
        ...

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Split a table into ranges; ``where`` is a filter in the source's own language."""
        ...

    def snapshot_reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one range as snapshot changes."""
        ...

    def row_count(self, table: str) -> int | None:
        """Return the number of rows if it is cheap to count, for progress and quick checks; else None."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
