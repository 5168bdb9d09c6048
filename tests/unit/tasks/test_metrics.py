"""What a run's result becomes as metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.tasks import metrics


@pytest.mark.covers("CAS-METRIC-08", "CAS-METRIC-09", "CAS-METRIC-10")
def test_segment_position_and_changes_of_each_node_are_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    gauges: dict[tuple[str, str], float] = {}

    def note(name: str, value: float, tags: dict[str, str]) -> None:
        gauges[name, tags.get("host", "")] = value

    stats = SimpleNamespace(gauge=note, incr=note, timing=note)
    monkeypatch.setattr(metrics, "Stats", stats)
    offset: dict[str, Any] = {
        "a": {"v": 1, "floor": 4, "done": [[7, 9]], "open": {"10": 307939, "6": 20}},
        "b": {"v": 1, "floor": 0, "done": [[2, 3]], "open": {}},
        "c": {"v": 1, "floor": 0, "done": [], "open": {}},
    }
    connector = Connector.from_dict({"name": "shop", "source": {"type": "cassandra"}})
    metrics.emit_metrics(connector, "sync", JobResult(ok=True, changes=12, offset=offset))
    assert {key: value for key, value in gauges.items() if "commit_log" in key[0]} == {
        ("cdc.commit_log.segment", "a"): 10,
        ("cdc.commit_log.position", "a"): 307939,
        ("cdc.commit_log.segment", "b"): 3,
    }
    assert gauges["cdc.changes", ""] == 12
