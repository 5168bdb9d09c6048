"""Restart a capture that was stopped for too long: press Trigger when a node refuses writes.

Writes succeed again after the first step. The log is discarded; the sync takes new snapshots.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_cdc_provider.operators.rebootstrap import CassandraRebootstrapOperator
from airflow_cdc_provider.operators.stages import CdcSyncOperator

SHOP = str(Path(__file__).with_name("shop_cassandra.yaml"))

with DAG(
    "rebootstrap_cassandra",
    schedule=None,
    max_active_runs=1,
    params={
        "cdc_raw": Param(None, type=["string", "null"], title="Folders of nodes to free, with commas"),
        "clear_segments": Param(True, type="boolean", title="Remove finished segments unread"),
    },
    tags=["cdc"],
    doc_md=__doc__,
):
    again = CassandraRebootstrapOperator(
        task_id="again",
        connector=SHOP,
        cdc_raw="{{ params.cdc_raw or '' }}",
        clear_segments="{{ params.clear_segments }}",
        retries=3,
    )
    sync = CdcSyncOperator(task_id="sync", connector=SHOP)

    again >> sync
