"""What tasks read of a connector's state, by Airflow's own accessors; a supervisor of the test answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetStateStoreResult, ErrorResponse
from airflow.sdk.execution_time.context import AssetStateStoreAccessors

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
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
from tests.unit.airflow_context import Store, TaskContext

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


def test_an_offset_of_any_size_is_copied_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments without changes make gaps: eight nodes with 256 ranges each have 66,000 characters."""
    random = Random(1)
    offset: dict[str, Any] = {"small": {"v": 1, "floor": 7}}
    context = TaskContext()
    for count in (8, 4096, 10_000):
        firsts = sorted(random.sample(range(1795247392874, 1795247392874 + 10 * count), count))
        offset[f"node-{count}"] = {
            "v": 1,
            "floor": 0,
            "done": [[first, first] for first in firsts],
            "open": {},
        }
        after_a_run(JobResult(ok=True, offset=offset), context)
        store = context.assets[changes_asset(SHOP)]
        assert stored_offset(context, SHOP) == offset
        assert last_run(context, SHOP)["offset"] == offset
        assert len(json.dumps(store.get("offset"))) < 60_000 or count > 4096, "one node alone fits"

        async def value(self: AssetStateStoreAccessors, key: str) -> Any:
            return store.get(key)  # noqa: B023

        monkeypatch.setattr(AssetStateStoreAccessors, "aget", value)
        assert asyncio.run(stored_offset_async("shop")) == offset
    after_a_run(JobResult(ok=True, offset={"at": 2}), context)
    assert stored_offset(context, SHOP) == {"at": 2}


def test_what_airflow_does_not_store_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, key: str, value: Any) -> None:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status": 413}))

    monkeypatch.setattr(Store, "set", full)
    with pytest.raises(TransientError, match=r"copy of the connector's offset.*413"):
        after_a_run(JobResult(ok=True, offset={"at": 2}))
    store_failure(TaskContext(), SHOP, "sync", RuntimeError("down"))  # doesn't hide the run's own error


def test_long_texts_and_names_keep_no_state_from_being_stored() -> None:
    context = after_a_run(JobResult(ok=True, offset={"at": 1}))
    tables = [f"shop.{number:03}{'x' * 250}" for number in range(400)]
    result = JobResult(
        ok=False,
        error="e" * 100_000,
        table_snapshots={table: {"done": True, "started_at": 1.0} for table in tables},
        tables=(
            *(TableResult(table, changes=2) for table in tables),
            TableResult("shop.long", changes=1, error="e" * 100_000),
            TableResult("shop.last", changes=1),
        ),
    )
    after_a_run(result, context)
    store = context.assets[changes_asset(SHOP)]
    assert store.get("status")["ok"] is False
    assert tables[-1] in store.get("snapshots")["tables"]
    assert {tables[-1], "shop.last"} <= set(store.get("tables"))
    store_failure(context, SHOP, "merge", RuntimeError("f" * 100_000))
    assert store.get("status")["stage"] == "merge"
    assert all(len(json.dumps(store.get(key))) < 60_000 for key in KEYS if store.get(key))
