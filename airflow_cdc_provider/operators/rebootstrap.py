"""The operator for a capture that was stopped for so long that catching up is no way out any more.

``cdc_raw`` is full, writes to captured tables are refused, or their segments are gone. What is in the log is
given up, and the tables are read anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.cdc_raw import node_folders
from airflow_cdc_provider.hooks.parameters import to_flag, to_tables
from airflow_cdc_provider.hooks.source import to_connector
from airflow_cdc_provider.operators.cassandra import cassandra_hook
from airflow_cdc_provider.operators.run_folder import RunFolder, write_private
from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook


class CassandraRebootstrapOperator(SparkStageOperator):
    """Gives up what is in the log and makes the next sync read the tables anew.

    In this order: ``cdc`` of the connector's captured tables is switched off, from when on the node takes
    their writes whatever room there is; finished segments are removed; the stored position and the finished
    snapshots are forgotten; ``cdc`` is switched on again. The sync after it takes new snapshots, which hold
    what was written meanwhile, and captures from there on.

    Before anything is switched it looks whether the rest can be done: Spark, folders, who else needs the
    segments. Every step can be repeated: a task that failed or was killed in between goes on at its next
    try, or when it is triggered again, with the tables that it had found captured at first. Until it ends
    well they may stand with ``cdc`` off, as each run's findings tell.

    XCom: as of :class:`~airflow_cdc_provider.operators.stages.CdcOffsetsOperator`, and ``rebootstrapped``,
    the tables, and ``segments_removed`` and ``bytes_removed``.

    Args:
        cdc_raw: Folders with segments to remove beside the connector's own ``source.cdc_raw``: where that is
            a landing area, the nodes' ``cdc_raw`` as far as this task sees them; a list, or text with commas
            (templated). Nodes that it doesn't see are freed by their transfer or shipper.
        clear_segments: Remove finished segments (templated). Refused while other tables of the cluster are
            captured: the segments hold their changes too.
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`. With
            ``tables``, names of some, only these are switched and read anew, the position stays, and
            ``clear_segments`` must be false.

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
            told = super()._run(context)
            hook.switch_cdc(tables, enabled=True)
            self.log.info("cdc is on: %s; the next sync reads them anew", ", ".join(tables))
        finally:
            hook.close()
        notes.remove()
        return {
            **told,
            "rebootstrapped": tables,
            "segments_removed": removed[0],
            "bytes_removed": removed[1],
        }

    def _switch_off(self, hook: CassandraCdcHook, tables: Sequence[str]) -> None:
        """Switch ``cdc`` off for all or none: so far nothing is given up."""
        try:
            hook.switch_cdc(tables, enabled=False)
        except ConfigurationError:
            hook.switch_cdc(tables, enabled=True)
            raise
        self.log.info("cdc is off: %s", ", ".join(tables))

    def _captured(
        self, connector: Connector, hook: CassandraCdcHook, notes: RunFolder, *, clear: bool
    ) -> list[str]:
        """Return the tables to switch off and on; from now on a later try finds them in the notes."""
        if connector.snapshot.mode == "never":
            raise ConfigurationError(
                "nothing would read the tables anew",
                expected="another snapshot.mode, such as initial",
                found="never",
                remedy="change it, or do it by hand with CdcOffsetsOperator and CdcSnapshotOperator",
            )
        file = notes.path / "tables.json"
        wanted = set(to_tables(self.tables))
        if wanted and clear:
            raise ConfigurationError(
                "segments hold the changes of all tables",
                expected="clear_segments false, or no tables",
                found=", ".join(sorted(wanted)),
            )
        captured = set(hook.captured_tables())
        if file.exists():
            tables = set(json.loads(file.read_text())) & set(hook.matching_tables([".*"]))
        else:
            tables = {table for table in captured if connector.selects(table)}
            if wanted:
                if missing := sorted(wanted - tables):
                    raise ConfigurationError(
                        f"{', '.join(missing)} is not captured",
                        expected=", ".join(sorted(tables))
                        or "a table that the connector selects, with cdc = true",
                    )
                tables = wanted
        if not tables:
            raise ConfigurationError(
                f"connector {connector.name} captures no table",
                expected="a table that it selects, with cdc = true",
                remedy="CassandraTableCdcOperator switches it on",
            )
        if clear and (others := sorted(captured - tables)):
            raise ConfigurationError(
                "segments hold changes of tables that are not this connector's",
                expected="clear_segments false, and a transfer that frees cdc_raw",
                found=f"cdc = true of {', '.join(others[:10])}",
            )
        write_private(file, json.dumps(sorted(tables)))
        return sorted(tables)

    def _segment_folders(self, connector: Connector) -> list[WholeSegments]:
        """Return the folders whose segments are to be removed; each can be read and written to."""
        assert isinstance(connector.source, CassandraOptions)
        found = []
        for folder in filter(None, dict.fromkeys([connector.source.cdc_raw, *to_tables(self.cdc_raw)])):
            for host, path in node_folders(folder).items():
                if not os.access(path, os.W_OK):
                    raise ConfigurationError(
                        f"segments in {path} can't be removed",
                        expected="a folder that the task may write to",
                        remedy="mount it so, or set clear_segments to false and free it on the node",
                    )
                found.append(WholeSegments(FolderStore(path), host or connector.source.node))
        return found

    def _remove_segments(self, folders: Sequence[WholeSegments]) -> tuple[int, int]:
        """Remove finished segments; one that grows holds little, and the node may still write to it."""
        count = size = 0
        for segments in folders:
            for segment in segments.segments():
                if segment.complete:
                    segments.remove(segment)
                    count += 1
                    size += segment.size_bytes
        if folders:
            self.log.warning("%d finished segments were removed unread, %d MiB", count, size >> 20)
        return count, size
