"""The sensor on snapshots: it sees what runs of the connector store, plain and deferred alike."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout

from airflow_cdc_provider.assets import changes_asset
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spec import JobResult, SnapshotResult
from airflow_cdc_provider.sensors.observing import ObservingSensor
from airflow_cdc_provider.sensors.snapshots import CdcSnapshotSensor
from airflow_cdc_provider.tasks.state import store_result
from airflow_cdc_provider.triggers import snapshots
from tests.unit.airflow_context import TaskContext
from tests.unit.sensors.sensor_runs import WAYS

DECLARATION: dict[str, Any] = {
    "name": "shop",
    "source": {"type": "vitess", "keyspace": "shop"},
    "tables": [r"shop\.[ab]"],
}
BEGAN = datetime(2026, 11, 23, 7, tzinfo=UTC).timestamp()


def ran(context: TaskContext, *, remaining: int | None = None, skipped: bool = False, **done: bool) -> None:
    """Store what a run leaves: which tables it read in full."""
    copies = {f"shop.{name}": {"done": whole, "started_at": BEGAN} for name, whole in done.items()}
    shot = SnapshotResult(tables=2, remaining=remaining) if remaining is not None else None
    result = JobResult(ok=True, snapshot=shot, snapshot_skipped=skipped, table_snapshots=copies)
    store_result(context, Connector.from_dict(DECLARATION), "sync", result)


def sensor(**how: Any) -> ObservingSensor:
    return CdcSnapshotSensor(task_id="copied", connector=DECLARATION, **how)


@pytest.mark.parametrize("wait", WAYS)
def test_it_ends_when_all_tables_are_read(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    context = TaskContext()
    ran(context, remaining=1, a=True)

    async def stored(connector: str, key: str) -> Any:  # the triggerer would read it from the state store
        assert connector == "shop"
        return json.loads(json.dumps(context.assets[changes_asset("shop")].get(key)))

    monkeypatch.setattr(importlib.import_module(snapshots.__name__), "stored_async", stored)

    value = wait(sensor, context, lambda: ran(context, remaining=0, a=True, b=True))

    assert value == {"done": ["shop.a", "shop.b"], "remaining": []}


@pytest.mark.parametrize(
    ("stored", "how", "value"),
    [
        (
            {"remaining": 1, "a": True, "b": False},
            {"tables": "shop.a"},
            {"done": ["shop.a"], "remaining": []},
        ),
        ({"remaining": 1, "a": True, "b": False}, {"tables": "shop.b"}, None),
        ({"remaining": 1, "a": True}, {}, None),
        ({"remaining": 0, "a": True, "b": False}, {}, None),  # lost changes have outdated it
        ({"skipped": True}, {}, {"done": [], "remaining": []}),  # snapshot.mode never
        ({"remaining": 0, "a": True}, {"since": "2026-11-23T07:00:01+00:00"}, None),
        (
            {"remaining": 0, "a": True},
            {"since": "2026-11-23T07:00:00"},
            {"done": ["shop.a"], "remaining": []},
        ),
        ({"remaining": 0, "a": True}, {"since": datetime(2026, 11, 24, tzinfo=UTC)}, None),
    ],
)
def test_what_counts(stored: dict[str, Any], how: dict[str, Any], value: Any) -> None:
    context = TaskContext()
    ran(context, **stored)
    waiting = sensor(deferrable=False, poke_interval=0.05, timeout=0.1, **how)
    if value is None:
        with pytest.raises(AirflowSensorTimeout):
            waiting.execute(context)
    else:
        assert waiting.execute(context) == value


def test_a_later_run_that_takes_no_snapshot_leaves_what_is_known() -> None:
    context = TaskContext()
    ran(context, remaining=0, a=True, b=True)
    ran(context, a=True, b=True)  # a capture alone
    assert sensor(deferrable=False).execute(context)["done"] == ["shop.a", "shop.b"]


def test_before_the_first_run_it_waits() -> None:
    with pytest.raises(AirflowSensorTimeout):
        sensor(deferrable=False, poke_interval=0.05, timeout=0.1).execute(TaskContext())


@pytest.mark.parametrize(
    ("how", "text"),
    [({"tables": "shop.c"}, "doesn't capture shop.c"), ({"since": "soon"}, "invalid value for since")],
)
def test_what_is_wrong_fails_at_once(how: dict[str, Any], text: str) -> None:
    with pytest.raises(AirflowFailException, match=text):
        sensor(deferrable=False, **how).execute(TaskContext())
