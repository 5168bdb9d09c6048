"""Operators on topics: what they ask of their jobs, and what they make of the results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.operators.topics import CdcCompareTopicsOperator, CdcReplayOperator
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, FakeSpark

PUBLISHES: dict[str, Any] = {**DECLARATION, "publish": {"kafka": {"connection": "kafka_shop"}}}


@pytest.fixture(autouse=True)
def kafka_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that the declaration names."""
    values = {"conn_type": "kafka", "extra": {"bootstrap.servers": "b:9092"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps(values))


def test_a_replay_asks_for_its_range_and_reports_what_was_sent(spark_submit: FakeSpark) -> None:
    replayed = {"first_batch": 3, "last_batch": 5, "records": 9, "transactions": 3}
    spark_submit.answers(replayed=replayed)
    operator = CdcReplayOperator(
        task_id="r", connector=PUBLISHES, first_batch="3", last_batch=5, topic_prefix="again", request="one"
    )
    xcom = operator.execute(TaskContext())
    asked = {"first_batch": 3, "last_batch": 5, "topic_prefix": "again", "request": "one"}
    assert spark_submit.seen["spec"]["stage"] == "replay"
    assert spark_submit.seen["spec"]["options"] == asked
    assert spark_submit.seen["connection"]["kafka"] == {"bootstrap.servers": "b:9092"}
    assert {name: xcom["replayed"][name] for name in replayed} == replayed


def test_templates_that_render_to_nothing_ask_for_nothing(spark_submit: FakeSpark) -> None:
    CdcReplayOperator(
        task_id="r", connector=PUBLISHES, first_batch="None", since="2026-11-23T08:00Z", until="", request="x"
    ).execute(TaskContext())
    assert spark_submit.seen["spec"]["options"] == {"since": "2026-11-23T08:00Z", "request": "x"}
    with pytest.raises(AirflowFailException, match="invalid value for first_batch"):
        CdcReplayOperator(task_id="r", connector=PUBLISHES, first_batch="-1").execute(TaskContext())


def test_a_comparison_fails_by_the_number_of_rows_that_differ(spark_submit: FakeSpark) -> None:
    def compare(**arguments: Any) -> Any:
        spark_submit.answers(
            ok=False,
            error_code="DIFFERENT",
            error="2 rows differ between topic and mirror",
            tables=[{"table": "shop.a", "differences": 2}],
        )
        return CdcCompareTopicsOperator(task_id="c", connector=PUBLISHES, **arguments).execute(TaskContext())

    with pytest.raises(CdcError, match="2 rows differ between topic and mirror"):
        compare(topics='{"shop.a": ["x"]}', topic_prefix="debezium")
    assert spark_submit.seen["spec"]["options"] == {"topic_prefix": "debezium", "topics": {"shop.a": ["x"]}}
    assert compare(max_differences=2)["tables"]["shop.a"]["differences"] == 2
    assert compare(max_differences=None)["tables"]["shop.a"]["differences"] == 2
    assert spark_submit.seen["spec"]["options"] == {}
