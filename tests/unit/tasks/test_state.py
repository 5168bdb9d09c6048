"""What tasks read of a connector's state, by Airflow's own accessors; a supervisor of the test answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetStateStoreResult, ErrorResponse
from airflow.sdk.execution_time.context import AssetStateStoreAccessors

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.sensors.topics import CdcPublishLagSensor
from airflow_cdc_provider.tasks.state import (
    STATE_LAYOUT,
    last_run,
    store_failure,
    store_result,
    stored,
    stored_offset,
    stored_offset_async,
)
from tests.unit.airflow_context import TaskContext

SHOP = Connector.from_dict(
    {"name": "shop", "source": {"type": "mongodb"}, "publish": {"kafka": {"connection": "kafka_shop"}}}
)
VALUES: dict[str, Any] = {
    "batches": {"layout": STATE_LAYOUT, "commits": [[3, 100.0]]},
    "snapshots": {"layout": STATE_LAYOUT, "tables": {}, "remaining": 1},
    "offset": {"layout": STATE_LAYOUT, "source": "mongodb", "offset": {"at": 1}},
}


@dataclass
class Supervisor:
    """Answers as Airflow's supervisor does; refuses with an error if it has one."""

    refuses: ErrorType | None = None
    asked: list[str] = field(default_factory=list)

    def send(self, message: Any) -> Any:
        assert message.name == changes_asset(SHOP).name
        self.asked.append(message.key)
        if self.refuses is not None:
            return ErrorResponse(error=self.refuses, detail={})
        return AssetStateStoreResult(value=VALUES[message.key])


def context_of(monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor, *inlets: Any) -> TaskContext:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    context = TaskContext()
    context["asset_state_store"] = AssetStateStoreAccessors(list(inlets))
    return context


@pytest.mark.parametrize("inlets", [(), (changes_asset(SHOP),)], ids=["templated", "named"])
@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (partial(stored, key="batches"), VALUES["batches"]),
        (partial(stored, key="snapshots"), VALUES["snapshots"]),
        (stored_offset, {"at": 1}),
    ],
)
def test_a_connectors_state_is_read_whether_its_asset_was_known_to_the_dag_or_not(
    read: Callable[..., Any], expected: Any, inlets: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor()
    assert read(context_of(monkeypatch, supervisor, *inlets), SHOP) == expected
    assert len(supervisor.asked) == 1


def test_a_sensor_whose_connector_is_a_template_is_given_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_SHOP", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "b"}}'
    )
    sensor = CdcPublishLagSensor(task_id="near", connector="{{ params.connector }}")
    assert not sensor.inlets
    sensor.connector = SHOP  # as rendered
    assert sensor.given(context_of(monkeypatch, Supervisor())).batches == VALUES["batches"]


def test_a_task_that_may_not_read_a_state_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigurationError, match=f"expected asset {changes_asset(SHOP).name} among its inlets"
    ):
        stored(context_of(monkeypatch, Supervisor(ErrorType.PERMISSION_DENIED)), SHOP, "batches")
    with pytest.raises(AirflowRuntimeError):  # which a retry may get over
        stored(context_of(monkeypatch, Supervisor(ErrorType.API_SERVER_ERROR)), SHOP, "batches")
    assert (
        stored(context_of(monkeypatch, Supervisor(ErrorType.ASSET_STORE_NOT_FOUND)), SHOP, "batches") is None
    )


KEYS = ("offset", "status", "tables", "snapshots", "batches")


def after_a_run(result: JobResult, context: TaskContext | None = None) -> TaskContext:
    context = context or TaskContext()
    store_result(context, SHOP, "sync", result)
    return context


def test_each_stored_value_has_its_layout() -> None:
    result = JobResult(
        ok=True,
        offset={"at": 1},
        newest_batch=3,
        committed_at=100.0,
        table_snapshots={"shop.orders": {"done": True, "started_at": 1.0}},
        tables=(TableResult("shop.orders", changes=2),),
    )
    store = after_a_run(result).assets[changes_asset(SHOP)]
    assert {key: store.get(key)["layout"] for key in KEYS} == dict.fromkeys(KEYS, STATE_LAYOUT)
    assert set(store.get("tables")) == {"shop.orders", "layout"}


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_a_newer_layout_is_refused_and_kept(key: str) -> None:
    context = TaskContext()
    store = context.assets[changes_asset(SHOP)]
    newer = {"layout": STATE_LAYOUT + 1}
    store.set(key, newer)
    message = (
        rf"the {key} of connector shop .*expected layout {STATE_LAYOUT}, found layout {STATE_LAYOUT + 1}"
    )
    with pytest.raises(ConfigurationError, match=message):
        after_a_run(JobResult(ok=True, offset={"at": 2}, newest_batch=4, committed_at=1.0), context)
    store_failure(context, SHOP, "sync", RuntimeError("down"))
    assert store.get(key) == newer
    assert store.get("offset") in (None, newer), "nothing else is written either"


@pytest.mark.parametrize("value", [{"source": "mongodb", "offset": {"at": 1}}, {"layout": STATE_LAYOUT - 1}])
def test_a_value_of_an_older_layout_counts_as_not_stored(value: dict[str, Any]) -> None:
    context = TaskContext()
    store = context.assets[changes_asset(SHOP)]
    for key in KEYS:
        store.set(key, value)
    assert (
        stored_offset(context, SHOP)
        is stored(context, SHOP, "batches")
        is stored(context, SHOP, "snapshots")
        is None
    )
    assert last_run(context, SHOP) == {}
    after_a_run(JobResult(ok=True, offset={"at": 2}), context)
    assert stored_offset(context, SHOP) == {"at": 2}


def test_a_trigger_refuses_a_newer_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def newer(self: AssetStateStoreAccessors, key: str) -> Any:
        return {"layout": STATE_LAYOUT + 1, "offset": {"at": 1}}

    monkeypatch.setattr(AssetStateStoreAccessors, "aget", newer)
    with pytest.raises(ConfigurationError, match="newer layout"):
        asyncio.run(stored_offset_async("shop"))
