"""A landing folder never shows half a segment, and nothing unread is cleared away."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.transfer import stores
from airflow_cdc_provider.transfer.disposal import CommitLogTransfer, load_transfer
from airflow_cdc_provider.transfer.errors import reports_loss
from airflow_cdc_provider.transfer.layout import Vanished
from airflow_cdc_provider.transfer.pace import Pace
from airflow_cdc_provider.transfer.segments import Segment
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.transfer import Transfer
from airflow_cdc_provider.transfer.whole import WholeSegments
from tests.unit.transfer.nodes import HOST, Node, assert_nothing_half, files, noise, whole


class Site:
    """A node and where its segments go."""

    def __init__(self, root: Path, **how: Any) -> None:
        self.node = Node(root / "cdc_raw", **how)
        self.landing = root / "landing" / HOST
        self.archive = root / "archive" / HOST
        self.errors = root / "landing" / "errors" / HOST

    def transfer(self, **arguments: Any) -> Transfer:
        return Transfer(
            self.node.segments,
            whole(self.landing),
            archive=whole(self.archive),
            errors=whole(self.errors),
            **arguments,
        )

    def landed(self) -> dict[str, bytes]:
        return files(self.landing)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def up_to(last: int) -> Callable[[Segment], bool]:
    """Return that all segments up to a number were captured."""
    return lambda segment: segment.id <= last


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("capacity_bytes", [0, 20_000])
def test_of_a_growing_segment_the_durable_sections_travel(
    tmp_path: Path, compressed: bool, capacity_bytes: int
) -> None:
    site = Site(tmp_path, compressed=compressed, capacity_bytes=capacity_bytes)
    for number in range(3):
        site.node.grows(1, noise(500, number), ahead=noise(300))
        counts = site.transfer().run()
        assert (counts.copied, counts.unchanged) == (1, 0)
        assert site.landed()["CommitLog-7-1.log"] == site.node.durable(1)
    site.node.finishes(1, noise(100))
    site.transfer().run()
    assert site.landed() == files(site.node.cdc_raw), "a finished one travels as a whole"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("finishes", [False, True])
@pytest.mark.parametrize("moment", range(3))
def test_a_segment_that_grows_while_it_is_listed_is_not_cut_short(
    tmp_path: Path, compressed: bool, finishes: bool, moment: int
) -> None:
    node, landing = Node(tmp_path / "cdc_raw", compressed=compressed), tmp_path / "landing"
    node.grows(1, noise(100))

    class Growing(FolderStore):
        """The node writes before the first, the second or the third look."""

        looks = 0

        def looked(self) -> None:
            if self.looks == moment:
                node.grows(1, noise(200, 1))
                if finishes:
                    node.finishes(1, noise(50))
            self.looks += 1

        def items(self) -> Any:
            self.looked()
            return super().items()

        def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
            self.looked()
            return super().read(name, begin, end)

    Transfer(WholeSegments(Growing(node.cdc_raw), HOST), whole(landing)).run()

    landed = files(landing)
    says, data = landed["CommitLog-7-1_cdc.idx"], landed["CommitLog-7-1.log"]
    if says == node.wrote["CommitLog-7-1_cdc.idx"]:
        assert data == node.durable(1)
    else:
        first = Node(tmp_path / "first", compressed=compressed)
        first.grows(1, noise(100))
        assert (data, says) == (first.durable(1), first.wrote["CommitLog-7-1_cdc.idx"])


def test_a_segment_shorter_than_its_idx_says_is_not_shown(site: Site) -> None:
    site.node.grows(1, noise(100))
    site.node.says(1, "129")
    assert site.transfer().run().errors == 1
    assert site.landed() == {}
    site.node.says(1, "128")
    assert site.transfer().run().copied == 1


def test_growing_segments_are_brought_again_and_unchanged_ones_are_not(site: Site) -> None:
    site.node.finishes(1, noise(1000))
    site.node.grows(2, noise(500))
    site.node.begins(3)
    assert site.transfer().run().copied == 2
    site.node.grows(2, noise(80))

    counts = site.transfer().run()

    assert (counts.copied, counts.copied_bytes, counts.unchanged) == (1, 88, 1), "only what is new travels"
    assert not any("-3" in name for name in site.landed()), "a segment without changes stays where it is"


def test_segments_of_cassandra_3_arrive_whole_and_need_no_idx(site: Site) -> None:
    from tests.unit.sources.cassandra.commit_logs import header

    log = site.node.cdc_raw / "CommitLog-6-1.log"
    log.write_bytes(header(1, 6) + noise(100))
    data = log.read_bytes()
    assert site.transfer(after_transfer="delete").run().deleted == 1
    assert site.landed() == {"CommitLog-6-1.log": data}
    assert files(site.node.cdc_raw) == {}


@pytest.mark.covers("CAS-LIFE-01")
def test_finished_segments_leave_cdc_raw_once_their_copy_stands(site: Site) -> None:
    site.node.finishes(1, noise(100))
    site.node.grows(2, noise(100))
    site.transfer(after_transfer="delete").run()
    assert sorted(files(site.node.cdc_raw)) == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"]
    assert "CommitLog-7-1.log" in site.landed()


@pytest.mark.covers("CAS-LIFE-01", "CAS-CFG-12", "DSX-AGT-06")
@pytest.mark.parametrize("after_commit", ["keep", "delete", "archive"])
def test_only_what_was_captured_to_its_end_is_cleared_away(site: Site, after_commit: Any) -> None:
    for number in (1, 2):
        site.node.finishes(number, noise(100, number))
    site.node.grows(3, noise(100))
    everything = files(site.node.cdc_raw)
    site.transfer().run()

    site.transfer(after_commit=after_commit, is_captured=up_to(3)).run()

    kept = {"CommitLog-7-3.log", "CommitLog-7-3_cdc.idx"}
    gone = {f"CommitLog-7-{n}{end}" for n in (1, 2) for end in (".log", "_cdc.idx")}
    everywhere = kept if after_commit != "keep" else kept | gone
    assert set(site.landed()) == everywhere
    assert set(files(site.node.cdc_raw)) == everywhere
    archived = {name: everything[name] for name in gone} if after_commit == "archive" else {}
    assert files(site.archive) == archived


def test_the_segment_being_read_stays_even_when_the_node_has_finished_it(site: Site) -> None:
    site.node.finishes(1, noise(100))
    site.transfer().run()
    site.transfer(after_commit="delete", is_captured=up_to(0)).run()
    assert "CommitLog-7-1.log" in site.landed()
    site.transfer(after_commit="delete", is_captured=up_to(1)).run()
    assert site.landed() == {}


def test_a_segment_that_comes_back_after_a_crash_is_not_brought_again(site: Site) -> None:
    site.node.finishes(1, noise(100))
    site.node.says(1, "33554432\nCOMPLETED")
    counts = site.transfer(after_commit="delete", is_captured=up_to(1)).run()
    assert (counts.copied, counts.deleted) == (0, 1)
    assert files(site.node.cdc_raw) == {}


def test_nothing_is_cleared_away_when_nothing_was_captured(site: Site) -> None:
    site.node.finishes(1, noise(100))
    site.transfer(after_commit="delete").run()
    assert "CommitLog-7-1.log" in site.landed()


class Killed(BaseException):
    """Stands for SIGKILL at a given step."""


STEPS: Final = 24
"""How many calls that change the disk bring two finished segments and free their folder."""


@pytest.mark.covers("CAS-FAULT-05")
@pytest.mark.parametrize("steps", range(STEPS))
def test_killed_at_any_step_the_next_run_makes_it_good(
    site: Site, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node.grows(1, noise(30))
    site.transfer().run()
    site.node.finishes(1, noise(30, 1))
    site.node.finishes(2, noise(50))
    truth = files(site.node.cdc_raw)
    with monkeypatch.context() as killing:
        _kill_after(steps, killing)
        with pytest.raises(Killed):
            site.transfer(after_transfer="delete").run()
    assert_nothing_half(site.landing, truth)

    site.transfer(after_transfer="delete").run()

    assert site.landed() == truth
    assert not list(site.landing.glob(".*.part"))
    assert not files(site.node.cdc_raw), "cdc_raw is freed also after a kill between idx and segment"


def test_a_transfer_has_no_further_step_at_which_it_could_be_killed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node.grows(1, noise(30))
    site.transfer().run()
    site.node.finishes(1, noise(30, 1))
    site.node.finishes(2, noise(50))
    _kill_after(STEPS, monkeypatch)

    site.transfer(after_transfer="delete").run()


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
    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(os, "unlink", counted(os.unlink))


def test_a_reader_never_sees_an_idx_ahead_of_its_data(site: Site) -> None:
    stop = threading.Event()
    wrong: list[tuple[int, int]] = []
    ends: set[int] = set()
    idx, log = site.landing / "CommitLog-7-1_cdc.idx", site.landing / "CommitLog-7-1.log"

    def read() -> None:
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError):
                end = int(idx.read_text())
                if (size := log.stat().st_size) < end:
                    wrong.append((end, size))
                ends.add(end)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(60):
        site.node.grows(1, noise(1000))
        site.transfer().run()
    stop.set()
    reader.join()
    assert wrong == []
    assert len(ends) > 1, "it read while the segment grew"


def test_two_transfers_of_a_node_do_not_run_at_once(site: Site) -> None:
    target = FolderStore(site.landing)
    with target.exclusive(), pytest.raises(TransientError, match="another transfer"):
        site.transfer().run()


class Spoiling(FolderStore):
    """A folder on a disk that changes a byte of what is written."""

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        for piece in super().read(name, begin, end):
            yield bytes([piece[0] ^ 1]) + piece[1:] if name.endswith(stores.PARTIAL) else piece


def test_a_copy_that_reads_back_differently_is_not_shown(site: Site) -> None:
    site.node.finishes(1, noise(100))
    target = WholeSegments(Spoiling(site.landing), HOST)
    counts = Transfer(site.node.segments, target, after_transfer="delete").run()
    assert (counts.copied, counts.errors) == (0, 1)
    assert site.landed() == {}
    assert "CommitLog-7-1.log" in files(site.node.cdc_raw)


@pytest.mark.covers("CAS-CFG-15", "DSX-AGT-06")
def test_a_segment_that_can_not_be_copied_is_quarantined_with_its_reason_and_can_be_run_again(
    site: Site,
) -> None:
    for number in (1, 2, 3):
        site.node.finishes(number, noise(100, number))
    site.node.breaks(2)
    broken = site.node.log(2).read_bytes()

    counts = site.transfer(after_transfer="delete").run()

    assert (counts.copied, counts.errors) == (2, 1), "it doesn't keep the others"
    assert "CommitLog-7-2.log" not in site.landed()
    assert files(site.node.cdc_raw) == {}, "nor does it fill cdc_raw"
    assert files(site.errors)["CommitLog-7-2.log"] == broken
    reason = json.loads((site.errors / "CommitLog-7-2.log.reason.json").read_text())
    assert "header of CommitLog-7-2.log is corrupt" in reason["reason"]
    assert site.transfer().run().errors == 0, "it was reported once"

    site.transfer(retry_errors=True).run()

    assert site.landed()["CommitLog-7-2.log"] == broken, "now capture reads what is sound of it"
    assert list(site.errors.glob("CommitLog*")) == []


def test_a_segment_quarantined_is_not_copied_again_to_be_removed_unread(site: Site) -> None:
    site.node.finishes(1, noise(100))
    site.node.breaks(1)
    site.transfer(after_transfer="delete").run()
    quarantined = files(site.errors)
    assert "CommitLog-7-1.log" in quarantined

    site.transfer(retry_errors=True, after_commit="delete", is_captured=up_to(1)).run()

    assert files(site.errors) == quarantined, "the offset's floor lies above it, so capture would not read it"
    site.transfer(retry_errors=True, after_commit="delete").run()
    assert "CommitLog-7-1.log" in site.landed(), "set back, it does"


def test_a_segment_that_the_node_drops_before_it_was_completely_copied_is_reported_as_lost(
    site: Site,
) -> None:
    site.node.grows(1, noise(100))
    site.transfer().run()
    stump = site.landed()
    site.node.begins(2)
    assert site.transfer().run().lost == 0
    site.node.grows(1, noise(100))
    site.node.log(1).unlink()
    site.node.log(1).with_name("CommitLog-7-1_cdc.idx").unlink()

    counts = site.transfer().run()

    assert counts.lost == 1
    assert site.landed() == {}, "capture finds it gone, and says so"
    assert files(site.errors).items() >= stump.items()
    assert "cdc_block_writes" in (site.errors / "CommitLog-7-1.log.reason.json").read_text()
    assert site.transfer().run().lost == 0, "it was reported once"

    assert site.transfer(retry_errors=True).run().lost == 0
    assert site.landed()["CommitLog-7-1.log"] == stump["CommitLog-7-1.log"]
    assert site.landed()["CommitLog-7-1_cdc.idx"] == b"128\nCOMPLETED", "capture reads what there is of it"
    assert reports_loss(FolderStore(site.errors), "CommitLog-7-1.log"), "so that new snapshots are taken"


@pytest.mark.parametrize("last_step", ["WholeSegments.bring", "Transfer._note"])
def test_a_transfer_killed_while_it_gives_a_segment_up_does_not_hide_the_loss(
    site: Site, monkeypatch: pytest.MonkeyPatch, last_step: str
) -> None:
    site.node.grows(1, noise(100))
    site.transfer().run()
    site.node.log(1).unlink()
    site.node.log(1).with_name("CommitLog-7-1_cdc.idx").unlink()
    site.node.begins(2)
    cls, _, method = last_step.partition(".")
    owner = {"WholeSegments": WholeSegments, "Transfer": Transfer}[cls]
    real = getattr(owner, method)

    def killed(*arguments: Any) -> Any:
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, killed)
        with pytest.raises(KeyboardInterrupt):
            site.transfer().run()

    assert site.transfer().run().lost == 1
    assert site.landed() == {}
    assert site.transfer().run().lost == 0, "once it was reported"


def test_a_segment_that_may_not_be_read_is_reported_with_a_remedy(site: Site) -> None:
    site.node.finishes(1, noise(100))

    class Closed(FolderStore):
        def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
            if name.endswith(".log"):
                raise PermissionError(13, "Permission denied", name)
            return super().read(name, begin, end)

    with pytest.raises(ConfigurationError, match=r"CommitLog-7-1.log can't be read.*umask"):
        Transfer(WholeSegments(Closed(site.node.cdc_raw), HOST), whole(site.landing)).run()


class Counting(CommitLogTransfer):
    """Records its calls; fails on some segments."""

    def __init__(self, fails_on: str = "") -> None:
        self.fails_on = fails_on
        self.calls: list[tuple[str, str]] = []

    def on_success(self, log: Path, index: Path | None) -> None:
        assert index is not None
        assert index.read_text().endswith("COMPLETED")
        if log.name == self.fails_on:
            raise ConnectionError("cold storage is closed")
        self.calls.append((log.name, "success"))

    def on_error(self, log: Path | None, reason: str) -> None:
        assert log is not None
        self.calls.append((log.name, reason))


@pytest.mark.covers("CAS-LIFE-03", "CAS-CFG-14")
def test_a_custom_class_receives_captured_segments_and_errors(site: Site) -> None:
    for number in (1, 2, 3):
        site.node.finishes(number, noise(100, number))
    site.node.breaks(3)
    own = Counting(fails_on="CommitLog-7-2.log")
    site.transfer(transfer_class=own, after_transfer="delete").run()
    ((name, reason),) = own.calls
    assert (name, "is corrupt" in reason) == ("CommitLog-7-3.log", True)

    counts = site.transfer(transfer_class=own, after_commit="delete", is_captured=up_to(3)).run()

    assert own.calls[1:] == [("CommitLog-7-1.log", "success")]
    assert (counts.deleted, counts.failed) == (1, 1)
    assert sorted(site.landed()) == ["CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"], "it is offered again"


def test_a_class_that_fails_on_an_error_does_not_keep_the_others(site: Site) -> None:
    class Deaf(CommitLogTransfer):
        def on_error(self, log: Path | None, reason: str) -> None:
            raise ConnectionError("the pager is broken")

    for number in (1, 2, 3):
        site.node.finishes(number, noise(100, number))
    site.node.breaks(1)

    counts = site.transfer(transfer_class=Deaf(), after_transfer="delete").run()

    assert (counts.copied, counts.errors, counts.failed) == (2, 1, 1)
    assert files(site.node.cdc_raw) == {}
    assert "CommitLog-7-1.log" in files(site.errors)


def test_a_class_is_loaded_by_its_dotted_path() -> None:
    path = f"{__name__}.Counting"
    own = load_transfer(path, {"fails_on": "x"})
    assert isinstance(own, Counting)
    assert own.fails_on == "x"


@pytest.mark.parametrize(
    ("path", "options", "text"),
    [
        ("nowhere.Class", {}, "can't be imported"),
        (f"{__name__}.Nothing", {}, "can't be imported"),
        (f"{__name__}.Site", {}, "has the wrong type"),
        (f"{__name__}.Counting", {"colour": 1}, "doesn't accept its transfer_options"),
    ],
)
def test_a_class_that_can_not_be_used_is_reported(path: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        load_transfer(path, options)


class Failing(WholeSegments):
    """A source that fails or loses a segment, and counts how many are read at once."""

    def __init__(self, node: Node, fails: dict[int, Exception]) -> None:
        super().__init__(FolderStore(node.cdc_raw), HOST)
        self.fails = fails
        self.at_once = self.most_at_once = 0

    def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(0.01)
            if segment.id in self.fails:
                raise self.fails[segment.id]
            yield from super().read(segment, begin, end)
        finally:
            self.at_once -= 1


@pytest.mark.covers("DSX-AGT-07")
def test_one_segment_that_fails_does_not_keep_the_others_and_is_tried_again(site: Site) -> None:
    for number in range(1, 9):
        site.node.finishes(number, noise(100, number))
    source = Failing(site.node, {3: TransientError("the network is down"), 5: Vanished("gone")})
    counts = Transfer(source, whole(site.landing), parallel=4).run()
    assert (counts.copied, counts.failed, counts.vanished) == (6, 1, 1)
    assert 2 <= source.most_at_once <= 4

    source.fails = {}
    counts = Transfer(source, whole(site.landing), parallel=4).run()

    assert (counts.copied, counts.unchanged, source.at_once) == (2, 6, 0)
    assert site.landed() == files(site.node.cdc_raw)


def test_a_segment_that_vanishes_half_way_leaves_nothing(site: Site) -> None:
    site.node.finishes(1, noise(100))

    class Vanishing(WholeSegments):
        def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
            if end - begin > 50:
                yield b"half of it"
                raise Vanished(segment.name)
            yield from super().read(segment, begin, end)

    counts = Transfer(Vanishing(FolderStore(site.node.cdc_raw), HOST), whole(site.landing)).run()
    assert (counts.copied, counts.vanished) == (0, 1)
    assert list(site.landing.glob("*.log")) == []


def test_a_segment_that_ends_early_is_not_shown(site: Site) -> None:
    site.node.grows(1, noise(100))

    class Short(WholeSegments):
        def read(self, segment: Segment, begin: int, end: int) -> Iterator[bytes]:
            yield b"".join(super().read(segment, begin, end))[: 60 - begin]

    with pytest.raises(CorruptInput, match="ends early: expected 128 bytes, found 60"):
        (segment,) = site.node.segments.segments()
        source = Short(FolderStore(site.node.cdc_raw), HOST)
        whole(site.landing).bring(segment, source, source.durable_bytes(segment), Pace())
    assert site.landed() == {}


def test_bandwidth_is_limited_over_all_threads_and_progress_is_reported(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("airflow_cdc_provider.transfer.pace._REPORT_EVERY_SECONDS", 0.05)
    for number in range(1, 21):
        site.node.finishes(number, noise(10_000, number))
    lines: list[str] = []
    began = time.monotonic()
    site.transfer(pace=Pace(400_000, lines.append), parallel=4).run()
    assert time.monotonic() - began > 0.45, "200 kB at 400 kB/s"
    assert lines
    assert all("of 20 segments" in line and "MiB/s" in line for line in lines)
