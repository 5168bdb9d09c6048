"""Rows of a mirror of Vitess as events in the form of copied rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.lake.row_changes import DELETE, INSERT, READ
from airflow_cdc_provider.sources.row_events import RowBuilder, RowEvents
from airflow_cdc_provider.sources.vitess.events.captured import RecordedSchema
from airflow_cdc_provider.sources.vitess.events.kept_rows import everything, kept_rows
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records
from airflow_cdc_provider.sources.vitess.events.table_events import TableEvents
from airflow_cdc_provider.sources.vitess.states import shards_of

_ORDER_BITS: Final = 32
"""Low bits of an event's order, below the index of its record."""


@dataclass(frozen=True)
class VitessRows(RowEvents):
    """Builds events of one mirror's rows.

    Args:
        connector: The declaration.
        table: ``keyspace.table``.
        schema: The recorded schema, with the field definitions of rows.
    """

    connector: Connector
    table: str
    schema: RecordedSchema

    def builder(self, now_ns: int, registrar: Registrar | None, skipped: SkippedRecords) -> RowBuilder:
        """Return a function that builds records of rows; see :class:`.row_events.RowEvents`."""
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
