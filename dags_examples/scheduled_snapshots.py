"""Take new snapshots of the tables every Sunday at three, and compare the mirrors with the source."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.operators.stages import CdcSnapshotOperator, CdcVerifyOperator

STORE = str(Path(__file__).with_name("shop_mongodb.yaml"))
TABLES = ["store.orders", "store.customers"]

with DAG(
    "scheduled_snapshots",
    schedule="0 3 * * SUN",
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["cdc"],
    doc_md=__doc__,
):
    snapshot = CdcSnapshotOperator(task_id="snapshot", connector=STORE, tables=TABLES, mode="replace")
    verify = CdcVerifyOperator(task_id="verify", connector=STORE, tables=TABLES)

    snapshot >> verify
