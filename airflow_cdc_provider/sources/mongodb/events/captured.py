"""Events from the MongoDB records of a changes table: the same events as from a recording.

The payloads are the change events and documents themselves, so decoder, envelope and encoder are the same as
for recordings. This module defines the publishing order: batch by batch; in each the rows of a snapshot, by
collection and range, then changes in stream order. So a consumer that applies them in order gets the newest
state: a change that a snapshot row includes may follow that row again, but a snapshot row never follows a
change that it doesn't include.

The event of the last row of a whole snapshot has ``source.snapshot`` ``last``. A snapshot is whole if all
collections that it started are read completely, and the next batch has no more rows of a snapshot. Rows of
incremental snapshots, which have the request in column ``request``, are ``incremental``; their position
determines their order.
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
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced
from airflow_cdc_provider.events.transactions import OpenTransaction
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords, selector
from airflow_cdc_provider.sources.mongodb.events.schema_changes import decode_schema_changes
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.reread import REREAD_NUMBER
from airflow_cdc_provider.sources.mongodb.selection import is_captured
from airflow_cdc_provider.sources.plugin import options_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHOWN: Final = (record.CHANGE, record.SNAPSHOT, record.QUARANTINE)
_OF_COLLECTIONS: Final = (record.DROP, record.SCHEMA)
"""Kinds of records for changes of collections and databases: drops and renames, and all others."""
_POSITION_BYTES: Final = 12
_ROWS_AT_ONCE: Final = 10_000
_ROWS_PER_READ: Final = 200_000
_RANGE_AT: Final = 13
"""Offset, from 1, of the range number in a snapshot row's position; the row number follows."""
_RANGE_BYTES: Final = 4
_SECTION_TYPE: Final = "struct<batch: bigint, is_changes: boolean, table: string, range: binary>"


def captured_records(
    connector: Connector, changes: ChangesTable, request: EventRequest, skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the records of some thousands of events at a time; see :class:`.event_source.SourceEvents`.

    With transaction metadata, earlier batches are read, too, to find the open transaction, unless the request
    has it as ``state``.
    """
    publish = connector.publish
    builder = _builder(connector, request, skipped)
    if request.state:
        builder.open = OpenTransaction.from_json(request.state)
    elif request.state is None and request.after and publish.transactions:
        earlier = MongodbRecords(connector, request.now_ns)
        for piece in _pieces(connector, changes, replace(request, after=0, through=request.after)):
            earlier.skip(_decode(earlier, piece, SkippedRecords(strict=False)))
        builder.open = earlier.open
    yield from _build(builder, _pieces(connector, changes, request), skipped)


def sliced_records(connector: Connector, changes: ChangesTable, after: int, through: int) -> Sliced:
    """Partition records by their document; records without one by their feed."""
    from pyspark.sql import functions as f

    rows = _with_sections(changes.pending(after, through, kinds=(*_SHOWN, record.SNAPSHOT_END)))
    found = _captured(connector, _survey(rows))
    shown = [one for one in found if one.kind in _SHOWN]
    names = {one.table for one in shown}
    ends = _ends_of_snapshots(found)
    lasts = frozenset(_last_of(rows, end, names) for end in ends & {one.section for one in shown})
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
        MongodbSlice(connector, lasts),
    )


@dataclass(frozen=True)
class MongodbSlice:
    """Builds the events of a slice of MongoDB's records.

    Args:
        connector: The declaration.
        lasts: Batch and position of the last rows of whole snapshots.
    """

    connector: Connector
    lasts: frozenset[tuple[int, bytes]] = frozenset()

    def __call__(
        self, rows: Iterator[pa.RecordBatch], request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the events; see :class:`~airflow_cdc_provider.events.sliced.SliceBuilder`."""
        builder = _builder(self.connector, request, skipped)
        pieces = (piece for batch in rows if batch.num_rows for piece in _runs(batch))
        return _build(builder, map(self._with_end, pieces), skipped)

    def _with_end(self, piece: _Piece) -> _Piece:
        ends = (piece.batch, piece.rows["position"][-1].as_py()) in self.lasts
        return replace(piece, ends_snapshot=ends)


def _builder(connector: Connector, request: EventRequest, skipped: SkippedRecords) -> MongodbRecords:
    owners = dict(request.owners)
    return MongodbRecords(
        connector, request.now_ns, skipped.by_kind, registrar=request.registrar, owners=owners
    )


def _build(
    builder: MongodbRecords, pieces: Iterable[_Piece], skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the records of successive pieces."""
    tracks = builder.connector.publish.transactions
    for piece in pieces:
        if piece.kind == record.QUARANTINE:
            for row, reason in enumerate(piece.rows["reason"].to_pylist()):
                skipped.add(piece.position(row), reason or "it was quarantined")
            continue
        events = _decode(builder, piece, skipped)
        schema_changes = _schema_changes(builder.connector, piece)
        if not events.num_rows and not (schema_changes is not None and schema_changes.num_rows):
            continue
        records, reasons = builder.records(
            events,
            last_of_snapshot=piece.ends_snapshot,
            incremental=piece.incremental,
            schema_changes=schema_changes,
        )
        for row, reason in sorted(reasons.items()):
            skipped.add(piece.position(row), reason)
        yield EventBatch(piece.batch, records, builder.open.to_json() if tracks else "")


@dataclass(frozen=True)
class _Piece:
    """Successive records of one kind and batch; for snapshots, of one collection and one kind of snapshot.

    Args:
        batch: The batch.
        kind: Their kind; that of changes for all records of the stream.
        rows: Batch of ``CHANGE_SCHEMA``.
        ends_snapshot: Whether the last record is the last of a whole snapshot.
    """

    batch: int
    kind: str
    rows: pa.RecordBatch
    ends_snapshot: bool = False

    @property
    def incremental(self) -> bool:
        """Whether they are rows of an incremental snapshot."""
        return self.kind == record.SNAPSHOT and self.rows["request"][0].is_valid

    def position(self, row: int) -> str:
        table, position = (self.rows[name][row].as_py() for name in ("source_table", "position"))
        return f"{table or 'the stream'} at {position.hex()}"


def _decode(builder: MongodbRecords, piece: _Piece, skipped: SkippedRecords) -> pa.RecordBatch:
    """Decode changes, or rows of a snapshot."""
    options = options_of(builder.connector, MongodbOptions)
    payloads = piece.rows["payload"]
    if piece.kind == record.SNAPSHOT:
        database, _, collection = piece.rows["source_table"][0].as_py().partition(".")
        form = builder.form(database, collection)
        versions = piece.rows["version"] if piece.incremental else None
        decoded = mongodb_events.decode_snapshot(payloads, database, collection, form, versions)
    else:
        decoded = mongodb_events.decode_stream(
            payloads, full_document=options.full_document, pre_images=options.pre_images, form=builder.form()
        )
    for row, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
        skipped.add(piece.position(row), reason)
    skipped.inexact_keys.update(decoded.inexact_keys)
    return decoded.events


def _schema_changes(connector: Connector, piece: _Piece) -> pa.RecordBatch | None:
    """Decode changes of collections and databases, if they are published."""
    if not connector.publish.schema_changes or piece.kind != record.CHANGE:
        return None
    selects = selector(connector, options_of(connector, MongodbOptions))

    def captured(database: str, collection: str) -> bool:
        return is_captured(f"{database}.{collection}", selects)

    found = decode_schema_changes(piece.rows["payload"], captured, connector.publish.mongodb.json)
    # A rename has a second record for its new name, after that for the old one if that is captured.
    lengths = pc.binary_length(piece.rows["position"]).to_numpy()
    published = [
        lengths[row] == _POSITION_BYTES or not captured(database, collection or "")
        for row, database, collection in zip(
            *(found[name].to_pylist() for name in ("row", "database", "collection")), strict=True
        )
    ]
    return found.filter(pa.array(published, pa.bool_()))


@dataclass(frozen=True, order=True)
class _Section:
    """The smallest unit to read: a range of a snapshot in a batch, or the changes of a batch."""

    batch: int
    is_changes: bool
    table: str
    range: bytes


@dataclass(frozen=True)
class _Found:
    """Number of records of a kind and collection in a section; for snapshots, of one kind of snapshot."""

    section: _Section
    kind: str
    table: str | None
    incremental: bool
    count: int


def _pieces(connector: Connector, changes: ChangesTable, request: EventRequest) -> Iterator[_Piece]:
    """Read sections in order, small ones at once: as much as fits the driver's memory."""
    kinds = (*_SHOWN, *_OF_COLLECTIONS) if connector.publish.schema_changes else _SHOWN
    rows = changes.pending(request.after, request.through, kinds=(*kinds, record.SNAPSHOT_END))
    rows = _with_sections(rows)
    found = _captured(connector, _survey(rows))
    ends = _ends_of_snapshots(found)
    tables = request.tables
    shown = [one for one in found if one.kind in kinds and (not tables or one.table in tables)]
    names = {one.table for one in shown}
    for sections in _group(shown, ends):
        piece: _Piece | None = None
        for batch in _read(rows, sections, names, kinds).to_batches(max_chunksize=_ROWS_AT_ONCE):
            for found_piece in _runs(batch):
                if piece is not None:
                    yield piece
                piece = found_piece
        if piece is not None:
            yield replace(piece, ends_snapshot=sections[-1] in ends)


def _with_sections(rows: DataFrame) -> DataFrame:
    """Add columns for a record's section, and for its order within the section.

    Rows that a merge read again for its mirror have no events: the changes that left them unresolved have.
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
        ).alias("section"),
        f.when(is_snapshot, f.substring("position", _RANGE_AT, 2 * _RANGE_BYTES)).alias("row"),
    )


def _survey(rows: DataFrame) -> list[_Found]:
    """Count records by section; reads narrow columns."""
    from pyspark.sql import functions as f

    incremental = f.col("request").isNotNull() & (f.col("kind") == record.SNAPSHOT)
    groups = rows.groupBy("section", "kind", "source_table", incremental.alias("incremental"))
    counted = groups.count().collect()
    return [
        _Found(
            _Section(
                row["section"]["batch"],
                row["section"]["is_changes"],
                row["section"]["table"],
                bytes(row["section"]["range"]),
            ),
            row["kind"],
            row["source_table"],
            row["incremental"],
            row["count"],
        )
        for row in counted
    ]


def _captured(connector: Connector, found: Iterable[_Found]) -> list[_Found]:
    """Keep records of collections that the declaration selects, and records of no collection."""
    selects = selector(connector, options_of(connector, MongodbOptions))
    return [one for one in found if one.table is None or is_captured(one.table, selects)]


def _ends_of_snapshots(found: Sequence[_Found]) -> set[_Section]:
    """Find the last sections of whole snapshots."""
    by_batch: dict[int, list[_Found]] = defaultdict(list)
    for one in found:
        if one.kind in (record.SNAPSHOT, record.SNAPSHOT_END) and not one.incremental:
            by_batch[one.section.batch].append(one)
    ends: set[_Section] = set()
    started: set[str | None] = set()
    last: _Section | None = None
    for batch in sorted(by_batch):
        rows = [one for one in by_batch[batch] if one.kind == record.SNAPSHOT]
        last = max((one.section for one in rows), default=last)
        started |= {one.table for one in rows}
        started -= {one.table for one in by_batch[batch] if one.kind == record.SNAPSHOT_END}
        if batch + 1 not in by_batch:
            if last is not None and not started:
                ends.add(last)
            last = None
    return ends


def _group(found: Sequence[_Found], ends: set[_Section]) -> Iterator[list[_Section]]:
    """Group sections that are read at once; a section that ends a snapshot is the last of its group."""
    counts: dict[_Section, int] = defaultdict(int)
    for one in found:
        counts[one.section] += one.count
    group: list[_Section] = []
    size = 0
    for section in sorted(counts):
        if group and (size + counts[section] > _ROWS_PER_READ or group[-1] in ends):
            yield group
            group, size = [], 0
        group.append(section)
        size += counts[section]
    if group:
        yield group


def _read(
    rows: DataFrame, sections: Sequence[_Section], tables: set[str | None], kinds: Sequence[str]
) -> pa.Table:
    """Read the records of successive sections, in order: columns of ``TABLE_SCHEMA``."""
    part = _of_tables(_between(rows, sections[0], sections[-1]), tables, kinds)
    ordered = part.orderBy("section.batch", "section.is_changes", "section.table", "row", "position")
    return ordered.select(*record.TABLE_SCHEMA.names).toArrow().cast(record.TABLE_SCHEMA)


def _between(rows: DataFrame, first: _Section, last: _Section) -> DataFrame:
    from pyspark.sql import functions as f

    def literal(section: _Section) -> Column:
        parts = (section.batch, section.is_changes, section.table, bytearray(section.range))
        return f.struct(*(f.lit(part) for part in parts)).cast(_SECTION_TYPE)

    return rows.where(
        # The first condition is redundant, but Iceberg can prune files with it.
        f.col("batch").between(first.batch, last.batch)
        & f.col("section").between(literal(first), literal(last))
    )


def _of_tables(rows: DataFrame, tables: set[str | None], kinds: Sequence[str] = _SHOWN) -> DataFrame:
    """Keep records of the given kinds that are of some tables, or of no table if None is among them."""
    from pyspark.sql import functions as f

    table = f.col("source_table")
    named = table.isin(sorted(name for name in tables if name is not None))
    return rows.where(f.col("kind").isin(*kinds) & (named | table.isNull() if None in tables else named))


def _last_of(rows: DataFrame, section: _Section, tables: set[str | None]) -> tuple[int, bytes]:
    """Return batch and position of the last record of a section."""
    part = _of_tables(_between(rows, section, section), tables)
    (last,) = part.orderBy("row", "position", ascending=False).select("position").take(1)
    return section.batch, bytes(last["position"])


def _runs(batch: pa.RecordBatch) -> Iterator[_Piece]:
    """Split records where batch or kind change, or for snapshots the collection or the kind of snapshot.

    Changes of collections and databases are part of the stream, so they don't split it.
    """
    numbers = batch["batch"].to_numpy()
    batch = batch.drop_columns(["batch"])
    of_collections = pc.is_in(batch["kind"], value_set=pa.array(_OF_COLLECTIONS))
    read_as = pc.if_else(of_collections, record.CHANGE, batch["kind"])
    kinds = read_as.dictionary_encode()
    tables = batch["source_table"].dictionary_encode()
    codes = kinds.indices.to_numpy(zero_copy_only=False)
    names = pc.fill_null(tables.indices, -1).to_numpy(zero_copy_only=False)
    splits = (codes[1:] != codes[:-1]) | (numbers[1:] != numbers[:-1])
    if record.SNAPSHOT in kinds.dictionary.to_pylist():
        of_snapshot = codes == kinds.dictionary.index(record.SNAPSHOT).as_py()
        incremental = batch["request"].is_valid().to_numpy(zero_copy_only=False)
        splits |= of_snapshot[1:] & ((names[1:] != names[:-1]) | (incremental[1:] != incremental[:-1]))
    starts = [0, *(np.flatnonzero(splits) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        yield _Piece(int(numbers[start]), read_as[start].as_py(), batch.slice(start, end - start))
