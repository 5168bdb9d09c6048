"""ScyllaDB: sync every five minutes, monitor the lag of the streams, report new streams of new nodes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.sensors.scylla import ScyllaGenerationSensor, ScyllaLagSensor

SHOP = str(Path(__file__).with_name("shop_scylla.yaml"))

with DAG(
    "sync_scylla", schedule="*/5 * * * *", catchup=False, max_active_runs=1, tags=["cdc"], doc_md=__doc__
):
    sync = CdcSyncOperator(task_id="sync", connector=SHOP)
    near = ScyllaLagSensor(task_id="near", connector=SHOP, max_lag_seconds=300, deferrable=True)
    # One check; without new streams the run ends here.
    moved = ScyllaGenerationSensor(
        task_id="moved", connector=SHOP, poke_interval=1, timeout=1, soft_fail=True
    )

    @task
    def report(moved: Any) -> list[str]:
        """Say which tables get new streams; runs go over to them by themselves."""
        for name in moved["changed"]:
            logging.getLogger(__name__).info(
                "%s: new streams from %s ms", name, moved["tables"][name]["newest"]
            )
        return list(moved["changed"])

    sync >> near >> moved
    report(moved.output)
