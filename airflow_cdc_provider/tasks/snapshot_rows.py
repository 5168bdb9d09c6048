"""Reports a running snapshot's progress to Airflow.

The job appends lines to a file (:mod:`airflow_cdc_provider.jobs.metrics.scanned`). Each becomes the gauge
``cdc.snapshot.rows`` of its table, and a callback receives the rows of all tables. After each commit of the
job a line has the snapshot's progress, which becomes the other gauges ``cdc.snapshot.*``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_cdc_provider.jobs.spec import SnapshotResult
from airflow_cdc_provider.tasks.followed_file import following
from airflow_cdc_provider.tasks.metrics import emit_rows, emit_snapshot

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

Push = Callable[[Mapping[str, int]], None]


def following_rows(path: Path, connector: Connector, push: Push | None) -> AbstractContextManager[None]:
    """Follow a job's row file until the block ends, and report its progress.

    Args:
        path: The file; it need not exist yet, or ever.
        connector: The job's connector.
        push: Receives the rows read of each table so far, at most once a second; None for no callback.
    """
    total: dict[str, int] = {}

    def take(lines: Sequence[bytes]) -> None:
        for line in lines:
            record = json.loads(line)
            if "snapshot" in record:
                emit_snapshot(connector, SnapshotResult(**record["snapshot"]))
                continue
            table, rows = str(record["table"]), int(record["rows"])
            total.pop(table, None)  # the most recent tables come last
            total[table] = rows
            emit_rows(connector, table, rows)
        if push is not None:
            push(dict(total))

    return following(path, take)
