"""A trigger is rebuilt in another process from what it says of itself."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import asyncio
import importlib
import json
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, TransientError
from airflow_cdc_provider.triggers.cassandra import CdcRawNewSegmentsTrigger, CdcRawSpaceTrigger
from airflow_cdc_provider.triggers.mongodb import MongodbLagTrigger, MongodbNewsTrigger
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger
from airflow_cdc_provider.triggers.scylla import ScyllaGenerationTrigger, ScyllaLagTrigger
from airflow_cdc_provider.triggers.stream import StreamHealthTrigger
from airflow_cdc_provider.triggers.vitess import VitessLagTrigger, VitessNewsTrigger

FEED = {"source": {"scope": "database", "target": "shop"}, "tables": ["shop\\.a"], "exclude_tables": []}

LOGS = {"tables": ["shop\\.a"], "system_keyspace": "system"}

SHARDS = {"keyspace": "shop", "shards": ["-80"], "tables": ["shop\\.a"]}


@pytest.mark.parametrize(
    "trigger",
    [
        CdcRawSpaceTrigger(
            cdc_raw="/raw",
            total_space_bytes=5,
            max_used_ratio=0.5,
            max_used_bytes=9,
            min_seconds_to_full=60,
            poll_seconds=3,
        ),
        CdcRawNewSegmentsTrigger(
            cdc_raw="/raw", connector="shop", node="n", completed_only=True, poll_seconds=3
        ),
        MongodbNewsTrigger(source_conn_id="m", connector="shop", feed=FEED, poll_seconds=3),
        MongodbLagTrigger(source_conn_id="m", connector="shop", feed=FEED, max_lag_seconds=4, poll_seconds=3),
        ScyllaLagTrigger(source_conn_id="s", connector="shop", feed=LOGS, max_lag_seconds=60, poll_seconds=3),
        ScyllaGenerationTrigger(source_conn_id="s", connector="shop", feed=LOGS, poll_seconds=3),
        VitessNewsTrigger(source_conn_id="v", connector="shop", feed=SHARDS, poll_seconds=3),
        VitessLagTrigger(
            source_conn_id="v", connector="shop", feed=SHARDS, max_lag_seconds=4, poll_seconds=3
        ),
        StreamHealthTrigger(
            folder="/f",
            heartbeat_timeout_seconds=9,
            max_lag_seconds=4,
            watch_until=1.5,
            stop_on_kill=True,
            poll_seconds=3,
        ),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
def test_a_trigger_survives_its_own_serialisation(trigger: ObservingTrigger) -> None:
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    back = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert back.serialize() == (path, arguments)
    own = {k: v for k, v in vars(trigger).items() if not k.startswith("_")}
    assert {k: v for k, v in vars(back).items() if not k.startswith("_")} == own


class Scripted(ObservingTrigger):
    """Sees what a test says, one after the other."""

    def __init__(self, *answers: Observation | Exception) -> None:
        super().__init__(poll_seconds=0.01)
        self.answers = list(answers)

    async def observe(self, given: Given) -> Observation:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def fires(trigger: ObservingTrigger) -> Any:
    async def events() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(events(), 10))


def test_a_trigger_fires_once_when_it_is_as_wanted() -> None:
    waiting = Scripted(Observation(False), TransientError("no answer"), Observation(True, {"n": 1}))
    assert fires(waiting) == [{"status": "done", "value": {"n": 1}}]


@pytest.mark.parametrize("error", [ConfigurationError("wrong"), PositionLost("too late")])
def test_what_waiting_cannot_help_ends_it_with_class_and_text(error: Any) -> None:
    assert fires(Scripted(error)) == [{"status": "error", "code": error.code, "text": str(error)}]
