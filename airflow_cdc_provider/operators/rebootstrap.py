"""Operator that restarts a capture that was stopped for too long to catch up.

``cdc_raw`` is full, writes to captured tables are refused, or their segments were deleted. The operator
discards the log, and the next sync takes new snapshots of the tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector.declaration import to_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.feeds.cassandra import node_folders
from airflow_cdc_provider.hooks._of_connector import cassandra_hook
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.plugin import options_of
from airflow_cdc_provider.tasks.parameters import to_flag, to_tables
from airflow_cdc_provider.tasks.run_folder import RunFolder, write_to_folder
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook

_log = logger("airflow_cdc_provider.operators")


class CassandraRebootstrapOperator(SparkStageOperator):
    """Discards the commit log and makes the next sync take new snapshots of the tables.

    The steps are: disable ``cdc`` of the connector's captured tables, so that nodes accept their writes even
    if ``cdc_raw`` is full; remove finished segments; reset the stored position and the completed snapshots;
    enable ``cdc`` again. The next sync takes new snapshots, which include all writes in between, and captures
    from there.

    Before the first step it verifies that the others can succeed: Spark, folders, other users of the
    segments. Every step is idempotent: a task that failed or was killed continues at its next try, or when it
    is triggered again, with the tables that were captured at first. Until it succeeds their ``cdc`` may be
    off; each run's findings report that.

    XCom: as for :class:`~airflow_cdc_provider.operators.stages.CdcOffsetsOperator`, and ``rebootstrapped``,
    the tables, and ``segments_removed`` and ``bytes_removed``.

    Args:
        cdc_raw: Further folders with segments to remove, in addition to ``source.cdc_raw``. If that is a
            landing area, name the nodes' ``cdc_raw`` that this task can access: a list, or comma-separated
            text (templated). Other nodes' ``cdc_raw`` is freed by their transfer or shipper.
        clear_segments: Remove finished segments (templated). Refused while other tables of the cluster are
            captured, because the segments have their changes too.
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`. With
            ``tables``, only these are restarted, the position is kept, and ``clear_segments`` must be false.

    Example::

        again = CassandraRebootstrapOperator(task_id="again", connector="shop.yaml")
        again >> CdcSyncOperator(task_id="sync", connector="shop.yaml")
    """

    stage = "offsets"
    template_fields: Sequence[str] = (*SparkStageOperator.template_fields, "cdc_raw", "clear_segments")

    def __init__(
        self,
        *,
        cdc_raw: Sequence[str] | str = (),
        clear_segments: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cdc_raw = cdc_raw
        self.clear_segments = clear_segments

    def options(self) -> Mapping[str, Any]:
        """Return the action of the offsets stage."""
        return {"action": "reset"}

    def _run(self, context: Context) -> dict[str, Any]:
        connector = to_connector(self.connector)
        hook = cassandra_hook(connector, self.source_conn_id)
        notes = RunFolder.open(self.work_folder, connector.name, "rebootstrap")
        clear = to_flag("clear_segments", self.clear_segments)
        try:
            self._check_spark()
            folders = self._segment_folders(connector) if clear else []
            tables = self._captured(connector, hook, notes, clear=clear)
            self._switch_off(hook, tables)
            removed = self._remove_segments(folders)
            summary = super()._run(context)
            hook.switch_cdc(tables, enabled=True)
            _log.info("cdc is on: %s; the next sync takes new snapshots of them", ", ".join(tables))
        finally:
            hook.close()
        notes.remove()
        return {
            **summary,
            "rebootstrapped": tables,
            "segments_removed": removed[0],
            "bytes_removed": removed[1],
        }

    def _switch_off(self, hook: CassandraCdcHook, tables: Sequence[str]) -> None:
        """Disable ``cdc`` for all tables or none: nothing is discarded yet."""
        try:
            hook.switch_cdc(tables, enabled=False)
        except ConfigurationError:
            hook.switch_cdc(tables, enabled=True)
            raise
        _log.info("cdc is off: %s", ", ".join(tables))

    def _captured(
        self, connector: Connector, hook: CassandraCdcHook, notes: RunFolder, *, clear: bool
    ) -> list[str]:
        """Return the tables to restart, and store them for later tries."""
        if connector.snapshot.mode == "never":
            raise ConfigurationError(
                "no new snapshots would be taken",
                expected="another snapshot.mode, such as initial",
                found="never",
                remedy="change it, or do it by hand with CdcOffsetsOperator and CdcSnapshotOperator",
            )
        file = notes.path / "tables.json"
        requested = set(to_tables(self.tables))
        if requested and clear:
            raise ConfigurationError(
                "segments have the changes of all tables",
                expected="clear_segments false, or no tables",
                found=", ".join(sorted(requested)),
            )
        captured = set(hook.captured_tables())
        if file.exists():
            tables = set(json.loads(file.read_text())) & set(hook.matching_tables([".*"]))
        else:
            tables = {table for table in captured if connector.selects(table)}
            if requested:
                if missing := sorted(requested - tables):
                    raise ConfigurationError(
                        f"{', '.join(missing)} is not captured",
                        expected=", ".join(sorted(tables))
                        or "a table that the connector selects, with cdc = true",
                    )
                tables = requested
        if not tables:
            raise ConfigurationError(
                f"connector {connector.name} captures no table",
                expected="a table that it selects, with cdc = true",
                remedy="CassandraTableCdcOperator switches it on",
            )
        if clear and (others := sorted(captured - tables)):
            raise ConfigurationError(
                "segments have changes of tables that aren't this connector's",
                expected="clear_segments false, and a transfer that frees cdc_raw",
                found=f"cdc = true of {', '.join(others[:10])}",
            )
        write_to_folder(file, json.dumps(sorted(tables)))
        return sorted(tables)

    def _segment_folders(self, connector: Connector) -> list[WholeSegments]:
        """Return the folders whose segments will be removed; each is readable and writable."""
        options = options_of(connector, CassandraOptions)
        found = []
        for folder in filter(None, dict.fromkeys([options.cdc_raw, *to_tables(self.cdc_raw)])):
            for host, path in node_folders(folder).items():
                if not os.access(path, os.W_OK):
                    raise ConfigurationError(
                        f"segments in {path} can't be removed",
                        expected="a folder that the task can write to",
                        remedy="mount it writable, or set clear_segments to false and free it on the node",
                    )
                found.append(WholeSegments(FolderStore(path), host or options.node))
        return found

    def _remove_segments(self, folders: Sequence[WholeSegments]) -> tuple[int, int]:
        """Remove finished segments; the node may still write to a growing one."""
        count = size = 0
        for segments in folders:
            for segment in segments.segments():
                if segment.complete:
                    segments.remove(segment)
                    count += 1
                    size += segment.size_bytes
        if folders:
            _log.warning("Removed %d finished segments without reading them, %d MiB", count, size >> 20)
        return count, size
