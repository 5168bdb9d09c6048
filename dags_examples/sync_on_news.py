"""Sync only when MongoDB's change stream has new changes. Waiting takes no worker slot."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.sensors.mongodb import MongodbLagSensor, MongodbNewsSensor

STORE = str(Path(__file__).with_name("shop_mongodb.yaml"))

with DAG("sync_on_news", schedule="@continuous", max_active_runs=1, tags=["cdc"], doc_md=__doc__):
    news = MongodbNewsSensor(task_id="news", connector=STORE, poke_interval=5, deferrable=True)
    sync = CdcSyncOperator(task_id="sync", connector=STORE)
    near = MongodbLagSensor(task_id="near", connector=STORE, max_lag_seconds=60)

    news >> sync >> near
