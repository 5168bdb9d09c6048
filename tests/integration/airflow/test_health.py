"""Health of a connector on a real cluster: after a run, without the cluster, of a stream that is killed."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.hooks.state import store_result
from airflow_cdc_provider.operators.health import CdcHealthOperator
from server_kit import create_keyspace
from tests.integration.jobs.conftest import Application, RunStage, run_stage  # noqa: F401  # a fixture
from tests.unit.airflow_context import TaskContext

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

NAME = "healthy"


@pytest.fixture
def shop(
    cassandra_server: CassandraServer, cassandra_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    create_keyspace(cassandra_session, NAME)
    cassandra_session.execute(f"CREATE TABLE {NAME}.t (k int PRIMARY KEY, v int) WITH cdc = true")
    cassandra_session.execute(f"INSERT INTO {NAME}.t (k, v) VALUES (1, 1)")
    values = {"conn_type": "cdc_cassandra", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_HEALTHY", json.dumps(values))
    monkeypatch.setenv("AIRFLOW__CDC__WORK_FOLDER", str(tmp_path / "work"))
    yield {
        "name": NAME,
        "source": {
            "type": "cassandra",
            "conn_id": NAME,
            "cdc_raw": str(cassandra_server.cdc_raw),
            "node": cassandra_server.host_id,
        },
        "tables": [rf"{NAME}\..*"],
        "lake": {"catalog": "lake", "namespace": NAME},
    }
    cassandra_session.execute(f"DROP KEYSPACE {NAME}")


def look(shop: dict[str, Any], context: TaskContext, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = CdcHealthOperator(task_id="health", connector=shop, **arguments).execute(context)
    assert json.loads(json.dumps(found)) == found
    return found


@pytest.mark.covers("CAS-D3X-16")
def test_reader_and_session_are_reported_after_a_run_and_without_a_cluster(
    shop: dict[str, Any],
    run_stage: RunStage,  # noqa: F811  # the fixture
    cassandra_server: CassandraServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = {"host": cassandra_server.host, "port": cassandra_server.port}
    began = time.time()
    result = run_stage("sync", shop, connection)
    ended = time.time()
    context = TaskContext()
    store_result(context, Connector.from_dict(shop), "sync", result)

    report = look(shop, context, probes=7, max_commit_age_seconds=600, max_response_seconds=5)

    reader, session = report["reader"], report["session"]
    assert (report["ok"], reader["kind"], reader["status"], reader["stage"]) == (True, "runs", "ok", "sync")
    assert reader["offset"] == result.offset
    assert began <= reader["committed_at"] <= ended
    assert 0 < reader["commit_age_seconds"] < 600
    assert session["server"].startswith("Cassandra 5.0")
    assert (session["requests"], session["errors"], session["nodes"], session["nodes_down"]) == (7, 0, 1, 0)
    assert 0 < session["p50_seconds"] <= session["max_seconds"] < 5

    # A run that finds nothing new commits nothing: its commit is the one before.
    again = run_stage("sync", shop, connection)
    assert again.committed_at == result.committed_at or again.batches > 0

    with pytest.raises(TransientError, match="last commit of connector healthy is too old"):
        look(shop, context, max_commit_age_seconds=0.001)

    nobody = {"conn_type": "cdc_cassandra", "host": "127.0.0.1", "port": 9, "password": "s3cr3t-word"}
    monkeypatch.setenv("AIRFLOW_CONN_HEALTHY", json.dumps(nobody))
    with pytest.raises(TransientError, match=r"connecting to 127\.0\.0\.1 got no answer"):
        look(shop, context)
    told = context.xcom["return_value"]
    assert (told["reader"]["ok"], told["session"]["ok"]) == (True, False)
    assert "s3cr3t-word" not in json.dumps(told)


@pytest.mark.covers("CAS-D3X-16")
def test_a_stream_is_told_of_while_it_lives_and_when_it_was_killed(
    shop: dict[str, Any], tmp_path: Path, iceberg_jar: Path, cassandra_server: CassandraServer
) -> None:
    folder = tmp_path / "work" / NAME / "stream"
    folder.mkdir(parents=True)
    warehouse = {"type": "hadoop", "warehouse": (tmp_path / "lake").as_uri()}
    alone = {**shop, "lake": {"namespace": NAME, "catalog_options": warehouse}}
    application = Application(folder, iceberg_jar)
    process = application.start(
        "stream",
        alone,
        {"host": cassandra_server.host, "port": cassandra_server.port},
        state_path=str(folder / "state.json"),
        commit_interval_seconds=1,
    )
    try:
        deadline = time.monotonic() + 240
        while not (folder / "state.json").exists() or not json.loads((folder / "state.json").read_text()).get(
            "rounds"
        ):
            assert process.poll() is None, application.log_tail()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        report = look(alone, TaskContext())
        reader = report["reader"]
        assert (report["ok"], reader["kind"], reader["status"]) == (True, "stream", "running")
        assert reader["offset"]
        assert 0 <= reader["silent_seconds"] < 240
        assert 0 < reader["commit_age_seconds"] < 240
        assert report["session"]["requests"] == 5
    finally:
        os.killpg(process.pid, 9)
        process.wait(30)
    with pytest.raises(CdcError, match="the continuous application of healthy is gone"):
        look(alone, TaskContext())
