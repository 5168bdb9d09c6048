"""A landing folder never shows half a segment, and nothing unread is cleared away."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.hooks.cdc_raw import read_index
from airflow_cdc_provider.operators import segment_transfer
from airflow_cdc_provider.operators.segment_transfer import Transfer
from airflow_cdc_provider.operators.transfer import CommitLogTransferOperator
from tests.unit.airflow_context import TaskContext

HOST = "host-1"
DECLARATION: dict[str, Any] = {"name": "shop", "source": {"type": "cassandra", "conn_id": "cassandra_shop"}}


class Node:
    """A node's cdc_raw, and where its segments go."""

    def __init__(self, root: Path) -> None:
        self.cdc_raw = root / "cdc_raw"
        self.landing = root / "landing" / HOST
        self.archive = root / "archive" / HOST
        self.cdc_raw.mkdir()

    def writes(self, number: int, data: bytes, *, end: int | None, completed: bool = False) -> None:
        (self.cdc_raw / f"CommitLog-7-{number}.log").write_bytes(data)
        if end is not None:
            idx = self.cdc_raw / f"CommitLog-7-{number}_cdc.idx"
            idx.write_text(f"{end}\nCOMPLETED" if completed else str(end))

    def transfer(self, **arguments: Any) -> Transfer:
        return Transfer(self.cdc_raw, self.landing, HOST, archive=self.archive, **arguments)

    def landed(self) -> dict[str, bytes]:
        return _files(self.landing)


def _files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.glob("CommitLog*"))} if folder.exists() else {}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def captured(segment: int, *, completed: bool = False) -> dict[str, Any]:
    """Return the offset after all earlier segments and the first 100 bytes, or all, of this one."""
    if completed:
        return {HOST: {"v": 1, "floor": segment}}
    return {HOST: {"v": 1, "floor": segment - 1, "open": {str(segment): 100}}}


def test_growing_segments_are_brought_again_and_unchanged_ones_are_not(node: Node) -> None:
    node.writes(1, b"a" * 100, end=100, completed=True)
    node.writes(2, b"b" * 50, end=50)
    node.writes(3, b"c" * 10, end=None)
    assert vars(node.transfer().run())["copied"] == 2
    node.writes(2, b"b" * 80, end=80)

    counts = node.transfer().run()

    assert (counts.copied, counts.copied_bytes, counts.unchanged) == (1, 80, 1)
    landed = node.landed()
    assert landed["CommitLog-7-2.log"] == b"b" * 80
    assert landed["CommitLog-7-2_cdc.idx"] == b"80"
    assert not any("-3" in name for name in landed), "a segment without durable changes stays where it is"


@pytest.mark.covers("CAS-LIFE-01")
def test_finished_segments_leave_cdc_raw_once_their_copy_stands(node: Node) -> None:
    node.writes(1, b"a" * 100, end=100, completed=True)
    node.writes(2, b"b" * 50, end=50)
    node.transfer(after_transfer="delete").run()
    assert sorted(_files(node.cdc_raw)) == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]
    assert "CommitLog-7-1.log" in node.landed()


@pytest.mark.covers("CAS-LIFE-01")
@pytest.mark.parametrize("after_commit", ["keep", "delete", "archive"])
def test_only_what_was_captured_to_its_end_is_cleared_away(node: Node, after_commit: Any) -> None:
    for number in (1, 2):
        node.writes(number, bytes([number]) * 100, end=100, completed=True)
    node.writes(3, b"3" * 100, end=100)
    node.transfer().run()

    node.transfer(after_commit=after_commit, offset=captured(3)).run()

    kept = {"CommitLog-7-3.log", "CommitLog-7-3_cdc.idx"}
    gone = {f"CommitLog-7-{n}{end}" for n in (1, 2) for end in (".log", "_cdc.idx")}
    everywhere = kept if after_commit != "keep" else kept | gone
    assert set(node.landed()) == everywhere
    assert set(_files(node.cdc_raw)) == everywhere
    assert set(_files(node.archive)) == (gone if after_commit == "archive" else set())


def test_the_segment_being_read_stays_even_when_the_node_has_finished_it(node: Node) -> None:
    node.writes(1, b"a" * 100, end=100, completed=True)
    node.transfer().run()
    node.transfer(after_commit="delete", offset=captured(1)).run()
    assert "CommitLog-7-1.log" in node.landed()
    node.transfer(after_commit="delete", offset=captured(1, completed=True)).run()
    assert node.landed() == {}


def test_a_segment_that_comes_back_after_a_crash_is_not_brought_again(node: Node) -> None:
    node.writes(1, b"a" * 100, end=33554432, completed=True)
    counts = node.transfer(after_commit="delete", offset=captured(2)).run()
    assert (counts.copied, counts.deleted) == (0, 1)
    assert _files(node.cdc_raw) == {}


def test_nothing_is_cleared_away_without_an_offset(node: Node) -> None:
    node.writes(1, b"a" * 100, end=100, completed=True)
    node.transfer(after_commit="delete", offset=None).run()
    assert "CommitLog-7-1.log" in node.landed()


class Killed(BaseException):
    """Stands for SIGKILL at a given step."""


@pytest.mark.covers("CAS-FAULT-05")
@pytest.mark.parametrize("steps", range(12))
def test_killed_at_any_step_the_next_run_makes_it_good(
    node: Node, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.writes(1, b"old" * 10, end=30)
    node.transfer().run()
    node.writes(1, b"old" * 10 + b"new" * 10, end=60, completed=True)
    node.writes(2, b"b" * 50, end=50, completed=True)
    _kill_after(steps, monkeypatch)
    with contextlib.suppress(Killed):
        node.transfer(after_transfer="delete").run()
    monkeypatch.undo()
    _assert_no_idx_ahead(node)

    node.transfer(after_transfer="delete").run()

    landed = node.landed()
    assert landed["CommitLog-7-1.log"] == b"old" * 10 + b"new" * 10
    assert landed["CommitLog-7-1_cdc.idx"] == b"60\nCOMPLETED"
    assert landed["CommitLog-7-2.log"] == b"b" * 50
    assert not list(node.landing.glob("*.part"))
    assert not _files(node.cdc_raw), "cdc_raw is freed also after a kill between idx and segment"


def _kill_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = steps

    def counted(real: Any) -> Any:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*arguments, **named)

        return step

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))


def _assert_no_idx_ahead(node: Node) -> None:
    for idx in node.landing.glob("*_cdc.idx"):
        index = read_index(idx)
        assert index is not None
        log = idx.with_name(idx.name.replace("_cdc.idx", ".log"))
        assert log.stat().st_size >= index.end


def test_a_reader_never_sees_an_idx_ahead_of_its_data(node: Node) -> None:
    stop = threading.Event()
    wrong: list[tuple[int, int]] = []
    idx, log = node.landing / "CommitLog-7-1_cdc.idx", node.landing / "CommitLog-7-1.log"

    def read() -> None:
        while not stop.is_set():
            index = read_index(idx, patience_seconds=0)
            if index is not None and (size := log.stat().st_size) < index.end:
                wrong.append((index.end, size))

    reader = threading.Thread(target=read)
    reader.start()
    for size in range(1000, 60_000, 1000):
        node.writes(1, b"x" * size, end=size)
        node.transfer().run()
    stop.set()
    reader.join()
    assert wrong == []


def test_two_transfers_of_a_node_do_not_run_at_once(node: Node) -> None:
    node.landing.mkdir(parents=True)
    with segment_transfer._alone(node.landing), pytest.raises(TransientError, match="another transfer"):
        node.transfer().run()


@pytest.mark.covers("CAS-LIFE-01")
def test_operator_reads_the_offset_from_state_and_reports(node: Node, tmp_path: Path) -> None:
    from airflow_cdc_provider.assets import changes_asset

    node.writes(1, b"a" * 100, end=100, completed=True)
    node.writes(2, b"b" * 50, end=50)
    operator = CommitLogTransferOperator(
        task_id="transfer",
        connector=DECLARATION,
        cdc_raw=str(node.cdc_raw),
        host_id=HOST,
        landing=str(tmp_path / "landing"),
    )
    context = TaskContext()
    assert operator.execute(context)["copied"] == 2
    context.assets[changes_asset("shop")].set("offset", {"source": "cassandra", "offset": captured(2)})
    assert operator.execute(context)["deleted"] == 1
    assert sorted(node.landed()) == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"after_commit": "burn"}, "option after_commit is wrong: expected one of keep, delete, archive"),
        ({"landing": None}, "the landing folder is not known"),
        ({"cdc_raw": "/nowhere"}, "can't be read"),
        ({"after_commit": "archive"}, "the archive folder is not known"),
    ],
)
def test_a_wrong_argument_is_told(node: Node, tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    good = {"cdc_raw": str(node.cdc_raw), "landing": str(tmp_path / "landing")}
    operator = CommitLogTransferOperator(
        task_id="transfer", connector=DECLARATION, host_id=HOST, **{**good, **arguments}
    )
    with pytest.raises(AirflowFailException, match=text):
        operator.execute(TaskContext())
