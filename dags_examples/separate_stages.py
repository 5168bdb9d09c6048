"""Capture often, so that the source's log can be short; merge and maintain when the cluster is idle.

The second DAG starts when the first has captured changes: it is scheduled on the changes asset.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.operators.stages import CdcCaptureOperator, CdcMaintainOperator, CdcMergeOperator

STORE = str(Path(__file__).with_name("shop_mongodb.yaml"))

with DAG("capture_often", schedule=timedelta(minutes=1), max_active_runs=1, tags=["cdc"], doc_md=__doc__):
    CdcCaptureOperator(task_id="capture", connector=STORE)

with DAG(
    "merge_at_leisure", schedule=[changes_asset("store")], max_active_runs=1, tags=["cdc"], doc_md=__doc__
):
    merge = CdcMergeOperator(task_id="merge", connector=STORE)
    maintain = CdcMaintainOperator(task_id="maintain", connector=STORE)

    merge >> maintain
