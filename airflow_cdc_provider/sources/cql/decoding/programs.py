"""Compile table schemas to small integer arrays, so that kernels can parse mutations without Python.

A :class:`Program` has any number of tables in sequence: the columns of table ``t`` are ``first_column[t]`` to
``first_column[t + 1]``, its clustering columns likewise, and ``types`` has the clustering columns' types.
Columns are in Cassandra's order (static before regular, simple before complex, then by name bytes), which is
the order in which updates list them, so a lookup usually finds the next column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.formats.byte_kernels import same
from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, inlined
from airflow_cdc_provider.sources.cql.programs import compile_types
from airflow_cdc_provider.sources.cql.schema import NEVER_DROPPED, CqlType, TableSchema
from airflow_cdc_provider.sources.cql.types import fixed_length
from airflow_cdc_provider.sources.cql.wire import read_i64

DROPPED: Final = -1
"""Column id of a dropped column: its cells are parsed and skipped."""

MARKER: Final = -2
"""Column id of the hidden column of a table WITH COMPACT STORAGE: its cell is the liveness of the row."""


class Program(NamedTuple):
    """Tables as arrays; see the module's docstring.

    ``slots``             hash table of table ids: table number, or -1 for a free slot; its length is a power
                          of 2
    ``id_high``, ``id_low``   per table, the two halves of its id
    ``first_column``      per table, then the total
    ``names``             names of all columns as UTF-8, concatenated
    ``name_start``, ``name_length``   per column, position of its name in ``names``
    ``column_id``         per column, its id in cell rows, or :data:`DROPPED`, or :data:`MARKER`
    ``column_size``       per column, the length of a simple cell's value, -1 if it is variable
    ``column_complex``    per column, whether it has a cell per element
    ``dropped_at``        per column, cells with a write time up to this are skipped
    ``first_clustering``  per table, then the total
    ``clustering_size``   per clustering column, as ``column_size``
    ``clustering_root``   per clustering column, its type's node in ``types``
    ``descending``        per clustering column, 1 for DESC
    ``types``             nodes of :class:`~airflow_cdc_provider.sources.cql.programs.Programs`
    """

    slots: NDArray[np.int32]
    id_high: Ints
    id_low: Ints
    first_column: NDArray[np.int32]
    names: Bytes
    name_start: NDArray[np.int32]
    name_length: NDArray[np.int32]
    column_id: NDArray[np.int32]
    column_size: NDArray[np.int32]
    column_complex: Bytes
    dropped_at: Ints
    first_clustering: NDArray[np.int32]
    clustering_size: NDArray[np.int32]
    clustering_root: NDArray[np.int32]
    descending: Bytes
    types: NDArray[np.int32]


class _Listed(NamedTuple):
    name: bytes
    static: bool
    type: CqlType
    id: int
    dropped_at: int


def compile_tables(schemas: Sequence[TableSchema]) -> Program:
    """Compile tables; their numbers in the program are their indexes in ``schemas``.

    Static and regular columns need ids (:func:`~airflow_cdc_provider.sources.cql.schema.number_columns`) only
    to decode cells, not to split updates.
    """
    ids = [bytes.fromhex(schema.id.replace("-", "")) for schema in schemas]
    columns: list[_Listed] = []
    first_column, first_clustering = [0], [0]
    for schema in schemas:
        columns += _listed(schema)
        first_column.append(len(columns))
        first_clustering.append(first_clustering[-1] + len(schema.clustering))
    clustering = [column for schema in schemas for column in schema.clustering]
    types = compile_types(column.type for column in clustering)
    names = b"".join(column.name for column in columns)
    lengths = np.array([len(column.name) for column in columns], np.int32)
    return Program(
        slots=_slots(ids),
        id_high=np.array([int.from_bytes(i[:8], "big", signed=True) for i in ids], np.int64),
        id_low=np.array([int.from_bytes(i[8:], "big", signed=True) for i in ids], np.int64),
        first_column=np.array(first_column, np.int32),
        names=np.frombuffer(names, np.uint8),
        name_start=(np.cumsum(lengths) - lengths).astype(np.int32),
        name_length=lengths,
        column_id=np.array([column.id for column in columns], np.int32),
        column_size=np.array([fixed_length(column.type) for column in columns], np.int32),
        column_complex=np.array([column.type.multi_cell for column in columns], np.uint8),
        dropped_at=np.array([column.dropped_at for column in columns], np.int64),
        first_clustering=np.array(first_clustering, np.int32),
        clustering_size=np.array([fixed_length(column.type) for column in clustering], np.int32),
        clustering_root=types.roots,
        descending=np.array([column.descending for column in clustering], np.uint8),
        types=types.nodes,
    )


def _listed(schema: TableSchema) -> list[_Listed]:
    """List the columns that updates of a table may name: its own, and dropped ones not added again."""
    listed = []
    for column in (*schema.static, *schema.regular):
        dropped = schema.dropped.get(column.name)
        dropped_at = dropped.dropped_at_us if dropped else NEVER_DROPPED
        listed.append(
            _Listed(column.name.encode(), column.kind == "static", column.type, column.id, dropped_at)
        )
    present = {column.name for column in listed}  # a key column may have got a dropped one's name
    listed += [
        _Listed(
            column.name.encode(),
            column.kind == "static",
            column.type,
            MARKER if column.dropped_at_us == NEVER_DROPPED else DROPPED,
            column.dropped_at_us,
        )
        for column in schema.dropped.values()
        if column.name.encode() not in present and column.kind in ("static", "regular")
    ]
    return sorted(listed, key=lambda column: (not column.static, column.type.multi_cell, column.name))


def _slots(ids: Sequence[bytes]) -> NDArray[np.int32]:
    slots = np.full(max(16, 1 << (4 * len(ids)).bit_length()), -1, np.int32)
    for number, table_id in enumerate(ids):
        slot = (table_id[7] | table_id[3] << 8 | table_id[2] << 16) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number
    return slots


@inlined
def find_table(program: Program, data: Bytes, at: Int) -> Int:
    """Return the number of the table whose id is at ``at`` (16 bytes must be available), or -1."""
    mask = len(program.slots) - 1
    slot = (np.int64(data[at + 7]) | (np.int64(data[at + 3]) << 8) | (np.int64(data[at + 2]) << 16)) & mask
    high = read_i64(data, at)
    low = read_i64(data, at + 8)
    while True:
        table = np.int64(program.slots[slot])
        if table < 0:
            return -1
        if program.id_high[table] == high and program.id_low[table] == low:
            return table
        slot = (slot + 1) & mask


@inlined
def find_column(program: Program, table: Int, likely: Int, data: Bytes, at: Int, length: Int) -> Int:
    """Return the column of a table by its name, or -1; tries ``likely`` and the columns after it first."""
    first = np.int64(program.first_column[table])
    count = np.int64(program.first_column[table + 1]) - first
    for step in range(count):
        column = first + (likely - first + step) % count
        if program.name_length[column] == length and same(
            program.names, program.name_start[column], data, at, length
        ):
            return column
    return -1
