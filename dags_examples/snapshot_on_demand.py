"""Take a new snapshot of one table: press Trigger and choose the table."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.operators.stages import CdcSnapshotOperator, CdcVerifyOperator
from airflow_cdc_provider.pipeline import snapshot_params

STORE = str(Path(__file__).with_name("shop_mongodb.yaml"))

with DAG(
    "snapshot_on_demand",
    schedule=None,
    params=snapshot_params(STORE),
    tags=["cdc"],
    doc_md=__doc__,
):
    snapshot = CdcSnapshotOperator(
        task_id="snapshot", connector=STORE, tables="{{ params.table }}", mode="{{ params.mode }}"
    )
    verify = CdcVerifyOperator(task_id="verify", connector=STORE, tables="{{ params.table }}")

    snapshot >> verify
