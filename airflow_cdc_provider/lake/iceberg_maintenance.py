"""Maintenance of an Iceberg table: compaction, expiry, and removal of branches that dead writers left.

None of it changes rows, so concurrent commits succeed (see :mod:`airflow_cdc_provider.lake.iceberg`). If a
writer changes files that are being compacted, the writer wins and the compaction is skipped this time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Protocol

from airflow_cdc_provider.lake.iceberg_java import java_error
from airflow_cdc_provider.lake.table import Lake, MaintenanceReport
from airflow_cdc_provider.logs import logger

DEAD_BRANCH_SECONDS = 3600
"""Age at which the writer of a commit branch is considered dead."""

_log = logger(__name__)


class Maintainable(Protocol):
    """The part of :class:`~airflow_cdc_provider.lake.iceberg.IcebergTable` that maintenance uses."""

    name: str

    @property
    def lake(self) -> Lake:
        """Its catalog."""
        ...

    def load(self) -> Any:
        """Load the table's metadata, as Iceberg's Java object."""
        ...

    def retry(self, change: Callable[[], int]) -> int:
        """Change the metadata, and retry while other changes are committed first."""
        ...

    def remove_branch(self, branch: str) -> None:
        """Remove a branch if it exists."""
        ...


def maintain(
    table: Maintainable, *, retain_seconds: int, compact: bool, branch_prefix: str
) -> MaintenanceReport:
    """Compact, expire and remove dead branches.

    Args:
        table: The table.
        retain_seconds: Age at which snapshots expire; the tagged one and the newest of each branch are kept.
        compact: Whether files are rewritten.
        branch_prefix: Prefix of the names of commit branches; the epoch second of their creation follows.

    Returns:
        Counts.
    """
    remove_dead_branches(table, branch_prefix)
    rewritten = rewrite(table) if compact else 0
    return MaintenanceReport(rewritten_files=rewritten, expired_snapshots=expire(table, retain_seconds))


def rewrite(table: Maintainable) -> int:
    """Rewrite small data files, those with many deletes, and manifests; return how many data files."""
    options = "options => map('delete-file-threshold', '5', 'remove-dangling-deletes', 'true')"
    rewritten = _call(table, "rewrite_data_files", options)
    _call(table, "rewrite_position_delete_files")
    _call(table, "rewrite_manifests")
    return 0 if rewritten is None else int(rewritten["rewritten_data_files_count"])


def expire(table: Maintainable, retain_seconds: int) -> int:
    """Expire old snapshots and delete the files that only they used; return how many snapshots.

    Uses Iceberg's Java API: the Spark procedure takes over a second of CPU even if there is nothing to do.
    """
    older_than_ms = int((time.time() - retain_seconds) * 1000)

    def change() -> int:
        loaded = table.load()
        before = _count_snapshots(loaded)
        loaded.expireSnapshots().expireOlderThan(older_than_ms).retainLast(1).commit()
        loaded.refresh()
        return before - _count_snapshots(loaded)

    return table.retry(change)


def _count_snapshots(loaded: Any) -> int:
    return int(loaded.operations().current().snapshots().size())


def remove_dead_branches(table: Maintainable, prefix: str) -> list[str]:
    """Remove the branches of writers that ended before they committed."""
    now = time.time()
    ours = re.compile(re.escape(prefix) + r"(\d+)_\w+")
    found = ((name, ours.fullmatch(name)) for name in table.load().refs())
    dead = [name for name, match in found if match and now - int(match[1]) > DEAD_BRANCH_SECONDS]
    for name in dead:
        table.remove_branch(name)
    return dead


def _call(table: Maintainable, procedure: str, arguments: str = "") -> Any:
    """Run one of Iceberg's procedures; None if a concurrent writer committed first."""
    more = f", {arguments}" if arguments else ""
    statement = f"CALL `{table.lake.catalog}`.system.{procedure}(table => '{table.name}'{more})"
    try:
        return table.lake.spark.sql(statement).first()
    except Exception as error:
        if java_error(error, "CommitFailedException", "ValidationException"):
            _log.info("%s of %s skipped: a concurrent writer committed first", procedure, table.name)
            return None
        raise
