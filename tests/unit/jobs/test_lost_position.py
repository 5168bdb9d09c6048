"""What a run does when the source no longer has what follows the stored offset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import (
    PERMANENT,
    CdcError,
    ConfigurationError,
    PositionLost,
    error_from_text,
)
from airflow_cdc_provider.jobs import application
from airflow_cdc_provider.jobs import sync as sync_stage
from airflow_cdc_provider.jobs.capturing import capture as capture_stage
from airflow_cdc_provider.jobs.capturing import lost_position
from airflow_cdc_provider.jobs.capturing.capture import CaptureCounts
from airflow_cdc_provider.jobs.capturing.lost_position import SnapshotsDue
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.tables import require_within_guardrail
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.signals import Followed
from airflow_cdc_provider.jobs.snapshots.snapshot import due_tables
from airflow_cdc_provider.lake.changes_table import ChangesState
from tests.unit.jobs.runs import FakeSource, run_of

TABLES = ["s.a", "s.b"]


class Changes:
    """A changes table that holds an offset and nothing else."""

    def __init__(self) -> None:
        done = SnapshotProgress(True, started_us=1)
        self.offset: Any = Progress({"at": 1}, dict.fromkeys(TABLES, done)).to_offset()

    def state(self) -> Any:
        return SimpleNamespace(offset=self.offset)

    def set_offset(self, offset: Any, state: Any) -> None:
        assert state.offset == self.offset
        self.offset = offset


class Holes(FakeSource):
    """A source that drops changes unread and goes on."""

    def __init__(self, lost: Sequence[PositionLost] = ()) -> None:
        super().__init__(*TABLES)
        self.lost = list(lost)

    def offset_after_loss(self) -> dict[str, Any]:
        return {"at": 9}

    def gaps(self, offset: Any) -> tuple[list[PositionLost], dict[str, Any]]:
        return self.lost, {"at": 9}


def run_with(source: Any = None, **snapshot: Any) -> Run:
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "snapshot": snapshot or {"mode": "initial"}}
    )
    return run_of(connector, changes=Changes(), source=source or Holes())


def changes_of(asked: Run) -> Any:
    return asked.stores.changes


def progress(asked: Run) -> Progress:
    return Progress.from_offset(changes_of(asked).offset)


def due_of(asked: Run, known: Progress) -> list[str]:
    return due_tables(asked.job, asked.stores, asked.source, known)


def continue_after_loss(asked: Run) -> None:
    lost_position.continue_after_loss(asked.job.connector, asked.stores.changes, asked.source, LOST)


def close_gaps(asked: Run, state: Any) -> tuple[Progress, ChangesState, Sequence[PositionLost]]:
    connector, changes = asked.job.connector, asked.stores.changes
    return lost_position.close_gaps(connector, changes, asked.source, progress(asked), state)


LOST = PositionLost("the oplog begins later", found="changes since noon")


@pytest.mark.covers("MDB-XA-05", "MDB-SNAP-08", "MDB-FAULT-09")
@pytest.mark.parametrize(
    ("snapshot", "raised", "due", "source"),
    [
        ({"mode": "initial"}, PositionLost, [], {"at": 1}),
        ({"mode": "never"}, PositionLost, [], {"at": 1}),
        ({"mode": "when_needed"}, SnapshotsDue, TABLES, {"at": 9}),
        ({"mode": "always"}, SnapshotsDue, TABLES, {"at": 9}),
        ({"on_lost_position": "snapshot"}, SnapshotsDue, TABLES, {"at": 9}),
        ({"on_lost_position": "fail_once"}, SnapshotsDue, TABLES, {"at": 9}),
        ({"on_lost_position": "continue"}, None, [], {"at": 9}),
        ({"mode": "never", "on_lost_position": "continue"}, None, [], {"at": 9}),
    ],
)
def test_a_place_that_is_gone_is_a_choice(
    snapshot: dict[str, Any], raised: type[CdcError] | None, due: list[str], source: Any
) -> None:
    asked = run_with(**snapshot)
    if raised is None:
        continue_after_loss(asked)
        assert [p.lost for p in progress(asked).snapshots.values()] == [
            "the oplog begins later; changes since noon"
        ] * 2
        assert all(p.outdated for p in progress(asked).snapshots.values()), "it is reported until a snapshot"
    else:
        with pytest.raises(PositionLost) as raised_error:
            continue_after_loss(asked)
        assert type(raised_error.value) is raised
        assert isinstance(error_from_text(str(raised_error.value)), PositionLost)
        assert isinstance(raised_error.value, PERMANENT)
    assert progress(asked).source == source
    if snapshot.get("mode") != "always":
        assert due_of(asked, progress(asked)) == due


def lost_table(table: str) -> PositionLost:
    lost = PositionLost(f"changes of {table} can't be read")
    lost.tables = (table,)
    return lost


@pytest.mark.parametrize(
    ("choice", "fails", "due"),
    [
        ("auto", True, ["s.a", "s.b"]),
        ("fail_once", True, ["s.a", "s.b"]),
        ("snapshot", False, ["s.a", "s.b"]),
        ("continue", False, []),
        ("fail", None, []),
    ],
)
def test_tables_that_cannot_be_read_are_due_alone_and_the_others_are_captured(
    monkeypatch: pytest.MonkeyPatch, choice: str, fails: bool | None, due: list[str]
) -> None:
    asked = run_with(FakeSource(*TABLES, "s.c"), on_lost_position=choice)
    changes_of(asked).offset = Progress(
        {"at": 1}, dict.fromkeys([*TABLES, "s.c"], SnapshotProgress(True, started_us=1))
    ).to_offset()
    left = [lost_table("s.a"), lost_table("s.b")]
    captured: list[Any] = []

    def once(*_: Any) -> CaptureCounts:
        if left:
            raise left.pop(0)
        captured.append(progress(asked).source)
        return CaptureCounts(batches=1)

    monkeypatch.setattr(capture_stage, "_capture", once)
    if fails is None:
        with pytest.raises(PositionLost, match=r"changes of s\.a can't be read"):
            capture_stage.capture(asked.job, asked.stores, asked.source, asked.report)
    else:
        counts = capture_stage.capture(asked.job, asked.stores, asked.source, asked.report)
        assert counts.batches == 1
        assert list(counts.errors) == (["s.a", "s.b"] if fails else [])
        for table, error in counts.errors.items():
            assert isinstance(error_from_text(error), PositionLost)
            assert f"changes of {table} can't be read" in error
            assert "the next sync or stream takes new snapshots" in error

    assert captured == ([] if choice == "fail" else [{"at": 1}])
    assert due_of(asked, progress(asked)) == due


@pytest.mark.covers("MDB-XA-05")
def test_a_table_that_was_never_read_is_not_taken_for_read_by_going_on() -> None:
    asked = run_with(on_lost_position="continue")
    changes_of(asked).offset = Progress({"at": 1}, {"s.a": SnapshotProgress(True, started_us=1)}).to_offset()
    continue_after_loss(asked)
    assert due_of(asked, progress(asked)) == ["s.b"]


@pytest.mark.parametrize(
    ("choice", "raised", "due"),
    [
        ("auto", SnapshotsDue, TABLES),
        ("fail_once", SnapshotsDue, TABLES),
        ("snapshot", SnapshotsDue, TABLES),
        ("fail", PositionLost, []),
        ("continue", None, []),
    ],
)
def test_a_hole_is_the_same_choice_and_by_default_fails_once(
    choice: str, raised: type[CdcError] | None, due: list[str]
) -> None:
    source = Holes([PositionLost("segments 3 to 5")])
    asked = run_with(source, on_lost_position=choice)
    state = changes_of(asked).state()
    if raised is None:
        after, new_state, of_tables = close_gaps(asked, state)
        assert (after.source, new_state.offset, of_tables) == ({"at": 9}, changes_of(asked).offset, [])
    else:
        with pytest.raises(PositionLost, match="segments 3 to 5") as raised_error:
            close_gaps(asked, state)
        assert type(raised_error.value) is raised
    assert due_of(asked, progress(asked)) == due


@pytest.mark.parametrize(
    ("choice", "due"), [("auto", ["s.b"]), ("snapshot", ["s.b"]), ("continue", []), ("fail", [])]
)
def test_a_hole_of_one_table_is_the_same_choice_for_that_table(choice: str, due: list[str]) -> None:
    lost = [lost_table("s.b")]
    asked = run_with(Holes(lost), on_lost_position=choice)
    state = changes_of(asked).state()
    if choice == "fail":
        with pytest.raises(PositionLost, match=r"changes of s\.b can't be read"):
            close_gaps(asked, state)
        assert progress(asked).source == {"at": 1}
    else:
        after, new_state, of_tables = close_gaps(asked, state)
        assert (after.source, new_state.offset, of_tables) == ({"at": 9}, changes_of(asked).offset, lost)
        assert [t for t, snapshot in after.snapshots.items() if snapshot.outdated] == ["s.b"]
    assert due_of(asked, progress(asked)) == due


@pytest.mark.covers("CAS-CFG-32")
def test_capture_goes_on_at_once_where_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = run_with(on_lost_position="continue")
    tries: list[Any] = []

    def once(*_: Any) -> CaptureCounts:
        tries.append(progress(asked).source)
        if len(tries) == 1:
            raise LOST
        return CaptureCounts(batches=1)

    monkeypatch.setattr(capture_stage, "_capture", once)
    with caplog.at_level(logging.WARNING):
        assert capture_stage.capture(asked.job, asked.stores, asked.source, asked.report).batches == 1
    assert tries == [{"at": 1}, {"at": 9}]
    assert f"{asked.job.connector.name}: changes are lost" in caplog.text


@pytest.mark.covers("MDB-SNAP-08", "MDB-XA-05")
@pytest.mark.parametrize(("choice", "fails"), [("snapshot", False), ("fail_once", True), ("fail", True)])
def test_a_sync_reads_the_tables_again_and_continues_capture(
    monkeypatch: pytest.MonkeyPatch, choice: str, fails: bool
) -> None:
    asked = run_with(on_lost_position=choice)
    done: list[Any] = []

    def once(*_: Any) -> CaptureCounts:
        done.append("capture")
        if len(done) == 1:
            raise LOST
        return CaptureCounts()

    def snapshot(*given: Any, again: bool, replacing: bool) -> None:
        assert replacing
        done.append(given[-1])

    monkeypatch.setattr(capture_stage, "_capture", once)
    monkeypatch.setattr(sync_stage, "snapshot", snapshot)
    monkeypatch.setattr(sync_stage, "merge_tables", lambda *_, force: done.append("merge"))
    monkeypatch.setattr(sync_stage, "build_result", lambda _, **parts: parts)
    monkeypatch.setattr(sync_stage, "follow", lambda *_: Followed())
    if fails:
        with pytest.raises(PositionLost):
            sync_stage.sync(asked)
        assert done == ["capture"]
        assert bool(due_of(asked, progress(asked))) == (choice == "fail_once")
    else:
        outcome: Any = sync_stage.sync(asked)
        assert outcome["captured"] is not None
        assert done == ["capture", TABLES, "capture", "merge"]


@pytest.mark.covers("MDB-SNAP-06")
def test_initial_only_reads_and_never_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = run_with(mode="initial_only")
    changes_of(asked).offset = Progress({"at": 1}).to_offset()
    read: list[list[str]] = []

    def snapshot(*given: Any, again: bool, replacing: bool) -> None:
        read.append(given[-1])
        changes_of(asked).offset = Progress(
            {"at": 1}, dict.fromkeys(TABLES, SnapshotProgress(True, started_us=1))
        ).to_offset()

    monkeypatch.setattr(sync_stage, "snapshot", snapshot)
    monkeypatch.setattr(sync_stage, "capture", lambda *_: pytest.fail("nothing is to be captured"))
    monkeypatch.setattr(sync_stage, "merge_tables", lambda *_, force: [])
    monkeypatch.setattr(sync_stage, "build_result", lambda _, **parts: parts)
    sync_stage.sync(asked)
    sync_stage.sync(asked)
    assert read == [TABLES]
    with pytest.raises(ConfigurationError, match="initial_only"):
        application.STAGES["capture"](asked)


def test_only_included_tables_are_read_by_themselves() -> None:
    asked = run_with(mode="initial", include=[r"s\.b"])
    assert due_of(asked, Progress()) == ["s.b"]
    always = run_with(mode="always", include=[r"s\.b"])
    assert due_of(always, progress(always)) == ["s.b"]


@pytest.mark.parametrize(
    "snapshot",
    [
        {"mode": "never", "on_lost_position": "snapshot"},
        {"mode": "never", "on_lost_position": "fail_once"},
        {"mode": "when_needed", "on_lost_position": "fail"},
        {"mode": "when_needed", "on_lost_position": "continue"},
    ],
)
def test_choices_that_contradict_each_other_are_refused(snapshot: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="snapshot"):
        run_with(**snapshot)


@pytest.mark.covers("MDB-GRD-01", "MDB-GRD-02")
@pytest.mark.parametrize(("limit", "action", "warnings"), [(0, "fail", 0), (2, "fail", 0), (1, "warn", 1)])
def test_a_guardrail_warns_of_too_many_tables(
    limit: int, action: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    asked = guarded(limit, action)
    with caplog.at_level(logging.WARNING):
        require_within_guardrail(asked.job.connector, asked.stores.changes, asked.source)
    assert caplog.text.count("2 tables are captured, and guardrail.max_tables is 1") == warnings


def guarded(limit: int, action: str) -> Run:
    connector = Connector.from_dict(
        {
            "name": "shop",
            "source": {"type": "mongodb"},
            "guardrail": {"max_tables": limit, "action": action},
        }
    )
    return run_of(connector, changes=Changes(), source=Holes())


@pytest.mark.covers("MDB-GRD-01", "MDB-GRD-02")
@pytest.mark.parametrize("stage", ["sync", "capture", "stream", "snapshot"])
def test_a_guardrail_stops_a_run_before_it_captures_anything(stage: Any) -> None:
    with pytest.raises(ConfigurationError, match="2 tables are captured"):
        application.STAGES[stage](guarded(1, "fail"))
