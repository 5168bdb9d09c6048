"""Outcomes of row comparisons: of tasks, and of tables.

A task returns one row of :data:`OUTCOME_DDL`. Samples name keys and columns, never values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.tables import refused_tables, selected_tables
from airflow_cdc_provider.jobs.spark import failures
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.lake.compare import Comparison

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COUNTS: Final = ("equal", "only_left", "only_right", "different", "unreported", "not_compared")
_SAMPLES: Final = 20
OUTCOME_DDL: Final = ", ".join(f"{name} bigint" for name in _COUNTS) + ", samples array<string>"


@dataclass(frozen=True)
class Sides:
    """The two sides of a comparison.

    Args:
        left: Name of one side.
        right: Name of the other side.
    """

    left: str
    right: str


def outcome_of(found: Comparison) -> pa.RecordBatch:
    """Return the outcome of a task as a row."""
    samples = [json.dumps(sample, default=str) for sample in found.samples]
    counts = [pa.array([getattr(found, name)], pa.int64()) for name in _COUNTS]
    return pa.RecordBatch.from_arrays(
        [*counts, pa.array([samples], pa.list_(pa.string()))], names=[*_COUNTS, "samples"]
    )


def total(outcomes: DataFrame) -> Comparison:
    """Add up the outcomes of tasks; runs the comparison."""
    rows = outcomes.collect()
    counts = {name: sum(int(row[name]) for row in rows) for name in _COUNTS}
    samples = [json.loads(text) for row in rows for text in row["samples"]][:_SAMPLES]
    return Comparison(**counts, samples=tuple(samples))


def table_result(
    table: str,
    found: Comparison,
    sides: Sides,
    *,
    merged_through: int,
    mirror_rows: int,
    seconds: float,
    columns_left_out: Sequence[str] = (),
) -> TableResult:
    """Log the outcome of a table, and return it as part of the job's result.

    Args:
        table: The source's table.
        found: The outcome of all tasks.
        sides: The two sides.
        merged_through: The last batch that the mirror has merged.
        mirror_rows: Rows of the mirror.
        seconds: Duration of the comparison.
        columns_left_out: Columns that weren't compared.
    """
    names = {"left": sides.left, "right": sides.right}
    for sample in found.samples:
        named = {**sample, "only": names[sample["only"]]} if "only" in sample else sample
        log.warning("%s differs: %s", table, json.dumps(named))
    log.info(
        "%s: %d rows equal, %d only in %s, %d only in %s, %d different, %.1f s",
        table,
        found.equal,
        found.only_left,
        sides.left,
        found.only_right,
        sides.right,
        found.different,
        seconds,
    )
    counts = {
        "equal": found.equal,
        f"only_{sides.left}": found.only_left,
        f"only_{sides.right}": found.only_right,
        "different": found.different,
    }
    left_out: dict[str, Any] = {
        name: count for name in ("unreported", "not_compared") if (count := getattr(found, name))
    }
    if columns_left_out:
        left_out["columns_not_compared"] = list(columns_left_out)
    if left_out:
        log.warning("%s: not everything was compared: %s", table, json.dumps(left_out))
    differences = found.only_left + found.only_right + found.different
    return TableResult(
        table,
        merged_through=merged_through,
        mirror_rows=mirror_rows,
        differences=differences,
        seconds=round(seconds, 3),
        note=json.dumps({**counts, **left_out}) if differences or left_out else "equal",
    )


def compared_tables(run: Run, compare: Callable[[str], TableResult]) -> list[TableResult]:
    """Compare the job's tables one by one; the result of one that can't be compared has the error."""
    tables = selected_tables(run.job, run.stores, run.source)
    refused = refused_tables(run.job, run.stores, run.source)
    found = [failures.or_failure(TableResult(table), partial(compare, table)) for table in tables]
    return [*found, *refused]


def judged(outcome: JobResult, tables: Sequence[TableResult], sides: Sides) -> JobResult:
    """Return the result, not ok if tables differ, or failed."""
    differences = sum(table.differences or 0 for table in tables)
    if not differences:
        return outcome
    where = f"between {sides.left} and {sides.right}; see the log, and the note of each table"
    text = f"{differences} rows differ {where}"
    if outcome.ok:
        return replace(outcome, ok=False, error_code="DIFFERENT", error=text)
    return replace(outcome, error=f"{outcome.error}; {text}")
