"""Capture before a Cassandra node runs out of space for change segments.

The first task waits until the node's ``cdc_raw`` is a quarter full. Its segments are then copied to where
Spark reads them, which frees ``cdc_raw``; after the sync, captured ones are removed. The transfer tasks need
the folder: give them a ``queue`` of a worker on the node.

A task that fails stops neither the capture of what is there nor the removal of what was captured.
``captured`` makes the run fail if the sync did.
"""

from __future__ import annotations

from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param

from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from airflow_cdc_provider.sensors.cassandra import CdcRawSpaceSensor

SHOP = str(Path(__file__).with_name("shop_cassandra.yaml"))
CDC_RAW, HOST_ID = "{{ params.cdc_raw }}", "{{ params.host_id }}"

with DAG(
    "sync_when_cdc_raw_fills",
    schedule="@continuous",
    max_active_runs=1,
    params={
        "cdc_raw": Param("/var/lib/cassandra/cdc_raw", type="string", title="cdc_raw of the node"),
        "host_id": Param("", type="string", title="Host id of the node"),
        "max_used_ratio": Param(0.25, type="number", title="Capture when this part of it is used"),
    },
    tags=["cdc"],
    doc_md=__doc__,
):
    filling = CdcRawSpaceSensor(
        task_id="filling",
        cdc_raw=CDC_RAW,
        max_used_ratio="{{ params.max_used_ratio }}",
        poke_interval=30,
        deferrable=True,
    )
    bring = CommitLogTransferOperator(task_id="bring", connector=SHOP, cdc_raw=CDC_RAW, host_id=HOST_ID)
    sync = CdcSyncOperator(task_id="sync", connector=SHOP, trigger_rule="all_done")
    clear = CommitLogTransferOperator(
        task_id="clear", connector=SHOP, cdc_raw=CDC_RAW, host_id=HOST_ID, trigger_rule="all_done"
    )

    filling >> bring >> sync >> [clear, EmptyOperator(task_id="captured")]
