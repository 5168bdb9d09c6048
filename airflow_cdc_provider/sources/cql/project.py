"""Live rows as the typed Arrow columns of a mirror.

The work is done by kernels in two passes over the same cell rows, one that counts and one that writes
(:mod:`.live_rows`, :mod:`.emit`); here the table is compiled for them, and the buffers become Arrow arrays.
Lake types are those of :mod:`.lake_types`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.cql.buffers import binary_parts
from airflow_cdc_provider.sources.cql.emit import BAD_TIMESTAMP, NULL_KEY, close_offsets
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes, field_names, is_lake_map
from airflow_cdc_provider.sources.cql.live_rows import (
    BAD_KEY,
    BAD_ROW,
    LiveRows,
    Output,
    RowProgram,
    walk_rows,
)
from airflow_cdc_provider.sources.cql.programs import (
    BIGINT,
    BOOLEAN,
    COUNTER,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LIST,
    MAP,
    OP,
    OPS,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TINYINT,
    TUPLE,
    UDT,
    Programs,
    compile_types,
)
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema

_WIDTHS: Final = {
    BOOLEAN: 1,
    **dict.fromkeys((TINYINT, SMALLINT, INT, DATE, FLOAT), 4),
    **dict.fromkeys((BIGINT, COUNTER, DOUBLE, TIME, TIMESTAMP), 8),
}
_ALIGNMENT: Final = 64
_MAX_BYTES: Final = (1 << 31) - 1


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
        live = LiveRows(
            key.data,
            key.offsets,
            state.data,
            state.offsets,
            state.valid,
            static.data,
            static.offsets,
            static.valid,
        )
        program = self._program
        size = program.nodes.shape[0]
        counting = Output(
            False,
            np.empty(0, np.uint8),
            np.zeros((size, 3), np.int64),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
        )
        self._walk(program, live, counting)
        layout, total = _lay_out(program.nodes, counting.counts, counting.sizes)
        if max(counting.sizes.max(initial=0), counting.counts.max(initial=0)) > _MAX_BYTES:
            raise ConfigurationError(
                f"a batch of {self.table.full_name} is too large to be shown",
                expected="less than 2 GiB in a column",
                remedy="use smaller batches (spark.sql.execution.arrow.maxRecordsPerBatch)",
            )
        writing = Output(
            True, np.empty(total, np.uint8), layout, np.zeros(size, np.int64), np.zeros(size, np.int64)
        )
        self._walk(program, live, writing)
        close_offsets(program.nodes, writing.arena, layout, writing.counts, writing.sizes)
        builder = _ArrayBuilder(program.nodes, writing, self.types)
        arrays = [
            builder.array(root, c.type) for root, c in zip(self._roots, self.table.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _walk(self, program: RowProgram, live: LiveRows, output: Output) -> None:
        status, row = walk_rows(program, live, output)
        if status < 0:
            raise self._error(int(status), int(row))

    def _error(self, status: int, row: int) -> CdcError:
        where = f"row {row} of a batch of {self.table.full_name}"
        if status == BAD_TIMESTAMP:
            return ConfigurationError(
                f"{where} has a timestamp that the lake's type can't hold",
                expected="at most 292,277 years before or after 1970",
                remedy="set source.advanced.timestamps to milliseconds and rebuild the mirror",
            )
        if status == NULL_KEY:
            return ConfigurationError(
                f"{where} has a map with an empty key of a type that has no empty value",
                expected="keys that are values of their type",
                remedy="delete the entry in the database, or exclude the table",
            )
        reasons = {BAD_KEY: "its key doesn't fit its columns", BAD_ROW: "its state is no cell row"}
        return CorruptInput(f"{where} can't be shown: {reasons.get(status, 'a value breaks its format')}")

    @cached_property
    def _compiled(self) -> Programs:
        extra = CqlType("timeuuid")
        programs = compile_types([*(c.type for c in self.table.columns), extra])
        if self.types.timestamps == "milliseconds":
            # A time is 64 bits shown as they are, which is what milliseconds need.
            ops = programs.nodes[:, OP]
            ops[ops == OPS["timestamp"]] = OPS["time"]
        return programs

    @cached_property
    def _roots(self) -> npt.NDArray[np.int32]:
        return self._compiled.roots[:-1]

    @cached_property
    def _program(self) -> RowProgram:
        roots = dict(zip((c.name for c in self.table.columns), self._compiled.roots.tolist(), strict=False))
        cells = [*self.table.static, *self.table.regular]
        slots = np.full(max((c.id for c in cells), default=0) + 1, -1, np.int32)
        for slot, column in enumerate(cells):
            slots[column.id] = slot
        return RowProgram(
            nodes=self._compiled.nodes,
            partition=_int32(roots[c.name] for c in self.table.partition_key),
            clustering=_int32(roots[c.name] for c in self.table.clustering),
            slot_of_id=slots,
            roots=_int32(roots[c.name] for c in cells),
            statics=_int32(c.kind == "static" for c in cells),
            shapes=_int32(OPS[c.type.name] if c.type.multi_cell else -1 for c in cells),
            timeuuid=int(self._compiled.roots[-1]),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is compiled."""
        return {"table": self.table, "types": self.types}


def _int32(values: Iterator[int] | Any) -> npt.NDArray[np.int32]:
    return np.fromiter(values, np.int32)


def _lay_out(
    nodes: npt.NDArray[np.int32], counts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], int]:
    """Give each buffer its place in the arena."""
    layout = np.full((nodes.shape[0], 3), -1, np.int64)
    end = 0

    def take(size: int) -> int:
        nonlocal end
        place = end
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place

    for node, op in enumerate(nodes[:, OP].tolist()):
        count = int(counts[node])
        layout[node, 0] = take(count)
        if op in (TUPLE, UDT):
            continue
        if op in _WIDTHS:
            layout[node, 2] = take(_WIDTHS[op] * count)
            continue
        layout[node, 1] = take(4 * (count + 1))
        if op < LIST:
            layout[node, 2] = take(int(sizes[node]))
    return layout, end


class _ArrayBuilder:
    """Arrow arrays over the arena."""

    def __init__(self, nodes: npt.NDArray[np.int32], output: Output, types: LakeTypes) -> None:
        self.nodes = nodes
        self.output = output
        self.types = types

    def array(self, node: int, cql_type: CqlType) -> Any:
        """Build the array of a node and all under it."""
        op = int(self.nodes[node, OP])
        count = int(self.output.counts[node])
        valid_at, offsets_at, data_at = (int(p) for p in self.output.layout[node])
        mask = self.output.arena[valid_at : valid_at + count]
        valid = None if mask.all() else pa.py_buffer(np.packbits(mask, bitorder="little"))
        if op < LIST:
            if op == BOOLEAN:
                bits = np.packbits(self.output.arena[data_at : data_at + count], bitorder="little")
                return pa.Array.from_buffers(pa.bool_(), count, [valid, pa.py_buffer(bits)])
            lake_type = self.types.of(cql_type)
            if op in _WIDTHS:
                return pa.Array.from_buffers(
                    lake_type, count, [valid, self.buffer(data_at, _WIDTHS[op] * count)]
                )
            size = int(self.output.sizes[node])
            offsets = self.buffer(offsets_at, 4 * (count + 1))
            return pa.Array.from_buffers(lake_type, count, [valid, offsets, self.buffer(data_at, size)])

        first = int(self.nodes[node, 2])
        children = [self.array(first + i, p) for i, p in enumerate(cql_type.parameters)]
        if op in (TUPLE, UDT):
            fields = [pa.field(n, c.type) for n, c in zip(field_names(cql_type), children, strict=True)]
            return pa.Array.from_buffers(pa.struct(fields), count, [valid], children=children)
        offsets = self.buffer(offsets_at, 4 * (count + 1))
        if op != MAP:
            list_type = pa.list_(pa.field("element", children[0].type))
            return pa.Array.from_buffers(list_type, count, [valid, offsets], children=children)
        if is_lake_map(cql_type):
            map_type = pa.map_(children[0].type, children[1].type)
            entry_type = pa.struct([map_type.key_field, map_type.item_field])
            entries = pa.Array.from_buffers(entry_type, len(children[0]), [None], children=children)
            return pa.Array.from_buffers(map_type, count, [valid, offsets], children=[entries])
        entry_type = pa.struct([pa.field("key", children[0].type), pa.field("value", children[1].type)])
        entries = pa.Array.from_buffers(entry_type, len(children[0]), [None], children=children)
        list_type = pa.list_(pa.field("element", entry_type))
        return pa.Array.from_buffers(list_type, count, [valid, offsets], children=[entries])

    def buffer(self, at: int, size: int) -> Any:
        return pa.py_buffer(self.output.arena[at : at + size])
