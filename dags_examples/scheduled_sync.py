"""The usual way: every ten minutes sync the mirrors to the source's head, and compare them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_cdc_provider.pipeline import cdc_pipeline

SHOP = str(Path(__file__).with_name("shop_cassandra.yaml"))

with DAG(
    "scheduled_sync",
    schedule=timedelta(minutes=10),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(SHOP, verify=True)
