"""Records of Cassandra to lines of events: the same for a recording and for the changes table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence, FenceRecord, add_fences
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import encode, to_lines
from airflow_cdc_provider.events.envelopes import cassandra as cassandra_envelope
from airflow_cdc_provider.events.envelopes import datastax as datastax_envelope
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.events.rows_before import KnownOf, RowsBefore, data_of, keys_of, nothing_known
from airflow_cdc_provider.jobs.events.settings import converters_of, topics_of, without_skipped
from airflow_cdc_provider.jobs.offline.recordings import Damage
from airflow_cdc_provider.jobs.row_states import row_states
from airflow_cdc_provider.jobs.rows_again import ReadAgain, as_read, last_of_each_row
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.datastax.rows import RowDecoder
from airflow_cdc_provider.sources.cassandra.debezium.events import EventDecoder
from airflow_cdc_provider.sources.cassandra.debezium.types import EventTypes
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.converters import (
    Converter,
    load_converters,
    require_columns,
)
from airflow_cdc_provider.sources.cql.schema import TableSchema

_ROWS_AT_ONCE: Final = 10_000
_ID_DIGITS: Final = 32
"""A table's id as text; ``schema_id`` of other records is something else."""


@dataclass(frozen=True)
class EventSettings:
    """What events are made by, beside the records.

    Args:
        connector: The declaration.
        source: Knows the schemas, also those of tables that are gone.
        cluster: The cluster's name.
        now_ns: The moment at which events are built and TTLs are judged, ns since 1970.
        known_of: What is known of rows from before all records.
        read_again: Reads rows at the source; None where there is none, as of a recording.
    """

    connector: Connector
    source: CassandraSource
    cluster: str
    now_ns: int
    known_of: KnownOf = nothing_known
    read_again: ReadAgain | None = None

    def tables(self) -> list[TableSchema]:
        """List the captured tables, then those that were dropped."""
        source = self.source
        return [*(source.schemas.tables[name] for name in source.tables()), *source.former_tables()]


def lines_of_records(
    settings: EventSettings,
    batches: Iterable[pa.RecordBatch],
    damage: Damage,
    earlier: Iterable[pa.RecordBatch] = (),
) -> Iterator[pa.LargeStringArray]:
    """Write the events of records, in their order or that of their write times.

    Args:
        settings: How.
        batches: Batches of ``CHANGE_SCHEMA``; of other kinds than changes, snapshot rows and truncations
            nothing comes.
        damage: Collects what is left out.
        earlier: Likewise, what was before; no events come of it. Only the field ``before`` needs it.

    Yields:
        Lines, batch after batch; of envelope ``datastax`` all at once, since they need what was before.

    Raises:
        ConfigurationError: The declaration doesn't fit the tables.
        CorruptInput: A record can't be decoded and ``damage`` is strict.
    """
    if settings.connector.publish.envelope == "datastax":
        return _whole_rows(settings, batches, damage)
    return _cells_of_rows(settings, batches, damage, earlier)


def _cells_of_rows(
    settings: EventSettings,
    batches: Iterable[pa.RecordBatch],
    damage: Damage,
    earlier: Iterable[pa.RecordBatch],
) -> Iterator[pa.LargeStringArray]:
    """Write what each update says of rows."""
    connector, source = settings.connector, settings.source
    excluded = _excluded(connector, source)
    publish, choices = connector.publish, connector.publish.cassandra
    captured = settings.tables()
    types = EventTypes(choices.decimals, choices.varints, choices.frozen)
    converters = load_converters(choices.converters)
    require_columns(
        converters, [f"{schema.full_name}.{c.name}" for schema in captured for c in schema.columns]
    )
    decoders = {bytes.fromhex(schema.id): EventDecoder(schema, types, converters) for schema in captured}
    former = {schema.id for schema in source.former_tables()}
    left_out = {
        bytes.fromhex(schema.id): _of(schema, excluded, former=schema.id in former) for schema in captured
    }
    as_datastax = publish.envelope == "datastax-cells"
    options = cassandra_envelope.EnvelopeOptions(
        topics_of(connector),
        publish.version,
        settings.cluster,
        publish.tombstones,
        settings.now_ns,
        namespace=cassandra_envelope.DATASTAX if as_datastax else cassandra_envelope.DEBEZIUM,
        source="documented" if as_datastax else choices.source,
        common_operations=as_datastax or choices.operations == "common",
        index=publish.event_index,
        deletion_in_key=as_datastax,
    )
    together: _Together | None = None
    if choices.before or choices.order == "write_time":
        together = _Together(settings, batches, earlier, types, converters)
        batches = together.batches()
    end = 0
    for batch in batches:
        start, end = end, end + batch.num_rows
        wanted = together.wanted[start:end] if together else None
        damage.skipped["t"] += _truncations(batch["kind"] if wanted is None else batch["kind"].filter(wanted))
        rows: list[np.ndarray] = []
        lines: list[pa.LargeStringArray] = []
        table_ids = _table_ids(batch, source)
        for table_id in pc.unique(table_ids).drop_null().to_pylist():
            if table_id not in decoders:
                continue  # the declaration selects it no longer
            places = np.flatnonzero(pc.equal(table_ids, table_id).fill_null(False))
            places = places if wanted is None else places[wanted[places]]
            places = places[_wanted(source, table_id.hex(), batch.take(pa.array(places)))]
            part = batch.take(pa.array(places))
            decoder = decoders[table_id]
            decoded = decoder.decode(part)
            schema = decoder.schema
            note(schema.full_name, part, decoded.undecodable, decoded.reasons, damage)
            events = without_skipped(decoded.events, connector, damage.skipped)
            if events.num_rows:
                if together and choices.before:
                    before = together.before(table_id, events, start + places, part["key"])
                    events = events.append_column("before", before)
                if choices.node_header:
                    events = events.append_column("node", _nodes(part).take(events["row"]))
                envelope = cassandra_envelope.build(
                    events, schema.keyspace, schema.name, replace(options, excluded=left_out[table_id])
                )
                records = encode(envelope, converters_of(connector))
                rows.append(places[events["row"].take(records["row"]).to_numpy()])
                lines.append(to_lines(records, ()))
        if lines:
            order = np.argsort(np.concatenate(rows), kind="stable")
            yield pa.concat_arrays(lines).take(pa.array(order))


class _Together:
    """All records at once: in the order of their write times if need be, with what stood before each.

    Args:
        settings: How events are made.
        batches: What is to become events.
        earlier: What was before.
        types: How values are shown.
        converters: What shows them otherwise.
    """

    def __init__(
        self,
        settings: EventSettings,
        batches: Iterable[pa.RecordBatch],
        earlier: Iterable[pa.RecordBatch],
        types: EventTypes,
        converters: Sequence[tuple[str, Converter]],
    ) -> None:
        before = pa.Table.from_batches(earlier, record.CHANGE_SCHEMA)
        records = pa.concat_tables([before, pa.Table.from_batches(batches, record.CHANGE_SCHEMA)])
        self._records = records.combine_chunks()
        self.wanted = np.arange(records.num_rows) >= before.num_rows
        """Of which records events are to come."""
        source, choices = settings.source, settings.connector.publish.cassandra
        if choices.order == "write_time":
            self._sort(settings)
        self._numbers = np.zeros(records.num_rows, np.int64)
        self._befores: dict[bytes, RowsBefore] = {}
        table_ids = _table_ids(self._records, source)
        for schema in settings.tables() if choices.before else ():
            table_id = bytes.fromhex(schema.id)
            changes, numbers = data_of(self._records, pc.equal(table_ids, table_id).fill_null(False))
            self._numbers[numbers] = np.arange(len(numbers))
            known = settings.known_of(schema.full_name, keys_of(changes))
            codec = source.codec_of(schema, known.memory if known else None)
            decoder = EventDecoder(codec.schema, types, converters)
            ours = self._records.filter(pc.equal(self._records["source_table"], schema.full_name))
            self._befores[table_id] = RowsBefore(codec, decoder, changes, fences_of(ours, schema.id), known)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records, :data:`_ROWS_AT_ONCE` at a time."""
        yield from self._records.to_batches(max_chunksize=_ROWS_AT_ONCE)

    def before(
        self, table_id: bytes, events: pa.RecordBatch, places: np.ndarray, keys: pa.Array
    ) -> pa.StructArray:
        """Return the rows that stood before events of a table.

        Args:
            table_id: The table's.
            events: As decoded.
            places: Numbers of the records that they were decoded from.
            keys: The partition keys of these.
        """
        rows = events["row"].to_numpy()
        return self._befores[table_id].of(events, self._numbers[places[rows]], keys.take(events["row"]))

    def _sort(self, settings: EventSettings) -> None:
        """Sort the records by their greatest write times; equal ones stay in their order."""
        written = np.full(self._records.num_rows, np.iinfo(np.int64).min)
        table_ids = _table_ids(self._records, settings.source)
        for schema in settings.tables():
            ours = pc.equal(table_ids, bytes.fromhex(schema.id)).fill_null(False)
            changes, numbers = data_of(self._records, ours)
            decoded = settings.source.codec_of(schema).decode(changes, ())
            times = latest_times(decoded.contributions["state"])
            np.maximum.at(written, numbers[np.asarray(decoded.rows, np.int64)], times)
        order = np.argsort(written, kind="stable")
        self._records = self._records.take(pa.array(order)).combine_chunks()
        self.wanted = self.wanted[order]


def _whole_rows(
    settings: EventSettings, batches: Iterable[pa.RecordBatch], damage: Damage
) -> Iterator[pa.LargeStringArray]:
    """Write the row after each change, of a write that several nodes logged once; or each row as it is now.

    All changes are kept in memory: the last may change the first row.
    """
    connector, source = settings.connector, settings.source
    if set(connector.publish.skipped_operations) - {"t"}:
        raise ConfigurationError(
            "option publish.skipped_operations is for events that have an operation",
            expected="none in envelope datastax",
            found=", ".join(connector.publish.skipped_operations),
        )
    if connector.publish.cassandra.reread and settings.read_again is None:
        raise ConfigurationError(
            "rows of a recording can't be read again",
            expected="publish.cassandra.reread false",
            remedy="or print events of what was captured, with --from-lake and a connection",
        )
    excluded = _excluded(connector, source)
    former = {schema.id for schema in source.former_tables()}
    records = pa.Table.from_batches(batches, record.CHANGE_SCHEMA).combine_chunks()
    damage.skipped["t"] += _truncations(records["kind"])
    table_ids = _table_ids(records, source)
    rows: list[np.ndarray] = []
    lines: list[pa.LargeStringArray] = []
    for schema in settings.tables():
        ours = pc.equal(table_ids, bytes.fromhex(schema.id)).fill_null(False)
        codec = source.codec_of(schema)
        left_out = _whole_columns(_of(schema, excluded, former=schema.id in former))
        states, places = _states(settings, codec, records, ours, damage)
        if connector.publish.cassandra.reread:
            gone = schema.id in former
            states, places = _states_now(settings, codec, states, places, gone=gone)
        options = datastax_envelope.EnvelopeOptions(
            topics_of(connector),
            json=connector.publish.value == "json",
            key_in_value=connector.publish.cassandra.key_in_value,
            excluded=left_out,
            static=[c.name for c in codec.schema.static],
            index=connector.publish.event_index,
        )
        decoder = RowDecoder(codec.schema, key_in_value=options.key_in_value)
        for of_partition in (False, True):
            chosen = pc.and_(states["captured"], pc.equal(states["of_partition"], of_partition))
            part = decoder.decode(states.filter(chosen))
            if not part.num_rows:
                continue
            envelope = datastax_envelope.build(part, schema.keyspace, schema.name, options)
            rows.append(places[np.flatnonzero(chosen)])
            lines.append(to_lines(encode(envelope, converters_of(connector)), ()))
    if lines:
        order = np.argsort(np.concatenate(rows), kind="stable")
        yield pa.concat_arrays(lines).take(pa.array(order))


def _states(
    settings: EventSettings, codec: CassandraCodec, records: pa.Table, ours: pa.Array, damage: Damage
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the states of a table's rows after each change, and numbers that order all tables' events."""
    fences = fences_of(records.filter(pc.equal(records["source_table"], codec.table)), codec.schema.id)
    changes, numbers = data_of(records, ours)
    decoded = codec.decode(changes, fences)
    note(codec.table, changes, decoded.undecodable, decoded.reasons, damage)
    of_change = np.asarray(decoded.rows, np.int64)
    contributions = pa.Table.from_batches([decoded.contributions], CONTRIBUTION_SCHEMA)
    states = row_states(
        contributions,
        of_change,
        settings.now_ns // 1_000_000_000,
        codec.rules,
        clustered=bool(codec.schema.clustering),
    )
    copies = _copies(decoded.contributions, of_change, changes.num_rows)
    damage.skipped["copy"] += int(np.count_nonzero(copies))
    latest = np.full(changes.num_rows, np.iinfo(np.int64).min)
    np.maximum.at(latest, of_change, latest_times(decoded.contributions["state"]))
    change = states["change"].to_numpy()
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
        "captured": pa.array((_wanted(settings.source, codec.schema.id, changes) & ~copies)[change]),
    }
    if settings.connector.publish.cassandra.node_header:
        columns["node"] = _nodes(changes).take(states["change"])
    return pa.RecordBatch.from_pydict(columns), event_order(numbers[change])


def _states_now(
    settings: EventSettings, codec: CassandraCodec, states: pa.RecordBatch, places: np.ndarray, *, gone: bool
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the rows that states are of, each once, as the source has them now.

    Args:
        settings: How events are made; it can read again.
        codec: The table's.
        states: Of :func:`_states`.
        places: Likewise.
        gone: The table was dropped, so that nothing is there to be read.
    """
    captured = np.flatnonzero(states["captured"])
    states, places = states.take(pa.array(captured)), places[captured]
    last = last_of_each_row(states)
    states, places = states.take(pa.array(last)), places[last]
    read_again = _read_nothing if gone or settings.read_again is None else settings.read_again
    return as_read(states, codec, read_again, settings.now_ns // 1_000_000_000), places


def _read_nothing(table: str, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    del table, keys
    return iter(())


def _nodes(records: pa.RecordBatch) -> pa.Array:
    """Return the node that logged each record; null for rows of snapshots, whose origin is but a place."""
    return pc.if_else(pc.equal(records["kind"], record.SNAPSHOT), None, records["origin"])


def _copies(contributions: pa.RecordBatch, of_change: np.ndarray, count: int) -> np.ndarray:
    """Tell which changes say just what one before them has said: each replica logs its copy of a write.

    Two are the same if all they hold is: keys, deletions, values, write times and expiries.
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
    copies = np.zeros(count, np.bool_)
    copies[np.delete(changes, firsts)] = True
    return copies


def _table_ids(records: pa.RecordBatch | pa.Table, source: CassandraSource) -> pa.Array:
    """Return the id of the table that each change or snapshot row is of, null for other records.

    Null for changes of counters too: they hold what each node has counted, not the sum, which a snapshot has.
    """
    kinds, names, ids = (records[name] for name in ("kind", "source_table", "schema_id"))
    by_name = {name: source.schemas.tables[name].id for name in source.tables()}
    known = pa.array(by_name.values(), pa.string())
    of_name = known.take(pc.index_in(names, value_set=pa.array(by_name, pa.string())))
    texts = pc.coalesce(pc.if_else(pc.equal(ids, ""), None, ids), of_name)
    unique = [text for text in pc.unique(texts).drop_null().to_pylist() if len(text) == _ID_DIGITS]
    table_ids = pa.array(map(bytes.fromhex, unique), pa.binary())
    of_snapshots = table_ids.take(pc.index_in(texts, value_set=pa.array(unique, pa.string())))
    read = pc.equal(kinds, record.SNAPSHOT)
    of_changes = pc.if_else(pc.equal(kinds, record.CHANGE), pc.binary_slice(records["payload"], 1, 17), None)
    counters = [bytes.fromhex(table.id) for table in source.schemas.tables.values() if table.counter]
    counted = pc.is_in(of_changes, value_set=pa.array(counters, pa.binary()))
    of_changes = pc.if_else(counted, pa.scalar(None, pa.binary()), of_changes)
    found = pc.if_else(read, of_snapshots, of_changes)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def event_order(records: np.ndarray) -> np.ndarray:
    """Return numbers that order the events of all tables.

    Args:
        records: Per event of one table, in order, the record that it comes from.

    Returns:
        Numbers by which events of one record keep their order, however many there are: up to 2^32.
    """
    return records.astype(np.int64) * (1 << 32) + np.arange(len(records))


def _excluded(connector: Connector, source: CassandraSource) -> Mapping[str, list[tuple[str, ...]]]:
    """Return by table the columns to leave out of values."""
    tables = [*source.tables(), *(schema.full_name for schema in source.former_tables())]
    excluded: dict[str, list[tuple[str, ...]]] = {table: [] for table in tables}
    for text in connector.publish.exclude_columns:
        keyspace, table, *path = text.split(".")
        if f"{keyspace}.{table}" not in excluded:
            raise ConfigurationError(
                f"option publish.exclude_columns names {text}, whose table is not captured",
                expected=f"one of {', '.join(excluded)}",
            )
        excluded[f"{keyspace}.{table}"].append(tuple(path))
    return excluded


def _of(
    schema: TableSchema, excluded: Mapping[str, Sequence[tuple[str, ...]]], *, former: bool
) -> Sequence[tuple[str, ...]]:
    """Return what a table excludes; of one that was dropped since, what it had of that."""
    paths = excluded[schema.full_name]
    names = {column.name for column in schema.columns}
    return [path for path in paths if path[0] in names] if former else paths


def _whole_columns(paths: Sequence[tuple[str, ...]]) -> list[str]:
    for path in paths:
        if len(path) > 1:
            raise ConfigurationError(
                f"field {'.'.join(path)} can't be left out",
                remedy="envelope datastax can leave out whole columns; debezium fields too",
            )
    return [path[0] for path in paths]


def fences_of(records: pa.Table, table_id: str = "") -> tuple[Fence, ...]:
    """Return what the truncations among a table's records put an end to.

    Args:
        records: Records of one table's name.
        table_id: Only truncations of this table, by its id; empty for all.
    """
    truncates = records.filter(pc.equal(records["kind"], record.TRUNCATE)).to_pylist()
    ours = [row for row in truncates if not table_id or row["schema_id"] in (None, table_id)]
    return add_fences((), map(FenceRecord.of, ours))


def note(
    table: str, part: pa.RecordBatch, undecodable: Sequence[int], reasons: Sequence[str], damage: Damage
) -> None:
    """Note changes that could not be decoded.

    Args:
        table: Their table.
        part: Batch of ``CHANGE_SCHEMA``.
        undecodable: Rows of it.
        reasons: A text for each of them.
        damage: Collects them.

    Raises:
        CorruptInput: It is strict.
    """
    for row, reason in zip(undecodable, reasons, strict=True):
        damage.add(f"{table}, {place_of(part['origin'][row].as_py(), part['position'][row].as_py())}", reason)


def place_of(origin: str, position: bytes) -> str:
    """Name a place for people."""
    place = Position.unpack(position)
    return f"node {origin}, segment {place.segment}, position {place.end}"


def _wanted(source: CassandraSource, table_id: str, changes: pa.RecordBatch) -> np.ndarray:
    """Tell which changes are to be events: rows of snapshots, and what was written while ``cdc`` was on."""
    read = pc.equal(changes["kind"], record.SNAPSHOT).to_numpy(zero_copy_only=False)
    return read | source.written_while_captured(table_id, changes)


def _truncations(kinds: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(pc.equal(kinds, record.TRUNCATE)).as_py() or 0)
