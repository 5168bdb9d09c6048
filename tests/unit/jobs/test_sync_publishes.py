"""What a sync reports where publishing fails: what was captured and merged, and the failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs import sync as sync_stage
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.kafka.errors import BrokersUnavailable
from tests.unit.jobs.runs import FakeSource, run_of

NO_BROKER = BrokersUnavailable("taking over the transactional id failed")


def synced(monkeypatch: pytest.MonkeyPatch, outcome: JobResult, error: Exception = NO_BROKER) -> JobResult:
    """Sync where nothing is to be read, the merge ends as given and publishing fails."""
    declared = {
        "name": "shop",
        "source": {"type": "cassandra"},
        "snapshot": {"mode": "never"},
        "publish": {"kafka": {"connection": "kafka"}},
    }
    state = SimpleNamespace(offset=Progress({"stream": {"v": 1}}).to_offset())
    changes = SimpleNamespace(state=lambda: state)
    run = run_of(Connector.from_dict(declared), changes=changes, source=FakeSource())

    def publish(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(sync_stage, "capture", lambda *_: None)
    monkeypatch.setattr(sync_stage, "merge_tables", lambda *_, force: [])
    monkeypatch.setattr(sync_stage, "build_result", lambda *_, **__: outcome)
    monkeypatch.setattr(sync_stage, "publish_events", publish)
    return sync_stage.sync(run)


def test_brokers_that_are_away_fail_a_sync_and_hide_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = synced(monkeypatch, JobResult(ok=True, changes=7))
    assert (found.ok, found.error_code, found.changes) == (False, BrokersUnavailable.code, 7)
    assert "taking over the transactional id failed" in (found.error or "")


def test_where_a_table_failed_too_both_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = synced(monkeypatch, JobResult(ok=False, error="a table failed", findings=("one",)))
    assert (found.ok, found.error) == (False, "a table failed")
    assert found.findings[0] == "one"
    assert found.findings[1].startswith("publishing failed: ")
    assert "taking over the transactional id failed" in found.findings[1]


def test_an_unforeseen_failure_of_publishing_hides_nothing_of_a_sync_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = synced(monkeypatch, JobResult(ok=True, changes=7), ValueError("no date: tomorrow"))
    assert (found.ok, found.error_code, found.changes) == (False, "ERROR", 7)
    assert found.error == "[CDC-ERROR] ValueError: no date: tomorrow"
