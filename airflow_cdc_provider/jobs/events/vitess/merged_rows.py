"""Rows of a mirror of Vitess that merges changed, as events in the form of copied rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.context.tables import learn_schema
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.events.vitess.kept_rows import everything, kept_rows
from airflow_cdc_provider.jobs.events.vitess.lake import RecordedSchema, recorded_schema
from airflow_cdc_provider.jobs.events.vitess.records import VitessRecords
from airflow_cdc_provider.lake.row_changes import DELETE, INSERT, READ
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.event_records import decode_records
from airflow_cdc_provider.sources.vitess.event_rows import TableEvents
from airflow_cdc_provider.sources.vitess.states import shards_of

_ORDER_BITS: Final = 32
"""Low bits of an event's order, below the index of its record."""


@dataclass(frozen=True)
class VitessRows:
    """Builds events of one mirror's rows; see :class:`~..merged_rows.RowEvents`.

    Args:
        connector: The declaration.
        table: ``keyspace.table``.
        schema: The recorded schema, with the field definitions of rows.
    """

    connector: Connector
    table: str
    schema: RecordedSchema

    @classmethod
    def of(cls, connector: Connector, stores: Stores, source: Source, table: str) -> VitessRows:
        """Return the builder of events for a table's mirror.

        Raises:
            ConfigurationError: The table has no key.
        """
        learn_schema(source, stores.changes)
        codec = source.codec(table, stores.mirror(table).state().memory)
        assert isinstance(codec, VitessCodec)
        if not codec.has_key:
            raise ConfigurationError(
                f"rows of {table} can't be published after merges: the table has no key",
                expected="tables with a primary key, or a unique key of columns that aren't null",
                remedy="add the table to exclude_tables; or set publish.kafka.mode: changes",
            )
        return cls(connector, table, recorded_schema(stores.changes, stores.changes.state().batch))

    @property
    def columns(self) -> tuple[str, ...]:
        """None: the stored state has the whole row."""
        return ()

    @property
    def static_columns_table(self) -> bool:
        """Vitess has no static columns."""
        return False

    def builder(
        self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function that builds records of rows."""
        builder = VitessRecords(self.connector, now_ns, everything, skipped.by_kind, registrar=registrar)

        def build(rows: pa.RecordBatch) -> pa.RecordBatch:
            keys, states = (rows[name].cast(pa.binary()) for name in ("key", "state"))
            records = kept_rows(self.table, shards_of(keys), states, pc.equal(rows["op"], DELETE))
            decoded = decode_records(records, self.schema.fields_of, builder.form, everything)
            for row, reason in sorted(decoded.unread.items()):
                skipped.add(f"{self.table} at {keys[row].as_py().hex()}", reason)
            # Copied rows have events of inserts.
            ops = pc.if_else(pc.equal(rows["op"], READ), INSERT, rows["op"])
            tables = [_with_operations(table, ops) for table in decoded.tables]
            return builder.build(replace(decoded, tables=tables))

        return build


def _with_operations(table: TableEvents, ops: pa.Array) -> TableEvents:
    """Return decoded rows with the operations that changed them."""
    own = ops.take(pa.array(np.asarray(table.sort_keys) >> _ORDER_BITS))
    at = table.rows.schema.get_field_index("op")
    return replace(table, rows=table.rows.set_column(at, "op", own))
