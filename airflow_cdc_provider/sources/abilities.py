"""What a source, its reader or its codec may add to the contract of :mod:`.base`.

Each is a protocol of its own. Jobs ask with ``isinstance`` and do without where there is none, so a new
source begins with :class:`.base.Source` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa

from airflow_cdc_provider.signals.signal import Arrived
from airflow_cdc_provider.sources.base import ChunkPlan, Codec, Offset, SnapshotPlan
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers

PassedOver = Counter[tuple[str, str]]
"""How much was met that becomes no record, by origin and why."""


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
``filtered``, ``broken`` and ``transactions``, as :class:`.stream_numbers.StreamNumbers` has them. A source
whose tables keep a pace of their own has ``events <table>`` and ``bytes <table>`` beside."""


@runtime_checkable
class TellsReading(Protocol):
    """What a reader adds that tells where its time goes."""

    def read_telling(self, part: Any, counts: ReadingCounts) -> Iterator[pa.RecordBatch]:
        """Read one partition; add what was done for it, once it is read to its end."""
        ...


@runtime_checkable
class HearsReading(Protocol):
    """What a source adds whose next batch follows from what the last one held."""

    def heard(self, reading: ReadingCounts) -> None:
        """Take in what tasks told of a batch that is committed."""
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

    def families(self, keys: pa.Array) -> pa.Array | None:
        """Return keys that are equal for a row under all of those names; None if no feed has an heir."""
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
class HasManyFeeds(Protocol):
    """What a source adds whose tables each come by thousands of ordered feeds: numbers are told per table."""

    many_feeds: bool


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
class FeedIsWhole(Protocol):
    """What a source adds whose feed has all that there is: no table is ever read beside it."""

    @property
    def feed_is_whole(self) -> bool:
        """Whether it has."""
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
