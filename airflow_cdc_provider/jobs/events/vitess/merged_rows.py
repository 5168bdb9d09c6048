"""Rows of a mirror of Vitess as events: what merges changed, as a copy of the rows would tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.vitess.kept_rows import everything, kept_rows
from airflow_cdc_provider.jobs.events.vitess.lake import RecordedSchema, recorded_schema
from airflow_cdc_provider.jobs.events.vitess.records import VitessRecords
from airflow_cdc_provider.lake.row_changes import DELETE, INSERT, READ
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.event_records import decode_records
from airflow_cdc_provider.sources.vitess.event_rows import TableEvents
from airflow_cdc_provider.sources.vitess.states import shards_of

_PLACE_BITS: Final = 32
"""Of the place of an event, below the number of the record that it is of."""


@dataclass(frozen=True)
class VitessRows:
    """Makes events of one mirror's rows; see :class:`~..merged_rows.RowEvents`.

    Args:
        context: The job.
        table: ``keyspace.table``.
        schema: The fields that rows came with.
    """

    context: JobContext
    table: str
    schema: RecordedSchema

    @classmethod
    def of(cls, context: JobContext, table: str) -> VitessRows:
        """Return how events are made of the rows of a table's mirror.

        Raises:
            ConfigurationError: Nothing tells the table's rows apart.
        """
        context.learn()
        codec = context.source.codec(table, context.mirror(table).state().memory)
        assert isinstance(codec, VitessCodec)
        if not codec.has_key:
            raise ConfigurationError(
                f"rows of {table} can't be published after merges: nothing tells them apart",
                expected="tables with a primary key, or a unique one of columns that aren't null",
                remedy="name it in exclude_tables; or publish.kafka.what: changes",
            )
        return cls(context, table, recorded_schema(context, context.changes.state().batch))

    @property
    def columns(self) -> tuple[str, ...]:
        """What is kept of a row is all of it."""
        return ()

    @property
    def statics_apart(self) -> bool:
        """There are no static columns."""
        return False

    def maker(
        self, now_ns: int, registrar: Registrar | None, damage: Damage
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return what makes records of rows."""
        maker = VitessRecords(self.context.connector, now_ns, everything, damage.skipped, registrar=registrar)

        def make(rows: pa.RecordBatch) -> pa.RecordBatch:
            keys, states = (rows[name].cast(pa.binary()) for name in ("key", "state"))
            records = kept_rows(self.table, shards_of(keys), states, pc.equal(rows["op"], DELETE))
            decoded = decode_records(records, self.schema.fields_of, maker.form, everything)
            for row, reason in sorted(decoded.unread.items()):
                damage.add(f"{self.table} at {keys[row].as_py().hex()}", reason)
            # Rows of a copy are told as created.
            ops = pc.if_else(pc.equal(rows["op"], READ), INSERT, rows["op"])
            tables = [_with_operations(table, ops) for table in decoded.tables]
            return maker.made(replace(decoded, tables=tables))

        return make


def _with_operations(table: TableEvents, ops: pa.Array) -> TableEvents:
    """Return decoded rows as what became of them."""
    own = ops.take(pa.array(np.asarray(table.places) >> _PLACE_BITS))
    at = table.rows.schema.get_field_index("op")
    return replace(table, rows=table.rows.set_column(at, "op", own))
