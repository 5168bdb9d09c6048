"""Rows of a snapshot reach Airflow while its application runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.operators.stages import CdcSnapshotOperator
from airflow_cdc_provider.tasks import metrics
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, FakeSpark

LINES = """
path = pathlib.Path(spec["result_path"])
rows = path.with_name("snapshot_rows.jsonl")
def append(text):
    with rows.open("a") as file:
        file.write(text)
append('{"table": "shop.orders", "rows": 9000}\\\\n{"table": "shop.orders", "rows": 18000}\\\\n{"tab')
time.sleep(1.6)
append('le": "shop.carts", "rows": 4}\\\\n')
time.sleep(1.6)
append('{"table": "shop.orders", "rows": 21000}\\\\n')
path.write_text('{"ok": true, "snapshot": {"tables": 2, "rows_by_table": {"shop.orders": 21001}}}')
""".replace("\\\\n", "\\n")


class Recorder:
    """Stands for Airflow's Stats and keeps the gauge of rows with its time."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, str, float]] = []

    def gauge(self, name: str, value: float, tags: dict[str, str]) -> None:
        if name == "cdc.snapshot.rows":
            self.rows.append((time.monotonic(), tags["table"], value))

    def incr(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    timing = incr


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(metrics, "Stats", recorder)
    return recorder


def snapshot(**arguments: Any) -> CdcSnapshotOperator:
    tables = ["shop.orders", "shop.carts"]
    return CdcSnapshotOperator(task_id="snapshot", connector=DECLARATION, tables=tables, **arguments)


@pytest.mark.covers("CAS-METRIC-07")
def test_each_number_of_a_running_snapshot_is_a_gauge_and_in_xcom(
    spark_submit: FakeSpark, stats: Recorder
) -> None:
    spark_submit.behaves(LINES)
    context = TaskContext()
    pushed: list[dict[str, int]] = []
    context["ti"].xcom_push = lambda key, value: pushed.append({**value}) if key == "snapshot_rows" else None

    xcom = snapshot().execute(context)

    ended = time.monotonic()
    assert [(table, rows) for _, table, rows in stats.rows] == [
        ("shop.orders", 9000),
        ("shop.orders", 18000),
        ("shop.carts", 4),
        ("shop.orders", 21000),
        ("shop.orders", 21001),
    ]
    assert ended - stats.rows[0][0] > 1.5, "reported while it ran"
    assert pushed == [
        {"shop.orders": 18000},
        {"shop.orders": 18000, "shop.carts": 4},
        {"shop.orders": 21000, "shop.carts": 4},
    ]
    assert xcom["snapshot"]["rows_by_table"] == {"shop.orders": 21001}, "in the end the lake's count stands"


def test_what_an_earlier_try_reported_is_not_reported_again(spark_submit: FakeSpark, stats: Recorder) -> None:
    spark_submit.behaves(LINES + "sys.exit(1)")
    with pytest.raises(CdcError, match="the Spark application failed"):
        snapshot().execute(TaskContext())
    stats.rows.clear()
    spark_submit.answers()
    snapshot().execute(TaskContext())
    assert stats.rows == []


def test_a_number_that_can_not_be_reported_fails_no_task(spark_submit: FakeSpark, stats: Recorder) -> None:
    spark_submit.behaves(LINES)
    context = TaskContext()

    def push(key: str, value: Any) -> None:
        raise ConnectionError("Airflow is away")

    context["ti"].xcom_push = push
    assert snapshot().execute(context)["snapshot"]["rows_by_table"] == {"shop.orders": 21001}
    assert len(stats.rows) == 5
