"""The usual task group of a connector, and the params of a DAG that takes snapshots from the Trigger form.

Example::

    from airflow.sdk import DAG
    from airflow_cdc_provider.pipeline import cdc_pipeline

    with DAG("shop", schedule="*/10 * * * *", max_active_runs=1):
        cdc_pipeline("/opt/cdc/shop.yaml", verify=True)
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from airflow.providers.common.compat.sdk import Param, TaskGroup

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.operators.check import CdcCheckOperator
from airflow_cdc_provider.operators.stages import CdcMaintainOperator, CdcSyncOperator, CdcVerifyOperator
from airflow_cdc_provider.sources.registry import source_plugin


def cdc_pipeline(
    connector: ConnectorLike,
    *,
    group_id: str | None = None,
    check: bool = True,
    verify: bool = False,
    maintain: bool = False,
    max_differences: int | None = 0,
    **arguments: Any,
) -> TaskGroup:
    """Build the tasks check and sync, and optionally verify and maintain, in sequence.

    Give the DAG ``max_active_runs=1``: concurrent runs of a connector do no harm, but one of them is wasted.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file.
        group_id: Id of the task group; default: ``cdc_<name>``.
        check: Start with a check of the source, which needs no Spark.
        verify: Compare the mirrors with the source after the sync.
        maintain: End with compaction and expiry.
        max_differences: As for :class:`~airflow_cdc_provider.operators.stages.CdcVerifyOperator`.
        arguments: Arguments of the Spark tasks: ``spark_conn_id``, ``conf``, ``retries`` ...

    Returns:
        The task group.
    """
    name = to_connector(connector).name
    group = TaskGroup(group_id or f"cdc_{name.replace('.', '_')}", tooltip=f"CDC connector {name}")
    with group:
        tasks: list[Any] = []
        if check:
            tasks.append(
                CdcCheckOperator(
                    task_id="check", connector=connector, source_conn_id=arguments.get("source_conn_id")
                )
            )
        tasks.append(CdcSyncOperator(task_id="sync", connector=connector, **arguments))
        if verify:
            tasks.append(
                CdcVerifyOperator(
                    task_id="verify", connector=connector, max_differences=max_differences, **arguments
                )
            )
        if maintain:
            tasks.append(CdcMaintainOperator(task_id="maintain", connector=connector, **arguments))
        for before, after in pairwise(tasks):
            before >> after
    return group


def snapshot_params(connector: ConnectorLike) -> dict[str, Param]:
    """Return the params ``table`` and ``mode``, which Airflow's Trigger page shows as a form.

    ``table`` is a choice if the declaration has plain table names, free text if it has patterns.

    Example::

        with DAG("shop_snapshot", schedule=None, params=snapshot_params(SHOP)):
            CdcSnapshotOperator(
                task_id="snapshot", connector=SHOP, tables="{{ params.table }}", mode="{{ params.mode }}"
            )
    """
    declared = to_connector(connector)
    tables = _literal_tables(declared)
    about = f"Table of which to take a new snapshot: {source_plugin(declared.type).table_name}"
    table = (
        Param(tables[0], type="string", enum=tables, title="Table", description=about)
        if tables
        else Param(None, type="string", minLength=1, title="Table", description=about)
    )
    mode = Param(
        "replace",
        type="string",
        enum=["replace", "add"],
        title="Mode",
        description="replace: delete rows from the mirror that the source no longer has; add: delete no row",
    )
    return {"table": table, "mode": mode}


def _literal_tables(connector: Connector) -> list[str] | None:
    """Return a connector's tables if all its patterns are plain names, else None."""
    tables = []
    for pattern in connector.tables:
        plain = re.sub(r"\\([.\-_])", r"\1", pattern)
        if re.search(r"[\\*+?\[\](){}|^$]", plain) or not re.fullmatch(pattern, plain):
            return None
        tables.append(plain)
    return [table for table in tables if connector.selects(table)]
