"""Mirrors and topics by one task, every ten minutes: JSON without schemas, no registry.

The sync publishes at its end. Dependent tasks wait until all captured changes are published.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.operators.topics import CdcCreateTopicsOperator
from airflow_cdc_provider.sensors.topics import CdcPublishLagSensor

EVENTS = str(Path(__file__).with_name("shop_events.yaml"))

with DAG(
    "publish_events",
    schedule=timedelta(minutes=10),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["cdc"],
    doc_md=__doc__,
):
    topics = CdcCreateTopicsOperator(task_id="topics", connector=EVENTS)
    sync = CdcSyncOperator(task_id="sync", connector=EVENTS)
    published = CdcPublishLagSensor(task_id="published", connector=EVENTS, deferrable=True)

    topics >> sync >> published
