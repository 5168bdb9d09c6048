"""Values that a source and jobs exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from airflow_cdc_provider.exceptions import printable
from airflow_cdc_provider.masking import masked

Offset = Mapping[str, Any]
"""Where a run resumes: origin -> position, in the source's own JSON. ``json.dumps(o, sort_keys=True)`` is its
text; each origin's value has a format number under ``"v"``."""


@dataclass(frozen=True)
class Finding:
    """One result of :meth:`.source.Source.check`.

    Args:
        level: ``ok``, ``note`` (what runs will do in a case that may occur), ``warning`` (capture works, but
            needs attention) or ``error`` (capture can't work).
        subject: What was checked, in a few words.
        message: The result of the check.
        remedy: What to do; empty if there is nothing to do.
    """

    level: Literal["ok", "note", "warning", "error"]
    subject: str
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        """Make one printable line of each text, without secrets: it may have a server's words or a name."""
        for name in ("subject", "message", "remedy"):
            object.__setattr__(self, name, printable(masked(getattr(self, name))))


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
class SchemaLimit:
    """How many records of kind ``schema`` a source learns, oldest first.

    Args:
        of: What the limit is of: SQL expressions of a record's columns, separated by commas.
        each: What a record counts, an SQL expression.
        most: A record is learned if those before it count less than this together.
    """

    of: str
    each: str
    most: int


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
        partitions: Parts for :meth:`.source.Source.reader`. Executors read each of them at least once, and
            again after a failure.
        at_head: Whether ``end`` is the requested head, or after it.
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
        seconds: Age of the oldest uncaptured change of a selected table, 0 for none, None if the source
            doesn't know it. Results, metrics, ``airflow cdc lag`` and the source's sensors report the same.
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
        ranges: Parts for :meth:`.source.Source.snapshot_reader`.
        position: The position of the source's feed at planning: a replacing snapshot's fence.
        origin: The feed of that position, empty if a snapshot can't replace rows (cell-level sources).
        estimated_rows: Estimate for the progress display, None if unknown.
        read_after_us: For cell-level sources: every row has a read time after this, µs by the source's clock,
            and the snapshot is complete, so older rows of the mirror that it doesn't contain must be read
            again. 0 if the snapshot may be incomplete.
        resume_at: The position at which the next read of a polled table resumes
            (:meth:`.source.Source.plan_batch`).
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


@dataclass(frozen=True, kw_only=True)
class ChunkRequest:
    """Which chunks of a table an incremental snapshot reads next.

    Args:
        table: The table.
        where: A filter in the source's own language, empty for none.
        start: ``next`` of the previous plan, empty for the first one.
        maximum: From :meth:`.source.Source.maximum_key`; rows beyond it come from the feed.
        position: The committed offset.
        parts: Number of ranges.
        chunks: Number of chunks per range.
        chunk_size: Rows per chunk before the filter is applied; also the number of rows per request.
        number: Sequence number of the connector's plan.
    """

    table: str
    where: str
    start: str
    maximum: str
    position: Offset
    parts: int
    chunks: int
    chunk_size: int
    number: int


@dataclass(frozen=True)
class ChunkPlan:
    """The next chunks of an incremental snapshot of a table.

    Args:
        ranges: Parts for :meth:`.source.Source.snapshot_reader`, in key order.
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
