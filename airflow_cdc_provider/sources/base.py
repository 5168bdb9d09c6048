"""The contract of a source: how a database's changes are found, read and decoded.

A source is built on the driver from its options and the connection's values. The capture job calls, in this
order and again for every run::

    check() -> head() -> plan(start, head, limit) -> read(partition) on executors -> ... -> plan(...)

Everything that :meth:`Source.plan` and :meth:`Source.plan_snapshot` return is data: it can be pickled, stored
and read again, and the same partition always yields the same changes. :meth:`Source.codec` gives what decodes
them, without I/O, on executors and offline alike.

What only some sources can do stands in :mod:`.abilities`.
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
"""What a run resumes from: origin -> position, in the source's own JSON. ``json.dumps(o, sort_keys=True)`` is
its text; a format number under ``"v"`` comes first in each origin's value."""


@dataclass(frozen=True)
class Finding:
    """One result of :meth:`Source.check`.

    Args:
        level: ``ok``, ``warning`` (capture works, something should be looked at) or ``error`` (it can't
        work). subject: What was looked at, in a few words. message: What was found. remedy: What to do, empty
        for ``ok``.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class ReadLimit:
    """How much one batch may take; a source ends a batch at the first limit it meets.

    Args:
        bytes: Native bytes, about.
        changes: Number of changes, about, where the source can tell before reading.
        tasks: How many tasks read a batch at once. A source may cut it into so many partitions.
    """

    bytes: int = 256 * 1024 * 1024
    changes: int = 1_000_000
    tasks: int = 1


@dataclass(frozen=True)
class SegmentCounts:
    """How a batch meets the segments of one feed.

    Args:
        waiting: Segments with changes before the head that no batch before this one has read.
        taken: Those of them that it reads from.
        read: Those of them that it reads to their end, or up to the head while they grow.
        kept: Segments that were read to their end before it, or aren't wanted, and are still there.
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
        partitions: What :meth:`Source.read` is called with, each on some executor, each perhaps more than
        once. at_head: Whether ``end`` is the head that was asked for. records: Change records that the
        source made itself while it planned, by column name; they belong to the batch.
        segments: Per origin, of sources that read segments.
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
        seconds: Age of the oldest change not captured, None where the source can't tell.
        bytes: Bytes not captured, None likewise.
        details: Per origin, for people; ``file``, ``position``, ``segments`` and ``kept`` are told of
        sources that read segments. remarks: What of it somebody should look at.
    """

    seconds: float | None
    bytes: int | None
    details: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class SnapshotPlan:
    """A snapshot of one table, in ranges that are read in parallel and each resumable.

    Args:
        table: The table.
        ranges: What :meth:`Source.read_snapshot` is called with.
        position: Where the source's feed stood when the plan was made: a replacing snapshot fences here.
        origin: The feed of that position, empty where a snapshot can't replace (cell-level sources).
        estimated_rows: For progress, None if unknown.
        read_after_us: Cell-level sources: what is read bears a time of reading after this, µs by the source's
            clock, and nothing that is there is missed, so what a mirror has from before and the snapshot
            doesn't show must be read again. 0 where it may miss something.
        reached: What the next reading of a table in batches goes on from
            (:meth:`.abilities.ReadsInBatches.plan_batch`).
        partial: Whether it reads only a part of what there is, and so never replaces.
        others: Further feeds that the table's rows come by, each with its position: it fences them too.
    """

    table: str
    ranges: Sequence[Any]
    position: bytes
    origin: str
    estimated_rows: int | None = None
    read_after_us: int = 0
    reached: str = ""
    partial: bool = False
    others: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class ChunkPlan:
    """The next chunks of a table that is copied beside the stream.

    Args:
        ranges: What :meth:`Source.snapshot_reader` reads, in order of the key.
        next: Where the chunks after them begin, for the next plan.
        done: Whether they are the last ones.
    """

    ranges: Sequence[Any]
    next: str
    done: bool


@dataclass(frozen=True)
class Decoded:
    """What a codec makes of a batch of changes of one table.

    Args:
        contributions: Batch of :data:`~airflow_cdc_provider.changes.contribution.CONTRIBUTION_SCHEMA`.
        undecodable: Row numbers of the input that were left out.
        reasons: One text per such row, each leading with a code.
        rows: Per contribution the row of the input that it is of, if the source tells.
    """

    contributions: pa.RecordBatch
    undecodable: Sequence[int] = ()
    reasons: Sequence[str] = ()
    rows: Sequence[int] = ()


class Codec(Protocol):
    """Decodes the changes of one table and shows its rows. Picklable, without I/O or connections.

    ``model`` tells how contributions compete: ``row`` (greatest version wins whole) or ``cell`` (each cell by
    its write time, under the rule set named by ``rules``).
    """

    table: str
    model: Literal["row", "cell"]
    rules: str

    @property
    def drift(self) -> Drift:
        """What became of the table since the memory was taken."""
        ...

    @property
    def created_us(self) -> int:
        """When the table was created, in us since 1970; 0 where its source doesn't tell."""
        ...

    @property
    def column_ids(self) -> frozenset[int] | None:
        """Ids of the columns in states; None where no column has gone, or where states name none."""
        ...

    @property
    def static_columns(self) -> StaticColumns | None:
        """The table's static columns; None where its source knows no such."""
        ...

    @property
    def lived_by(self) -> tuple[str, ...] | None:
        """The columns that keep rows alive as they did at the last merge; None if that are all there were."""
        ...

    def decode(self, changes: pa.RecordBatch, fences: Sequence[Fence]) -> Decoded:
        """Decode changes of kind ``change`` and ``snapshot``.

        Args:
            changes: Batch of ``CHANGE_SCHEMA`` (further columns are ignored), all of this table.
            fences: The table's fences; they give each contribution its generation.
        """
        ...

    def mirror_schema(self) -> pa.Schema:
        """Return the columns that a mirror shows without ``_cdc``: the source's names, lake types."""
        ...

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Show live rows (``LIVE_ROW_SCHEMA``) as the mirror's columns, one row each, in the same order."""
        ...

    def to_json(self, rows: pa.RecordBatch) -> Iterator[str]:
        """Show live rows as the database's own JSON: ``SELECT JSON *``, canonical Extended JSON."""
        ...


class Source(Protocol):
    """A database whose changes are captured. Built per job; :meth:`close` ends it.

    Attributes:
        type: The source's name in declarations.
        planned_ranges: Converts the ranges of :meth:`plan_snapshot` to JSON and back.
    """

    type: str
    planned_ranges: PlannedRanges

    def check(self) -> list[Finding]:
        """Look at everything that capture needs; never raises for what it finds."""
        ...

    def tables(self) -> list[str]:
        """List the tables that the declaration selects, sorted."""
        ...

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table by its present schema.

        Args:
            table: A name from :meth:`tables`.
            memory: What :meth:`remember` gave for this table when its mirror was last written: it keeps what
                must not change under stored states (column ids). None for a new mirror.

        Raises:
            SchemaUnknown: The source doesn't know the table.
        """
        ...

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return the JSON that the mirror keeps for the next :meth:`codec` call."""
        ...

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory that the mirror must keep before anything that a codec made is written.

        With it the next :meth:`codec` call, should this merge not come to its end, can't contradict what was
        written, beside the mirror or by fitting its columns.

        Args:
            codec: From :meth:`codec`.
            memory: The mirror's, from which the codec was made.

        Returns:
            The memory; None if the given one will do.
        """
        ...

    def start(self) -> Offset | None:
        """Return where a new connector begins to capture, with snapshots or not; None: the earliest place.

        A source whose history can't be read cheaply begins at its head: what came before is in the snapshots.
        """
        ...

    def after_loss(self) -> Offset | None:
        """Return where capture goes on when the data after its offset are gone; None: the earliest place."""
        ...

    def head(self) -> Offset:
        """Return the place up to which changes exist now."""
        ...

    def earliest(self) -> Offset:
        """Return the first place from which capture could start."""
        ...

    def lag(self, offset: Offset | None) -> Lag:
        """Tell how far an offset is behind the head."""
        ...

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of a wrong form, given by a person.

        Raises:
            ConfigurationError: With what is expected.
        """
        ...

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Cut the next batch.

        Args:
            start: The stored offset, None to begin at the earliest place.
            head: Where to stop, from :meth:`head`.
            limit: Its size.

        Raises:
            PositionLost: The data after ``start`` are gone.
        """
        ...

    def reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one partition of a plan as ``CHANGE_SCHEMA`` batches."""
        ...

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Cut a table into ranges; ``where`` is a filter in the source's own language."""
        ...

    def snapshot_reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads one range as snapshot changes."""
        ...

    def row_count(self, table: str) -> int | None:
        """Count the table's rows now where that is cheap enough, for progress and quick checks."""
        ...

    def close(self) -> None:
        """End connections."""
        ...
