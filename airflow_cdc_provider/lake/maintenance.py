"""Maintenance of an Iceberg table: compaction, expiry, and what dead writers left.

None of it changes rows, so commits that are under way go on (see :mod:`airflow_cdc_provider.lake.iceberg`).
Where a writer changes what is being compacted, the writer wins and compaction waits for the next turn.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.lake.iceberg_java import java_error
from airflow_cdc_provider.lake.table import MaintenanceReport

if TYPE_CHECKING:
    from airflow_cdc_provider.lake.iceberg import IcebergTable

DEAD_BRANCH_SECONDS = 3600
"""Age at which a commit's branch is a dead writer's."""

_log = logging.getLogger(__name__)


def maintain(table: IcebergTable, *, retain_seconds: int, branch_prefix: str) -> MaintenanceReport:
    """Compact, expire and tidy up.

    Args:
        table: The table.
        retain_seconds: Age at which snapshots expire; tagged ones, and the newest of each branch, stay.
        branch_prefix: Leads the names of commit branches, followed by the epoch second of their making.
    """
    remove_dead_branches(table, branch_prefix)
    rewritten = compact(table)
    return MaintenanceReport(rewritten_files=rewritten, expired_snapshots=expire(table, retain_seconds))


def compact(table: IcebergTable) -> int:
    """Rewrite small data files, those with many deletes, and manifests; return how many data files."""
    rewritten = _call(
        table,
        "rewrite_data_files",
        "options => map('delete-file-threshold', '3', 'remove-dangling-deletes', 'true')",
    )
    _call(table, "rewrite_position_delete_files")
    _call(table, "rewrite_manifests")
    return int(rewritten["rewritten_data_files_count"]) if rewritten is not None else 0


def expire(table: IcebergTable, retain_seconds: int) -> int:
    """Expire old snapshots and delete the files that only they used; return how many snapshots."""
    before = table.load().snapshots()
    older_than = int((time.time() - retain_seconds) * 1000)
    loaded = table.load()
    count = sum(1 for _ in before)
    loaded.expireSnapshots().expireOlderThan(older_than).retainLast(1).commit()
    return count - sum(1 for _ in table.load().snapshots())


def remove_dead_branches(table: IcebergTable, prefix: str) -> list[str]:
    """Remove the branches of writers that ended before they were done."""
    now = time.time()
    dead = [
        name
        for name in table.load().refs()
        if name.startswith(prefix) and now - int(name[len(prefix) :].split("_")[0]) > DEAD_BRANCH_SECONDS
    ]
    for name in dead:
        table.remove_branch(name)
    return dead


def _call(table: IcebergTable, procedure: str, arguments: str = "") -> Any:
    """Run one of Iceberg's procedures; None where a writer came first."""
    more = f", {arguments}" if arguments else ""
    statement = f"CALL `{table.lake.catalog}`.system.{procedure}(table => '{table.name}'{more})"
    try:
        return table.spark.sql(statement).first()
    except Exception as error:
        if java_error(error, "CommitFailedException", "ValidationException"):
            _log.info("%s of %s gave way to a writer", procedure, table.name)
            return None
        raise
