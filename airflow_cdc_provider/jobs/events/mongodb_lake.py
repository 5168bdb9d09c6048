"""What a changes table holds of MongoDB to lines of events: the same lines that a recording gives.

The payloads are the change events and documents themselves, so decoder, envelope and encoder are those of
recordings. This module brings them into publishing order: batch after batch; in each the rows of a snapshot,
by collection and range, then changes as in the stream. So whoever applies them in order ends at the newest
state: a change that a read has seen comes again behind it, never a read behind a change that it hasn't seen.

The event of a whole snapshot's last row says so (``source.snapshot`` is ``last``). A snapshot is whole where
all collections that it began are read to their end, and the next batch has no more rows of one. Rows that
were read beside the stream, which name the request in column ``transaction``, are ``incremental``: they have
the place of their position.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.events.encoder import to_lines
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.mongodb import MongodbRecords
from airflow_cdc_provider.jobs.offline.mongodb import selector
from airflow_cdc_provider.jobs.offline.recordings import Damage
from airflow_cdc_provider.sources.mongodb import events as mongodb_events
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.records import is_captured
from airflow_cdc_provider.sources.mongodb.reread import REREAD_NUMBER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHOWN: Final = (record.CHANGE, record.SNAPSHOT, record.QUARANTINE)
_ROWS_AT_ONCE: Final = 10_000
_ROWS_TOGETHER: Final = 200_000
_RANGE_AT: Final = 13
"""Where, from 1, the number of its range stands in a snapshot row's position; the row's follows."""
_RANGE_BYTES: Final = 4
_PLACE_TYPE: Final = "struct<batch: bigint, is_changes: boolean, table: string, range: binary>"


def captured_lines(
    context: JobContext, after: int, through: int, now_ns: int, damage: Damage
) -> Iterator[pa.LargeStringArray]:
    """Write the events of batches, oldest first.

    Args:
        context: The job; with tables in its spec only theirs.
        after: Batches up to this one are left out. If transactions are told, they are read all the same, for
            the one that they leave open.
        through: The last batch.
        now_ns: When events are built, ns since 1970.
        damage: Collects what is left out.

    Yields:
        Lines, some thousands at a time.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
        ConfigurationError: Schema changes are asked for.
    """
    connector = context.connector
    publish = connector.publish
    if publish.schema_changes:
        raise ConfigurationError(
            "events of schema changes are not told from the lake, which keeps drops and renames alone",
            expected="publish.schema_changes: false",
            remedy="leave it out here, or print the events of a recording",
        )
    shared = context_headers(connector.topic_prefix, publish.task_id, "mongodb", str(uuid.uuid4()))
    headers = shared if publish.headers else ()
    maker = MongodbRecords(connector, now_ns, damage.skipped)
    if after and publish.transactions:
        earlier = MongodbRecords(connector, now_ns)
        for piece in _pieces(context, 0, after):
            earlier.pass_over(_decode(earlier, piece, Damage(strict=False)))
        maker.open = earlier.open
    for piece in _pieces(context, after, through):
        if piece.kind == record.QUARANTINE:
            for row, reason in enumerate(piece.rows["schema_id"].to_pylist()):
                damage.add(piece.place(row), reason or "it was set apart")
            continue
        events = _decode(maker, piece, damage)
        if not events.num_rows:
            continue
        records, reasons = maker.records(
            events, last_of_snapshot=piece.ends_snapshot, incremental=piece.beside_stream
        )
        for row, reason in sorted(reasons.items()):
            damage.add(piece.place(row), reason)
        yield to_lines(records, headers)


@dataclass(frozen=True)
class _Piece:
    """Records of one kind that follow each other; of snapshots, of one collection and one way of reading.

    Args:
        kind: Their kind.
        rows: Batch of ``CHANGE_SCHEMA``.
        ends_snapshot: Whether the last of them is the last of a whole snapshot.
    """

    kind: str
    rows: pa.RecordBatch
    ends_snapshot: bool = False

    @property
    def beside_stream(self) -> bool:
        """Whether they are rows of a snapshot that were read beside the stream."""
        return self.kind == record.SNAPSHOT and self.rows["transaction"][0].is_valid

    def place(self, row: int) -> str:
        table, position = (self.rows[name][row].as_py() for name in ("source_table", "position"))
        return f"{table or 'the stream'} at {position.hex()}"


def _decode(maker: MongodbRecords, piece: _Piece, damage: Damage) -> pa.RecordBatch:
    """Decode changes, or rows of a snapshot."""
    options = maker.connector.source
    assert isinstance(options, MongodbOptions)
    payloads = piece.rows["payload"]
    if piece.kind == record.SNAPSHOT:
        database, _, collection = piece.rows["source_table"][0].as_py().partition(".")
        form = maker.form(database, collection)
        versions = piece.rows["version"] if piece.beside_stream else None
        decoded = mongodb_events.decode_snapshot(payloads, database, collection, form, versions)
    else:
        decoded = mongodb_events.decode_stream(
            payloads, full_document=options.full_document, pre_images=options.pre_images, form=maker.form()
        )
    for row, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
        damage.add(piece.place(row), reason)
    return decoded.events


@dataclass(frozen=True, order=True)
class _Place:
    """What is read at once at least: a range of a snapshot in a batch, or the changes of a batch."""

    batch: int
    is_changes: bool
    table: str
    range: bytes


@dataclass(frozen=True)
class _Found:
    """How many records of a kind and collection stand at a place; of snapshots, of one way of reading."""

    place: _Place
    kind: str
    table: str | None
    beside_stream: bool
    count: int


def _pieces(context: JobContext, after: int, through: int) -> Iterator[_Piece]:
    """Read place after place, small ones together: as much at once as fits a driver's memory."""
    rows = _placed(context.changes.pending(after, through, kinds=(*_SHOWN, record.SNAPSHOT_END)))
    found = _captured(context, _survey(rows))
    ends = _ends_of_snapshots(found)
    wanted = set(context.spec.tables)
    shown = [one for one in found if one.kind in _SHOWN and (not wanted or one.table in wanted)]
    names = {one.table for one in shown}
    for places in _together(shown, ends):
        piece: _Piece | None = None
        for batch in _read(rows, places, names).to_batches(max_chunksize=_ROWS_AT_ONCE):
            for kind, run in _runs(batch):
                if piece is not None:
                    yield piece
                piece = _Piece(kind, run)
        if piece is not None:
            yield replace(piece, ends_snapshot=places[-1] in ends)


def _placed(rows: DataFrame) -> DataFrame:
    """Add a record's place as columns, and the columns that its place is read in the order of.

    What a merge read again for its mirror is no event: the changes that left it in doubt are.
    """
    from pyspark.sql import functions as f

    is_snapshot = f.col("kind") == record.SNAPSHOT
    number = f.substring("position", _RANGE_AT, _RANGE_BYTES)
    read_again = is_snapshot & (number == f.lit(REREAD_NUMBER.to_bytes(_RANGE_BYTES, "big")))
    return rows.where(~read_again).select(
        "*",
        f.struct(
            "batch",
            (~is_snapshot).alias("is_changes"),
            f.when(is_snapshot, f.col("source_table")).otherwise("").alias("table"),
            f.when(is_snapshot, number).otherwise(f.lit(bytearray())).alias("range"),
        ).alias("place"),
        f.when(is_snapshot, f.substring("position", _RANGE_AT, 2 * _RANGE_BYTES)).alias("row"),
    )


def _survey(rows: DataFrame) -> list[_Found]:
    """Count records by place; reads narrow columns."""
    from pyspark.sql import functions as f

    beside = f.col("transaction").isNotNull() & (f.col("kind") == record.SNAPSHOT)
    counted = rows.groupBy("place", "kind", "source_table", beside.alias("beside")).count().collect()
    return [
        _Found(
            _Place(
                row["place"]["batch"],
                row["place"]["is_changes"],
                row["place"]["table"],
                bytes(row["place"]["range"]),
            ),
            row["kind"],
            row["source_table"],
            row["beside"],
            row["count"],
        )
        for row in counted
    ]


def _captured(context: JobContext, found: Iterable[_Found]) -> list[_Found]:
    """Keep what the declaration still selects, and what is of no collection."""
    options = context.connector.source
    assert isinstance(options, MongodbOptions)
    chosen = selector(context.connector, options)
    return [one for one in found if one.table is None or is_captured(one.table, chosen)]


def _ends_of_snapshots(found: Sequence[_Found]) -> set[_Place]:
    """Find the places that whole snapshots end with."""
    by_batch: dict[int, list[_Found]] = defaultdict(list)
    for one in found:
        if one.kind in (record.SNAPSHOT, record.SNAPSHOT_END) and not one.beside_stream:
            by_batch[one.place.batch].append(one)
    ends: set[_Place] = set()
    begun: set[str | None] = set()
    last: _Place | None = None
    for batch in sorted(by_batch):
        rows = [one for one in by_batch[batch] if one.kind == record.SNAPSHOT]
        last = max((one.place for one in rows), default=last)
        begun |= {one.table for one in rows}
        begun -= {one.table for one in by_batch[batch] if one.kind == record.SNAPSHOT_END}
        if batch + 1 not in by_batch:
            if last is not None and not begun:
                ends.add(last)
            last = None
    return ends


def _together(found: Sequence[_Found], ends: set[_Place]) -> Iterator[list[_Place]]:
    """Put places together that are read at once; one that ends a snapshot is the last of them."""
    counts: dict[_Place, int] = defaultdict(int)
    for one in found:
        counts[one.place] += one.count
    together: list[_Place] = []
    size = 0
    for place in sorted(counts):
        if together and (size + counts[place] > _ROWS_TOGETHER or together[-1] in ends):
            yield together
            together, size = [], 0
        together.append(place)
        size += counts[place]
    if together:
        yield together


def _read(rows: DataFrame, places: Sequence[_Place], tables: set[str | None]) -> pa.Table:
    """Read the records of places that follow each other, in order."""
    from pyspark.sql import functions as f

    def literal(place: _Place) -> Column:
        parts = (place.batch, place.is_changes, place.table, bytearray(place.range))
        return f.struct(*(f.lit(part) for part in parts)).cast(_PLACE_TYPE)

    table = f.col("source_table")
    named = table.isin(sorted(name for name in tables if name is not None))
    part = rows.where(
        # The first condition says nothing new, but Iceberg can leave out files by it.
        f.col("batch").between(places[0].batch, places[-1].batch)
        & f.col("place").between(literal(places[0]), literal(places[-1]))
        & f.col("kind").isin(*_SHOWN)
        & (named | table.isNull() if None in tables else named)
    )
    ordered = part.orderBy("place.batch", "place.is_changes", "place.table", "row", "position")
    return ordered.select(*record.CHANGE_SCHEMA.names).toArrow().cast(record.CHANGE_SCHEMA)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Cut a batch where the kind changes, or of snapshots the collection or the way of reading."""
    kinds = batch["kind"].dictionary_encode()
    tables = batch["source_table"].dictionary_encode()
    codes = kinds.indices.to_numpy(zero_copy_only=False)
    names = pc.fill_null(tables.indices, -1).to_numpy(zero_copy_only=False)
    cuts = codes[1:] != codes[:-1]
    if record.SNAPSHOT in kinds.dictionary.to_pylist():
        of_snapshot = codes == kinds.dictionary.index(record.SNAPSHOT).as_py()
        beside = batch["transaction"].is_valid().to_numpy(zero_copy_only=False)
        cuts |= of_snapshot[1:] & ((names[1:] != names[:-1]) | (beside[1:] != beside[:-1]))
    starts = [0, *(np.flatnonzero(cuts) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield batch["kind"][start].as_py(), batch.slice(start, end - start)
