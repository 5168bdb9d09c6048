"""What signals make of what is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import (
    KEPT_RECORDS,
    Reception,
    SignalState,
    received,
)
from airflow_cdc_provider.signals.signal import MalformedSignal, ReceivedSignal, Signal

TABLES = ("s.a", "s.b", "s.c")


def asked(state: SignalState, *arrived: ReceivedSignal) -> Reception:
    return received(state, arrived, TABLES, 5, lambda where: "code" if "$where" in where else "")


def execute(identity: str, *tables: str, **data: Any) -> Signal:
    return Signal(identity, "execute-snapshot", {"data-collections": list(tables), **data}, "file")


def outcomes(reception: Reception) -> list[tuple[str, str]]:
    return [(r.id, r.outcome) for r in reception.state.records]


def test_requests_stand_in_the_order_of_their_signals() -> None:
    found = asked(
        SignalState(), execute("1", "s.[ab]"), execute("2", "s.c", type="blocking"), execute("3", "s.c")
    )
    state = found.state
    assert [(r.id, [t.table for t in r.tables]) for r in state.requests] == [
        ("1", ["s.a", "s.b"]),
        ("2", ["s.c"]),
        ("3", ["s.c"]),
    ]
    assert state.incremental is not None
    assert state.incremental.id == "1"
    assert state.blocking is not None
    assert state.blocking.id == "2"
    offset = json.loads(json.dumps(Progress(None, {}, state).to_offset()))
    assert Progress.from_offset(offset).signals == state


def test_an_id_is_followed_once_also_in_one_go() -> None:
    first = asked(SignalState(), execute("1", "s.a"), execute("1", "s.b"))
    assert outcomes(first) == [("1", "queued")]
    (warning,) = first.warnings
    assert "is a duplicate" in warning
    assert asked(first.state, execute("1", "s.c")).state == first.state


def test_what_was_half_written_may_come_whole_under_its_id() -> None:
    half = asked(SignalState(), MalformedSignal("f-1", "file", "it is not JSON"))
    assert outcomes(asked(half.state, execute("f-1", "s.a"))) == [("f-1", "ignored"), ("f-1", "queued")]
    assert asked(half.state, MalformedSignal("f-1", "file", "it is not JSON")).state == half.state


def test_a_stop_takes_tables_out_of_all_incremental_requests() -> None:
    state = asked(
        SignalState(), execute("1", "s.a"), execute("2", "s.a", "s.b"), execute("3", "s.a", type="blocking")
    ).state
    stop = Signal("x", "stop-snapshot", {"type": "incremental", "data-collections": ["s.a"]}, "file")
    found = asked(state, stop)
    assert [(r.id, [t.table for t in r.tables]) for r in found.state.requests] == [
        ("2", ["s.b"]),
        ("3", ["s.a"]),
    ]
    assert [(e.kind, e.request_id, e.tables) for e in found.events] == [
        ("aborted", "1", ("s.a",)),
        ("tables_stopped", "2", ("s.a",)),
    ]
    assert dict(outcomes(found))["1"] == "stopped"
    again = asked(found.state, replace(stop, id="y"))
    assert outcomes(again)[-1] == ("y", "ignored")
    assert asked(SignalState(), stop).state.records[0].outcome == "ignored"


def test_a_pause_holds_incremental_snapshots_alone() -> None:
    state = asked(SignalState(), execute("1", "s.a"), execute("2", "s.b", type="blocking")).state
    paused = asked(state, Signal("p", "pause-snapshot", {}, "file"))
    assert paused.state.incremental is None
    assert paused.state.blocking is not None
    assert [(e.kind, e.table) for e in paused.events] == [("paused", "s.a")]
    resumed = asked(paused.state, Signal("r", "resume-snapshot", {}, "file"))
    assert resumed.state.incremental is not None
    assert [e.kind for e in resumed.events] == ["resumed"]
    assert outcomes(asked(resumed.state, Signal("s", "resume-snapshot", {}, "file")))[-1] == ("s", "ignored")
    idle = asked(SignalState(), Signal("q", "pause-snapshot", {}, "file"))
    assert (idle.state.paused, outcomes(idle)) == (False, [("q", "ignored")])


def test_the_record_keeps_the_newest() -> None:
    logged = [Signal(str(n), "log", {"message": f"m{n}"}, "file") for n in range(KEPT_RECORDS + 5)]
    found = asked(SignalState(), *logged)
    assert [r.id for r in found.state.records] == [str(n) for n in range(5, KEPT_RECORDS + 5)]
    assert found.messages[0] == ("0", "m0")
