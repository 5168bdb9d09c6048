"""Rows read are reported while a real snapshot runs, and count once though a worker process is killed."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import contextlib
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # comes with Airflow
import pytest
from cassandra.concurrent import execute_concurrent_with_args

from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.tasks import metrics
from tests.integration.jobs.shop import Shop
from tests.unit.airflow_context import TaskContext

pytestmark = pytest.mark.integration

ROWS = 32_000


class Recorder:
    """Stands for Airflow's Stats; keeps the gauge of rows."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}

    def gauge(self, name: str, value: float, tags: dict[str, str]) -> None:
        if name == "cdc.snapshot.rows":
            self.rows.setdefault(tags["table"], []).append(value)

    def incr(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    timing = incr


@pytest.fixture
def large_shop(airflow_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The shop with a large table and one of a single row, read slowly."""
    for table in ("big", "small"):
        airflow_shop.run(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
    insert = airflow_shop.prepare("INSERT INTO big (k, c, v) VALUES (?, ?, 'x')")
    rows = [(n % 4000, n) for n in range(ROWS)]
    execute_concurrent_with_args(airflow_shop.session, insert, rows, concurrency=100)
    airflow_shop.run("INSERT INTO small (k, c, v) VALUES (1, 1, 'x')")
    airflow_shop.declare(source={"advanced": {"fetch_size": 1000}}, snapshot={"rows_per_second": 2000})
    # A task that fails is tried again, as on a cluster.
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2,4]"}))
    return airflow_shop


def goes_on(task: Future[Any]) -> bool:
    """Return whether a task is still running; if it failed, raise its error."""
    if task.done():
        task.result()
    return not task.done()


def reads(process: psutil.Process, port: int) -> bool:
    """Return whether a process is reading: it has a connection to the node."""
    return any(one.raddr and one.raddr.port == port for one in process.net_connections("tcp"))


def kill_a_reader(port: int, task: Future[Any]) -> None:
    """SIGKILL a Python process that reads for Spark, one that can't come to its end before."""
    while goes_on(task):
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # which a zombie counts as
                if "pyspark.daemon" in " ".join(one.cmdline()) and reads(one, port):
                    one.suspend()
                    if reads(one, port):
                        one.kill()
                        return
                    one.resume()
        time.sleep(0.02)
    pytest.fail("the tables were read to their ends before a number was reported")


@pytest.mark.covers("CAS-METRIC-07")
@pytest.mark.long
def test_rows_are_reported_while_they_are_read_and_count_once_though_a_task_is_tried_again(
    large_shop: Shop, iceberg_jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    kept = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    stats = Recorder()
    monkeypatch.setattr(metrics, "Stats", stats)
    context = TaskContext()
    pushed: list[dict[str, int]] = []
    context["ti"].xcom_push = lambda key, value: pushed.append({**value}) if key == "snapshot_rows" else None
    sync = CdcSyncOperator(task_id="sync", connector=large_shop.declaration, jars=str(iceberg_jar), conf=kept)
    big, small = large_shop.table_name("big"), large_shop.table_name("small")

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(sync.execute, context)
        while big not in stats.rows and goes_on(task):
            time.sleep(0.05)
        # So all numbers were reported while tasks were reading, however fast they are.
        kill_a_reader(large_shop.server.port, task)
        xcom = task.result()

    logged = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert '"Reason":"ExceptionFailure"' in logged, "an attempt did fail"
    assert xcom["snapshot"]["rows_by_table"] == {big: ROWS, small: 1}
    numbers = stats.rows[big]
    assert numbers == sorted(numbers)
    assert all(after - before <= 10_000 for before, after in zip([0, *numbers], numbers, strict=False))
    assert numbers[-2:] == [ROWS, ROWS], "the live number at the table's end, then the lake's"
    assert stats.rows[small] == [1, 1]
    assert 0 < pushed[0][big] < ROWS, "while it was read"
    assert pushed[-1] == {big: ROWS, small: 1}
