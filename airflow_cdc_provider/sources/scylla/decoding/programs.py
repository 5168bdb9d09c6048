"""Log tables compiled to small integer arrays, so that kernels can decode log rows without Python.

A :class:`LogProgram` contains all known versions of one table's log, each with a number. Version ``n`` has
the rows ``first_column[n]`` to ``first_column[n + 1]`` of ``columns``, ascending by column id, which is the
order of cells in a cell row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.cql.decoding.programs import DROPPED
from airflow_cdc_provider.sources.cql.schema import Column, TableSchema
from airflow_cdc_provider.sources.scylla.log_table import LogColumn, LogTable
from airflow_cdc_provider.sources.scylla.payload import (
    BATCH_SEQ_NO,
    END_OF_BATCH,
    LOG_ROW_TTL,
    OPERATION,
    STREAM_ID,
    TIME,
    TTL,
)

UNKNOWN: Final = -2
"""Column id of a column of the log that the schema has neither as a current nor as a dropped column."""

# Columns of ``meta``: indexes of the log's metadata columns.
STREAM_AT: Final = 0
TIME_AT: Final = 1
NUMBER_AT: Final = 2
OPERATION_AT: Final = 3
TTL_AT: Final = 4
END_AT: Final = 5
LIFE_AT: Final = 6
_META: Final = (STREAM_ID, TIME, BATCH_SEQ_NO, OPERATION, TTL, END_OF_BATCH)

# Columns of ``versions``.
COLUMNS: Final = 0
"""The number of columns of the log."""
KEYS_ONLY: Final = 1
"""Whether it contains keys only; :data:`KEYS_ONLY_UNKNOWN` if that is unknown."""
LOG_TTL: Final = 2
TTL_ALTERED: Final = 3
"""Whether versions differ in their TTL, so that a row may have been written with another one."""

RENAMED_US: Final = 4
"""Rows of changes up to this time may lack values of renamed key columns."""

KEYS_ONLY_UNKNOWN: Final = 2

# Columns of ``columns``.
VALUE: Final = 0
DELETED_FLAG: Final = 1
ELEMENTS: Final = 2
FORM: Final = 3
ID: Final = 4
STATIC: Final = 5

ONE_CELL: Final = 0
SET: Final = 1
PAIRS: Final = 2
"""A map, or a list keyed by its cell ids."""
FIELDS: Final = 3
_FORMS: Final = {"set": SET, "map": PAIRS, "list": PAIRS, "udt": FIELDS}

_NEVER_DROPPED: Final = np.iinfo(np.int64).min


class LogProgram(NamedTuple):
    """The versions of a log as arrays; see the module's docstring.

    ``versions``      per version the columns above
    ``meta``          per version, the indexes of the log's metadata columns; -1 for a missing one
    ``partition``     per version, the indexes of the partition key columns
    ``clustering``    per version, the indexes of the clustering columns
    ``first_column``  per version, then the total
    ``columns``       per non-key column of the base table, the columns above
    ``dropped_at``    per such column, cells with a write time up to this are skipped
    """

    versions: Ints
    meta: Ints
    partition: Ints
    clustering: Ints
    first_column: Ints
    columns: Ints
    dropped_at: Ints


def compile_logs(schema: TableSchema, logs: Sequence[LogTable]) -> LogProgram:
    """Compile versions of a table's log; their numbers in the program are their indexes in ``logs``.

    Args:
        schema: The current base table, with numbered columns.
        logs: Versions of its log.

    Raises:
        CorruptInput: A version lacks columns that every log has.
    """
    first, rows, dropped_at = [0], [], []
    for log in logs:
        columns = sorted((_column(schema, log, column) for column in log.value_columns), key=_by_id)
        rows += [row for row, _ in columns]
        dropped_at += [time for _, time in columns]
        first.append(len(rows))
    altered = len({log.log_ttl for log in logs}) > 1
    keys, clustering = len(schema.partition_key), len(schema.clustering)
    count = len(logs)
    return LogProgram(
        versions=_table(
            [[len(g.columns), _keys_only(g), g.log_ttl, altered, g.renamed_us] for g in logs], count, 5
        ),
        meta=_table([[*_indexes(g, _META), g.indexes.get(LOG_ROW_TTL, -1)] for g in logs], count, 7),
        partition=_table([_key(g, g.partition_key, keys) for g in logs], count, keys),
        clustering=_table([_key(g, g.clustering, clustering) for g in logs], count, clustering),
        first_column=np.array(first, np.int64),
        columns=_table(rows, len(rows), 6),
        dropped_at=np.array(dropped_at, np.int64),
    )


def _keys_only(log: LogTable) -> int:
    return KEYS_ONLY_UNKNOWN if log.unreported else int(log.keys_only)


def _column(schema: TableSchema, log: LogTable, column: LogColumn) -> tuple[list[int], int]:
    """Return the program's row of a column, and the time up to which its cells are skipped."""
    present = next((c for c in (*schema.static, *schema.regular) if c.name == column.name), None)
    dropped = schema.dropped.get(column.name)
    number, form, static, dropped_at = UNKNOWN, ONE_CELL, column.name in log.static, _NEVER_DROPPED
    if present is not None:
        number, form = present.id, _FORMS.get(_multi_cell_type(present), ONE_CELL)
        static = present.kind == "static"
        if (form != ONE_CELL) != (column.deleted_elements >= 0):
            number = DROPPED  # a dropped column of this name, with cells of another kind
    elif dropped is not None:
        number = DROPPED
    if dropped is not None:
        dropped_at = dropped.dropped_at_us
    indexes = [column.value, column.deleted, column.deleted_elements]
    return [*indexes, form, number, int(static)], dropped_at


def _by_id(row: tuple[list[int], int]) -> int:
    return row[0][ID]


def _multi_cell_type(column: Column) -> str:
    return column.type.name if column.type.multi_cell else ""


def _indexes(log: LogTable, names: Sequence[str]) -> list[int]:
    missing = [name for name in names if name not in log.indexes]
    if missing:
        raise CorruptInput(
            f"the schema record of the log of {log.full_name} has missing columns",
            expected=", ".join(names),
            found=f"no {', '.join(missing)}",
        )
    return [log.indexes[name] for name in names]


def _key(log: LogTable, names: Sequence[str], count: int) -> list[int]:
    """Return the indexes of key columns; they match the schema's by order, whatever their names."""
    if len(names) != count:
        raise CorruptInput(
            f"the key of {log.full_name} doesn't match a schema record of its log",
            expected=f"{count} columns",
            found=", ".join(names),
        )
    return _indexes(log, names)


def _table(rows: Sequence[Sequence[int]], count: int, columns: int) -> Ints:
    return np.array(rows, np.int64).reshape(count, columns)
