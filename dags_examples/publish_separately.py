"""Capture every minute, publish after each capture once the consumers have caught up.

The second DAG is scheduled on the changes asset; its sensor keeps a slow consumer from falling further
behind. The sensor succeeds before the consumer has committed an offset.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.operators.stages import CdcCaptureOperator, CdcPublishOperator
from airflow_cdc_provider.sensors.topics import CdcConsumerLagSensor

EVENTS = str(Path(__file__).with_name("shop_events.yaml"))

with DAG("capture_events", schedule=timedelta(minutes=1), max_active_runs=1, tags=["cdc"], doc_md=__doc__):
    CdcCaptureOperator(task_id="capture", connector=EVENTS)

with DAG(
    "publish_separately",
    schedule=[changes_asset("store_events")],
    max_active_runs=1,
    tags=["cdc"],
    doc_md=__doc__,
):
    read = CdcConsumerLagSensor(
        task_id="read",
        connector=EVENTS,
        group_id="billing",
        max_lag=10_000,
        wait_for_first_commit=False,
        deferrable=True,
    )
    publish = CdcPublishOperator(task_id="publish", connector=EVENTS)

    read >> publish
