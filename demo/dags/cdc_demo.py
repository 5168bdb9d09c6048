"""The demo's DAGs: for each database one that keeps its mirrors current, and two to start by hand."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.operators.stages import CdcSnapshotOperator, CdcSyncOperator, CdcVerifyOperator
from airflow_cdc_provider.pipeline import snapshot_params

CONNECTORS = Path(os.environ["CDC_DEMO_CONNECTORS"])

for name in ("shop", "store"):
    connector = str(CONNECTORS / f"{name}.yaml")
    with DAG(f"cdc_{name}", schedule=None, max_active_runs=1, tags=["cdc"]):
        CdcSyncOperator(task_id="sync", connector=connector, keep_run_folder=True)

    # Not part of each run: it reads the source in full.
    with DAG(f"verify_{name}", schedule=None, max_active_runs=1, tags=["cdc"]):
        CdcVerifyOperator(task_id="verify", connector=connector, max_differences=0)

    # The Trigger form has the table of which to take a new snapshot.
    with DAG(
        f"snapshot_{name}", schedule=None, max_active_runs=1, params=snapshot_params(connector), tags=["cdc"]
    ):
        CdcSnapshotOperator(
            task_id="snapshot", connector=connector, tables="{{ params.table }}", mode="{{ params.mode }}"
        )
