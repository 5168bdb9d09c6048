"""Health of a connector on a real cluster: after a run, without the cluster, of a stream that is killed."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.operators.health import CdcHealthOperator
from airflow_cdc_provider.tasks.state import store_result
from tests.integration.jobs.conftest import Application
from tests.integration.jobs.shop import Shop
from tests.unit.airflow_context import TaskContext

pytestmark = pytest.mark.integration

_PATIENCE_SECONDS = 600
"""A dead stream is reported immediately; on a slow machine the first round may take minutes."""


@pytest.fixture
def small_shop(airflow_shop: Shop) -> Shop:
    """The shop with one row."""
    airflow_shop.run("CREATE TABLE t (k int PRIMARY KEY, v int) WITH cdc = true")
    airflow_shop.run("INSERT INTO t (k, v) VALUES (1, 1)")
    return airflow_shop


def look(shop: Shop, context: TaskContext, **arguments: Any) -> dict[str, Any]:
    operator = CdcHealthOperator(task_id="health", connector=shop.declaration, **arguments)
    found: dict[str, Any] = operator.execute(context)
    assert json.loads(json.dumps(found)) == found
    return found


@pytest.mark.covers("CAS-D3X-16")
def test_reader_and_session_are_reported_after_a_run_and_without_a_cluster(
    small_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    result = small_shop.stage("sync")
    ended = time.time()
    context = TaskContext()
    store_result(context, Connector.from_dict(small_shop.declaration), "sync", result)

    report = look(small_shop, context, probes=7, max_commit_age_seconds=600, max_response_seconds=5)

    reader, session = report["reader"], report["session"]
    assert (report["ok"], reader["kind"], reader["status"], reader["stage"]) == (True, "runs", "ok", "sync")
    assert reader["offset"] == result.offset
    assert began <= reader["committed_at"] <= ended
    assert 0 < reader["commit_age_seconds"] < 600
    assert session["server"].startswith("Cassandra 5.0")
    assert (session["requests"], session["errors"], session["nodes"], session["nodes_down"]) == (7, 0, 1, 0)
    assert 0 < session["p50_seconds"] <= session["max_seconds"] < 5

    # A run that finds nothing new commits nothing: its commit is the one before.
    again = small_shop.stage("sync")
    assert again.committed_at == result.committed_at or again.batches > 0

    with pytest.raises(TransientError, match=rf"last commit of connector {small_shop.name} is too old"):
        look(small_shop, context, max_commit_age_seconds=0.001)

    nobody = {"conn_type": "cdc_cassandra", "host": "127.0.0.1", "port": 9, "password": "s3cr3t-word"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(nobody))
    with pytest.raises(TransientError, match=r"connecting to 127\.0\.0\.1 got no response"):
        look(small_shop, context)
    report = context.xcom["return_value"]
    assert (report["reader"]["ok"], report["session"]["ok"]) == (True, False)
    assert "s3cr3t-word" not in json.dumps(report)


@pytest.mark.covers("CAS-D3X-16")
def test_a_stream_is_reported_while_it_lives_and_when_it_was_killed(
    small_shop: Shop, tmp_path: Path, iceberg_jar: Path
) -> None:
    folder = tmp_path / "work" / small_shop.name / "stream"
    folder.mkdir(parents=True)
    application = Application(folder, iceberg_jar)
    process = application.start(
        "stream",
        small_shop.declaration,
        small_shop.connection,
        state_path=str(folder / "state.json"),
        commit_interval_seconds=1,
    )
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (folder / "state.json").exists() or not json.loads((folder / "state.json").read_text()).get(
            "rounds"
        ):
            assert process.poll() is None, application.log_tail()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        report = look(small_shop, TaskContext())
        reader = report["reader"]
        assert (report["ok"], reader["kind"], reader["status"]) == (True, "stream", "running")
        assert reader["offset"]
        assert 0 <= reader["silent_seconds"] < _PATIENCE_SECONDS
        assert 0 < reader["commit_age_seconds"] < _PATIENCE_SECONDS
        assert report["session"]["requests"] == 5
    finally:
        os.killpg(process.pid, 9)
        process.wait(30)
    with pytest.raises(CdcError, match=rf"the continuous application of {small_shop.name} is dead"):
        look(small_shop, TaskContext())
