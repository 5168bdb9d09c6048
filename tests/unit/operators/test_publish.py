"""Publishing from Airflow: how the Kafka connection is passed, and what is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.operators.stages import (
    CdcCaptureOperator,
    CdcOffsetsOperator,
    CdcPublishOperator,
    CdcSyncOperator,
)
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, PASSWORD, FakeSpark

SECRET = "w0rd-of-kafka"
PUBLISHES: dict[str, Any] = {**DECLARATION, "publish": {"kafka": {"connection": "kafka_shop"}}}
SETTINGS = {"bootstrap.servers": "b:9092", "sasl.password": SECRET, "ssl.key.pem": "-----KEY-----"}


@pytest.fixture(autouse=True)
def kafka_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that the declaration names."""
    values = {"conn_type": "kafka", "extra": {**SETTINGS, "client.id": ""}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps(values))


@pytest.mark.covers("CAS-DEPLOY-05", "VIT-QUE-06")
def test_settings_travel_with_the_sources_connection_and_nowhere_else(spark_submit: FakeSpark) -> None:
    spark_submit.answers(ok=False, error_code="CONFIGURATION", error=f"login {SECRET} with -----KEY-----")
    with pytest.raises(AirflowFailException) as failed:
        CdcPublishOperator(task_id="publish", connector=PUBLISHES).execute(TaskContext())
    seen = spark_submit.seen
    assert seen["connection"]["kafka"] == SETTINGS
    assert seen["connection"]["password"] == PASSWORD
    assert seen["spec"]["stage"] == "publish"
    shown = json.dumps([seen["arguments"], seen["spec"], str(failed.value)])
    assert SECRET not in shown
    assert "-----KEY-----" not in shown


def test_stages_that_publish_nothing_get_no_broker(spark_submit: FakeSpark) -> None:
    CdcCaptureOperator(task_id="capture", connector=PUBLISHES).execute(TaskContext())
    assert "kafka" not in spark_submit.seen["connection"]
    CdcSyncOperator(task_id="sync", connector=DECLARATION).execute(TaskContext())
    assert "kafka" not in spark_submit.seen["connection"]


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (None, "there is no connection kafka_shop: expected one of type kafka"),
        ({"conn_type": "http"}, "connection kafka_shop has the wrong type: expected kafka, found http"),
    ],
)
def test_a_connection_that_does_not_fit_is_reported_and_nothing_is_submitted(
    spark_submit: FakeSpark, monkeypatch: pytest.MonkeyPatch, connection: dict[str, str] | None, message: str
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_SHOP")
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps(connection))
    with pytest.raises(AirflowFailException, match=message):
        CdcPublishOperator(task_id="publish", connector=PUBLISHES).execute(TaskContext())
    assert not spark_submit.started


def test_what_was_published_is_in_xcom(spark_submit: FakeSpark) -> None:
    published = {"batch": 7, "records": 20, "dead_letters": 1, "pending_batches": 2, "lag_seconds": 1.5}
    spark_submit.answers(published=published)
    xcom = CdcSyncOperator(task_id="sync", connector=PUBLISHES).execute(TaskContext())
    assert {name: xcom["published"][name] for name in published} == published


def test_publishing_may_resume_from_a_batch(spark_submit: FakeSpark) -> None:
    for batch in (12, "12"):
        CdcOffsetsOperator(task_id="o", connector=PUBLISHES, action="publish", batch=batch).execute(
            TaskContext()
        )
        assert spark_submit.seen["spec"]["options"] == {"action": "publish", "batch": 12}
    CdcOffsetsOperator(task_id="o", connector=PUBLISHES, action="publish", batch="next").execute(
        TaskContext()
    )
    assert spark_submit.seen["spec"]["options"] == {"action": "publish", "batch": "next"}
    with pytest.raises(AirflowFailException, match="there is no batch to publish from"):
        CdcOffsetsOperator(task_id="o", connector=PUBLISHES, action="publish").execute(TaskContext())
