"""Decodes snapshot rows to the event columns of :mod:`.events`.

A row is an event ``r`` with all its regular columns; the static columns of its partition are a separate
``r``. A null means that the column had no value when it was read. ``ts_us`` is the greatest write time in the
row, or its read time if it has no write time.

Records that resolve unresolved keys (:mod:`airflow_cdc_provider.lake.unresolved`) are snapshot records too,
but not events: they repeat changes of the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cell_times import latest_times
from airflow_cdc_provider.changes.cells import NEVER, ROW_LIVENESS, ROW_UNCERTAIN
from airflow_cdc_provider.changes.contribution import STATIC
from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.sources.cql.projection import Projection
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.select_rows import UNKNOWN_TIME
from airflow_cdc_provider.sources.cql.types import freeze
from airflow_cdc_provider.sources.scylla.decoding.decode import LogDecoder
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder, TableEvents, flags_of
from airflow_cdc_provider.sources.scylla.events.tables import EventColumn, EventTable
from airflow_cdc_provider.sources.scylla.events.types import LAKE, event_array


@dataclass(frozen=True)
class SnapshotEventDecoder:
    """Decodes the snapshot rows of one table and schema. Picklable.

    Args:
        table: The table and its log.
        lead: Prefix of the names of struct schemas nested in values of non-key columns.
    """

    table: EventTable
    lead: str = ""

    def decode(self, rows: pa.RecordBatch) -> TableEvents:
        """Decode snapshot rows.

        Args:
            rows: Batch of ``CHANGE_SCHEMA``, all of kind ``snapshot``.

        Raises:
            CorruptInput: A value is malformed for its type.
        """
        decoded = LogDecoder(self.table.schema, ()).decode(rows, ())
        contributions = decoded.contributions
        read = _is_read_by_select(contributions["state"])
        row_indexes = np.asarray(decoded.rows, np.int64)[read]
        events = self._events(
            rows.take(pa.array(row_indexes)), contributions.filter(pa.array(read)), row_indexes
        )
        undecodable = dict(zip(decoded.undecodable, decoded.reasons, strict=True))
        return TableEvents(events, undecodable, {})

    def of_states(self, states: pa.RecordBatch, schema: TableSchema, *, static: bool) -> pa.RecordBatch:
        """Build events from rows of a mirror, with all columns, as for snapshot rows.

        Args:
            states: Columns ``key``, ``state`` and ``static_state``, of rows or of static columns, not of
                both; ``op`` (``r``, ``c``, ``u`` or ``d``) and ``ts_us``. A deleted row has its last state.
            schema: The table with the column ids of the states.
            static: Whether the states are of static columns.

        Returns:
            The event columns; those about the origin of a change are null, except ``ts_us``.
        """
        count = states.num_rows
        rows = states.select(["key", "state", "static_state"])
        projected = Projection(schema, LAKE).project(rows)
        columns_of_events = {
            "row": pa.array(np.arange(count)),
            "op": states["op"],
            "snapshot": pc.if_else(pc.equal(states["op"], "r"), "true", "false"),
            "ts_us": states["ts_us"],
        }
        return self._build_events(projected, pa.repeat(pa.scalar(static), count), columns_of_events)

    def _events(
        self, rows: pa.RecordBatch, contributions: pa.RecordBatch, row_indexes: Any
    ) -> pa.RecordBatch:
        static = pc.equal(contributions["scope"], STATIC)
        projected = Projection(self.table.schema, LAKE).project(
            pa.RecordBatch.from_pydict(
                {
                    "key": contributions["key"],
                    "state": pc.if_else(static, None, contributions["state"]),
                    "static_state": pc.if_else(static, contributions["state"], None),
                }
            )
        )
        incremental = rows["request"].is_valid()
        columns_of_events = {
            "row": pa.array(row_indexes, pa.int64()),
            "snapshot": pc.if_else(incremental, "incremental", "true"),
            "ts_us": pa.array(_written(contributions["state"], rows["captured_at"]), pa.int64()),
        }
        return self._build_events(projected, static, columns_of_events)

    def _build_events(
        self, projected: pa.RecordBatch, static: pa.Array, columns_of_events: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Build events from projected rows."""
        count = projected.num_rows
        cells = self.table.cells
        is_static = static.to_numpy(zero_copy_only=False)
        modified = [is_static == (column.name in self.table.log.static) for column in cells]
        own = {
            "op": pa.repeat("r", count),
            **columns_of_events,
            "static": static,
            "by_service": pa.array(np.zeros(count, np.bool_)),
            "key": self._struct(projected, self.table.key),
            "set": self._struct(projected, cells),
            "modified": flags_of(cells, modified, count),
            "before_known": flags_of(cells, [np.zeros(count, np.bool_)] * len(cells), count),
            "collections": _of_nulls(self._shape.field("collections").type, count),
        }
        arrays = [own[f.name] if f.name in own else pa.nulls(count, f.type) for f in self._shape]
        return pa.RecordBatch.from_arrays(arrays, schema=self._shape)

    @cached_property
    def _shape(self) -> pa.Schema:
        """The event columns of changes."""
        empty = EventDecoder(self.table, self.lead).decode(pa.array([], pa.binary()))
        return empty.events.schema

    def _struct(self, projected: pa.RecordBatch, columns: tuple[EventColumn, ...]) -> pa.StructArray:
        decoder = EventDecoder(self.table, self.lead)
        fields = [decoder.field_of(column) for column in columns]
        arrays = [
            event_array(projected.column(column.name), freeze(column.type), f.type)
            for column, f in zip(columns, fields, strict=True)
        ]
        if not fields:
            return pa.Array.from_buffers(pa.struct([]), projected.num_rows, [None])
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _is_read_by_select(states: pa.Array) -> Any:
    """Return which cell rows were read by a SELECT."""
    data, offsets, _ = binary_parts(states)
    starts = offsets[:-1]
    flags = data[starts + 1]
    known = np.ascontiguousarray(data[starts[:, np.newaxis] + np.arange(16, 24)]).view("<i8").ravel()
    return (flags & (ROW_UNCERTAIN | ROW_LIVENESS) == ROW_UNCERTAIN) & (known == NEVER)


def _written(states: pa.Array, read_at: pa.Array) -> Any:
    """Return the last write time of rows, or their read time if they have none, us since 1970."""
    times = latest_times(states)
    read_us = read_at.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0)
    return np.where(times <= UNKNOWN_TIME, read_us.to_numpy(zero_copy_only=False), times)


def _of_nulls(kind: pa.DataType, count: int) -> pa.StructArray:
    """Build structs with null members."""
    if not kind.num_fields:
        return pa.Array.from_buffers(kind, count, [None])
    return pa.StructArray.from_arrays([pa.nulls(count, f.type) for f in kind], fields=list(kind))
