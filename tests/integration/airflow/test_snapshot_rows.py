"""Rows read are told while a real snapshot runs, and count once though a worker process is killed."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # comes with Airflow
import pytest
from cassandra.concurrent import execute_concurrent_with_args

from airflow_cdc_provider.operators import metrics
from airflow_cdc_provider.operators.stages import CdcSyncOperator
from server_kit import create_keyspace
from tests.unit.airflow_context import TaskContext

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

ROWS = 42_000
NAME = "scanned"


class Recorder:
    """Stands for Airflow's Stats; keeps the gauge of rows and lets a test wait for it."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}
        self.changed = threading.Condition()

    def gauge(self, name: str, value: float, tags: dict[str, str]) -> None:
        if name == "cdc.snapshot.rows":
            with self.changed:
                self.rows.setdefault(tags["table"], []).append(value)
                self.changed.notify_all()

    def incr(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    timing = incr

    def await_rows(self, table: str, least: float) -> float:
        with self.changed:
            assert self.changed.wait_for(lambda: max(self.rows.get(table, [0])) >= least, 180)
            return self.rows[table][-1]


@pytest.fixture
def shop(
    cassandra_server: CassandraServer, cassandra_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """A declaration of two tables, and Airflow's connections."""
    create_keyspace(cassandra_session, NAME)
    for table in ("big", "small"):
        cassandra_session.execute(
            f"CREATE TABLE {NAME}.{table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true"
        )
    insert = cassandra_session.prepare(f"INSERT INTO {NAME}.big (k, c, v) VALUES (?, ?, 'x')")
    execute_concurrent_with_args(
        cassandra_session, insert, [(n % 4000, n) for n in range(ROWS)], concurrency=200
    )
    cassandra_session.execute(f"INSERT INTO {NAME}.small (k, c, v) VALUES (1, 1, 'x')")
    values = {"conn_type": "cdc_cassandra", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_SCANNED", json.dumps(values))
    # A task that fails is tried again, as on a cluster.
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2,4]"}))
    monkeypatch.setenv("AIRFLOW__CDC__WORK_FOLDER", str(tmp_path / "work"))
    yield {
        "name": NAME,
        "source": {
            "type": "cassandra",
            "conn_id": NAME,
            "cdc_raw": str(cassandra_server.cdc_raw),
            "node": cassandra_server.host_id,
            "advanced": {"fetch_size": 1000},
        },
        "tables": [rf"{NAME}\..*"],
        "snapshot": {"rows_per_second": 2000},
        "lake": {
            "namespace": NAME,
            "catalog_options": {"type": "hadoop", "warehouse": (tmp_path / "lake").as_uri()},
        },
    }
    cassandra_session.execute(f"DROP KEYSPACE {NAME}")


def kill_the_readers() -> None:
    """SIGKILL the Python processes that read for Spark: children of the daemon that forks them."""
    readers = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # which a zombie counts as
            parent = one.parent()
            if parent and all("pyspark.daemon" in " ".join(p.cmdline()) for p in (one, parent)):
                readers.append(one.pid)
    assert readers, "there is no Python worker"
    for pid in readers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.covers("CAS-METRIC-07")
def test_rows_are_told_while_they_are_read_and_count_once_though_a_task_is_tried_again(
    shop: dict[str, Any],
    iceberg_jar: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
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
    told: list[Any] = []
    task = threading.Thread(
        target=lambda: told.append(
            CdcSyncOperator(task_id="sync", connector=shop, jars=str(iceberg_jar), conf=kept).execute(context)
        )
    )
    task.start()
    try:
        big = f"{NAME}.big"
        assert 0 < stats.await_rows(big, 1) < ROWS, "before the table is read to its end"
        kill_the_readers()
        assert 10_000 <= stats.await_rows(big, 10_000) < ROWS
        killed_at = time.monotonic()
    finally:
        task.join(300)

    assert task.is_alive() is False
    logged = "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert '"Reason":"ExceptionFailure"' in logged, "an attempt did fail"
    assert time.monotonic() - killed_at > 1, "told while the job ran on"
    (xcom,) = told
    assert xcom["snapshot"]["rows_by_table"] == {big: ROWS, f"{NAME}.small": 1}
    numbers = stats.rows[big]
    assert numbers == sorted(numbers)
    assert all(after - before <= 10_000 for before, after in zip([0, *numbers], numbers, strict=False))
    assert numbers[-2:] == [ROWS, ROWS], "the live number at the table's end, then the lake's"
    assert stats.rows[f"{NAME}.small"] == [1, 1]
    assert len(pushed) > 2
    assert pushed[-1] == {big: ROWS, f"{NAME}.small": 1}
