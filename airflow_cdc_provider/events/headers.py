"""Debezium's context headers, equal on all data records and tombstones of a run."""

from __future__ import annotations

import json


def context_headers(
    logical_name: str, task_id: str, connector: str, run_id: str
) -> tuple[tuple[str, str], ...]:
    """Return names and JSON texts, in Debezium's order.

    Args:
        logical_name: The topic prefix.
        task_id: The task's number, as text.
        connector: ``mongodb``, ``cassandra`` ...
        run_id: A UUID, new for each run.
    """
    values = {
        "connectorLogicalName": logical_name,
        "taskId": task_id,
        "connectorName": connector,
        "runId": run_id,
    }
    return tuple(
        (f"__debezium.context.{name}", json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    )
