"""Row changes of a mirror between two snapshots, by row id, in a deterministic order.

A row counts as changed if its contents did: its stored state, and the given columns. Rows that a compaction
moved, or that a new snapshot of the source returned unchanged, don't count.

Deleted rows come first: a row of Vitess that moved to another shard is another row of the mirror, and a
consumer that reads by key must see the insert last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.lake.iceberg_difference import Difference
from airflow_cdc_provider.lake.mirror import CDC_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INSERT: Final = "c"
UPDATE: Final = "u"
DELETE: Final = "d"
READ: Final = "r"

_OF_CDC: Final = ("key", "clustering", "version", "state")
_VALUE: Final = "value"
_COMPARED: Final = "compared"


def changed_rows(
    found: Difference, columns: Sequence[str], *, static_columns_table: bool = False
) -> DataFrame:
    """Return the rows that changed.

    Args:
        found: The difference of the mirror's snapshots.
        columns: Columns of the mirror whose values belong to a row's contents, and are returned.
        static_columns_table: Whether partitions that have only static columns are skipped.

    Returns:
        Columns ``op`` (``c``, ``u`` or ``d``), ``key``, ``clustering``, ``version``, ``state`` of ``_cdc``,
        and the given columns: of the row after the change, for deleted rows of the row before. Deletes come
        first, then by id.
    """
    removed, added = (
        _with_states(rows) if static_columns_table else rows for rows in (found.removed, found.added)
    )
    before = _rows(removed, columns).withColumnRenamed("row", "before")
    after = _rows(added, columns).withColumnRenamed("row", "after")
    contents = ["state", *_numbered(columns, _COMPARED)]
    same = " AND ".join(f"before.{name} <=> after.{name}" for name in contents)
    op = f"CASE WHEN before IS NULL THEN '{INSERT}' WHEN after IS NULL THEN '{DELETE}' ELSE '{UPDATE}' END op"
    both = before.join(after, "id", "full_outer")
    changed = both.where(f"before IS NULL OR after IS NULL OR NOT ({same})")
    return _ordered(changed.selectExpr("id", op, "coalesce(after, before) row"), columns)


def all_rows(rows: DataFrame, columns: Sequence[str], *, static_columns_table: bool = False) -> DataFrame:
    """Return all rows of a mirror in the columns and order of :func:`changed_rows`, as ``r``."""
    rows = _with_states(rows) if static_columns_table else rows
    return _ordered(_rows(rows, columns).selectExpr("id", f"'{READ}' op", "row"), columns)


def arrow_batches(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a frame in order, with at most one partition of them in the driver's memory."""
    for row in map_in_arrow(rows, _AsStreams(), "batch binary").toLocalIterator():
        with pa.ipc.open_stream(row["batch"]) as stream:
            yield from stream


class _AsStreams:
    """Writes Arrow batches as values of a binary column. Picklable."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"batch": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def compared(rows: DataFrame, name: str) -> str:
    """Return the expression for comparing values of a column, since Spark can't compare maps."""
    value = quoted(name)
    return f"to_json({value})" if "map<" in rows.schema[name].dataType.simpleString() else value


def quoted(name: str) -> str:
    """Quote a column's name for SQL."""
    return f"`{name.replace('`', '``')}`"


def _with_states(rows: DataFrame) -> DataFrame:
    return rows.where(f"{CDC_COLUMN}.state IS NOT NULL")


def _rows(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return ids, and structs ``row`` of the columns to return and to compare."""
    fields = [f"'{name}', {CDC_COLUMN}.{name}" for name in _OF_CDC]
    values, contents = _numbered(columns, _VALUE), _numbered(columns, _COMPARED)
    for name, as_value, as_compared in zip(columns, values, contents, strict=True):
        fields += [f"'{as_value}', {quoted(name)}", f"'{as_compared}', {compared(rows, name)}"]
    return rows.selectExpr(f"{CDC_COLUMN}.id id", f"named_struct({', '.join(fields)}) row")


def _ordered(changed: DataFrame, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    selected = [f"row.{name} {name}" for name in _OF_CDC]
    numbered = zip(_numbered(columns, _VALUE), columns, strict=True)
    selected += [f"row.{number} {quoted(name)}" for number, name in numbered]
    return changed.orderBy(f.col("op") != DELETE, "id").selectExpr("op", *selected)


def _numbered(columns: Sequence[str], prefix: str) -> list[str]:
    return [f"{prefix}_{number}" for number in range(len(columns))]
