"""A Vitess keyspace: wait for changes, sync, wait for reshards; and take a snapshot of the form's table."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_cdc_provider.operators.stages import CdcSnapshotOperator, CdcSyncOperator
from airflow_cdc_provider.sensors.snapshots import CdcSnapshotSensor
from airflow_cdc_provider.sensors.vitess import VitessLagSensor, VitessNewsSensor, VitessReshardSensor

SHOP = str(Path(__file__).with_name("shop_vitess.yaml"))
TABLE = Param(
    None, type=["string", "null"], title="Table", description="keyspace.table of which to take a new snapshot"
)

with DAG(
    "sync_vitess", schedule=None, max_active_runs=1, params={"again": TABLE}, tags=["cdc"], doc_md=__doc__
):
    news = VitessNewsSensor(task_id="news", connector=SHOP, poke_interval=5, deferrable=True)
    sync = CdcSyncOperator(task_id="sync", connector=SHOP)
    near = VitessLagSensor(task_id="near", connector=SHOP, max_lag_seconds=60)
    settled = VitessReshardSensor(task_id="settled", connector=SHOP)

    @task.short_circuit
    def has_table(params: dict[str, str] | None = None) -> bool:
        """Continue only if the form names a table."""
        return bool(params and params["again"])

    snapshot = CdcSnapshotOperator(
        task_id="snapshot", connector=SHOP, tables="{{ params.again }}", mode="replace"
    )
    copied = CdcSnapshotSensor(
        task_id="copied", connector=SHOP, tables="{{ params.again }}", since="{{ dag_run.start_date }}"
    )

    news >> sync >> near >> settled >> has_table() >> snapshot >> copied
