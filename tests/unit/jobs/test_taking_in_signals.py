"""Taking in signals: what is committed before a channel lets go, and what a channel's trouble costs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs import signals
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SignalState
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.signals.channels import ChannelRefused
from airflow_cdc_provider.signals.signal import ReceivedSignal, Signal
from tests.unit.jobs.runs import FakeSource, run_of


@dataclass
class Box:
    """A channel that gives what lies in it, or its trouble, and notes what is done to it."""

    name: str = "box"
    arrived: list[ReceivedSignal] = field(default_factory=list)
    trouble: Exception | None = None
    done_with: list[list[ReceivedSignal]] = field(default_factory=list)

    def receive(self) -> Sequence[ReceivedSignal]:
        if self.trouble:
            raise self.trouble
        return list(self.arrived)

    def done(self) -> None:
        self.done_with.append(self.arrived)
        self.arrived = []

    def close(self) -> None:
        """Hold nothing open."""


@dataclass
class Shelf(Box):
    """A channel that keeps a position."""

    name: str = "shelf"
    position: Mapping[str, Any] | None = None
    resumed: list[Mapping[str, Any] | None] = field(default_factory=list)

    def resume(self, position: Mapping[str, Any] | None) -> None:
        self.resumed.append(position)


@dataclass
class Changes:
    """A changes table that keeps its offsets, and what channels had released when each was committed."""

    channels: Sequence[Box]
    offsets: list[Mapping[str, Any]] = field(default_factory=list)
    let_go: list[int] = field(default_factory=list)

    def set_offset(self, offset: Mapping[str, Any], state: ChangesState) -> ChangesState:
        self.offsets.append(offset)
        self.let_go.append(sum(len(one.done_with) for one in self.channels))
        return state


CONNECTOR = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})


class Job:
    """What taking in asks of a job."""

    def __init__(self, *channels: Box) -> None:
        self.changes = Changes(channels)
        source = FakeSource("shop.orders")
        self.run = run_of(CONNECTOR, changes=self.changes, source=source)
        vars(self.run.clients)["channels"] = channels
        self.progress = Progress()

    @property
    def report(self) -> RunReport:
        return self.run.report

    def take_in(self) -> SignalState:
        state = cast("ChangesState", None)
        self.progress, _ = signals._receive(*self.run, self.progress, state)
        return self.progress.signals


def asked(identity: str) -> Signal:
    return Signal(identity, "log", {"message": "hello"}, "box")


def test_a_place_is_committed_with_what_was_asked_for_before_the_channel_lets_go() -> None:
    shelf = Shelf(arrived=[asked("a")], position={"offset": 1})
    job = Job(shelf)
    state = job.take_in()
    assert shelf.resumed == [None]
    assert state.positions == {"shelf": {"offset": 1}}
    assert [one.id for one in state.records] == ["a"]
    (offset,) = job.changes.offsets
    assert SignalState.from_plain(offset["signals"]) == state
    assert job.changes.let_go == [0]
    assert shelf.done_with == [[asked("a")]]
    job.take_in()
    assert shelf.resumed == [None, {"offset": 1}]
    assert len(job.changes.offsets) == 1, "nothing new costs no commit"


def test_a_place_alone_is_committed_too() -> None:
    shelf = Shelf(position={"offset": 1000})
    job = Job(shelf)
    assert job.take_in().positions == {"shelf": {"offset": 1000}}
    assert shelf.done_with == [[]]
    assert Job(Shelf()).take_in() == SignalState()


def test_what_came_before_still_moves_the_place() -> None:
    shelf = Shelf(arrived=[asked("a")], position={"offset": 1})
    job = Job(shelf)
    job.take_in()
    shelf.arrived, shelf.position = [asked("a")], {"offset": 2}
    state = job.take_in()
    assert (len(state.records), state.positions) == (1, {"shelf": {"offset": 2}})


def test_a_channel_that_could_not_be_read_releases_nothing() -> None:
    broken = Box("broken", [asked("kept")], trouble=TransientError("away"))
    good = Box("good", [asked("taken")])
    job = Job(broken, good)
    assert [one.id for one in job.take_in().records] == ["taken"]
    assert (len(good.done_with), broken.done_with) == (1, [])
    broken.trouble = None
    assert [one.id for one in job.take_in().records] == ["taken", "kept"]


def test_the_same_trouble_is_logged_once_and_reported_until_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    box = Box(trouble=TransientError("no broker answers"))
    job = Job(box)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            job.take_in()
    assert caplog.text.count("channel box can't be read now") == 1
    assert "no broker answers" in job.report.signals.errors["box"]
    box.trouble = None
    job.take_in()
    assert job.report.signals.errors == {}


def test_a_channel_that_can_never_be_read_ends_the_job() -> None:
    with pytest.raises(ChannelRefused, match="two partitions"):
        Job(Box(trouble=ChannelRefused("two partitions"))).take_in()
