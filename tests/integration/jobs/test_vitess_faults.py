"""Vitess: after faults a job fails with the reason or resumes, and the mirror equals VTGate's rows."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.lake.changes_table import ChangesTable
from server_kit import VitessServer
from tests.integration.jobs.conftest import Application, RunStage
from tests.integration.jobs.vitess_mirrors import assert_mirror_equals_table, declaration
from tests.integration.jobs.vitess_streams import Streaming, captured
from tests.integration.sources.vitess.workload import create, run
from tests.unit.sources.vitess.recording_vtgate import RecordingVtgate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def stored_offset(spark: SparkSession, declared: dict[str, Any]) -> Any:
    """The source's place that is stored, None for none."""
    connector = Connector.from_dict(declared)
    changes = ChangesTable(build_lake(spark, connector), connector)
    return Progress.from_offset(changes.state().offset).source


@pytest.mark.covers("VIT-FLT-02")
@pytest.mark.parametrize(
    ("source", "refuses", "error", "reason"),
    [
        ({"keyspace": "a/b"}, None, ConfigurationError, "expected a keyspace"),
        ({"tablet_type": "SPARE"}, None, ConfigurationError, "tablet_type"),
        ({"no_such_option": 1}, None, ConfigurationError, "no_such_option"),
        ({}, (grpc.StatusCode.UNAUTHENTICATED, "who"), ConfigurationError, "login and password"),
        ({}, (grpc.StatusCode.UNAVAILABLE, "no tablet"), TransientError, "no tablet"),
    ],
)
def test_a_wrong_configuration_fails_at_once_and_leaves_no_offset(
    spark: SparkSession,
    run_stage: RunStage,
    source: dict[str, Any],
    refuses: tuple[grpc.StatusCode, str] | None,
    error: type[CdcError],
    reason: str,
) -> None:
    wrong = declaration("wrong")
    wrong["source"] |= {"advanced": {"connect_attempts": -1}, **source}
    with RecordingVtgate(refuses=refuses) as gate:
        began = time.monotonic()
        with pytest.raises(error, match=reason):
            run_stage("sync", wrong, gate.connection)
        assert time.monotonic() - began < 30
    assert stored_offset(spark, declaration("wrong")) is None


@pytest.mark.covers("VIT-FLT-02")
def test_a_server_that_is_not_there_fails_at_once_and_leaves_no_offset(
    spark: SparkSession, run_stage: RunStage
) -> None:
    nowhere = {"host": "127.0.0.1", "port": 1}
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        run_stage("sync", declaration("nowhere"), nowhere)
    assert stored_offset(spark, declaration("nowhere")) is None


@pytest.mark.covers("VIT-FLT-03")
def test_a_vtgate_that_went_away_fails_the_run_and_the_next_resumes(
    spark: SparkSession, run_stage: RunStage
) -> None:
    table = "away1"
    impatient = declaration(table)
    impatient["source"]["advanced"] = {"connect_attempts": 1, "connect_backoff_seconds": 0.1}
    with VitessServer() as server:
        create(server, table)
        run(server, table, 1, 30)
        run_stage("sync", impatient, server.connection)
        stored = stored_offset(spark, impatient)
        run(server, table, 2, 60)
        server.stop()

        with pytest.raises(TransientError, match="VTGate"):
            run_stage("sync", impatient, server.connection)

        assert stored_offset(spark, impatient) == stored
        server.start()
        run(server, table, 3, 30)
        outcome = run_stage("sync", impatient, server.connection)

        assert outcome.changes > 100
        assert not outcome.tables[0].snapshot_rows
        assert assert_mirror_equals_table(spark, server, table)
        places = captured(spark, table)
        assert len(set(places)) == len(places)


@pytest.mark.covers("VIT-FLT-06", "VIT-FLT-01", "VIT-STR-06")
def test_a_stopped_stream_commits_and_the_next_start_repeats_nothing(
    spark: SparkSession, run_stage: RunStage, application: Application, vitess_server: VitessServer
) -> None:
    table = "stopped1"
    shop, connection = declaration(table), vitess_server.connection
    create(vitess_server, table)
    run(vitess_server, table, 1, 30)
    run_stage("sync", shop, connection)
    stream = Streaming(application, spark, shop, connection)
    stream.wait_for_rounds(1)
    writer = threading.Thread(target=run, args=(vitess_server, table, 2, 200))
    writer.start()
    stream.wait_for_rounds(2)
    stream.stop()
    writer.join()

    reported = stream.state
    assert reported["status"] == "stopped"
    assert reported["offset"] == stored_offset(spark, shop)
    before = captured(spark, table)
    assert len(set(before)) == len(before)

    run_stage("sync", shop, connection)

    after = captured(spark, table)
    assert len(set(after)) == len(after)
    assert set(before) <= set(after)
    assert assert_mirror_equals_table(spark, vitess_server, table)
    assert run_stage("sync", shop, connection).changes == 0
    with vitess_server.connect("shop").cursor() as cursor:
        cursor.execute(f"drop table {table}")
