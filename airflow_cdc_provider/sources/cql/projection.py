"""Project live rows to the typed Arrow columns of a mirror.

One pass over the rows locates each column's values (:mod:`.live_rows`). Then the columns are built one by one
(:mod:`.value_columns`), with the types of :mod:`.lake_types`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.live_rows import (
    BAD_KEY,
    OK,
    LiveRows,
    RowProgram,
    ValueSpans,
    locate_values,
)
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.value_columns import ValueColumns


@dataclass(frozen=True)
class Projection:
    """Projects live rows of one table to its columns, by their names at the source. Picklable.

    Args:
        table: The table, its columns numbered.
        types: Choices of lake types.
    """

    table: TableSchema
    types: LakeTypes = field(default_factory=LakeTypes)

    @cached_property
    def schema(self) -> pa.Schema:
        """Partition key, clustering, static and regular columns, as in ``SELECT *``."""
        return self.types.schema(self.table)

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project rows.

        Args:
            rows: Batch of ``LIVE_ROW_SCHEMA`` (columns ``key``, ``state`` and ``static_state`` are read).

        Returns:
            Batch of :attr:`schema` with the rows in the same order.

        Raises:
            CorruptInput: A key or state violates its format.
            ConfigurationError: A value can't be represented exactly in its lake type.
        """
        key, state, static = (binary_parts(rows.column(n)) for n in ("key", "state", "static_state"))
        shape = (len(self.table.columns), rows.num_rows)
        spans = ValueSpans(np.zeros(shape, np.int64), np.full(shape, -1, np.int64))
        status, row = locate_values(self._program, LiveRows(key, state, static), spans)
        if status != OK:
            problem = "its key lacks columns" if status == BAD_KEY else "its state is not a cell row"
            raise CorruptInput(f"row {row} of a batch of {self.table.full_name} can't be decoded: {problem}")
        sources = {"partition_key": key, "static": static}
        arrays = [
            self._values.array(
                number,
                sources.get(column.kind, state).data,
                spans.starts[number],
                spans.lengths[number],
                f"{self.table.full_name}, column {column.name},",
            )
            for number, column in enumerate(self.table.columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @cached_property
    def _values(self) -> ValueColumns:
        return ValueColumns(tuple(c.type for c in self.table.columns), self.types)

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
        """Return the numbers in the schema of the columns of a kind."""
        return np.array([n for n, c in enumerate(self.table.columns) if c.kind == kind], np.int32)

    def __getstate__(self) -> dict[str, Any]:
        """Omit compiled attributes."""
        return {"table": self.table, "types": self.types}
