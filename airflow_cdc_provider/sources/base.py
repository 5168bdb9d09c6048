"""The contract of a source: how a database's changes are found, read and decoded.

A source is built on the driver from its options and the connection's values. The capture job calls, in this
order and again for every run::

    check() -> head() -> plan(start, head, limit) -> read(partition) on executors -> ... -> plan(...)

Everything that :meth:`Source.plan` and :meth:`Source.plan_snapshot` return is data: it can be pickled, stored
and read again, and the same partition always yields the same changes. :meth:`Source.codec` gives what decodes
them, without I/O, on executors and offline alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

import pyarrow as pa

from airflow_cdc_provider.changes.drift import Drift
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.signals.signal import Arrived
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers

Offset = Mapping[str, Any]
"""What a run resumes from: origin -> position, in the source's own JSON. ``json.dumps(o, sort_keys=True)`` is
its text; a format number under ``"v"`` comes first in each origin's value."""


PassedOver = Counter[tuple[str, str]]
"""How much was met that becomes no record, by origin and why."""


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
        reached: What the next reading of a table in batches goes on from (:meth:`ReadsInBatches.plan_batch`).
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
    """A database whose changes are captured. Built per job; :meth:`close` ends it."""

    type: str

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


@runtime_checkable
class ReadsSeveral(Protocol):
    """What a reader adds that would else connect once for each partition."""

    def read_several(self, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Read partitions one after the other, over one connection."""
        ...


@runtime_checkable
class CountsPassedOver(Protocol):
    """What a reader adds that meets more than it yields."""

    def read_counting(self, part: Any, passed_over: PassedOver) -> Iterator[pa.RecordBatch]:
        """Read one partition; add what becomes no record, once it is read to its end."""
        ...


ReadingCounts = Counter[str]
"""What tasks did to read: ``wait_us`` for the server, ``parse_us``, ``convert_us``; ``events``, ``bytes`` and
``disconnects`` of streams of their own; and of all that they read ``creates``, ``updates``, ``deletes``,
``filtered``, ``broken`` and ``transactions``, as :class:`.stream_numbers.StreamNumbers` has them."""


@runtime_checkable
class TellsReading(Protocol):
    """What a reader adds that tells where its time goes."""

    def read_telling(self, part: Any, counts: ReadingCounts) -> Iterator[pa.RecordBatch]:
        """Read one partition; add what was done for it, once it is read to its end."""
        ...


@runtime_checkable
class NamesRows(Protocol):
    """What a reader of snapshots adds that can name a row for people."""

    def row_in_words(self, rows: pa.RecordBatch) -> str:
        """Say which row the last one of a batch is, in a line of at most 1000 characters."""
        ...


@runtime_checkable
class InheritsRows(Protocol):
    """What a codec adds whose rows keep the names of feeds that others have taken the place of."""

    def families(self, ids: pa.Array) -> pa.Array | None:
        """Return ids that are equal for a row under whichever of those names; None if no feed has an heir."""
        ...


@runtime_checkable
class CountsDisconnects(Protocol):
    """What a reader of snapshots adds that gets over lost connections."""

    def counting(self, lost: Callable[[int], None]) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return a reader that calls a picklable function with 1 for each connection that it loses."""
        ...


@runtime_checkable
class CountsStreams(Protocol):
    """What a source adds that listens to a server's stream."""

    def stream_numbers(self) -> Mapping[str, StreamNumbers]:
        """Tell, per origin, what this process met on its stream so far."""
        ...


@runtime_checkable
class HearsStop(Protocol):
    """A source that may wait long for its server, and less long when the job is asked to stop."""

    def stop_when(self, stopping: Callable[[], bool]) -> None:
        """Take what tells whether a clean stop was asked for."""
        ...


@runtime_checkable
class SnapshotsFromOffset(Protocol):
    """What a source adds whose snapshots are placed by where its feed stands."""

    def stand_at(self, offset: Offset) -> None:
        """Take in the stored offset; called before a snapshot is planned."""
        ...


@runtime_checkable
class LearnsSchemas(Protocol):
    """What a source adds whose changes can only be told apart by schemas, which it may no longer have.

    Its reader sets apart what no schema explains (kind ``quarantine``) and hands on the schema's own changes
    (kind ``schema``). Both stay in the changes table: the ones until they can be read, the others for good.
    """

    def learn(self, records: pa.Table) -> None:
        """Take in all records of kind ``schema`` that there are; others are passed over."""
        ...

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Make records of what the source's schema is now and was not when it was last recorded."""
        ...

    def resumed_at(self, table: str) -> int:
        """Return when capture of a table was switched on again after a pause, µs since 1970; 0 for never.

        What was written during the pause only a snapshot shows.
        """
        ...

    def schema_findings(self) -> list[str]:
        """Tell what of the schema keeps mirrors from following, in words."""
        ...

    def may_land(self, reason: str) -> bool:
        """Tell whether a record in quarantine for a reason (its code) may be read by a better schema."""
        ...

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the picklable function that reads records of kind ``quarantine`` again.

        It yields what they hold by the schemas that are known now: changes, and again records of kind
        ``quarantine`` for what still can't be read.
        """
        ...


FIELD_COUNTS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("kind", pa.int64()),
        pa.field("count", pa.int64()),
        pa.field("place", pa.int64()),
        pa.field("whole", pa.bool_()),
    ]
)
"""Fields of documents: name, type by the source's number, how often, at which place at the least; and whether
the batch tells of all that there are."""


@runtime_checkable
class RevisitsRows(Protocol):
    """What a codec adds that may show rows anew for which nothing pends."""

    @property
    def revisit(self) -> str:
        """SQL predicate of the mirror's rows that are to be written again with it, empty for none."""
        ...


@runtime_checkable
class LearnsColumns(RevisitsRows, Protocol):
    """What a codec adds whose columns follow from the rows themselves."""

    @property
    def learns_columns(self) -> bool:
        """Whether this table's do."""
        ...

    def tally(self, contributions: pa.RecordBatch) -> pa.RecordBatch:
        """Tell what contributions have, as a batch of :data:`FIELD_COUNTS`. Runs on executors."""
        ...

    def learn(self, counts: pa.Table) -> Codec:
        """Return the codec that shows them too; the same one if it does."""
        ...

    def findings(self) -> list[str]:
        """Tell what columns can't hold, in words."""
        ...


@runtime_checkable
class ReadsInBatches(Protocol):
    """What a source adds that has tables without a feed of changes."""

    def in_batches(self, table: str) -> bool:
        """Tell whether a table is read at each run; a snapshot of it is never done for good."""
        ...

    def plan_batch(self, table: str, where: str | None, reached: str) -> SnapshotPlan:
        """Plan the next reading of such a table: all of it, or what came since the one before.

        Args:
            table: The table.
            where: A filter in the source's own language.
            reached: What the plan before said; empty to read all.
        """
        ...

    @property
    def batch_seconds(self) -> float:
        """How long after the begin of one reading the next one may begin."""
        ...


@runtime_checkable
class FindsGaps(Protocol):
    """What a source adds whose database may drop changes before they are read, and goes on."""

    def gaps(self, offset: Offset | None) -> tuple[Sequence[str], Offset]:
        """Tell what was lost after an offset.

        Returns:
            A text per gap, and the offset that takes what is lost for read. Only a snapshot shows it now.
        """
        ...


@runtime_checkable
class RenamesTables(Protocol):
    """What a source adds whose tables may take others' names, with rows that no event tells of.

    Its reader makes a record of kind ``signal`` of such a table, behind the fence that ended what was there.
    Changes of tables that are gone can be decoded, up to what ended them.
    """

    def arrival(self, payload: bytes) -> str:
        """Say in words, by the payload of such a record, how the rows came."""
        ...


@runtime_checkable
class Rereads(Protocol):
    """What a source adds that can leave a merge in doubt.

    A SELECT hides tombstones; an update without its document may be of one that isn't known.
    """

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table, as :meth:`Source.codec` does."""
        ...

    def read_keys(self, table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Read all rows of some keys again, as snapshot changes. Runs on the driver: doubts are few.

        Yields:
            Batches of one key each, in the order of the keys.
        """
        ...

    def state_payload(self, codec: Codec, state: bytes) -> bytes:
        """Return the payload of a snapshot change that contributes just this state."""
        ...


@runtime_checkable
class ReadsChunks(Protocol):
    """What a source adds that reads a table in the order of its key, a chunk at a time.

    Without it a snapshot beside the stream reads the ranges of :meth:`Source.plan_snapshot`. Keys are the
    source's own, as text that can be stored.
    """

    def maximum_key(self, table: str, where: str) -> str:
        """Return the largest key of a table now, empty if it has no rows.

        Raises:
            ConfigurationError: The filter is wrong, or the table can't be read.
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
        """Cut the next chunks off a table.

        What is read shows all changes up to ``position`` and, if it shows later ones, then such as the feed
        is still to tell: no change stands before it that is newer.

        Args:
            table: The table.
            where: A filter in the source's own language, empty for none.
            start: ``next`` of the plan before, empty for the first one.
            maximum: From :meth:`maximum_key`; rows beyond it are left to the feed.
            position: The offset that is committed.
            parts: How many ranges.
            chunks: Chunks of each.
            chunk_size: Rows of a chunk, counted before the filter; so many are asked for at a time.
            number: Counts the plans of a connector up.
        """
        ...

    def show_key(self, key: str) -> str:
        """Show a key for people, empty for an empty one."""
        ...


@runtime_checkable
class CarriesSignals(Protocol):
    """What a source adds in whose feed signals may stand: rows of one table."""

    def signals_of(self, payloads: Sequence[bytes]) -> Sequence[Arrived]:
        """Read signals from the payloads of changes of that table, in the order of the feed."""
        ...


@runtime_checkable
class WritesMarks(Protocol):
    """What a source adds that can write marks around chunks into its feed."""

    def write_marks(self, table: str, chunks: Sequence[str], strategy: str, *, opening: bool) -> None:
        """Mark that chunks begin, or that they end.

        Args:
            table: Where marks are written.
            chunks: Names of the chunks.
            strategy: ``insert_insert`` or ``insert_delete``.
            opening: Whether they begin.

        Raises:
            ConfigurationError: The user may not write there.
        """
        ...
