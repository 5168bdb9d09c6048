"""Whole rows after changes of Cassandra, as DataStax's readers expect them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import in_order
from airflow_cdc_provider.events.event_batches import EventBatch
from airflow_cdc_provider.events.order import EVENT_BITS, event_order
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events import datastax_envelope
from airflow_cdc_provider.sources.cassandra.events import envelope as cassandra_envelope
from airflow_cdc_provider.sources.cassandra.events.before_images import data_of
from airflow_cdc_provider.sources.cassandra.events.changes import (
    EventSettings,
    Numbered,
    all_records,
    excluded_columns,
    excluded_of,
    fences_of,
    nodes_of,
    note,
    runs_of,
    selected_changes,
    table_ids_of,
    truncations,
)
from airflow_cdc_provider.sources.cassandra.events.datastax_decode import RowDecoder
from airflow_cdc_provider.sources.cassandra.events.earlier_rows import EarlierRows, deleted_ranges
from airflow_cdc_provider.sources.cassandra.events.reread_rows import as_read, last_of_each_row
from airflow_cdc_provider.sources.cassandra.events.row_states import row_states
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.encoding import encoded_events, topics_of

_EARLIER: Final = -1
"""Change number of all that was known before."""


def whole_rows(
    settings: EventSettings, batches: Iterable[Numbered], skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the row after each change, once per write that several nodes logged; or each row as it is now.

    Rows after changes are built in memory from all records: the last change may affect the first row. Rows
    as they are now are built batch by batch if requested, so that a batch's events don't depend on others.
    """
    connector = settings.connector
    if set(connector.publish.skipped_operations) - {"t"}:
        raise ConfigurationError(
            "option publish.skipped_operations is for events that have an operation",
            expected="none in envelope datastax",
            found=", ".join(connector.publish.skipped_operations),
        )
    if connector.publish.cassandra.reread and settings.read_again is None:
        raise ConfigurationError(
            "rows of a recording can't be read from the source",
            expected="publish.cassandra.reread false",
            remedy="or print events of what was captured, with --from-lake and a connection",
        )
    if settings.by_batch and connector.publish.cassandra.reread:
        for _, of_batch in groupby(batches, itemgetter(0)):
            yield from _whole_rows(settings, of_batch, skipped)
    else:
        yield from _whole_rows(settings, batches, skipped)


def _whole_rows(
    settings: EventSettings, batches: Iterable[Numbered], skipped: SkippedRecords
) -> Iterator[EventBatch]:
    connector, source = settings.connector, settings.source
    excluded = excluded_columns(connector, source)
    former = {schema.id for schema in source.former_tables()}
    records, numbers = all_records(batches)
    records = records.combine_chunks()
    skipped.removed |= truncations(records)
    table_ids = table_ids_of(records, source)
    rows: list[np.ndarray] = []
    parts: list[pa.RecordBatch] = []
    for schema in settings.tables():
        ours = pc.equal(table_ids, bytes.fromhex(schema.id)).fill_null(False)
        if not pc.any(ours).as_py():
            continue
        codec = source.codec_of(schema)
        left_out = whole_columns(excluded_of(schema, excluded, former=schema.id in former))
        dropped = schema.id in former
        before = None if dropped else int(numbers[0]) - 1
        codec, states, positions = _states(settings, codec, records, ours, before, skipped)
        if connector.publish.cassandra.reread:
            groups = numbers if settings.by_batch else np.zeros_like(numbers)
            states, positions = _states_now(settings, codec, states, positions, groups, dropped=dropped)
        options = envelope_options(connector, codec.schema, left_out, index=connector.publish.event_index)
        decoder = RowDecoder(codec.schema, key_in_value=options.key_in_value)
        for of_partition in (False, True):
            chosen = pc.and_(states["captured"], pc.equal(states["of_partition"], of_partition))
            part = decoder.decode(states.filter(chosen))
            if not part.num_rows:
                continue
            envelope = datastax_envelope.build(part, schema.keyspace, schema.name, options)
            piece = Piece(envelope, np.flatnonzero(chosen))
            written = encoded_events(connector, [piece], settings.registrar, settings.owners)
            parts.append(written)
            rows.append(positions[written["row"].to_numpy()])
    if parts:
        ordered = in_order(parts, np.concatenate(rows))
        of_batch = numbers[np.sort(np.concatenate(rows)) >> EVENT_BITS]
        for start, end in runs_of(of_batch):
            yield EventBatch(int(of_batch[start]), ordered.slice(start, end - start))


def envelope_options(
    connector: Connector, schema: TableSchema, left_out: Sequence[str], *, index: bool
) -> datastax_envelope.EnvelopeOptions:
    """Return the options of a connector's envelopes for a table's whole rows without some columns."""
    return datastax_envelope.EnvelopeOptions(
        topics=topics_of(connector),
        json=connector.publish.value == "json",
        key_in_value=connector.publish.cassandra.key_in_value,
        excluded=left_out,
        static=[column.name for column in schema.static],
        index=index,
    )


def _states(
    settings: EventSettings,
    codec: CassandraCodec,
    records: pa.Table,
    ours: pa.Array,
    before: int | None,
    skipped: SkippedRecords,
) -> tuple[CassandraCodec, pa.RecordBatch, np.ndarray]:
    """Return the states of a table's rows after each change, and numbers that order all tables' events.

    Args:
        settings: The settings of events.
        codec: The table's codec.
        records: All records.
        ours: Which of them are the table's.
        before: The last batch before them; None if it has no rows of the table.
        skipped: Collects undecodable changes.

    Returns:
        The codec of the states, these, and their numbers.
    """
    fences = fences_of(records.filter(pc.equal(records["source_table"], codec.table)), codec.schema.id)
    changes, numbers = data_of(records, ours)
    decoded = codec.decode(changes, fences)
    earlier = CONTRIBUTION_SCHEMA.empty_table()
    if before is not None and settings.earlier_rows and codec.schema.clustering:
        ranges = deleted_ranges(decoded.contributions)
        if ranges.num_rows:
            found = settings.earlier_rows(codec.table, ranges, before)
            skipped.by_kind["deletion of unknown rows"] += 0 if found.complete else ranges.num_rows
            codec, fences, earlier = _with_earlier(settings, codec, fences, found)
            decoded = codec.decode(changes, fences)
    note(codec.table, changes, decoded.undecodable, decoded.reasons, skipped)
    of_change = np.asarray(decoded.rows, np.int64)
    contributions = pa.Table.from_batches([decoded.contributions], CONTRIBUTION_SCHEMA)
    states = row_states(
        pa.concat_tables([earlier, contributions]).combine_chunks(),
        np.concatenate([np.full(earlier.num_rows, _EARLIER), of_change]),
        settings.now_ns // 1_000_000_000,
        codec.rules,
        clustered=bool(codec.schema.clustering),
    )
    states = states.filter(pc.greater(states["change"], _EARLIER))
    duplicates = replica_duplicates(decoded.contributions, of_change, changes.num_rows)
    skipped.by_kind["replica duplicate"] += int(np.count_nonzero(duplicates))
    latest = np.full(changes.num_rows, np.iinfo(np.int64).min)
    np.maximum.at(latest, of_change, latest_times(decoded.contributions["state"]))
    change = states["change"].to_numpy()
    chosen = selected_changes(settings.source, codec.schema.id, changes) & ~duplicates
    columns = {
        "key": states["key"],
        "key_state": states["key_state"],
        "state": states["state"],
        "static_state": states["static_state"],
        "lives": states["lives"],
        "name": states["name"],
        "written_at": pa.array(latest[change]),
        "of_partition": states["key_state"].is_null(),
        "index": cassandra_envelope.event_index(states["change"]),
        "captured": pa.array(chosen[change]),
    }
    if settings.connector.publish.cassandra.node_header:
        columns["node"] = nodes_of(changes).take(states["change"])
    return codec, pa.RecordBatch.from_pydict(columns), event_order(numbers[change])


def _with_earlier(
    settings: EventSettings, codec: CassandraCodec, fences: tuple[Fence, ...], found: EarlierRows
) -> tuple[CassandraCodec, tuple[Fence, ...], pa.Table]:
    """Return the codec and the fences for changes after others, and the contributions of these."""
    codec = settings.source.codec_of(codec.schema, found.known.memory)
    fences = (*found.known.fences, *fences_of(found.changes, codec.schema.id), *fences)
    ours = pc.equal(table_ids_of(found.changes, settings.source), bytes.fromhex(codec.schema.id))
    changes, _ = data_of(found.changes, ours.fill_null(False))
    decoded = pa.Table.from_batches([codec.decode(changes, fences).contributions], CONTRIBUTION_SCHEMA)
    return codec, fences, pa.concat_tables([found.known.contributions, decoded])


def _states_now(
    settings: EventSettings,
    codec: CassandraCodec,
    states: pa.RecordBatch,
    positions: np.ndarray,
    numbers: np.ndarray,
    *,
    dropped: bool,
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the current rows of states, each row once per group of records.

    Args:
        settings: The settings of events, with a reader of rows.
        codec: The table's codec.
        states: States of :func:`_states`.
        positions: Positions of :func:`_states`.
        numbers: Per record, the number of its group.
        dropped: Whether the table was dropped, so that it has no rows to read.
    """
    captured = np.flatnonzero(states["captured"])
    states, positions = states.take(pa.array(captured)), positions[captured]
    of_batch = numbers[positions >> EVENT_BITS]
    last = np.concatenate(
        [
            np.empty(0, np.int64),
            *(start + last_of_each_row(states.slice(start, end - start)) for start, end in runs_of(of_batch)),
        ]
    )
    states, positions = states.take(pa.array(last)), positions[last]
    read_again = _read_nothing if dropped or settings.read_again is None else settings.read_again
    return as_read(states, codec, read_again, settings.now_ns // 1_000_000_000), positions


def _read_nothing(table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    return iter(())


def replica_duplicates(contributions: pa.RecordBatch, of_change: np.ndarray, count: int) -> np.ndarray:
    """Return which changes repeat an earlier one: each replica logs its copy of a write.

    Two changes are equal if their keys, deletions, values, write times and expiries are.
    """
    number = np.zeros(len(of_change), np.int64)
    for name in ("key", "scope", "clustering", "clustering_end", "generation", "state"):
        values = contributions[name].dictionary_encode().indices.fill_null(-1).to_numpy()
        number = np.unique(np.stack([number, values]), axis=1, return_inverse=True)[1].ravel()
    order = np.lexsort((number, of_change))
    changes, starts = np.unique(of_change[order], return_index=True)
    offsets = np.append(starts, len(order)) * number.itemsize
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(number[order])]
    contents = pa.Array.from_buffers(pa.large_binary(), len(changes), buffers).dictionary_encode().indices
    firsts = np.unique(contents.to_numpy(), return_index=True)[1]
    duplicates = np.zeros(count, np.bool_)
    duplicates[np.delete(changes, firsts)] = True
    return duplicates


def whole_columns(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the names of the columns to exclude.

    Raises:
        ConfigurationError: A path names a field of a column, which this envelope can't exclude.
    """
    for path in paths:
        if len(path) > 1:
            raise ConfigurationError(
                f"field {'.'.join(path)} can't be excluded",
                remedy="envelope datastax can exclude whole columns only; debezium also fields",
            )
    return [path[0] for path in paths]
