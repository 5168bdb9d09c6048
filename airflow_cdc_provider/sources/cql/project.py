"""Live rows as the typed Arrow columns of a mirror.

One pass over the rows notes where each column's values are (:mod:`.live_rows`). Then each column is made for
itself: scalars by a kernel for their type (:mod:`.scalars`), nested values by taking them apart down to
scalars (:mod:`.nested`), which are made by the same kernels. Lake types are those of :mod:`.lake_types`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.byte_kernels import Bytes
from airflow_cdc_provider.changes.cells import CELL_HEADER_BYTES
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.cql.buffers import binary_parts
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.live_rows import (
    BAD_KEY,
    OK,
    LiveRows,
    Places,
    RowProgram,
    locate_values,
)
from airflow_cdc_provider.sources.cql.nested import (
    NO_SPACE,
    NULL_KEY,
    Parts,
    locate_elements,
    locate_parts,
    new_sorting,
)
from airflow_cdc_provider.sources.cql.programs import (
    FIRST_CHILD,
    LIST,
    MAP,
    OP,
    OPS,
    TUPLE,
    UDT,
    Programs,
    compile_types,
)
from airflow_cdc_provider.sources.cql.scalars import bitmap, check_size, scalar_array
from airflow_cdc_provider.sources.cql.schema import Column, CqlType, TableSchema
from airflow_cdc_provider.sources.cql.scratch import new_scratch

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Projection:
    """Shows live rows of one table as the mirror's columns. Picklable.

    Args:
        table: The table, its columns numbered.
        types: Choices of lake types.
    """

    table: TableSchema
    types: LakeTypes = field(default_factory=LakeTypes)

    @cached_property
    def schema(self) -> pa.Schema:
        """The mirror's columns: partition key, clustering, static and regular columns as in ``SELECT *``."""
        return self.types.schema(self.table)

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Show rows.

        Args:
            rows: Batch of ``LIVE_ROW_SCHEMA`` (columns ``key``, ``state`` and ``static_state`` are read).

        Returns:
            Batch of :attr:`schema`, one row each, in the same order.

        Raises:
            CorruptInput: A key or state breaks its format.
            ConfigurationError: A value can't be shown exactly in its lake type.
        """
        key, state, static = (binary_parts(rows.column(n)) for n in ("key", "state", "static_state"))
        shape = (len(self.table.columns), rows.num_rows)
        places = Places(np.zeros(shape, np.int64), np.full(shape, -1, np.int64))
        status, row = locate_values(self._program, LiveRows(key, state, static), places)
        if status != OK:
            problem = "its key doesn't fit its columns" if status == BAD_KEY else "its state is no cell row"
            raise CorruptInput(f"row {row} of a batch of {self.table.full_name} can't be shown: {problem}")
        sources = {"partition_key": key, "static": static}
        arrays = [
            self._array(number, column, sources.get(column.kind, state).data, places)
            for number, column in enumerate(self.table.columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, number: int, column: Column, data: Bytes, places: Places) -> pa.Array:
        starts, lengths = places.starts[number], places.lengths[number]
        where = f"{self.table.full_name}, column {column.name},"
        op = int(self._compiled.nodes[number, OP])
        if op < LIST:
            return scalar_array(op, self.types.of(column.type), data, starts, lengths, where)
        return _NestedColumn(self._compiled, number, column.type, self.types, where).array(
            data, starts, lengths
        )

    @cached_property
    def _compiled(self) -> Programs:
        """The columns' types and that of the paths of lists, as they are shown; then the same as stored.

        Elements are sorted by the order of what is stored.
        """
        programs = compile_types([*(c.type for c in self.table.columns), CqlType("timeuuid")])
        shown, stored = programs.nodes.copy(), programs.nodes.copy()
        stored[:, FIRST_CHILD] += len(stored)
        ops = shown[:, OP]
        if self.types.timestamps == "milliseconds":
            # A time is 64 bits shown as they are, which is what milliseconds need.
            ops[ops == OPS["timestamp"]] = OPS["time"]
        ops[np.isin(ops, [OPS[name] for name in self.types.native])] = OPS["blob"]
        return Programs(np.concatenate([shown, stored]), programs.roots)

    @cached_property
    def _program(self) -> RowProgram:
        columns = self.table.columns
        cells = {c.id: n for n, c in enumerate(columns) if c.kind in ("static", "regular")}
        column_of_id = np.full(max(cells, default=0) + 1, -1, np.int32)
        column_of_id[list(cells)] = list(cells.values())
        return RowProgram(
            partition=self._numbers("partition_key"),
            clustering=self._numbers("clustering"),
            column_of_id=column_of_id,
            static=np.array([c.kind == "static" for c in columns], np.int32),
            multi_cell=np.array([c.type.multi_cell for c in columns], np.int32),
        )

    def _numbers(self, kind: str) -> npt.NDArray[np.int32]:
        """Number the columns of a kind as the schema does."""
        return np.array([n for n, c in enumerate(self.table.columns) if c.kind == kind], np.int32)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is compiled."""
        return {"table": self.table, "types": self.types}


class _NestedColumn:
    """Makes the array of a column of a nested type.

    Args:
        programs: The table's types as a projection compiles them.
        root: The column's node.
        cql_type: Its type.
        types: Choices of lake types.
        where: Names the column in errors.
    """

    def __init__(
        self, programs: Programs, root: int, cql_type: CqlType, types: LakeTypes, where: str
    ) -> None:
        self.nodes = programs.nodes
        self.stored = len(programs.nodes) // 2
        self.paths = int(programs.roots[-1]) + self.stored
        self.root = root
        self.type = cql_type
        self.types = types
        self.where = where

    def array(self, data: Bytes, starts: Numbers, lengths: Numbers) -> pa.Array:
        """Show values as an Arrow array."""
        nothing = np.empty(0, np.int64)
        first = np.zeros(len(self.nodes), np.int64)
        counting = Parts(False, first, nothing, nothing, np.zeros(len(self.nodes), np.int64))
        self._take_apart(data, starts, lengths, counting)
        check_size(int(counting.counts.max()), self.where)
        first[1:] = np.cumsum(counting.counts)[:-1]
        places = int(counting.counts.sum())
        parts = Parts(
            True, first, np.empty(places, np.int64), np.empty(places, np.int64), np.zeros_like(first)
        )
        self._take_apart(data, starts, lengths, parts)
        return self._node(self.root, self.type, data, parts)

    def _take_apart(self, data: Bytes, starts: Numbers, lengths: Numbers, parts: Parts) -> None:
        longest = int(lengths.max(initial=0))
        scratch = new_scratch(longest)
        if not self.type.multi_cell:
            status, row = locate_parts(self.nodes, self.root, data, starts, lengths, scratch, parts)
        else:
            most = longest // CELL_HEADER_BYTES
            elements = int(self.nodes[self.root, FIRST_CHILD]) + self.stored
            order = self.paths if self.type.name == "list" else elements
            status, room = NO_SPACE, 2 * longest + 64
            while status == NO_SPACE:
                parts.counts[:] = 0
                sorting = new_sorting(most, room)
                status, row = locate_elements(
                    self.nodes, self.root, order, data, starts, lengths, sorting, scratch, parts
                )
                room *= 2
        if status == NULL_KEY:
            raise ConfigurationError(
                f"{self.where} has a map with an empty key of a type that has no empty value",
                found=f"row {row} of a batch",
                expected="keys that are values of their type",
                remedy="delete the entry in the database, or exclude the table",
            )
        if status != OK:
            raise CorruptInput(f"{self.where} can't be shown: row {row} of a batch breaks its format")

    def _node(self, node: int, cql_type: CqlType, data: Bytes, parts: Parts) -> pa.Array:
        """Make the array of a node and all under it."""
        op, count = int(self.nodes[node, OP]), int(parts.counts[node])
        here = slice(int(parts.first[node]), int(parts.first[node]) + count)
        starts, lengths = parts.starts[here], parts.lengths[here]
        if op < LIST:
            return scalar_array(op, self.types.of(cql_type), data, starts, lengths, self.where)
        valid = bitmap(lengths >= 0)
        below = int(self.nodes[node, FIRST_CHILD])
        children = [self._node(below + i, p, data, parts) for i, p in enumerate(cql_type.parameters)]
        lake_type = self.types.of(cql_type)
        if op in (TUPLE, UDT):
            return pa.Array.from_buffers(lake_type, count, [valid], children=children)
        if op == MAP:
            entry_type = lake_type.field(0).type
            children = [pa.Array.from_buffers(entry_type, len(children[0]), [None], children=children)]
        offsets = pa.py_buffer(np.append(starts, parts.counts[below]).astype(np.int32))
        return pa.Array.from_buffers(lake_type, count, [valid, offsets], children=children)
