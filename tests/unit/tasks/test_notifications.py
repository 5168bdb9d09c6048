"""Notifications reach Airflow while their application runs."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.tasks import metrics
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, FakeSpark

NOTES = [
    {
        "id": str(number),
        "type": kind,
        "aggregate_type": "Initial Snapshot",
        "additional_data": {"connector_name": "shop"},
        "timestamp": 1,
    }
    for number, kind in enumerate(("STARTED", "COMPLETED"))
]
LINES = f"""
path = pathlib.Path(spec["result_path"])
notes = path.with_name("notifications.jsonl")
notes.write_text({json.dumps(NOTES[0])!r} + chr(10))
time.sleep(1.6)
with notes.open("a") as file:
    file.write({json.dumps(NOTES[1])!r} + chr(10))
path.write_text('{{"ok": true}}')
"""


class Recorder:
    """Stands for Airflow's Stats and keeps what counts notifications."""

    def __init__(self) -> None:
        self.notifications: list[dict[str, str]] = []

    def incr(self, name: str, count: int = 1, tags: Any = None) -> None:
        if name == "cdc.notifications":
            self.notifications.append({**tags, "count": str(count)})

    def gauge(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    timing = gauge


@pytest.mark.covers("MDB-XD-08")
def test_the_task_logs_and_counts_notifications_and_shows_them_in_xcom(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stats = Recorder()
    monkeypatch.setattr(metrics, "Stats", stats)
    spark_submit.behaves(LINES)
    context = TaskContext()
    pushed: list[Any] = []
    context["ti"].xcom_push = lambda key, value: pushed.append(value) if key == "notifications" else None
    declaration = {**DECLARATION, "notifications": {"channels": ["airflow"]}}
    with caplog.at_level(logging.INFO):
        CdcSyncOperator(task_id="sync", connector=declaration).execute(context)

    tags = {"connector": "shop", "source": "cassandra", "aggregate": "initial", "count": "1"}
    assert stats.notifications == [{**tags, "type": "STARTED"}, {**tags, "type": "COMPLETED"}]
    assert pushed == [NOTES[:1], NOTES], "as they come"
    assert "shop: Initial Snapshot" in caplog.text
