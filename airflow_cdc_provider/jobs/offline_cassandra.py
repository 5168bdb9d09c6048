"""Recordings of Cassandra: folders of commit-log segments to lines of events or rows. See :mod:`.offline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence, FenceRecord, add_fences, newest_generation
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import encode, to_lines
from airflow_cdc_provider.events.envelopes import cassandra as cassandra_envelope
from airflow_cdc_provider.events.envelopes import datastax as datastax_envelope
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.event_settings import converters_of, topics_of, without_skipped
from airflow_cdc_provider.jobs.offline import Damage, Recording, row_lines_of
from airflow_cdc_provider.jobs.row_states import row_states
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.base import Offset, ReadLimit
from airflow_cdc_provider.sources.cassandra.commit_log.offsets import NodeOffset
from airflow_cdc_provider.sources.cassandra.commit_log.segments import list_faults, list_segments
from airflow_cdc_provider.sources.cassandra.datastax.rows import RowDecoder
from airflow_cdc_provider.sources.cassandra.debezium.converters import load_converters, require_columns
from airflow_cdc_provider.sources.cassandra.debezium.events import EventDecoder
from airflow_cdc_provider.sources.cassandra.debezium.types import EventTypes
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.yaml_file import read_yaml

_ROWS_AT_ONCE: Final = 10_000


def event_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Write a recording's events in the order of the log; see :func:`.offline.event_lines`."""
    source = _source(connector, recording)
    excluded = _excluded(connector, source)
    if connector.publish.envelope == "datastax":
        yield from _whole_rows(connector, source, recording, excluded, damage)
        return
    publish, choices = connector.publish, connector.publish.cassandra
    captured = [*(source.schemas.tables[name] for name in source.tables()), *source.former_tables()]
    types = EventTypes(choices.decimals, choices.varints)
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
        source.options.cluster or cluster_name(recording.path),
        publish.tombstones,
        recording.now_ns,
        namespace=cassandra_envelope.DATASTAX if as_datastax else cassandra_envelope.DEBEZIUM,
        source="documented" if as_datastax else choices.source,
        common_operations=as_datastax or choices.operations == "common",
        index=publish.event_index,
        deletion_in_key=as_datastax,
    )
    for batch in _records(source, recording, damage):
        damage.skipped["t"] += _truncations(batch["kind"])
        rows: list[np.ndarray] = []
        lines: list[pa.LargeStringArray] = []
        changes = pc.equal(batch["kind"], record.CHANGE)
        table_ids = pc.if_else(changes, pc.binary_slice(batch["payload"], 1, 17), None)
        for table_id in pc.unique(table_ids).drop_null().to_pylist():
            places = np.flatnonzero(pc.equal(table_ids, table_id).fill_null(False))
            places = places[source.written_while_captured(table_id.hex(), batch.take(pa.array(places)))]
            part = batch.take(pa.array(places))
            decoder = decoders[table_id]
            decoded = decoder.decode(part)
            schema = decoder.schema
            _note(schema.full_name, part, decoded.undecodable, decoded.reasons, damage)
            events = without_skipped(decoded.events, connector, damage.skipped)
            if events.num_rows:
                envelope = cassandra_envelope.build(
                    events, schema.keyspace, schema.name, replace(options, excluded=left_out[table_id])
                )
                records = encode(envelope, converters_of(connector))
                rows.append(places[events["row"].take(records["row"]).to_numpy()])
                lines.append(to_lines(records, ()))
        if lines:
            order = np.argsort(np.concatenate(rows), kind="stable")
            yield pa.concat_arrays(lines).take(pa.array(order))


def _whole_rows(
    connector: Connector,
    source: CassandraSource,
    recording: Recording,
    excluded: Mapping[str, Sequence[tuple[str, ...]]],
    damage: Damage,
) -> Iterator[pa.LargeStringArray]:
    """Write the row after each change. All changes are kept in memory: the last may change the first row."""
    if set(connector.publish.skipped_operations) - {"t"}:
        raise ConfigurationError(
            "option publish.skipped_operations is for events that have an operation",
            expected="none in envelope datastax",
            found=", ".join(connector.publish.skipped_operations),
        )
    batches = list(_records(source, recording, damage))
    records = pa.Table.from_batches(batches, record.CHANGE_SCHEMA).combine_chunks()
    damage.skipped["t"] += _truncations(records["kind"])
    rows: list[np.ndarray] = []
    lines: list[pa.LargeStringArray] = []
    for table in source.tables():
        states, places = _states(table, source, recording, records, damage)
        schema = source.schemas.tables[table]
        options = datastax_envelope.EnvelopeOptions(
            topics_of(connector),
            json=connector.publish.value == "json",
            key_in_value=connector.publish.cassandra.key_in_value,
            excluded=_whole_columns(excluded[table]),
            static=[c.name for c in schema.static],
            index=connector.publish.event_index,
        )
        decoder = RowDecoder(schema, key_in_value=options.key_in_value)
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
    table: str, source: CassandraSource, recording: Recording, records: pa.Table, damage: Damage
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the states of a table's rows after each change, and numbers that order all tables' events."""
    codec = source.codec(table)
    ours = pc.equal(records["source_table"], table)
    fences = _fences(records.filter(ours))
    numbers = np.flatnonzero(pc.and_(ours, pc.equal(records["kind"], record.CHANGE)))
    (changes,) = records.take(pa.array(numbers)).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], record.CHANGE_SCHEMA)
    ]
    decoded = codec.decode(changes, fences)
    _note(table, changes, decoded.undecodable, decoded.reasons, damage)
    of_change = np.asarray(decoded.rows, np.int64)
    contributions = pa.Table.from_batches([decoded.contributions], CONTRIBUTION_SCHEMA)
    states = row_states(
        contributions,
        of_change,
        recording.now_ns // 1_000_000_000,
        codec.rules,
        clustered=bool(codec.schema.clustering),
    )
    latest = np.full(changes.num_rows, np.iinfo(np.int64).min)
    np.maximum.at(latest, of_change, latest_times(decoded.contributions["state"]))
    change = states["change"].to_numpy()
    columns = {
        "key": states["key"],
        "key_state": states["key_state"],
        "state": states["state"],
        "static_state": states["static_state"],
        "lives": states["lives"],
        "written_at": pa.array(latest[change]),
        "of_partition": states["key_state"].is_null(),
        "index": cassandra_envelope.event_index(states["change"]),
        "captured": pa.array(source.written_while_captured(codec.schema.id, changes)[change]),
    }
    return pa.RecordBatch.from_pydict(columns), event_order(numbers[change])


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


def row_lines(connector: Connector, recording: Recording, damage: Damage) -> Iterator[pa.LargeStringArray]:
    """Write the rows that a recording adds up to; see :func:`.offline.row_lines`."""
    source = _source(connector, recording)
    records = pa.Table.from_batches(_records(source, recording, damage), record.CHANGE_SCHEMA)
    for table in source.tables():
        if recording.table not in ("", table):
            continue
        codec = source.codec(table)
        changes = records.filter(pc.equal(records["source_table"], table))
        fences = _fences(changes)
        contributions = []
        for batch in changes.filter(pc.equal(changes["kind"], record.CHANGE)).to_batches():
            decoded = codec.decode(batch, fences)
            _note(table, batch, decoded.undecodable, decoded.reasons, damage)
            contributions.append(decoded.contributions)
        live = reconcile_cells(
            pa.Table.from_batches(contributions, CONTRIBUTION_SCHEMA),
            recording.now_ns // 1_000_000_000,
            codec.rules,
            min_generation=newest_generation(fences),
        ).live
        for batch in live.to_batches(max_chunksize=_ROWS_AT_ONCE):
            yield row_lines_of(table, codec.to_json(batch))


def _truncations(kinds: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(pc.equal(kinds, record.TRUNCATE)).as_py() or 0)


def _fences(changes: pa.Table) -> tuple[Fence, ...]:
    """Return what the truncations among a table's changes put an end to."""
    truncates = changes.filter(pc.equal(changes["kind"], record.TRUNCATE)).to_pylist()
    return add_fences((), map(FenceRecord.of, truncates))


def cluster_name(path: Path) -> str:
    """Return the cluster's name by the ``cassandra.yaml`` in the folder or above it, empty without one."""
    for file in (path / "cassandra.yaml", path.parent / "cassandra.yaml"):
        if file.is_file():
            values = read_yaml(file)
            return str(values.get("cluster_name") or "") if isinstance(values, dict) else ""
    return ""


def _source(connector: Connector, recording: Recording) -> CassandraSource:
    """Build the source on the recording alone, without a connection."""
    options = connector.source
    assert isinstance(options, CassandraOptions)
    schema = recording.schema or options.schema_file
    source = CassandraSource(
        replace(options, cdc_raw=str(recording.path), schema_file=schema),
        {},
        connector.selects,
        recorded=True,
    )
    if any(list_segments(recording.path, options.node).values()):
        source.learn_from_log()
    return source


def _records(source: CassandraSource, recording: Recording, damage: Damage) -> Iterator[pa.RecordBatch]:
    """Read all segments; what can't be read is noted and left out."""
    if not any(list_segments(recording.path, source.options.node).values()):
        raise ConfigurationError(
            f"there is no recording at {recording.path}",
            expected="a folder with CommitLog-*.log (or .log.gz) and *_cdc.idx files",
        )
    for origin, segment, reason in list_faults(recording.path, source.options.node):
        damage.add(f"node {origin}, segment {segment}", reason)
    read, stop = source.reader(), source.head()
    start: Offset | None = None
    if source.options.advanced.latest_segment_only:
        nodes = list_segments(recording.path, source.options.node)
        newest = {node: max(file.segment for file in files) for node, files in nodes.items() if files}
        start = {node: NodeOffset(floor=segment - 1).to_json() for node, segment in newest.items()}
    while True:
        plan = source.plan(start, stop, ReadLimit())
        for part in plan.partitions:
            for batch in read(part):
                broken = pc.equal(batch["kind"], record.QUARANTINE)
                for row in batch.filter(broken).to_pylist():
                    damage.add(_place(row["origin"], row["position"]), row["schema_id"])
                yield batch.filter(pc.invert(broken))
        if plan.at_head or plan.end == start:
            return
        start = plan.end


def _note(
    table: str, part: pa.RecordBatch, undecodable: Sequence[int], reasons: Sequence[str], damage: Damage
) -> None:
    for row, reason in zip(undecodable, reasons, strict=True):
        damage.add(f"{table}, {_place(part['origin'][row].as_py(), part['position'][row].as_py())}", reason)


def _place(origin: str, position: bytes) -> str:
    place = Position.unpack(position)
    return f"node {origin}, segment {place.segment}, position {place.end}"
