"""Recordings of Cassandra's log to the rows that they add up to, without Spark or a server.

The whole recording is held in memory: this is for looking closely, not for loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import Fence, add_fence
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.base import ReadLimit
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource

LeftOut = Callable[[str, str], None]
"""Is told the place and the reason of everything that can't be read."""

_ALL = ReadLimit(bytes=1 << 62, changes=1 << 62)


@dataclass(frozen=True)
class OfflineTable:
    """What a recording says of one table.

    Args:
        table: ``keyspace.table``.
        codec: Shows its rows.
        live: ``LIVE_ROW_SCHEMA``.
    """

    table: str
    codec: CassandraCodec
    live: pa.Table


def offline_source(connector: Connector, input_path: str | Path, schema_path: str | Path) -> CassandraSource:
    """Build a connector's source over a recording; empty paths leave the declaration's.

    Args:
        connector: The declaration, of type cassandra.
        input_path: Folder of segments and index files, plain or ``.gz``.
        schema_path: What ``DESCRIBE ... WITH INTERNALS`` prints.
    """
    options = connector.source
    assert isinstance(options, CassandraOptions)
    options = replace(
        options,
        cdc_raw=str(input_path or options.cdc_raw),
        schema_file=str(schema_path or options.schema_file),
    )
    return CassandraSource(options, {}, connector.selects)


def offline_changes(source: CassandraSource) -> pa.Table:
    """Read all changes of a recording (``CHANGE_SCHEMA``), in the order of each node's log.

    Raises:
        ConfigurationError: There is no recording, or it is of a kind that can't be read.
        CorruptInput: A segment is broken and the source is strict.
    """
    read = source.reader()
    plan = source.plan(None, source.head(), _ALL)
    batches = [batch for part in plan.partitions for batch in read(part)]
    return pa.Table.from_batches(batches, record.CHANGE_SCHEMA)


def offline_tables(
    connector: Connector,
    input_path: str | Path,
    schema_path: str | Path,
    *,
    now_seconds: int,
    only: str = "",
    left_out: LeftOut = lambda place, reason: None,
) -> Iterator[OfflineTable]:
    """Reconcile a recording's tables, by name.

    Args:
        connector: The declaration.
        input_path: As for :func:`offline_source`.
        schema_path: Likewise.
        now_seconds: The moment at which TTLs are judged.
        only: This table alone; empty for all.
        left_out: Gets what can't be read.

    Raises:
        ConfigurationError: There is no recording or no schema.
        SchemaUnknown: A statement of the schema can't be read.
        CorruptInput: Something can't be read and the source is strict.
    """
    source = offline_source(connector, input_path, schema_path)
    changes = offline_changes(source)
    for row in changes.filter(pc.equal(changes["kind"], record.QUARANTINE)).to_pylist():
        left_out(f"{row['source_table'] or row['origin']} at {row['position'].hex()}", row["schema_id"] or "")
    for name in source.tables():
        if only in ("", name):
            own = changes.filter(pc.equal(changes["source_table"], name))
            yield _table(source.codec(name), own, now_seconds, left_out)


def _table(codec: CassandraCodec, changes: pa.Table, now_seconds: int, left_out: LeftOut) -> OfflineTable:
    fences = table_fences(changes)
    contributions = []
    data = changes.filter(pc.is_in(changes["kind"], pa.array(record.DATA_KINDS)))
    for batch in data.to_batches():
        decoded = codec.decode(batch, fences)
        contributions.append(decoded.contributions)
        for number, reason in zip(decoded.undecodable, decoded.reasons, strict=True):
            left_out(f"{codec.table} at {batch['position'][number].as_py().hex()}", reason)
    found = pa.Table.from_batches(contributions, CONTRIBUTION_SCHEMA)
    reconciled = reconcile_cells(found, now_seconds, codec.rules, min_generation=len(fences))
    return OfflineTable(codec.table, codec, reconciled.live)


def table_fences(changes: pa.Table) -> Sequence[Fence]:
    """Return the fences among a table's changes."""
    fences: Sequence[Fence] = ()
    for row in changes.filter(pc.is_in(changes["kind"], pa.array(record.FENCE_KINDS))).to_pylist():
        fences = add_fence(fences, row["origin"], row["position"])
    return fences
