"""What the health operator says of a reader and a session, and what fails it."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider import __version__
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.operators import health
from airflow_cdc_provider.operators.health import CdcHealthOperator
from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.tasks import metrics
from airflow_cdc_provider.tasks.state import STATE_LAYOUT
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, FakeSpark

ANSWERS = {"server": "Cassandra 5.0.9, cluster shop", "requests": 5, "errors": 0, "max_seconds": 0.02}
OFFSET = {"host-1": {"v": 1, "floor": 6, "open": {}}}


class Hook:
    """Stands for a source's hook."""

    def __init__(self, error: CdcError | None = None) -> None:
        self.error = error
        self.probes: list[int] = []

    def session_state(self, probes: int) -> dict[str, Any]:
        self.probes.append(probes)
        if self.error is not None:
            raise self.error
        return dict(ANSWERS)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    made = Hook()
    monkeypatch.setattr(health, "hook_for", lambda connector, conn_id: made)
    return made


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    found: dict[str, float] = {}

    def gauge(name: str, value: float, tags: dict[str, str]) -> None:
        assert tags == {"connector": "shop", "source": "cassandra", "team": "orders"}
        found[name] = value

    stats = SimpleNamespace(gauge=gauge)
    monkeypatch.setattr(metrics, "Stats", stats)
    return found


def look(context: TaskContext | None = None, **arguments: Any) -> dict[str, Any]:
    tagged = {**DECLARATION, "metric_tags": {"team": "orders"}}
    operator = CdcHealthOperator(task_id="health", connector=tagged, **arguments)
    found: dict[str, Any] = operator.execute(context or after_a_run())
    return found


def after_a_run(*, ago_seconds: float = 60, commit_ago_seconds: float = 90, **status: Any) -> TaskContext:
    context = TaskContext()
    store = context.assets.found.setdefault("cdc/shop/changes", context.assets.factory())
    at = (datetime.now(UTC) - timedelta(seconds=ago_seconds)).isoformat(timespec="seconds")
    committed = time.time() - commit_ago_seconds
    status_of_run = {"ok": True, "stage": "sync", "at": at, "committed_at": committed, "lag_seconds": 3.0}
    store.set("status", {"layout": STATE_LAYOUT, **status_of_run, "changes": 7, "batches": 1, **status})
    store.set("offset", {"layout": STATE_LAYOUT, "source": "cassandra", "offset": OFFSET})
    return context


def stream_state(work_folder: Path, **values: Any) -> None:
    folder = work_folder / "shop" / "stream"
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    state = {"pid": os.getpid(), "host": "elsewhere", "name": "shop", "started_at": now, "heartbeat_at": now}
    more = {"rounds": 4, "batch": 9, "changes": 30, "lag_seconds": 1.0, "status": "running", "error": ""}
    committed = {"offset": OFFSET, "committed_at": now - 20}
    (folder / "state.json").write_text(json.dumps({**state, **more, **committed, **values}))


@pytest.mark.covers("CAS-CFG-03")
def test_a_well_connector_is_reported_completely(
    work_folder: Path, hook: Hook, gauges: dict[str, float]
) -> None:
    report = look(probes=3)
    assert json.loads(json.dumps(report)) == report
    assert (report["ok"], report["problems"], hook.probes) == (True, [], [3])
    assert report["version"] == __version__
    reader = report["reader"]
    assert (reader["kind"], reader["status"], reader["stage"], reader["offset"]) == (
        "runs",
        "ok",
        "sync",
        OFFSET,
    )
    assert 90 <= reader["commit_age_seconds"] < 120
    assert 60 <= reader["silent_seconds"] < 90
    assert report["session"] == {"ok": True, **ANSWERS}
    assert gauges["cdc.health.ok"] == 1
    assert gauges["cdc.health.response_seconds"] == 0.02
    assert 90 <= gauges["cdc.health.commit_age_seconds"] < 120


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"max_commit_age_seconds": 80},
            r"last commit of connector shop is too old.*the last one 9\d s",
        ),
        ({"max_silent_seconds": 30}, r"no run of connector shop has ended recently.*last one 6\d s"),
        (
            {"max_lag_seconds": 2},
            "shop is behind its source: expected a lag of at most 2 s, found 3",
        ),
        (
            {"max_response_seconds": 0.01},
            r"answers slowly: expected a response within 0\.01 s, found 0\.02",
        ),
    ],
)
def test_each_limit_fails_the_task_and_xcom_says_all(
    work_folder: Path, hook: Hook, gauges: dict[str, float], limits: dict[str, float], message: str
) -> None:
    context = after_a_run()
    with pytest.raises(TransientError, match=message):
        look(context, **limits)
    report = context.xcom["return_value"]
    assert (report["ok"], len(report["problems"]), report["reader"]["offset"]) == (False, 1, OFFSET)
    assert gauges["cdc.health.ok"] == 0
    assert look(after_a_run(), **dict.fromkeys(limits, 1000.0))["ok"]


def test_before_any_run_nothing_is_known(work_folder: Path, hook: Hook) -> None:
    with pytest.raises(TransientError, match="connector shop has no state in Airflow"):
        look(TaskContext())


def test_a_source_that_does_not_answer_fails_and_the_reader_is_reported(
    work_folder: Path, hook: Hook
) -> None:
    hook.error = TransientError("connecting to db1 got no response")
    context = after_a_run()
    with pytest.raises(TransientError, match="connecting to db1 got no response"):
        look(context)
    report = context.xcom["return_value"]
    assert (report["reader"]["ok"], report["session"]["ok"]) == (True, False)
    assert "no response" in report["session"]["error"]


def test_several_problems_are_one_error_of_the_gravest_kind(work_folder: Path, hook: Hook) -> None:
    hook.error = ConfigurationError("the login was rejected")
    with pytest.raises(AirflowFailException, match=r"unhealthy.*too old.*the login was rejected"):
        look(max_commit_age_seconds=1)


def test_a_run_that_failed_is_reported_though_it_reached_nothing(spark_submit: FakeSpark, hook: Hook) -> None:
    context = after_a_run()
    spark_submit.answers(1, ok=False, error_code="COMMIT-CONFLICT", error="[CDC-COMMIT-CONFLICT] another run")
    with pytest.raises(CdcError, match="another run"):
        CdcSyncOperator(task_id="sync", connector=DECLARATION).execute(context)
    with pytest.raises(CdcError, match="another run") as failed:
        look(context)
    assert type(failed.value).code == "COMMIT-CONFLICT"
    reader = context.xcom["return_value"]["reader"]
    assert (reader["status"], reader["offset"]) == ("failed", OFFSET), "where it stands is still known"
    assert reader["silent_seconds"] < 30

    spark_submit.answers(offset=OFFSET, committed_at=time.time() - 5)
    CdcSyncOperator(task_id="sync", connector=DECLARATION).execute(context)
    report = look(context)
    assert report["ok"]
    assert 5 <= report["reader"]["commit_age_seconds"] < 35


def test_a_stream_is_looked_at_while_it_reports_last(work_folder: Path, hook: Hook) -> None:
    stream_state(work_folder)
    reader = look()["reader"]
    assert (reader["kind"], reader["status"], reader["rounds"], reader["offset"]) == (
        "stream",
        "running",
        4,
        OFFSET,
    )
    assert 20 <= reader["commit_age_seconds"] < 50
    assert look(reader="runs")["reader"]["kind"] == "runs"
    stream_state(work_folder, status="stopped", heartbeat_at=time.time() - 7200)
    assert look()["reader"]["kind"] == "runs", "runs took over"
    stream_state(work_folder, status="stopped")
    assert look()["reader"]["status"] == "stopped", "it ended well, and nothing came after it"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"status": "failed", "error": "[CDC-TRANSIENT] no node"}, "application of shop failed.*no node"),
        ({"heartbeat_at": 1.0}, "application of shop is dead"),
        ({"host": socket.gethostname()}, "application of shop is dead"),
        ({"error": "[CDC-TRANSIENT] shop.bad"}, r"shop\.bad"),
    ],
)
def test_a_stream_that_ails_fails_the_task(
    work_folder: Path, hook: Hook, state: dict[str, Any], message: str
) -> None:
    stream_state(work_folder, **state)
    with pytest.raises(CdcError, match=message):
        look(reader="stream")


def test_options_are_checked(work_folder: Path, hook: Hook) -> None:
    with pytest.raises(AirflowFailException, match="invalid value for option probes"):
        look(probes=0)
    with pytest.raises(AirflowFailException, match="invalid value for option reader: expected one of auto"):
        look(reader="steam")
