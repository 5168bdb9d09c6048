"""An Airflow that is imported once: each run of a DAG or command is a forked process of its own.

Airflow's import and its providers' take some seconds of CPU time. A fork starts with them, with no connection
to the database and no parsed DAG.

Usage: ``python -m tests.e2e.resident``. Each line of stdin is a job as JSON: ``output`` and ``errors`` are
files for its stdout and stderr, ``environment`` has variables to add, and it has either ``dag_id`` and
``run_conf`` or the ``arguments`` of ``airflow``. The program prints the id of the job's process, which leads
a process group, then its exit code. A DAG's outcome is the last line of its output, as JSON. The program
ends with its stdin.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from airflow import __main__ as command_line
from airflow.configuration import conf
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.sdk.exceptions import ParamValidationError


def serve() -> None:
    """Run one job after the other."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Airflow logs to stdout
    _examples()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            os._exit(_run(json.loads(line)))
        answers.write(f"{pid}\n")
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")


def _run(job: dict[str, Any]) -> int:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in ((1, job["output"]), (2, job["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    os.environ.update(job["environment"])
    try:
        if "arguments" in job:
            return _command(job["arguments"])
        outcome = run_dag(job["dag_id"], job["run_conf"])
        print("\n" + json.dumps(outcome, default=str))  # noqa: T201  # what the caller reads
    except BaseException:  # noqa: BLE001  # nothing may get back to the parent's loop
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _command(arguments: list[str]) -> int:
    sys.argv = ["airflow", *arguments]
    try:
        command_line.main()  # type: ignore[no-untyped-call]
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201  # as the interpreter does
            return 1
        return ended.code or 0
    return 0


def _examples() -> DagBag:
    bag = DagBag(conf.get("core", "dags_folder"), bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    return bag


def run_dag(dag_id: str, run_conf: dict[str, Any]) -> dict[str, Any]:
    """Run the DAG to its end, and collect states, XComs, asset events and asset state."""
    bag = _examples()
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]  # Airflow leaves it untyped
    sync_bag_to_db(bag, "dags-folder", None)
    dag = bag.get_dag(dag_id)
    assert dag is not None, f"no DAG {dag_id} among {sorted(bag.dag_ids)}"
    try:
        run = dag.test(run_conf=run_conf)
    except ParamValidationError as error:
        return {"state": "refused", "error": str(error)}
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
    serve()
