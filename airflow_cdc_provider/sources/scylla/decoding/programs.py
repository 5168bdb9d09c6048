"""Log tables compiled to small integer arrays, so that kernels can walk log rows without Python.

A :class:`LogProgram` holds all versions of one table's log that are known, each with a number. The rows of
``columns`` that are of version ``n`` are ``first_column[n]`` to ``first_column[n + 1]``, ascending by column
id, which is the order of cells in a cell row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.cql.decoding.programs import GONE
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
"""Column id of one that the log has and the schema doesn't know, neither now nor dropped."""

# Columns of ``meta``: places of the log's own columns.
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
"""How many columns the log has."""
KEYS_ONLY: Final = 1
"""Whether it tells keys alone, :data:`PERHAPS` where nothing says so."""
LOG_TTL: Final = 2
TTL_ALTERED: Final = 3
"""Whether versions differ in it, so that a row may have been written under another one."""

PERHAPS: Final = 2

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
"""A map, or a list by the ids of its cells."""
FIELDS: Final = 3
_FORMS: Final = {"set": SET, "map": PAIRS, "list": PAIRS, "udt": FIELDS}

_NEVER_DROPPED: Final = np.iinfo(np.int64).min


class LogProgram(NamedTuple):
    """Versions of a log as arrays; see the module's docstring.

    ``versions``      per version the columns above
    ``meta``          per version, where the log's own columns stand; -1 for one that isn't there
    ``partition``     per version, where the partition key's columns stand
    ``clustering``    per version, where the clustering columns stand
    ``first_column``  per version, then the total
    ``columns``       per column of the base that is in no key, the columns above
    ``dropped_at``    per such column, cells with a write time up to this are left out
    """

    versions: NDArray[np.int64]
    meta: NDArray[np.int64]
    partition: NDArray[np.int64]
    clustering: NDArray[np.int64]
    first_column: NDArray[np.int64]
    columns: NDArray[np.int64]
    dropped_at: NDArray[np.int64]


def compile_logs(schema: TableSchema, logs: Sequence[LogTable]) -> LogProgram:
    """Compile versions of a table's log; their numbers in the program are their places in ``logs``.

    Args:
        schema: The base table as it is now, its columns numbered.
        logs: Versions of its log.

    Raises:
        CorruptInput: A version lacks columns that every log has.
    """
    first, rows, dropped_at = [0], [], []
    for log in logs:
        chosen = sorted((_column(schema, log, column) for column in log.value_columns), key=_by_id)
        rows += [row for row, _ in chosen]
        dropped_at += [time for _, time in chosen]
        first.append(len(rows))
    altered = len({log.log_ttl for log in logs}) > 1
    keys, clustering = len(schema.partition_key), len(schema.clustering)
    count = len(logs)
    return LogProgram(
        versions=_table(
            [[len(g.columns), PERHAPS if g.untold else int(g.keys_only), g.log_ttl, altered] for g in logs],
            count,
            4,
        ),
        meta=_table([[*_places(g, _META), g.places.get(LOG_ROW_TTL, -1)] for g in logs], count, 7),
        partition=_table([_key(g, g.partition_key, keys) for g in logs], count, keys),
        clustering=_table([_key(g, g.clustering, clustering) for g in logs], count, clustering),
        first_column=np.array(first, np.int64),
        columns=_table(rows, len(rows), 6),
        dropped_at=np.array(dropped_at, np.int64),
    )


def _keys_only(log: LogTable) -> int:
    return PERHAPS if log.untold else int(log.keys_only)


def _column(schema: TableSchema, log: LogTable, column: LogColumn) -> tuple[list[int], int]:
    """Return the program's row of a column, and up to when its cells don't count."""
    present = next((c for c in (*schema.static, *schema.regular) if c.name == column.name), None)
    gone = schema.dropped.get(column.name)
    number, form, static, dropped_at = UNKNOWN, ONE_CELL, column.name in log.static, _NEVER_DROPPED
    if present is not None:
        number, form, static = present.id, _FORMS.get(_loose(present), ONE_CELL), present.kind == "static"
        if (form != ONE_CELL) != (column.deleted_elements >= 0):
            number = GONE  # a column of this name that was dropped: its cells are of another kind
    elif gone is not None:
        number = GONE
    if gone is not None:
        dropped_at = gone.dropped_at_us
    places = [column.value, column.deleted, column.deleted_elements]
    return [*places, form, number, int(static)], dropped_at


def _by_id(row: tuple[list[int], int]) -> int:
    return row[0][ID]


def _loose(column: Column) -> str:
    return column.type.name if column.type.multi_cell else ""


def _places(log: LogTable, names: Sequence[str]) -> list[int]:
    missing = [name for name in names if name not in log.places]
    if missing:
        raise CorruptInput(
            f"the schema record of the log of {log.full_name} lacks columns",
            expected=", ".join(names),
            found=f"no {', '.join(missing)}",
        )
    return [log.places[name] for name in names]


def _key(log: LogTable, names: Sequence[str], count: int) -> list[int]:
    """Return the places of key columns; they are the schema's by their order, whatever their names."""
    if len(names) != count:
        raise CorruptInput(
            f"the key of {log.full_name} isn't what a schema record of its log says",
            expected=f"{count} columns",
            found=", ".join(names),
        )
    return _places(log, names)


def _table(rows: Sequence[Sequence[int]], count: int, columns: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(count, columns)
