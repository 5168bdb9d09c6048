"""What became of a mirror's rows between two snapshots: by their ids, in an order that is always the same.

A row counts as changed where its contents did: what the source's codec keeps of it, and columns that are
named. So rows that compaction moved, or that a new snapshot of the source brought as they were, are none.

Rows that are gone come first: a row of Vitess that moved to another shard is another row of the mirror then,
and who reads by its key must be told last that it is there.
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
_SHOWN: Final = "shown"
_COMPARED: Final = "compared"


def changed_rows(found: Difference, columns: Sequence[str], *, statics_apart: bool = False) -> DataFrame:
    """Return the rows that changed.

    Args:
        found: Of the mirror.
        columns: Columns of the mirror whose values belong to a row's contents, and are returned.
        statics_apart: Partitions of which only static columns live are no rows.

    Returns:
        Columns ``op`` (``c``, ``u`` or ``d``), ``key``, ``clustering``, ``version``, ``state`` of ``_cdc``,
        and the columns: of the row after, of a row that is gone as it was before. What is gone first, then by
        id.
    """
    gone, new = (_with_states(rows) if statics_apart else rows for rows in (found.gone, found.new))
    before = _rows(gone, columns).withColumnRenamed("row", "before")
    after = _rows(new, columns).withColumnRenamed("row", "after")
    contents = ["state", *_numbered(columns, _COMPARED)]
    same = " AND ".join(f"before.{name} <=> after.{name}" for name in contents)
    op = f"CASE WHEN before IS NULL THEN '{INSERT}' WHEN after IS NULL THEN '{DELETE}' ELSE '{UPDATE}' END op"
    both = before.join(after, "id", "full_outer")
    changed = both.where(f"before IS NULL OR after IS NULL OR NOT ({same})")
    return _shown(changed.selectExpr("id", op, "coalesce(after, before) row"), columns)


def all_rows(rows: DataFrame, columns: Sequence[str], *, statics_apart: bool = False) -> DataFrame:
    """Return all rows of a mirror in the columns and order of :func:`changed_rows`, as ``r``."""
    rows = _with_states(rows) if statics_apart else rows
    return _shown(_rows(rows, columns).selectExpr("id", f"'{READ}' op", "row"), columns)


def arrow_batches(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a frame in its order, without holding more than a partition of them on the driver."""
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
    """Return the expression by which values of a column are compared: Spark compares no maps."""
    value = quoted(name)
    return f"to_json({value})" if "map<" in rows.schema[name].dataType.simpleString() else value


def quoted(name: str) -> str:
    """Return a column's name as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def _with_states(rows: DataFrame) -> DataFrame:
    return rows.where(f"{CDC_COLUMN}.state IS NOT NULL")


def _rows(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return ids, and structs ``row`` of what is shown and compared."""
    fields = [f"'{name}', {CDC_COLUMN}.{name}" for name in _OF_CDC]
    shown, contents = _numbered(columns, _SHOWN), _numbered(columns, _COMPARED)
    for name, as_shown, as_compared in zip(columns, shown, contents, strict=True):
        fields += [f"'{as_shown}', {quoted(name)}", f"'{as_compared}', {compared(rows, name)}"]
    return rows.selectExpr(f"{CDC_COLUMN}.id id", f"named_struct({', '.join(fields)}) row")


def _shown(changed: DataFrame, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    shown = [f"row.{name} {name}" for name in _OF_CDC]
    numbered = zip(_numbered(columns, _SHOWN), columns, strict=True)
    shown += [f"row.{number} {quoted(name)}" for number, name in numbered]
    return changed.orderBy(f.col("op") != DELETE, "id").selectExpr("op", *shown)


def _numbered(columns: Sequence[str], what: str) -> list[str]:
    return [f"{what}_{number}" for number in range(len(columns))]
