"""Lost connections to VTGate: which errors are retried, how often, and when retries end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import grpc
import pytest

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.sources.backoff import NO_LIMIT, pauses
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.snapshot import RangeReader, plan_snapshot
from airflow_cdc_provider.sources.vitess.source import VitessSource
from tests.unit.sources.vitess.fake_vtgate import (
    Fails,
    FakeVtgate,
    Script,
    Waits,
    event,
    fields,
    response,
    rows,
    transaction,
    vgtid,
)
from tests.unit.sources.vitess.stream_capture import (
    EXPECTED,
    HEAD,
    LOW1,
    START,
    Capture,
    at,
    changes,
    options,
)

LOST = (
    "ABORTED",
    "CANCELLED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "UNKNOWN",
)
REFUSED = (
    "ALREADY_EXISTS",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
)


@pytest.fixture
def stack() -> Any:
    with ExitStack() as one:
        yield one


def test_every_status_of_grpc_is_one_or_the_other() -> None:
    assert {*LOST, *REFUSED, "OK"} == {code.name for code in grpc.StatusCode}


@pytest.mark.covers("VIT-FLT-04")
@pytest.mark.parametrize("code", LOST)
def test_a_lost_stream_is_reopened_after_its_last_transaction(stack: ExitStack, code: str) -> None:
    lost: Script = [response(*LOW1), Fails(grpc.StatusCode[code], "the tablet is gone")]
    after = transaction("-80", {"-80": 12, "80-": 20}, fields("item", "-80"), rows("item", "-80", *_TWO))
    capture = Capture(stack, [lost, [response(*after), Waits()]], options())

    records, plan = capture.read(START, at(low=12))

    assert changes(records) == EXPECTED[:2]
    assert plan.at_head
    assert len(capture.pauses) == 1


_TWO = ((None, ["2", "x"]),)


@pytest.mark.parametrize("code", REFUSED)
def test_configuration_errors_are_raised_immediately(stack: ExitStack, code: str) -> None:
    capture = Capture(stack, [[Fails(grpc.StatusCode[code], "no such thing")]], options())

    with pytest.raises(ConfigurationError, match=f"{code}: no such thing"):
        capture.read(START, HEAD)

    assert capture.pauses == []


@pytest.mark.covers("VIT-FLT-04")
def test_without_a_limit_a_lost_stream_is_opened_until_it_gives(stack: ExitStack) -> None:
    failures: list[Script] = [[Fails(grpc.StatusCode.UNAVAILABLE, "no tablet")]] * 40
    unlimited = VitessAdvanced(
        connect_attempts=NO_LIMIT, connect_backoff_seconds=0.5, connect_max_backoff_seconds=0.5
    )
    capture = Capture(
        stack,
        [*failures, [response(*LOW1), Waits()]],
        VitessOptions(keyspace="shop", advanced=unlimited),
    )

    records, _ = capture.read(START, at(low=11))

    assert changes(records) == EXPECTED[:1]
    assert capture.pauses == [0.5] * 40


def test_pauses_without_a_limit_grow_to_the_longest() -> None:
    advanced = VitessAdvanced(connect_attempts=NO_LIMIT, connect_max_backoff_seconds=3.0)
    assert list(islice(pauses(advanced), 5)) == [1.0, 2.0, 3.0, 3.0, 3.0]


def source_of(server: FakeVtgate, **advanced: Any) -> VitessSource:
    chosen = VitessAdvanced(
        **{
            "connect_attempts": NO_LIMIT,
            "connect_backoff_seconds": 0.01,
            "call_timeout_seconds": 2.0,
            **advanced,
        }
    )
    return VitessSource(VitessOptions(keyspace="shop", advanced=chosen), server.connection, lambda _: True)


SHARDS: dict[str, list[tuple[str, ...]]] = {"SHOW VITESS_SHARDS": [("shop/-80",), ("shop/80-",)]}
NOW: Script = [
    response(
        event("VGTID", "-80", vgtid=vgtid({"-80": 10, "80-": 20})),
        event("OTHER", "-80"),
    ),
    Waits(),
]
GONE: Script = [Fails(grpc.StatusCode.UNAVAILABLE, "gone")]


@pytest.mark.covers("VIT-FLT-02")
def test_the_first_contact_is_not_retried() -> None:
    with FakeVtgate([GONE, NOW], SHARDS) as server, closing(source_of(server)) as source:
        with pytest.raises(TransientError, match="gone"):
            source.head()
        assert len(server.requests) == 1


def test_calls_are_retried_after_the_first_contact() -> None:
    with FakeVtgate([NOW, GONE, GONE, NOW], SHARDS) as server, closing(source_of(server)) as source:
        assert source.head() == source.head()
        assert len(server.requests) == 4


def test_the_number_of_retries_is_an_option() -> None:
    with FakeVtgate([NOW, GONE], SHARDS) as server, closing(source_of(server, connect_attempts=2)) as source:
        source.head()
        with pytest.raises(TransientError, match="gone"):
            source.head()
        assert len(server.requests) == 1 + 3


def _stop_soon(source: VitessSource) -> None:
    stop = threading.Event()
    source.cancel_when(stop.is_set)
    threading.Timer(0.3, stop.set).start()


@pytest.mark.parametrize(
    "work",
    [
        lambda source: source.head(),
        lambda source: source.plan(START.to_offset(), HEAD.to_offset(), ReadLimit()),
    ],
)
def test_a_stop_ends_the_pause_after_a_lost_connection(work: Callable[[VitessSource], Any]) -> None:
    with (
        FakeVtgate([NOW, GONE], SHARDS) as server,
        closing(source_of(server, connect_backoff_seconds=60.0)) as source,
    ):
        source.head()
        source._verified = START
        _stop_soon(source)
        began = time.monotonic()
        try:
            plan = work(source)
        except CdcError as error:
            assert isinstance(error, TransientError)
        else:
            assert not plan.at_head
            assert Position.from_offset(plan.end) == START
        assert time.monotonic() - began < 10


def test_a_copy_retries_a_limited_number_of_times_as_its_task_cannot_be_stopped() -> None:
    slept: list[float] = []
    unlimited = VitessAdvanced(
        connect_attempts=NO_LIMIT, connect_backoff_seconds=10.0, connect_max_backoff_seconds=10.0
    )
    with FakeVtgate([GONE]) as server:
        reader = RangeReader(
            ConnectionValues.read(server.connection),
            VitessOptions(keyspace="shop", advanced=unlimited),
            sleep=slept.append,
        )
        (part, *_) = plan_snapshot(START, "shop.item", None).ranges
        with pytest.raises(TransientError, match="gone"):
            list(reader.read([part], ReadMetrics()))
    assert slept == [10.0] * 100
