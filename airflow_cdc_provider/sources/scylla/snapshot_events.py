"""Rows of snapshots as the columns of events, those that changes have (:mod:`.events`).

A row is ``r``, with all its regular columns; the static columns of its partition are an ``r`` of their own. A
null says that the column had no value when it was read. ``ts_us`` is the greatest write time that the row
showed; one that showed none has the time of its reading.

What settles a doubt (:mod:`airflow_cdc_provider.lake.doubts`) is a record of a snapshot too, but no event: it
repeats what the log has told.
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
from airflow_cdc_provider.sources.cql.buffers import binary_parts
from airflow_cdc_provider.sources.cql.project import Projection
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshots.select_rows import UNKNOWN_TIME
from airflow_cdc_provider.sources.cql.types import freeze
from airflow_cdc_provider.sources.scylla.decoding.decode import LogDecoder
from airflow_cdc_provider.sources.scylla.event_tables import EventColumn, EventTable
from airflow_cdc_provider.sources.scylla.event_types import LAKE, shown
from airflow_cdc_provider.sources.scylla.events import EventDecoder, TableEvents, flags_of


@dataclass(frozen=True)
class SnapshotEventDecoder:
    """Decodes the rows of snapshots of one table and schema. Picklable.

    Args:
        table: The table and its log.
        lead: Begins the names of schemas of structs inside the values of columns that are in no key.
    """

    table: EventTable
    lead: str = ""

    def decode(self, rows: pa.RecordBatch) -> TableEvents:
        """Decode rows of snapshots.

        Args:
            rows: Batch of ``CHANGE_SCHEMA``, of kind ``snapshot`` alone.

        Raises:
            CorruptInput: A value breaks its type's format.
        """
        decoded = LogDecoder(self.table.schema, ()).decode(rows, ())
        found = decoded.contributions
        read = _read_by_a_select(found["state"])
        places = np.asarray(decoded.rows, np.int64)[read]
        events = self._events(rows.take(pa.array(places)), found.filter(pa.array(read)), places)
        undecodable = dict(zip(decoded.undecodable, decoded.reasons, strict=True))
        return TableEvents(events, undecodable, {})

    def of_states(self, states: pa.RecordBatch, schema: TableSchema, *, static: bool) -> pa.RecordBatch:
        """Show what became of rows of a mirror, as a snapshot shows rows: with all of their columns.

        Args:
            states: Columns ``key``, ``state`` and ``static_state``: rows alone, or statics alone; ``op``
                (``r``, ``c``, ``u`` or ``d``) and ``ts_us``. A row that is gone has the state that it had.
            schema: The table with the columns' ids that the states name.
            static: Whether they are statics.

        Returns:
            The columns of events; those that tell when a change was made, but for ``ts_us``, tell nothing.
        """
        count = states.num_rows
        rows = states.select(["key", "state", "static_state"])
        whole = Projection(schema, LAKE).project(rows)
        shown_as = {
            "row": pa.array(np.arange(count)),
            "op": states["op"],
            "snapshot": pc.if_else(pc.equal(states["op"], "r"), "true", "false"),
            "ts_us": states["ts_us"],
        }
        return self._shown(whole, pa.repeat(pa.scalar(static), count), shown_as)

    def _events(self, rows: pa.RecordBatch, found: pa.RecordBatch, places: Any) -> pa.RecordBatch:
        static = pc.equal(found["scope"], STATIC)
        whole = Projection(self.table.schema, LAKE).project(
            pa.RecordBatch.from_pydict(
                {
                    "key": found["key"],
                    "state": pc.if_else(static, None, found["state"]),
                    "static_state": pc.if_else(static, found["state"], None),
                }
            )
        )
        incremental = rows["request"].is_valid()
        shown_as = {
            "row": pa.array(places, pa.int64()),
            "snapshot": pc.if_else(incremental, "incremental", "true"),
            "ts_us": pa.array(_written(found["state"], rows["captured_at"]), pa.int64()),
        }
        return self._shown(whole, static, shown_as)

    def _shown(
        self, whole: pa.RecordBatch, static: pa.Array, shown_as: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        """Make events of rows that are projected."""
        count = whole.num_rows
        cells = self.table.cells
        of_statics = static.to_numpy(zero_copy_only=False)
        told = [of_statics == (column.name in self.table.log.static) for column in cells]
        own = {
            "op": pa.repeat("r", count),
            **shown_as,
            "static": static,
            "by_service": pa.array(np.zeros(count, np.bool_)),
            "key": self._struct(whole, self.table.key),
            "set": self._struct(whole, cells),
            "modified": flags_of(cells, told, count),
            "before_known": flags_of(cells, [np.zeros(count, np.bool_)] * len(cells), count),
            "collections": _of_nulls(self._shape.field("collections").type, count),
        }
        arrays = [own[f.name] if f.name in own else pa.nulls(count, f.type) for f in self._shape]
        return pa.RecordBatch.from_arrays(arrays, schema=self._shape)

    @cached_property
    def _shape(self) -> pa.Schema:
        """The columns of events of changes."""
        nothing = EventDecoder(self.table, self.lead).decode(pa.array([], pa.binary()))
        return nothing.events.schema

    def _struct(self, whole: pa.RecordBatch, columns: tuple[EventColumn, ...]) -> pa.StructArray:
        decoder = EventDecoder(self.table, self.lead)
        fields = [decoder.field_of(column) for column in columns]
        arrays = [
            shown(whole.column(column.name), freeze(column.type), f.type)
            for column, f in zip(columns, fields, strict=True)
        ]
        if not fields:
            return pa.Array.from_buffers(pa.struct([]), whole.num_rows, [None])
        return pa.StructArray.from_arrays(arrays, fields=fields)


def _read_by_a_select(states: pa.Array) -> Any:
    """Tell which cell rows a SELECT showed."""
    data, offsets, _ = binary_parts(states)
    starts = offsets[:-1]
    flags = data[starts + 1]
    known = np.ascontiguousarray(data[starts[:, np.newaxis] + np.arange(16, 24)]).view("<i8").ravel()
    return (flags & (ROW_UNCERTAIN | ROW_LIVENESS) == ROW_UNCERTAIN) & (known == NEVER)


def _written(states: pa.Array, read_at: pa.Array) -> Any:
    """Return when rows were written last, or read if they don't show it, us since 1970."""
    times = latest_times(states)
    read_us = read_at.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0)
    return np.where(times <= UNKNOWN_TIME, read_us.to_numpy(zero_copy_only=False), times)


def _of_nulls(kind: pa.DataType, count: int) -> pa.StructArray:
    """Make structs whose members are null."""
    if not kind.num_fields:
        return pa.Array.from_buffers(kind, count, [None])
    return pa.StructArray.from_arrays([pa.nulls(count, f.type) for f in kind], fields=list(kind))
