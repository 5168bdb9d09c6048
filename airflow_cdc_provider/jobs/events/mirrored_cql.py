"""Rows of mirrors of Cassandra and ScyllaDB as events of snapshot rows.

A mirror keeps the cell rows of its rows, and its tombstone table those of static columns. They are reconciled
again at one point in time, which drops cells that expired since the last merge, and pass through the same
envelope and transforms as published changes. Static columns have separate events, as among changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.fence import newest_generation
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.envelopes import cassandra as cassandra_envelope
from airflow_cdc_provider.events.envelopes import datastax as datastax_envelope
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.jobs.events.cassandra import datastax_rows
from airflow_cdc_provider.jobs.events.cassandra import events as cassandra_events
from airflow_cdc_provider.jobs.events.cassandra.records import excluded_columns
from airflow_cdc_provider.jobs.events.scylla.lake import schemas_of
from airflow_cdc_provider.jobs.events.scylla.records import ScyllaRecords
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.topics.settings import encoded
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import Mirror, MirrorState
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.lake.reconcile.columns import only_columns
from airflow_cdc_provider.lake.row_changes import READ
from airflow_cdc_provider.sources.cassandra.datastax.rows import RowDecoder
from airflow_cdc_provider.sources.cassandra.debezium.mirror_rows import MirrorRowDecoder
from airflow_cdc_provider.sources.cassandra.debezium.types import EventTypes
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.converters import load_converters
from airflow_cdc_provider.sources.cql.codec import CqlCodec
from airflow_cdc_provider.sources.scylla.event_tables import EventTable, LogSchemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS_PER_PARTITION = 50_000
_ROWS_AT_ONCE = 10_000
_SECOND_US = 1_000_000


def cql_mirror_events(
    connector: Connector,
    changes: ChangesTable,
    source: Source,
    mirror: Mirror,
    state: MirrorState,
    codec: CqlCodec,
    plain: Connector,
    ddl: str,
    now_us: int,
) -> DataFrame:
    """Return key and value of the event of each row of a mirror, and of each partition with static columns.

    Args:
        connector: The declaration.
        changes: The changes table.
        source: The source.
        mirror: The mirror.
        state: The state of the mirror to read.
        codec: The table's codec, with the memory of the mirror.
        plain: The declaration for these events.
        ddl: DDL of the two columns.
        now_us: The time at which expiry is evaluated, us since 1970.
    """
    names = CONTRIBUTION_SCHEMA.names
    rows = mirror.rows(state).where("state IS NOT NULL").select(*names)
    both = rows.unionByName(mirror.tombstone_rows().select(*names))
    partitions = mirror.row_count(state) // _ROWS_PER_PARTITION + 1
    excluded: tuple[tuple[str, ...], ...] = ()
    log: EventTable | None = None
    if isinstance(source, CassandraSource):
        excluded = tuple(excluded_columns(connector, source)[codec.table])
    else:
        schemas = schemas_of(changes, changes.state().batch)
        columns = [column.name for column in codec.schema.regular]
        log = schemas.of_row(codec.table, "", columns, static=False, read_us=now_us)
    build = _CqlEvents(plain.to_dict(), codec, newest_generation(state.fences), now_us, excluded, log)
    return map_in_arrow(both.repartition(partitions, "key"), build, ddl)


@dataclass(frozen=True)
class _CqlEvents:
    """Builds the events of some partitions of a mirror. Picklable.

    Args:
        connector: The declaration, as plain data.
        codec: The table's codec.
        generation: Cells of lower generations don't count.
        now_us: The time at which expiry is evaluated, us since 1970.
        excluded: For Cassandra: paths of columns to exclude from values.
        log: For ScyllaDB: the table and its log.
    """

    connector: Mapping[str, Any]
    codec: CqlCodec
    generation: int
    now_us: int
    excluded: tuple[tuple[str, ...], ...] = ()
    log: EventTable | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        connector = Connector.from_dict(self.connector)
        kept = pa.Table.from_batches(found)
        if self.codec.column_ids is not None:
            states = only_columns(kept["state"], self.codec.column_ids)
            kept = kept.set_column(kept.schema.get_field_index("state"), "state", states)
        outcome = reconcile_cells(
            kept,
            self.now_us // _SECOND_US,
            rules=self.codec.rules,
            min_generation=self.generation,
            static_columns_table=True,
        )
        for rows in (outcome.live, outcome.static_columns):
            for batch in rows.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE):
                if batch.num_rows:
                    records = self._records(connector, batch, static=rows is outcome.static_columns)
                    both = [
                        records[name].cast(pa.large_binary()).cast(pa.binary()) for name in ("key", "value")
                    ]
                    yield pa.RecordBatch.from_arrays(both, ["key", "value"])

    def _records(self, connector: Connector, rows: pa.RecordBatch, *, static: bool) -> pa.RecordBatch:
        names = ["key", "state", "static_state"]
        states = pa.RecordBatch.from_arrays([rows[name].cast(pa.binary()) for name in names], names)
        if self.log is not None:
            builder = ScyllaRecords(
                connector, self.now_us * 1000, LogSchemas(()), SkippedRecords(strict=True)
            )
            return builder.of_rows(self.log, _as_read(states), self.codec.schema)
        build = self._whole if connector.publish.envelope == "datastax" else self._cells
        envelope = build(connector, states, static=static)
        return encoded(connector, [Piece(envelope, np.arange(rows.num_rows))])

    def _cells(self, connector: Connector, states: pa.RecordBatch, *, static: bool) -> Envelope:
        schema, choices = self.codec.schema, connector.publish.cassandra
        types = EventTypes(choices.decimals, choices.varints, choices.frozen)
        decoder = MirrorRowDecoder(schema, types, load_converters(choices.converters))
        at = pa.array(np.full(states.num_rows, self.now_us))
        events = decoder.merged_rows(_as_read(states).append_column("at_us", at), static=static)
        options = cassandra_events.envelope_options(connector, "", self.now_us * 1000, self.excluded)
        return cassandra_envelope.build(events, schema.keyspace, schema.name, options)

    def _whole(self, connector: Connector, states: pa.RecordBatch, *, static: bool) -> Envelope:
        schema, count = self.codec.schema, states.num_rows
        options = datastax_rows.envelope_options(
            connector, schema, datastax_rows.whole_columns(self.excluded)
        )
        columns = {
            "key": states["key"],
            "key_state": states["state"],
            "state": states["state"],
            "static_state": states["static_state"],
            "lives": pa.repeat(pa.scalar(True), count),
            "written_at": pa.array(np.zeros(count, np.int64)),
            "of_partition": pa.repeat(pa.scalar(static), count),
            "index": pa.repeat("0", count),
        }
        decoder = RowDecoder(schema, key_in_value=options.key_in_value)
        rows = decoder.decode(pa.RecordBatch.from_pydict(columns))
        return datastax_envelope.build(rows, schema.keyspace, schema.name, options)


def _as_read(states: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as snapshot rows with time 0."""
    count = states.num_rows
    read = states.append_column("op", pa.repeat(READ, count))
    return read.append_column("ts_us", pa.array(np.zeros(count, np.int64)))
