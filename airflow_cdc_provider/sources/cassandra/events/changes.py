"""Properties of undecoded Cassandra records: tables, nodes, positions, and which of them become events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.fence import Fence, FenceRecord, add_fences
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.events.before_images import KnownOf, nothing_known
from airflow_cdc_provider.sources.cassandra.events.earlier_rows import EarlierRowsOf
from airflow_cdc_provider.sources.cassandra.events.envelope import split_path
from airflow_cdc_provider.sources.cassandra.events.reread_rows import ReadAgain
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.converters import Converter, load_converters, require_columns
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.yaml_file import read_yaml

Numbered = tuple[int, pa.RecordBatch]
"""Number of a batch of the changes table, 0 for a recording, and its records of ``CHANGE_SCHEMA``."""

_ID_DIGITS: Final = 32
"""Length of a table's id as text; the ``schema_id`` of other records has another length."""


@dataclass(frozen=True)
class EventSettings:
    """The settings of events.

    Args:
        connector: The declaration.
        source: Has the schemas, also those of dropped tables.
        cluster: The cluster's name.
        now_ns: The time at which events are built and TTLs are evaluated, ns since 1970.
        known_of: Returns the known rows from before all records.
        read_again: Reads rows at the source; None without a source, such as for a recording.
        earlier_rows: Finds rows that a batch's deletions covered; None if all changes are given.
        by_batch: Whether all events of a batch of the changes table come before those of the next, whatever
            their write times, and rows are read again once per batch.
        registrar: Assigns ids to schemas; None for none.
        owners: By adjusted name of a topic the table that has it.
    """

    connector: Connector
    source: CassandraSource
    cluster: str
    now_ns: int
    known_of: KnownOf = nothing_known
    read_again: ReadAgain | None = None
    earlier_rows: EarlierRowsOf | None = None
    by_batch: bool = False
    registrar: Registrar | None = None
    owners: dict[str, str] = field(default_factory=dict)

    def tables(self) -> list[TableSchema]:
        """List the captured tables, then those that were dropped."""
        source = self.source
        return [*(source.schemas.tables[name] for name in source.tables()), *source.former_tables()]


def all_records(batches: Iterable[Numbered]) -> tuple[pa.Table, np.ndarray]:
    """Return all records, and the batch number of each."""
    kept = list(batches)
    numbers = [np.full(batch.num_rows, number) for number, batch in kept]
    return (
        pa.Table.from_batches([batch for _, batch in kept], record.CHANGE_SCHEMA),
        np.concatenate([np.empty(0, np.int64), *numbers]),
    )


def runs_of(numbers: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of equal numbers."""
    bounds = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
    if len(numbers):
        yield from zip([0, *bounds], [*bounds, len(numbers)], strict=True)


def table_ids_of(records: pa.RecordBatch | pa.Table, source: CassandraSource) -> pa.Array:
    """Return the table id of each change or snapshot row, null for other records.

    Null also for changes of counters: they hold the count of a single node; only a snapshot has the sum.
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


def selected_changes(source: CassandraSource, table_id: str, changes: pa.RecordBatch) -> np.ndarray:
    """Return which changes become events: rows of snapshots, and writes while ``cdc`` was on."""
    read = pc.equal(changes["kind"], record.SNAPSHOT).to_numpy(zero_copy_only=False)
    return read | source.written_while_captured(table_id, changes)


def nodes_of(records: pa.RecordBatch) -> pa.Array:
    """Return the node that logged each record; null for rows of snapshots, whose origin is not a node."""
    return pc.if_else(pc.equal(records["kind"], record.SNAPSHOT), None, records["origin"])


def truncations(records: pa.RecordBatch | pa.Table) -> set[tuple[str, str]]:
    """Return the truncated tables, as :attr:`.skipped_records.SkippedRecords.removed`."""
    tables = records["source_table"].filter(pc.equal(records["kind"], record.TRUNCATE))
    return {(record.TRUNCATE, table) for table in tables.unique().to_pylist()}


def excluded_columns(connector: Connector, source: CassandraSource) -> Mapping[str, list[tuple[str, ...]]]:
    """Return by table the columns to exclude from values."""
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


def excluded_of(
    schema: TableSchema, excluded: Mapping[str, Sequence[tuple[str, ...]]], *, former: bool
) -> Sequence[tuple[str, ...]]:
    """Return the excluded paths of a table, without dropped columns; of a dropped table those it has."""
    names = {column.name for column in schema.columns}
    paths = [split_path(path, {*names, *schema.dropped}) for path in excluded[schema.full_name]]
    return [path for path in paths if path[0] in names or not (former or path[0] in schema.dropped)]


def converters_of(connector: Connector, schemas: Iterable[TableSchema]) -> list[tuple[str, Converter]]:
    """Load a connector's converters.

    Raises:
        ConfigurationError: One matches no column of the tables, nor one that was dropped.
    """
    converters = load_converters(connector.publish.cassandra.converters)
    names = [f"{s.full_name}.{name}" for s in schemas for name in (*(c.name for c in s.columns), *s.dropped)]
    require_columns(converters, names)
    return converters


def fences_of(records: pa.Table, table_id: str = "") -> tuple[Fence, ...]:
    """Return the fences of the truncations among a table's records.

    Args:
        records: Records with the name of one table.
        table_id: The id of the table whose truncations count; empty for all.
    """
    truncates = records.filter(pc.equal(records["kind"], record.TRUNCATE)).to_pylist()
    ours = [row for row in truncates if not table_id or row["schema_id"] in (None, table_id)]
    return add_fences((), map(FenceRecord.of, ours))


def note(
    table: str,
    part: pa.RecordBatch,
    undecodable: Sequence[int],
    reasons: Sequence[str],
    skipped: SkippedRecords,
) -> None:
    """Collect changes that could not be decoded.

    Args:
        table: The table of the changes.
        part: Batch of ``CHANGE_SCHEMA``.
        undecodable: Indexes of rows that could not be decoded.
        reasons: The reason for each of them.
        skipped: Collects them.

    Raises:
        CorruptInput: ``skipped`` is strict.
    """
    for row, reason in zip(undecodable, reasons, strict=True):
        position = describe_position(part["origin"][row].as_py(), part["position"][row].as_py())
        skipped.add(f"{table}, {position}", reason)


def describe_position(origin: str, position: bytes) -> str:
    """Return a readable form of a position."""
    unpacked = Position.unpack(position)
    return f"node {origin}, segment {unpacked.segment}, position {unpacked.end}"


def cluster_name(path: Path) -> str:
    """Return the cluster's name in the ``cassandra.yaml`` of the folder or its parent, empty without one."""
    for file in (path / "cassandra.yaml", path.parent / "cassandra.yaml"):
        if file.is_file():
            values = read_yaml(file)
            return str(values.get("cluster_name") or "") if isinstance(values, dict) else ""
    return ""


def cluster_of(source: CassandraSource) -> str:
    """Return the name of a source's cluster: as declared, else from the node's files or the cluster."""
    return source.options.cluster or cluster_name(Path(source.options.cdc_raw)) or source.cluster_name()
