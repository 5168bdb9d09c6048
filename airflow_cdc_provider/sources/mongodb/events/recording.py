"""Recordings of MongoDB (files of BSON documents) as lines of events or of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import bson
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW, UPSERT
from airflow_cdc_provider.changes.fence import (
    Fence,
    FenceRecord,
    add_fences,
    generation_at,
    newest_generation,
)
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import to_lines
from airflow_cdc_provider.events.java_hashes import bucket_count, spread_hash
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import Spans
from airflow_cdc_provider.lake.reconcile import reconcile_patched
from airflow_cdc_provider.sources.encoding import headers_of
from airflow_cdc_provider.sources.mongodb.codec import MongodbCodec
from airflow_cdc_provider.sources.mongodb.events import decode as mongodb_events
from airflow_cdc_provider.sources.mongodb.events.records import MongodbRecords, selector
from airflow_cdc_provider.sources.mongodb.events.schema_changes import decode_schema_changes
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.mongodb.records import read_events, snapshot_records
from airflow_cdc_provider.sources.mongodb.selection import is_captured
from airflow_cdc_provider.sources.recordings import Recording, read_file, recorded_files, row_lines_of

_CHUNK_BYTES: Final = 16 * 1024 * 1024
_ROWS_AT_ONCE: Final = 10_000
_POSITION_BYTES: Final = 12


def event_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events; see :class:`.recordings.Recordings`."""
    options = connector.source
    assert isinstance(options, MongodbOptions)
    headers = headers_of(connector)
    snapshots, streams = mongodb_files(recording.path)
    if connector.snapshot.mode == "initial_only":
        streams = []

    builder = MongodbRecords(connector, recording.now_ns, skipped.by_kind)

    def decoded_snapshots() -> Iterator[tuple[_Chunk, pa.RecordBatch]]:
        for database, collection, file in snapshots:
            if not _read_in_full(connector, options, database, collection):
                continue
            _refuse_filter(connector, database, collection)
            form = builder.form(database, collection)
            for chunk in _bson_chunks(file, skipped, change_events=False):
                decoded = mongodb_events.decode_snapshot(chunk.documents, database, collection, form)
                yield chunk, _decodable(chunk, decoded, skipped)

    def captured(database: str, collection: str) -> bool:
        return _captured(connector, options, database, collection)

    def decoded_streams() -> Iterator[tuple[_Chunk, pa.RecordBatch, pa.RecordBatch | None]]:
        form = builder.form()
        for file in streams:
            for chunk in _bson_chunks(file, skipped, change_events=True):
                decoded = mongodb_events.decode_stream(
                    chunk.documents,
                    full_document=options.full_document,
                    pre_images=options.pre_images,
                    form=form,
                )
                events = _of_captured_tables(connector, options, _decodable(chunk, decoded, skipped))
                changes = (
                    decode_schema_changes(chunk.documents, captured, connector.publish.mongodb.json)
                    if connector.publish.schema_changes
                    else None
                )
                yield chunk, events, changes

    def lines(
        chunk: _Chunk,
        events: pa.RecordBatch,
        changes: pa.RecordBatch | None = None,
        *,
        last_of_snapshot: bool = False,
    ) -> pa.LargeStringArray:
        records, reasons = builder.records(events, last_of_snapshot=last_of_snapshot, schema_changes=changes)
        for row, reason in sorted(reasons.items()):
            skipped.add(chunk.position(row), reason)
        return to_lines(records, headers)

    if connector.snapshot.mode != "never":
        last: tuple[_Chunk, pa.RecordBatch] | None = None
        for chunk, events in decoded_snapshots():
            if events.num_rows:
                if last is not None:
                    yield lines(*last)
                last = chunk, events
        if last is not None:
            yield lines(*last, last_of_snapshot=True)
    for chunk, events, changes in decoded_streams():
        if events.num_rows or (changes is not None and changes.num_rows):
            yield lines(chunk, events, changes)


def row_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write the documents at the end of a recording; see :class:`.recordings.Recordings`."""
    options = connector.source
    assert isinstance(options, MongodbOptions)
    records = _records(connector, options, recording, skipped)
    for table in sorted(records):
        if recording.table in ("", table):
            live = _live(table, records, options, skipped)
            codec = MongodbCodec.of(table, options)
            for batch in live.to_batches(max_chunksize=_ROWS_AT_ONCE):
                yield row_lines_of(table, codec.to_json(batch))


def _records(
    connector: Connector, options: MongodbOptions, recording: Recording, skipped: SkippedRecords
) -> dict[str, pa.Table]:
    """Read a recording as change records, per collection, in stream order."""
    batches: list[pa.RecordBatch] = []
    snapshots, streams = mongodb_files(recording.path)
    if connector.snapshot.mode == "initial_only":
        streams = []
    captured_us = recording.now_ns // 1000
    if connector.snapshot.mode != "never":
        for number, (database, collection, file) in enumerate(snapshots):
            if _read_in_full(connector, options, database, collection):
                _refuse_filter(connector, database, collection)
                data, spans = _documents(file, skipped, change_events=False)
                batches.append(
                    snapshot_records(
                        data,
                        spans,
                        table=f"{database}.{collection}",
                        time=0,  # before every event of the stream
                        number=number,
                        first_row=0,
                        captured_us=captured_us,
                    )
                )
    for file in streams:
        data, spans = _documents(file, skipped, change_events=True)
        batches.append(
            read_events(
                data, spans, first_index=0, captured_us=captured_us, selects=selector(connector, options)
            )
        )
    table = pa.Table.from_batches(batches, record.CHANGE_SCHEMA).combine_chunks()
    for row in table.filter(pc.equal(table["kind"], record.QUARANTINE)).to_pylist():
        skipped.add(f"{row['source_table'] or 'the stream'} at {row['position'].hex()}", row["reason"])
    return {
        name: table.filter(pc.equal(table["source_table"], name))
        for name in pc.unique(table["source_table"]).drop_null().to_pylist()
    }


def _live(
    table: str,
    records: Mapping[str, pa.Table],
    options: MongodbOptions,
    skipped: SkippedRecords,
    before: bytes | None = None,
) -> pa.Table:
    """Reconcile one collection.

    Args:
        table: The collection.
        records: Records of all collections, since a rename moves rows from another one.
        options: The source's options.
        skipped: Collects changes that can't be applied.
        before: Only changes at lower positions; None for all.
    """
    changes = (
        records[table]
        if before is None
        else records[table].filter(pc.less(records[table]["position"], before))
    )
    drops = changes.filter(pc.equal(changes["kind"], record.DROP)).to_pylist()
    fences = add_fences((), map(FenceRecord.of, drops))
    data = changes.filter(pc.is_in(changes["kind"], pa.array(record.DATA_KINDS)))
    contributions = []
    for batch in data.to_batches():
        decoded = MongodbCodec.of(table, options).decode(batch, fences)
        contributions.append(decoded.contributions)
        if before is None:
            for number, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
                skipped.add(f"{table} at {batch['position'][number].as_py().hex()}", reason)
    signals = changes.filter(pc.equal(changes["kind"], record.SIGNAL)).to_pylist()
    contributions += [_renamed(signal, records, options, skipped, fences) for signal in signals]
    found = pa.Table.from_batches(contributions, CONTRIBUTION_SCHEMA)
    codec = MongodbCodec.of(table, options)
    reconciled = reconcile_patched(found, 0, codec.patch, min_generation=newest_generation(fences))
    if before is None:
        for key in reconciled.unresolved_keys.to_pylist():
            skipped.add(f"{table}, key {key.hex()}", "NO-BASE: an update of an unknown document")
    return reconciled.live


def _renamed(
    signal: Mapping[str, Any],
    records: Mapping[str, pa.Table],
    options: MongodbOptions,
    skipped: SkippedRecords,
    fences: Sequence[Fence],
) -> pa.RecordBatch:
    """Return the rows that a rename moved: those of the other collection at that position."""
    namespace = bson.decode(signal["payload"])["ns"]
    position = signal["position"]
    version = position[:_POSITION_BYTES]
    source = f"{namespace['db']}.{namespace['coll']}"
    if source not in records:
        skipped.add(
            f"{signal['source_table']} at {position.hex()}",
            f"its rows came from {source}, which is not captured",
        )
        return pa.RecordBatch.from_pylist([], CONTRIBUTION_SCHEMA)
    rows = _live(source, records, options, skipped, before=version)
    count = rows.num_rows
    return pa.RecordBatch.from_arrays(
        [
            rows["key"].combine_chunks(),
            pa.repeat(pa.scalar(ROW, pa.int8()), count),
            pa.repeat(pa.scalar(b"", pa.binary()), count),
            pa.nulls(count, pa.binary()),
            pa.repeat(pa.scalar(generation_at(fences, signal["origin"], position), pa.int64()), count),
            pa.repeat(pa.scalar(version, pa.binary()), count),
            pa.repeat(pa.scalar(UPSERT, pa.int8()), count),
            rows["state"].combine_chunks(),
        ],
        schema=CONTRIBUTION_SCHEMA,
    )


def mongodb_files(path: Path) -> tuple[list[tuple[str, str, Path]], list[Path]]:
    """Find a MongoDB recording's files.

    Args:
        path: A file of change events, or a folder; ``snapshot.DB.COLL.bson`` in it has snapshot documents.

    Returns:
        Snapshot files with database and collection, in the order in which Debezium reads them: by collection,
        those of one name in the iteration order of a ``java.util.HashSet`` of their databases. Files of
        change events by name.

    Raises:
        ConfigurationError: There are no files.
    """
    snapshots, streams = [], []
    expected = "a file of concatenated BSON documents, or a folder with *.bson (or *.bson.gz) files"
    for file in recorded_files(path, ".bson", expected):
        parts = file.name.removesuffix(".gz").removesuffix(".bson").split(".", 2)
        if parts[0] == "snapshot" and len(parts) == 3:
            snapshots.append((parts[1], parts[2], file))
        else:
            streams.append(file)
    order = _hash_set_order({database for database, _, _ in snapshots})
    snapshots.sort(key=lambda item: (item[1].encode("utf-16-be"), order[item[0]]))
    return snapshots, streams


def _hash_set_order(names: Collection[str]) -> dict[str, tuple[int, str]]:
    """Return sort keys for the iteration order of a ``java.util.HashSet``, filled in alphabetical order."""
    buckets = bucket_count(len(names))
    return {name: (spread_hash(name) & (buckets - 1), name) for name in names}


@dataclass(frozen=True)
class _Chunk:
    """Some documents of a file, and the offset of each."""

    file: Path
    documents: pa.LargeBinaryArray
    starts: np.ndarray

    def position(self, row: int) -> str:
        return f"{self.file} at byte {self.starts[row]}"


def _bson_chunks(file: Path, skipped: SkippedRecords, *, change_events: bool) -> Iterator[_Chunk]:
    """Split a file into documents, chunk by chunk, without copying them."""
    data, spans = _documents(file, skipped, change_events=change_events)
    starts, ends = spans.starts, spans.ends
    start = 0
    for row in range(1, len(starts) + 1):
        full = row < len(starts) and ends[row] - starts[start] > _CHUNK_BYTES
        if row == len(starts) or full or starts[row] != ends[row - 1]:
            offsets = np.append(starts[start:row], ends[row - 1])
            documents = pa.Array.from_buffers(
                pa.large_binary(), row - start, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
            )
            yield _Chunk(file, documents, starts[start:row])
            start = row


def _documents(file: Path, skipped: SkippedRecords, *, change_events: bool) -> tuple[np.ndarray, Spans]:
    """Read a file and find its documents."""
    data = np.frombuffer(read_file(file), np.uint8)
    starts, ends, lost_starts, lost_ends = mongodb_events.split_documents(data, change_events=change_events)
    for first, last in zip(lost_starts, lost_ends, strict=True):
        skipped.add(f"{file} at byte {first}", f"{last - first} bytes are not a BSON document")
    return data, Spans(starts, ends, len(data))


def _decodable(
    chunk: _Chunk, decoded: mongodb_events.MongodbEvents, skipped: SkippedRecords
) -> pa.RecordBatch:
    for row, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
        skipped.add(chunk.position(row), reason)
    return decoded.events


def _captured(connector: Connector, options: MongodbOptions, database: str, collection: str) -> bool:
    return is_captured(f"{database}.{collection}", selector(connector, options))


def _read_in_full(connector: Connector, options: MongodbOptions, database: str, collection: str) -> bool:
    included = connector.snapshot.includes(f"{database}.{collection}")
    return included and _captured(connector, options, database, collection)


def _refuse_filter(connector: Connector, database: str, collection: str) -> None:
    if f"{database}.{collection}" in connector.snapshot.filters:
        raise ConfigurationError(
            f"the filter of {database}.{collection} can't be evaluated without a server",
            remedy="remove it from snapshot.filters, or record only the documents that it selects",
        )


def _of_captured_tables(
    connector: Connector, options: MongodbOptions, events: pa.RecordBatch
) -> pa.RecordBatch:
    names = pc.binary_join_element_wise(events["database"], events["collection"], "\0").dictionary_encode()
    chosen = [_captured(connector, options, *name.split("\0")) for name in names.dictionary.to_pylist()]
    if all(chosen):
        return events
    return events.filter(pa.array(chosen, pa.bool_()).take(names.indices))
