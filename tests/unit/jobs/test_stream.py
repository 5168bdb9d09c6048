"""The continuous loop: its pace, its state file, and how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.jobs import stream as stage
from airflow_cdc_provider.jobs.spark.failures import of_all_tables
from airflow_cdc_provider.jobs.spec import JobResult, PublishResult, TableResult
from tests.unit.jobs.runs import run_of

CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
DONE = JobResult(ok=True, changes=3, lag_seconds=1.5)


def streamed(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    one: Callable[[], JobResult],
    stopping: Callable[[], bool] = lambda: False,
    **options: Any,
) -> JobResult:
    """Run the stage with rounds that a test says."""
    monkeypatch.setattr(stage, "sync", lambda run: one())
    monkeypatch.setattr(stage, "busy", lambda changes: False)
    monkeypatch.setattr(stage, "has_signals", lambda *_: False)
    changes = SimpleNamespace(state=lambda: SimpleNamespace(batch=7))
    options["state_path"] = str(path)
    return stage.stream(run_of(CONNECTOR, changes=changes, options=options, stopping=stopping))


@pytest.mark.covers("CAS-D3X-02", "MDB-STR-03")
def test_rounds_begin_at_the_interval_also_below_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began: list[float] = []

    def one() -> JobResult:
        began.append(time.monotonic())
        return DONE

    outcome = streamed(
        monkeypatch, tmp_path / "state.json", one, commit_interval_seconds=0.1, max_runtime_seconds=1.05
    )
    assert 3 <= len(began) <= 11
    assert all(later - earlier > 0.09 for earlier, later in pairwise(began))
    assert outcome.changes == 3 * len(began)
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["status"], state["rounds"], state["changes"]) == ("stopped", len(began), outcome.changes)
    assert (state["batch"], state["lag_seconds"]) == (7, 1.5)


def test_a_stop_that_is_asked_for_ends_it_after_the_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []

    def one() -> JobResult:
        asked.append(1)
        return DONE

    by_signal = streamed(monkeypatch, tmp_path / "a.json", one, lambda: bool(asked))
    assert (len(asked), by_signal.changes) == (1, 3)

    def file_appears() -> JobResult:
        (tmp_path / "stop").touch()
        return DONE

    by_file = streamed(monkeypatch, tmp_path / "b.json", file_appears, stop_path=str(tmp_path / "stop"))
    assert by_file.changes == 3
    assert json.loads((tmp_path / "b.json").read_text())["status"] == "stopped"


def test_a_few_failures_that_pass_are_got_over_and_more_in_a_row_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rounds: list[int] = []

    def fails_now_and_then() -> JobResult:
        rounds.append(1)
        if len(rounds) % 5:
            raise TransientError("no answer")
        return DONE

    pace: Any = {"commit_interval_seconds": 0.0}
    outcome = streamed(
        monkeypatch, tmp_path / "a.json", fails_now_and_then, lambda: len(rounds) >= 20, **pace
    )
    assert outcome.ok

    def fails() -> JobResult:
        raise TransientError("no answer")

    with pytest.raises(TransientError):
        streamed(monkeypatch, tmp_path / "b.json", fails, **pace)
    state = json.loads((tmp_path / "b.json").read_text())
    assert (state["status"], state["rounds"]) == ("failed", 4)
    assert "no answer" in state["error"]


def test_what_a_person_must_change_ends_it_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def lost() -> JobResult:
        raise PositionLost("too late")

    with pytest.raises(PositionLost):
        streamed(monkeypatch, tmp_path / "state.json", lost)
    assert json.loads((tmp_path / "state.json").read_text())["rounds"] == 0


@pytest.mark.parametrize("code", ["CONFIGURATION", "CORRUPT-INPUT", "ERROR"])
def test_a_table_that_requires_intervention_is_reported_while_the_others_follow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    states: list[dict[str, Any]] = []
    failed = replace(DONE, ok=False, error_code=code, error=f"[CDC-{code}] shop.bad")

    def one() -> JobResult:
        states.append(json.loads((tmp_path / "state.json").read_text()))
        return failed if len(states) < 3 else DONE

    pace: Any = {"commit_interval_seconds": 0.0}
    outcome = streamed(monkeypatch, tmp_path / "state.json", one, lambda: len(states) == 4, **pace)
    assert [(t["status"], t["error"]) for t in states] == [
        ("running", error) for error in ("", failed.error, failed.error, "")
    ]
    assert outcome.ok

    states.clear()
    outcome = streamed(monkeypatch, tmp_path / "state.json", one, lambda: len(states) == 2, **pace)
    assert (outcome.ok, outcome.error, outcome.changes) == (False, failed.error, 6)
    ended = json.loads((tmp_path / "state.json").read_text())
    assert (ended["status"], ended["error"]) == ("failed", failed.error)


def test_a_table_that_fails_in_passing_is_no_news_for_watchers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    errors: list[str] = []

    def one() -> JobResult:
        errors.append(json.loads((tmp_path / "state.json").read_text())["error"])
        if len(errors) == 2:
            return replace(DONE, ok=False, error_code="TRANSIENT", error="[CDC-TRANSIENT] shop.bad")
        return DONE

    pace: Any = {"commit_interval_seconds": 0.0}
    outcome = streamed(monkeypatch, tmp_path / "state.json", one, lambda: len(errors) == 4, **pace)
    assert (outcome.ok, errors) == (True, ["", "", "", ""])


def test_a_table_that_another_run_may_merge_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = JobResult(ok=False, error_code="COMMIT-CONFLICT", error="[CDC-COMMIT-CONFLICT] shop.bad")
    with pytest.raises(CdcError, match=r"shop\.bad"):
        streamed(monkeypatch, tmp_path / "state.json", lambda: failed)


def test_a_round_that_failed_adds_no_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rounds: list[int] = []

    def every_other() -> JobResult:
        rounds.append(1)
        if len(rounds) % 2 == 0:
            raise TransientError("no answer")
        return DONE

    pace: Any = {"commit_interval_seconds": 0.0}
    outcome = streamed(monkeypatch, tmp_path / "state.json", every_other, lambda: len(rounds) == 6, **pace)
    assert outcome.changes == 3 * DONE.changes


def test_transient_errors_of_some_tables_are_reported_and_end_no_stream(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rounds: list[int] = []
    bad = TableResult("k.bad", error_code="TRANSIENT", error="[CDC-TRANSIENT] no answer")

    def one(tables: tuple[TableResult, ...]) -> JobResult:
        rounds.append(1)
        return replace(DONE, ok=False, error=str(of_all_tables(tables)), tables=tables)

    pace: Any = {"commit_interval_seconds": 0.0}
    both = (TableResult("k.good"), bad)
    outcome = streamed(monkeypatch, tmp_path / "a.json", lambda: one(both), lambda: len(rounds) == 7, **pace)
    assert outcome.changes == 7 * DONE.changes
    state = json.loads((tmp_path / "a.json").read_text())
    assert "1 of 2 tables failed: k.bad: no answer" in state["error"]
    with pytest.raises(TransientError, match="no answer"):
        streamed(monkeypatch, tmp_path / "b.json", lambda: one((bad,)), **pace)


def test_a_stream_without_a_state_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="state file"):
        stage.stream(run_of(CONNECTOR))


def test_heartbeats_are_sent_in_the_pauses_of_rounds_that_published_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    class Beats:
        def beat(self) -> None:
            calls.append("beat")

    rounds: Iterator[JobResult | Exception] = iter(
        [
            replace(DONE, published=PublishResult(batch=1)),
            TransientError("no answer"),
            DONE,
        ]
    )

    def one() -> JobResult:
        calls.append("round")
        outcome = next(rounds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(stage, "heartbeats_of", lambda *_: Beats())

    def ended() -> bool:
        return calls.count("round") == 3

    streamed(monkeypatch, tmp_path / "a.json", one, ended, commit_interval_seconds=0.5)
    first, second, third = (text.split() for text in " ".join(calls).split("round")[1:])
    assert set(first) == {"beat"}
    assert second == third == []
