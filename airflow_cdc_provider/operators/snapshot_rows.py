"""Rows that a snapshot has read, told to Airflow while it runs.

The job appends lines to a file (:mod:`airflow_cdc_provider.jobs.metrics.scanned`); each becomes the gauge
``cdc.snapshot.rows`` of its table, and what they add up to goes to whoever asked for it. After each commit of
the job a line tells how far the snapshot came, which becomes the other gauges ``cdc.snapshot.*``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_cdc_provider.jobs.spec import SnapshotResult
from airflow_cdc_provider.operators.followed_file import following
from airflow_cdc_provider.operators.metrics import emit_rows, emit_snapshot

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

Push = Callable[[Mapping[str, int]], None]


def following_rows(path: Path, connector: Connector, push: Push | None) -> AbstractContextManager[None]:
    """Follow a job's file of rows until the block ends, and tell what it says.

    Args:
        path: The file; it need not exist yet, or ever.
        connector: Whose tables they are.
        push: Gets the rows read of all tables so far, once a second at most; None for nobody.
    """
    total: dict[str, int] = {}

    def take(lines: Sequence[bytes]) -> None:
        for line in lines:
            told = json.loads(line)
            if "snapshot" in told:
                emit_snapshot(connector, SnapshotResult(**told["snapshot"]))
                continue
            table, rows = str(told["table"]), int(told["rows"])
            total.pop(table, None)  # the last told stand last
            total[table] = rows
            emit_rows(connector, table, rows)
        if push is not None:
            push(dict(total))

    return following(path, take)
