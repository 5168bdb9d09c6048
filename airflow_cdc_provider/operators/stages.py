"""One operator per stage: sync, capture, merge, snapshot, verify, publish, maintain, offsets.

``CdcSyncOperator`` is the usual one: it takes snapshots of new tables, captures to the head and merges, in
one Spark application. The others run parts of it, or maintain its tables.

Example::

    sync = CdcSyncOperator(task_id="sync", connector="/opt/cdc/shop.yaml", spark_conn_id="spark_default")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spec import NEXT, JobResult
from airflow_cdc_provider.operators.spark_stage import SparkStageOperator
from airflow_cdc_provider.tasks.parameters import one_of, to_flag, to_integer, to_mapping, to_tables
from airflow_cdc_provider.tasks.summary import few_differences

_ACTIONS: Final = ("show", "set", "reset", "forget", "adopt", "publish")
_MODES: Final = ("replace", "add")


class CdcSyncOperator(SparkStageOperator):
    """Brings the mirrors to the source's head: snapshot of new tables, capture, merge.

    Args:
        force_merge: Merge all pending changes, regardless of the declaration's merge options (templated).
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "sync"
    captures = True
    changes_mirrors = True
    template_fields: Sequence[str] = (*SparkStageOperator.template_fields, "force_merge")

    def __init__(self, *, force_merge: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force_merge = force_merge

    def options(self) -> Mapping[str, Any]:
        """Return ``force``."""
        return {"force": to_flag("force_merge", self.force_merge)}


class CdcCaptureOperator(SparkStageOperator):
    """Appends the source's new changes to the changes table, up to its head, without merging.

    Args:
        batch_bytes: Approximate native bytes of one commit; None for the job's default.
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "capture"
    captures = True

    def __init__(self, *, batch_bytes: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_bytes = batch_bytes

    def options(self) -> Mapping[str, Any]:
        """Return ``batch_bytes``."""
        return {} if self.batch_bytes is None else {"batch_bytes": self.batch_bytes}


class CdcMergeOperator(SparkStageOperator):
    """Merges captured changes into the mirrors.

    Args:
        force_merge: Merge all pending changes, regardless of the declaration's merge options (templated).
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "merge"
    changes_mirrors = True
    template_fields: Sequence[str] = (*SparkStageOperator.template_fields, "force_merge")

    def __init__(self, *, force_merge: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force_merge = force_merge

    def options(self) -> Mapping[str, Any]:
        """Return ``force``."""
        return {"force": to_flag("force_merge", self.force_merge)}


class CdcSnapshotOperator(SparkStageOperator):
    """Takes new snapshots of tables.

    Args:
        tables: The tables (templated); at least one.
        mode: ``replace``: rows that the source no longer has are deleted from the mirror, if the source's
            snapshots allow it; ``add``: no row is deleted (templated).
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.

    Example::

        CdcSnapshotOperator(
            task_id="snapshot", connector="shop.yaml", tables="{{ params.table }}", mode="{{ params.mode }}"
        )
    """

    stage = "snapshot"
    captures = True
    changes_mirrors = True
    template_fields: Sequence[str] = (*SparkStageOperator.template_fields, "mode")

    def __init__(self, *, tables: Sequence[str] | str, mode: str = "replace", **kwargs: Any) -> None:
        super().__init__(tables=tables, **kwargs)
        self.mode = mode

    def options(self) -> Mapping[str, Any]:
        """Return ``mode``."""
        if not to_tables(self.tables):
            raise ConfigurationError(
                "no table is named for the snapshot",
                expected="tables with at least one keyspace.table or database.collection",
                remedy="trigger the DAG with a table",
            )
        return {"mode": one_of("mode", self.mode, _MODES)}


class CdcVerifyOperator(SparkStageOperator):
    """Compares mirrors with the source, row by row; concurrent writes count as differences.

    XCom has ``differences`` per table. Repair them with :class:`CdcSnapshotOperator`.

    Args:
        max_differences: Fail if more rows than this differ; None only reports.
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "verify"

    def __init__(self, *, max_differences: int | None = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_differences = max_differences

    def accepts(self, result: JobResult) -> bool:
        """Accept a result with at most ``max_differences``."""
        return few_differences(result, self.max_differences)


class CdcPublishOperator(SparkStageOperator):
    """Publishes the events of captured changes that aren't published yet to Kafka.

    With ``publish.kafka.connection`` a connector's ``CdcSyncOperator`` and its stream publish too. This
    operator is for a separate schedule, after :class:`CdcCaptureOperator`. Give its DAG
    ``max_active_runs=1``: if two tasks publish at once, the first is fenced and fails.
    """

    stage = "publish"


class CdcMaintainOperator(SparkStageOperator):
    """Maintains the tables: deletes merged batches, compacts files, expires snapshots."""

    stage = "maintain"


class CdcCheckLakeOperator(SparkStageOperator):
    """Verifies that the lake can be written and read, without a change that stays.

    A table is created in the connector's namespace, written, read and dropped. Findings about the mirrors are
    those of the result: another version of the format than the declared one, columns that engines confuse.
    """

    stage = "check_lake"


class CdcOffsetsOperator(SparkStageOperator):
    """Shows, sets, resets or adopts a connector's offset, or removes an origin from it.

    Args:
        action: ``show``; ``set`` to ``offset``; ``reset``: capture starts as in a first run, or, with
            ``tables``, only their snapshots are taken again; ``forget``: remove ``origin``; ``adopt``: take
            over the offset stored under another connection, scope or topic prefix; ``publish``: the next run
            publishes from ``batch`` (templated).
        offset: The source's offset as a mapping or as JSON, for ``set`` (templated).
        origin: Host id of a permanently removed node, for ``forget`` (templated).
        batch: Batch of the changes table, for ``publish``: its number, or ``next`` for the batch of the next
            capture (templated).
        kwargs: As for :class:`~airflow_cdc_provider.operators.spark_stage.SparkStageOperator`.
    """

    stage = "offsets"
    template_fields: Sequence[str] = (
        *SparkStageOperator.template_fields,
        "action",
        "offset",
        "origin",
        "batch",
    )

    def __init__(
        self,
        *,
        action: str = "show",
        offset: Mapping[str, Any] | str | None = None,
        origin: str = "",
        batch: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.action = action
        self.offset = offset
        self.origin = origin
        self.batch = batch

    def options(self) -> Mapping[str, Any]:
        """Return ``action`` and its arguments."""
        action = one_of("action", self.action, _ACTIONS)
        if action == "forget":
            return {"action": action, "origin": self.origin}
        if action == "publish":
            if self.batch == NEXT:
                return {"action": action, "batch": NEXT}
            batch = to_integer("batch", self.batch)
            if batch is None:
                raise ConfigurationError(
                    "there is no batch to publish from", expected=f"batch with its number, or {NEXT}"
                )
            return {"action": action, "batch": batch}
        if action != "set":
            return {"action": action}
        offset = to_mapping("offset", self.offset)
        if offset is None:
            raise ConfigurationError("there is no offset to set", expected="offset with the source's JSON")
        return {"action": action, "offset": offset}
