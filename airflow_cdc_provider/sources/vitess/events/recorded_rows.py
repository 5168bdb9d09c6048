"""Rows of Vitess's recordings, for ``airflow cdc rows``. See :class:`.recordings.Recordings`.

A recording may start with a copy: its rows, which have no time, are those of a snapshot at the position of
their packet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence, FenceRecord, add_fences
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, fixed_width_binary
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.lake.reconcile import reconcile_rows
from airflow_cdc_provider.lake.row_fences import RowFences
from airflow_cdc_provider.sources.contract import ReadMetrics
from airflow_cdc_provider.sources.recordings import Recording, row_lines_of
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.events.recording import recorded_events, recorded_files
from airflow_cdc_provider.sources.vitess.gtid import CURRENT
from airflow_cdc_provider.sources.vitess.options import VitessOptions, has_keyspace
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition, vgtid_shards
from airflow_cdc_provider.sources.vitess.projection import to_json
from airflow_cdc_provider.sources.vitess.reader import SliceReader
from airflow_cdc_provider.sources.vitess.rows import RowSpans, read_changes
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory, by_table, lineage_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL
from airflow_cdc_provider.sources.vitess.states import write_states
from airflow_cdc_provider.sources.vitess.wire import VGTID, Events

_ROWS_AT_ONCE: Final = 10_000
_SLICE_BYTES: Final = 16 * 1024 * 1024
_LAST_ROW: Final = 12
"""Offset of the row number in a version."""


@dataclass(frozen=True)
class _Recorded:
    """Records of a recording: changes by table in stream order, and schema records."""

    tables: Mapping[str, pa.Table]
    schemas: Sequence[Mapping[str, Any]]


def row_lines(
    connector: Connector, recording: Recording, skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Write the rows at the end of a recording; see :class:`.recordings.Recordings`."""
    recorded = _read(connector, recording, skipped)
    lineage, parts = lineage_of(recorded.schemas), by_table(recorded.schemas)
    for table in sorted(recorded.tables):
        if recording.table not in ("", table):
            continue
        codec = VitessCodec(table, TableHistory.of_parts(table, parts, lineage), lineage)
        fences = _fences(table, recorded.schemas)
        if codec.has_key:
            yield from _keyed(codec, recorded.tables[table], fences, skipped)
        else:
            yield from _keyless(codec, recorded.tables[table], fences, skipped)


def _read(connector: Connector, recording: Recording, skipped: SkippedRecords) -> _Recorded:
    """Convert a recording to records, as a capture does."""
    options = connector.source
    assert isinstance(options, VitessOptions)

    def selects(table: str) -> bool:
        return has_keyspace(options.keyspace, table.partition(".")[0]) and connector.selects(table)

    def is_known(table: str, name: str) -> bool:
        return (table, name) in known

    batches: list[pa.RecordBatch] = []
    schemas: list[dict[str, Any]] = []
    known: set[tuple[str, str]] = set()
    position = Position()
    for file in recorded_files(recording.path):
        events = recorded_events(file, skipped)
        assembler = TransactionAssembler(
            Position(_first_positions(events) | dict(position.shards)),
            selects,
            is_known,
            slice_bytes=_SLICE_BYTES,
            keep_empty=False,
            stops_at_journals=False,
        )
        # Events without a time count as earlier than all others.
        assembler.add(_whole(events), 0)
        slices, found = assembler.drain(0)
        position = assembler.position
        schemas += found
        known.update((one["source_table"], one["schema_id"]) for one in found)
        read = SliceReader(selects).read(slices, ReadMetrics())
        batches += [_with_copies(batch) for batch in read]
    all_records = pa.Table.from_batches(batches, record.CHANGE_SCHEMA).combine_chunks()
    tables = pc.unique(all_records["source_table"]).drop_null().to_pylist()
    return _Recorded(
        {name: all_records.filter(pc.equal(all_records["source_table"], name)) for name in tables}, schemas
    )


def _whole(events: Events) -> bytes:
    """Return all events as one response, without the message lengths between them in a recording."""
    return b"".join(
        events.data[first:last].tobytes() for first, last in zip(events.keys, events.ends, strict=True)
    )


def _first_positions(events: Events) -> dict[str, ShardPosition]:
    """Return the shards of the first VGTID, before their first position."""
    first = np.flatnonzero(events.types == VGTID)
    if not len(first):
        return {}
    return {shard: ShardPosition(CURRENT) for shard in vgtid_shards(events.body(int(first[0])))}


def _with_copies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of a copy to records of a snapshot, which come after all changes of their position."""
    is_row = pc.equal(batch.column("kind"), record.CHANGE)
    copied = pc.and_(is_row, batch.column("committed_at").is_null())
    if not pc.any(copied).as_py():
        return batch
    which = copied.to_numpy(zero_copy_only=False)
    data, starts, _ = binary_buffer(batch.column("version"))
    versions = data[starts[:, None] + np.arange(_LAST_ROW + 4)]
    versions[which, _LAST_ROW:] = 0xFF
    kinds = pc.if_else(copied, record.SNAPSHOT, batch.column("kind"))
    return batch.set_column(batch.schema.get_field_index("kind"), "kind", kinds).set_column(
        batch.schema.get_field_index("version"), "version", fixed_width_binary(versions)
    )


def _fences(table: str, schemas: Sequence[Mapping[str, Any]]) -> tuple[Fence, ...]:
    """Return the fences of a table's truncations and drops."""
    keyspace, _, name = table.partition(".")
    records = [
        FenceRecord.of(one)
        for one in schemas
        if (one["kind"], one["schema_id"]) == (record.SCHEMA, DDL)
        and one["origin"].partition("/")[0] == keyspace
        for statement in read_statement(bytes(one["payload"]).decode())
        if statement.table == name and statement.kind in ("truncate", "drop")
    ]
    return add_fences((), records)


def _keyed(
    codec: VitessCodec, changes: pa.Table, fences: Sequence[Fence], skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    contributions = []
    for batch in changes.to_batches():
        decoded = codec.decode(batch, fences)
        contributions.append(decoded.contributions)
        for number, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
            skipped.add(f"{codec.table} at {batch['position'][number].as_py().hex()}", reason)
    found = pa.Table.from_batches(contributions, CONTRIBUTION_SCHEMA)
    live = reconcile_rows(RowFences.of(fences, codec).filter(found), 0).live
    for batch in live.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield row_lines_of(codec.table, codec.to_json(batch))


def _keyless(
    codec: VitessCodec, changes: pa.Table, fences: Sequence[Fence], skipped: SkippedRecords
) -> Iterator[pa.LargeStringArray]:
    """Fold a table without a key: each change removes one of the rows equal to its row before."""
    found: Counter[tuple[str, str]] = Counter()
    for batch in changes.to_batches():
        decoded = codec.decode(batch, fences)
        for number, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
            skipped.add(f"{codec.table} at {batch['position'][number].as_py().hex()}", reason)
        sound = batch.filter(pa.array(~np.isin(np.arange(batch.num_rows), decoded.undecodable)))
        data, starts, ends = binary_buffer(sound.column("payload"))
        parts = read_changes(data, starts, ends)
        names = sound.column("schema_id").to_pylist()
        before = _texts(codec, data, parts.before, names)
        after = _texts(codec, data, parts.after, names)
        columns = (sound.column(name).to_pylist() for name in ("origin", "position"))
        for origin, position, old, new in zip(*columns, before, after, strict=True):
            if any(fence.origin == origin and position <= fence.position for fence in fences):
                continue
            if old is not None and found[origin, old]:
                found[origin, old] -= 1
            if new is not None:
                found[origin, new] += 1
    rows = [text for (_, text), count in sorted(found.items()) for _ in range(count)]
    if rows:
        yield row_lines_of(codec.table, rows)


def _texts(codec: VitessCodec, data: Bytes, rows: RowSpans, names: Sequence[str]) -> list[str | None]:
    """Return rows as JSON, None where there is none."""
    out: list[str | None] = [None] * len(names)
    for name in dict.fromkeys(names):
        own: Ints = np.array([n for n, one in enumerate(names) if one == name and rows.starts[n] >= 0], int)
        if len(own):
            states = write_states(data, rows.starts[own], rows.ends[own], bytes.fromhex(name))
            for number, text in zip(own, to_json(states, codec.history), strict=True):
                out[number] = text
    return out
