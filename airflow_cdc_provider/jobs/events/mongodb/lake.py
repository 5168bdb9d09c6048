"""What a changes table holds of MongoDB to events: the same that a recording gives.

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

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.transactions import OpenTransaction
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.mongodb.records import MongodbRecords, selector
from airflow_cdc_provider.jobs.events.sliced import Sliced
from airflow_cdc_provider.sources.mongodb import events as mongodb_events
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.records import is_captured
from airflow_cdc_provider.sources.mongodb.reread import REREAD_NUMBER
from airflow_cdc_provider.sources.mongodb.schema_changes import decode_schema_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHOWN: Final = (record.CHANGE, record.SNAPSHOT, record.QUARANTINE)
_OF_COLLECTIONS: Final = (record.DROP, record.SCHEMA)
"""Kinds of what happens to collections and databases: drops and renames, and all else."""
_POSITION_BYTES: Final = 12
_ROWS_AT_ONCE: Final = 10_000
_ROWS_TOGETHER: Final = 200_000
_RANGE_AT: Final = 13
"""Where, from 1, the number of its range stands in a snapshot row's position; the row's follows."""
_RANGE_BYTES: Final = 4
_PLACE_TYPE: Final = "struct<batch: bigint, is_changes: boolean, table: string, range: binary>"


def captured_records(context: JobContext, wanted: Wanted, damage: Damage) -> Iterator[Made]:
    """Make the records of batches, oldest first.

    Args:
        context: The job; with tables in its spec only theirs.
        wanted: Which. If transactions are told, earlier batches are read, too, for the one that they leave
            open, unless ``state`` tells it.
        damage: Collects what is left out.

    Yields:
        Some thousands of events' at a time.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
    """
    connector = context.connector
    publish = connector.publish
    maker = MongodbRecords(connector, wanted.now_ns, damage.skipped, registrar=wanted.registrar)
    if wanted.state:
        maker.open = OpenTransaction.from_json(wanted.state)
    elif wanted.state is None and wanted.after and publish.transactions:
        earlier = MongodbRecords(connector, wanted.now_ns)
        for piece in _pieces(context, 0, wanted.after):
            earlier.pass_over(_decode(earlier, piece, Damage(strict=False)))
        maker.open = earlier.open
    yield from _made(maker, _pieces(context, wanted.after, wanted.through), damage)


def sliced_records(context: JobContext, after: int, through: int) -> Sliced:
    """Part records by their document; what is of none by its feed."""
    from pyspark.sql import functions as f

    rows = _placed(context.changes.pending(after, through, kinds=(*_SHOWN, record.SNAPSHOT_END)))
    found = _captured(context, _survey(rows))
    shown = [one for one in found if one.kind in _SHOWN]
    names = {one.table for one in shown}
    ends = _ends_of_snapshots(found)
    lasts = frozenset(_last_of(rows, end, names) for end in ends & {one.place for one in shown})
    is_snapshot = f.col("kind") == record.SNAPSHOT
    return Sliced(
        _of_tables(rows, names).select(*record.TABLE_SCHEMA.names),
        f.coalesce("key", f.encode("origin", "utf-8")),
        [
            f.col("batch"),
            ~is_snapshot,
            f.when(is_snapshot, f.col("source_table")).otherwise(""),
            f.when(is_snapshot, f.substring("position", _RANGE_AT, 2 * _RANGE_BYTES)),
            f.col("position"),
        ],
        MongodbSlice(context.connector, lasts),
    )


@dataclass(frozen=True)
class MongodbSlice:
    """Makes the events of a slice of MongoDB's records.

    Args:
        connector: The declaration.
        lasts: Batch and position of the last rows of whole snapshots.
    """

    connector: Connector
    lasts: frozenset[tuple[int, bytes]] = frozenset()

    def __call__(self, rows: Iterator[pa.RecordBatch], wanted: Wanted, damage: Damage) -> Iterator[Made]:
        """Make them; see :class:`~.sliced.SliceMaker`."""
        maker = MongodbRecords(self.connector, wanted.now_ns, damage.skipped, registrar=wanted.registrar)
        pieces = (piece for batch in rows if batch.num_rows for piece in _runs(batch))
        return _made(maker, map(self._with_end, pieces), damage)

    def _with_end(self, piece: _Piece) -> _Piece:
        ends = (piece.batch, piece.rows["position"][-1].as_py()) in self.lasts
        return replace(piece, ends_snapshot=ends)


def _made(maker: MongodbRecords, pieces: Iterable[_Piece], damage: Damage) -> Iterator[Made]:
    """Make the records of pieces that follow each other."""
    tracks = maker.connector.publish.transactions
    for piece in pieces:
        if piece.kind == record.QUARANTINE:
            for row, reason in enumerate(piece.rows["reason"].to_pylist()):
                damage.add(piece.place(row), reason or "it was set apart")
            continue
        events = _decode(maker, piece, damage)
        schema_changes = _schema_changes(maker.connector, piece)
        if not events.num_rows and not (schema_changes is not None and schema_changes.num_rows):
            continue
        records, reasons = maker.records(
            events,
            last_of_snapshot=piece.ends_snapshot,
            incremental=piece.beside_stream,
            schema_changes=schema_changes,
        )
        for row, reason in sorted(reasons.items()):
            damage.add(piece.place(row), reason)
        yield Made(piece.batch, records, maker.open.to_json() if tracks else "")


@dataclass(frozen=True)
class _Piece:
    """Records of one kind and batch that follow each other; of snapshots, of one collection, read one way.

    Args:
        batch: The batch.
        kind: Their kind; that of changes for all that stands in the stream.
        rows: Batch of ``CHANGE_SCHEMA``.
        ends_snapshot: Whether the last of them is the last of a whole snapshot.
    """

    batch: int
    kind: str
    rows: pa.RecordBatch
    ends_snapshot: bool = False

    @property
    def beside_stream(self) -> bool:
        """Whether they are rows of a snapshot that were read beside the stream."""
        return self.kind == record.SNAPSHOT and self.rows["request"][0].is_valid

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


def _schema_changes(connector: Connector, piece: _Piece) -> pa.RecordBatch | None:
    """Decode changes of collections and databases, where they are wanted."""
    if not connector.publish.schema_changes or piece.kind != record.CHANGE:
        return None
    options = connector.source
    assert isinstance(options, MongodbOptions)
    chosen = selector(connector, options)

    def captured(database: str, collection: str) -> bool:
        return is_captured(f"{database}.{collection}", chosen)

    found = decode_schema_changes(piece.rows["payload"], captured, connector.publish.mongodb.json)
    # A rename has a record for its new name, too, behind that for the old one if that is captured.
    places = pc.binary_length(piece.rows["position"]).to_numpy()
    told = [
        places[row] == _POSITION_BYTES or not captured(database, collection or "")
        for row, database, collection in zip(
            *(found[name].to_pylist() for name in ("row", "database", "collection")), strict=True
        )
    ]
    return found.filter(pa.array(told, pa.bool_()))


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
    kinds = (*_SHOWN, *_OF_COLLECTIONS) if context.connector.publish.schema_changes else _SHOWN
    rows = _placed(context.changes.pending(after, through, kinds=(*kinds, record.SNAPSHOT_END)))
    found = _captured(context, _survey(rows))
    ends = _ends_of_snapshots(found)
    wanted = set(context.spec.tables)
    shown = [one for one in found if one.kind in kinds and (not wanted or one.table in wanted)]
    names = {one.table for one in shown}
    for places in _together(shown, ends):
        piece: _Piece | None = None
        for batch in _read(rows, places, names, kinds).to_batches(max_chunksize=_ROWS_AT_ONCE):
            for found_piece in _runs(batch):
                if piece is not None:
                    yield piece
                piece = found_piece
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

    beside = f.col("request").isNotNull() & (f.col("kind") == record.SNAPSHOT)
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


def _read(
    rows: DataFrame, places: Sequence[_Place], tables: set[str | None], kinds: Sequence[str]
) -> pa.Table:
    """Read the records of places that follow each other, in order: columns of ``TABLE_SCHEMA``."""
    part = _of_tables(_between(rows, places[0], places[-1]), tables, kinds)
    ordered = part.orderBy("place.batch", "place.is_changes", "place.table", "row", "position")
    return ordered.select(*record.TABLE_SCHEMA.names).toArrow().cast(record.TABLE_SCHEMA)


def _between(rows: DataFrame, first: _Place, last: _Place) -> DataFrame:
    from pyspark.sql import functions as f

    def literal(place: _Place) -> Column:
        parts = (place.batch, place.is_changes, place.table, bytearray(place.range))
        return f.struct(*(f.lit(part) for part in parts)).cast(_PLACE_TYPE)

    return rows.where(
        # The first condition says nothing new, but Iceberg can leave out files by it.
        f.col("batch").between(first.batch, last.batch)
        & f.col("place").between(literal(first), literal(last))
    )


def _of_tables(rows: DataFrame, tables: set[str | None], kinds: Sequence[str] = _SHOWN) -> DataFrame:
    """Keep what becomes events of some tables, or is of none."""
    from pyspark.sql import functions as f

    table = f.col("source_table")
    named = table.isin(sorted(name for name in tables if name is not None))
    return rows.where(f.col("kind").isin(*kinds) & (named | table.isNull() if None in tables else named))


def _last_of(rows: DataFrame, place: _Place, tables: set[str | None]) -> tuple[int, bytes]:
    """Return batch and position of the last record at a place."""
    part = _of_tables(_between(rows, place, place), tables)
    (last,) = part.orderBy("row", "position", ascending=False).select("position").take(1)
    return place.batch, bytes(last["position"])


def _runs(batch: pa.RecordBatch) -> Iterator[_Piece]:
    """Cut records where batch or kind change, or of snapshots the collection or the way of reading.

    What is of collections and databases stands in the stream, and is cut out of it by nothing.
    """
    numbers = batch["batch"].to_numpy()
    batch = batch.drop_columns(["batch"])
    of_collections = pc.is_in(batch["kind"], value_set=pa.array(_OF_COLLECTIONS))
    read_as = pc.if_else(of_collections, record.CHANGE, batch["kind"])
    kinds = read_as.dictionary_encode()
    tables = batch["source_table"].dictionary_encode()
    codes = kinds.indices.to_numpy(zero_copy_only=False)
    names = pc.fill_null(tables.indices, -1).to_numpy(zero_copy_only=False)
    cuts = (codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1])
    if record.SNAPSHOT in kinds.dictionary.to_pylist():
        of_snapshot = codes == kinds.dictionary.index(record.SNAPSHOT).as_py()
        beside = batch["request"].is_valid().to_numpy(zero_copy_only=False)
        cuts |= of_snapshot[1:] & ((names[1:] != names[:-1]) | (beside[1:] != beside[:-1]))
    starts = [0, *(np.flatnonzero(cuts) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield _Piece(int(numbers[start]), read_as[start].as_py(), batch.slice(start, end - start))
