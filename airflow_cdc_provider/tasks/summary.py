"""A job's result as its task returns it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.jobs.metrics.debezium import Metrics, metrics_of
from airflow_cdc_provider.jobs.spec import JobResult, SnapshotResult
from airflow_cdc_provider.tasks.state import table_numbers

_LARGEST_OFFSET_CHARACTERS: Final = 32_000
_LONGEST_TEXT: Final = 8_000
MAX_XCOM_ITEMS: Final = 400
"""The maximum number of nodes and of tables in XCom."""
_DIFFERENT: Final = "DIFFERENT"
"""Error code of a comparison with differences."""


def summary(connector: Connector, stage: str, result: JobResult) -> dict[str, Any]:
    """Return a result's XCom value: small and JSON."""
    return {
        "connector": connector.name,
        "stage": stage,
        "batches": result.batches,
        "changes": result.changes,
        "lag_seconds": result.lag_seconds,
        "lag_bytes": result.lag_bytes,
        "offset": small_offset(result.offset),
        "committed_at": result.committed_at,
        "tables": {table.table: table_numbers(table) for table in result.tables},
        "origins": {one.origin: asdict(one) for one in result.origins[:MAX_XCOM_ITEMS]},
        "skipped": dict(result.skipped),
        "snapshot": _snapshot_numbers(result.snapshot),
        "published": None if result.published is None else asdict(result.published),
        "replayed": None if result.replayed is None else asdict(result.replayed),
        "metrics": _short(metrics_of(result)),
        "seconds": dict(result.seconds),
        "findings": list(result.findings),
    }


def _short(metrics: Mapping[str, Metrics]) -> dict[str, dict[str, Any]]:
    """Return metrics with long texts, lists and mappings truncated."""

    def cut(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(list(value.items())[:MAX_XCOM_ITEMS])
        if isinstance(value, str):
            return value[:_LONGEST_TEXT]
        return value[:MAX_XCOM_ITEMS] if isinstance(value, list) else value

    return {context: {name: cut(value) for name, value in of.items()} for context, of in metrics.items()}


def _snapshot_numbers(shot: SnapshotResult | None) -> dict[str, Any] | None:
    if shot is None:
        return None
    states = {"running": shot.running, "completed": shot.completed}
    return {
        **asdict(shot),
        **states,
        "rows_by_table": dict(list(shot.rows_by_table.items())[:MAX_XCOM_ITEMS]),
        "errors": dict(list(shot.errors.items())[:MAX_XCOM_ITEMS]),
    }


def small_offset(offset: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return an offset, or None if it is too large for XCom."""
    if offset is not None and len(json.dumps(offset)) > _LARGEST_OFFSET_CHARACTERS:
        return None
    return offset


def few_differences(result: JobResult, most: int | None) -> bool:
    """Return whether a comparison has few enough differences.

    Args:
        result: Its result.
        most: The maximum number of different rows; None for no limit.
    """
    if result.error_code != _DIFFERENT:
        return False
    return most is None or sum(table.differences or 0 for table in result.tables) <= most
