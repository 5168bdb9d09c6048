"""States of rows as the columns of DataStax's events: the key and the whole row."""

from __future__ import annotations

import pyarrow as pa

from airflow_cdc_provider.sources.cassandra.events.datastax_types import LAKE_TYPES, EventTypes
from airflow_cdc_provider.sources.cql.projection import Projection
from airflow_cdc_provider.sources.cql.schema import Column, TableSchema, order_as_driver


class RowDecoder:
    """Decodes rows of one table, with its schema compiled: create one for many batches.

    Columns are in the order of DataStax's driver. A table of only key columns has these as its values too.

    Args:
        schema: The table; its static and regular columns have their ids.
        key_in_value: Whether values start with the key columns, as in the JSON-only format.
    """

    def __init__(self, schema: TableSchema, *, key_in_value: bool = False) -> None:
        self.schema = schema
        self._types = EventTypes(schema.keyspace)
        self._projection = Projection(schema, LAKE_TYPES)
        self._keys = (*schema.partition_key, *schema.clustering)
        self._cells = order_as_driver((*schema.regular, *schema.static))
        self._leading = self._keys if key_in_value or not self._cells else ()

    def decode(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """Decode states of rows.

        Args:
            states: Columns ``key``, ``key_state`` (cell row with the clustering, null for a whole partition),
                ``state`` and ``static_state`` (cell rows), ``lives``; further columns are kept.

        Returns:
            ``key``: struct of the key columns, clustering columns null for a whole partition. ``value``:
            struct of the other columns, null for deleted rows. And the further columns.
        """
        nothing = pa.nulls(states.num_rows, pa.binary())
        keys = self._project(states["key"], states["key_state"], nothing)
        rows = self._project(states["key"], states["state"], states["static_state"])
        value = self._struct({**{c.name: keys for c in self._leading}, **{c.name: rows for c in self._cells}})
        if states.num_rows:
            mask = states["lives"].to_numpy(zero_copy_only=False)
            value = pa.StructArray.from_arrays(value.flatten(), fields=list(value.type), mask=pa.array(~mask))
        passed_through = [n for n in states.schema.names if n not in _READ]
        return pa.RecordBatch.from_arrays(
            [self._struct({c.name: keys for c in self._keys}), value, *(states[n] for n in passed_through)],
            ["key", "value", *passed_through],
        )

    def _project(self, key: pa.Array, state: pa.Array, static: pa.Array) -> pa.RecordBatch:
        rows = {"key": key, "state": state, "static_state": static}
        return self._projection.project(pa.RecordBatch.from_pydict(rows))

    def _struct(self, sources: dict[str, pa.RecordBatch]) -> pa.StructArray:
        columns: dict[str, Column] = {c.name: c for c in self.schema.columns}
        arrays, fields = [], []
        for name, source in sources.items():
            column = columns[name]
            arrays.append(self._types.array(source.column(name), column.type))
            fields.append(self._types.field(name, column.type, nullable=column.kind != "partition_key"))
        return pa.StructArray.from_arrays(arrays, fields=fields)


_READ = ("key", "key_state", "state", "static_state", "lives")
