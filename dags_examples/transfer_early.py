"""Copy segments before a Cassandra node runs out of space, independent of the sync's schedule.

The first task measures how fast the node's ``cdc_raw`` fills, and succeeds when it will be full in less than
an hour, or is half full. The second copies the segments to where Spark reads them, which frees finished ones
immediately. A sync on its own schedule captures them there, and the next transfer removes captured ones.

Both tasks need the folder: give them a ``queue`` of a worker on the node. Or give the transfer
``ssh_conn_id``, and the folder's path on the node.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from airflow_cdc_provider.sensors.cassandra import CdcRawSpaceSensor

CDC_RAW = "{{ params.cdc_raw }}"

with DAG(
    "transfer_early",
    schedule="@continuous",
    max_active_runs=1,
    params={
        "cdc_raw": Param("/var/lib/cassandra/cdc_raw", type="string", title="cdc_raw of the node"),
        "host_id": Param("", type="string", title="Host id of the node"),
        "min_seconds_to_full": Param(3600, type="number", title="Transfer when it would be full in less"),
    },
    tags=["cdc"],
    doc_md=__doc__,
):
    filling = CdcRawSpaceSensor(
        task_id="filling",
        cdc_raw=CDC_RAW,
        max_used_ratio=0.5,
        min_seconds_to_full="{{ params.min_seconds_to_full }}",
        poke_interval=30,
        deferrable=True,
    )
    bring = CommitLogTransferOperator(
        task_id="bring",
        connector=str(Path(__file__).with_name("shop_cassandra.yaml")),
        cdc_raw=CDC_RAW,
        host_id="{{ params.host_id }}",
        parallel=4,
        max_bytes_per_second=50_000_000,
    )

    filling >> bring
