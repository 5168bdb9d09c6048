"""Mirrors that are seconds old: start or adopt a continuous application, and monitor it without a slot.

The application runs outside of Airflow's tasks. If the monitoring task fails, because the application is dead
or too far behind, the next run starts or adopts it again.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.operators.stream import CdcStreamOperator
from airflow_cdc_provider.sensors.stream import CdcStreamHealthSensor

STORE = str(Path(__file__).with_name("shop_mongodb.yaml"))

with DAG(
    "continuous_stream",
    schedule="@continuous",
    max_active_runs=1,
    params={"watch_seconds": 86_400},
    tags=["cdc"],
    doc_md=__doc__,
):
    start = CdcStreamOperator(
        task_id="start",
        connector=STORE,
        commit_interval_seconds=10,
        max_runtime_seconds=timedelta(days=7).total_seconds(),
        wait=False,
    )
    watch = CdcStreamHealthSensor(
        task_id="watch",
        connector=STORE,
        max_lag_seconds=600,
        watch_seconds="{{ params.watch_seconds }}",
        timeout=timedelta(days=2).total_seconds(),
        deferrable=True,
    )

    start >> watch
