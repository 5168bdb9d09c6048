"""Runs one DAG of the configured folder to its end, in this process, and prints what came of it as JSON.

Usage: ``python -m tests.e2e.run_dag DAG_ID [CONF_JSON]``. The last line printed is the outcome.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow.configuration import conf
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db


def main(dag_id: str, run_conf: dict[str, Any]) -> dict[str, Any]:
    """Run the DAG and collect states, XComs, asset events and asset state."""
    bag = DagBag(conf.get("core", "dags_folder"), bundle_name="dags-folder")
    if bag.import_errors:
        return {"state": "import error", "errors": bag.import_errors}
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
    sync_bag_to_db(bag, "dags-folder", None)
    dag = bag.get_dag(dag_id)
    assert dag is not None, f"no DAG {dag_id} among {sorted(bag.dag_ids)}"
    run = dag.test(run_conf=run_conf)
    return {"state": str(run.state), **_recorded(dag_id, run.run_id)}


def _recorded(dag_id: str, run_id: str) -> dict[str, Any]:
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        mine = {"dag_id": dag_id, "run_id": run_id}
        tasks = session.scalars(select(TaskInstance).filter_by(**mine)).all()
        xcoms = session.scalars(select(XComModel).filter_by(**mine)).all()
        events = session.execute(
            select(AssetModel.name, AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetEvent.source_dag_id == dag_id, AssetEvent.source_run_id == run_id)
        ).all()
        return {
            "tasks": {task.task_id: str(task.state) for task in tasks},
            "xcoms": {f"{x.task_id}.{x.key}": _plain(x.value) for x in xcoms},
            "events": [[name, extra] for name, extra in events],
        }


def _plain(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


if __name__ == "__main__":
    outcome = main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
    sys.stdout.flush()
    print("\n" + json.dumps(outcome, default=str))  # noqa: T201  # what the caller reads
