"""Runs of sensors, deferred or in a slot of their own, with a fake context."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_cdc_provider.sensors.observing import ObservingSensor
from tests.unit.airflow_context import TaskContext

Make = Callable[..., ObservingSensor]


def wait_plain(make: Make, context: TaskContext, later: Callable[[], None]) -> Any:
    """Run the plain sensor; what it waits for happens after its first look."""
    sensor = make(deferrable=False, poke_interval=0.05, timeout=10)
    poke, looks = sensor.poke, 0

    def counted(context: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            later()
        return poke(context)

    sensor.poke = counted  # type: ignore[method-assign]
    return sensor.execute(context)


def wait_deferred(make: Make, context: TaskContext, later: Callable[[], None]) -> Any:
    """Run the deferrable sensor as Airflow does: other processes, from what the trigger serialises to."""
    try:
        return make(deferrable=True, poke_interval=0.05).execute(context)
    except TaskDeferred as deferred:
        path, arguments = deferred.trigger.serialize()
        assert deferred.method_name == "execute_complete"
        assert deferred.timeout is not None
    module, _, name = path.rpartition(".")
    trigger = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert trigger.serialize() == (path, arguments)
    state = next(iter(context.assets.found.values()), None)
    kept = state.get("offset") if state else None

    async def as_stored(connector: str) -> Any:  # the triggerer would read it from the state store
        return kept["offset"] if kept else None

    monkeypatch = pytest.MonkeyPatch()

    async def as_reported(connector: str, key: str) -> Any:
        return state.get(key) if state else None

    for own in {sys.modules[kind.__module__] for kind in type(trigger).__mro__}:
        for name, stored in (("stored_offset_async", as_stored), ("stored_async", as_reported)):
            if hasattr(own, name):
                monkeypatch.setattr(own, name, stored)
    later()

    async def first_event() -> Any:
        return await asyncio.wait_for(anext(aiter(trigger.run())), 10)

    event = asyncio.run(first_event()).payload
    monkeypatch.undo()
    assert json.loads(json.dumps(event)) == event
    return make(deferrable=True).execute_complete(context, event)


WAYS = [pytest.param(wait_plain, id="plain"), pytest.param(wait_deferred, id="deferred")]

both_ways = pytest.mark.parametrize("wait", WAYS)
