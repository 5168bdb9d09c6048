"""Segments that were deleted unread: which are reported, and the offset after them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.sources.cassandra.capture import LogFolder
from airflow_cdc_provider.sources.cassandra.gaps import find_gaps
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.position import NodeOffset, write_offset
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from server_kit.ports import free_port

SIZE = 1000


def put(folder: Path, *segments: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        (folder / f"CommitLog-7-{segment}.log").write_bytes(bytes(SIZE))
        (folder / f"CommitLog-7-{segment}_cdc.idx").write_text("900\nCOMPLETED")


def gaps(
    folder: Path, node: NodeOffset, cap: int | None = None, *, landing: bool = False
) -> tuple[list[str], NodeOffset]:
    log = LogFolder(str(folder), "" if landing else "host")
    found, after = find_gaps(log, write_offset({"host": node}), lambda _: cap)
    return found, NodeOffset.from_json(after["host"])


@pytest.mark.covers("CAS-C41-01")
def test_a_segment_deleted_after_a_partial_read_is_reported_once(tmp_path: Path) -> None:
    put(tmp_path, 12, 13)
    found, after = gaps(tmp_path, NodeOffset(floor=9, open={10: 300}))
    assert found == [
        "segment 10 of node host was deleted before it was read completely",
        "segments 11 to 11 of node host were deleted unread, if they held changes",
    ]
    assert gaps(tmp_path, after, 0) == gaps(tmp_path, after, 3 * SIZE) == ([], after)
    assert after.position(12) == 0, "what is there is still to be read"


def test_a_node_without_any_later_segment_is_no_gap(tmp_path: Path) -> None:
    node = NodeOffset(floor=9, open={10: 300})
    (tmp_path / "host").mkdir()
    assert gaps(tmp_path, node, landing=True) == ([], node), "it may just not be mounted"
    put(tmp_path / "host", 9)
    assert gaps(tmp_path, node, landing=True) == ([], node), "it may come back"


@pytest.mark.covers("CAS-C41-01")
def test_segments_deleted_unread_are_reported_only_if_a_node_deletes_them_to_free_space(
    tmp_path: Path,
) -> None:
    put(tmp_path, 12, 13)
    node, full, roomy = NodeOffset(floor=9), 3 * SIZE, 5 * SIZE
    found, after = gaps(tmp_path, node, full)
    assert found == ["segments 10 to 11 of node host were deleted unread, if they held changes"]
    assert gaps(tmp_path, after, full) == ([], after)

    assert gaps(tmp_path, node, None)[0] == [], "it refuses writes, and drops nothing"
    assert gaps(tmp_path, node, roomy)[0] == [], "it had no need to"
    put(tmp_path, 9)
    assert gaps(tmp_path, node, full)[0] == [], "an older one is there, and the oldest go first"


def test_ids_missing_in_a_landing_area_are_no_gap(tmp_path: Path) -> None:
    put(tmp_path / "host", 12, 13)
    node = NodeOffset(floor=9)
    assert gaps(tmp_path, node, SIZE, landing=True) == ([], node)


@pytest.mark.covers("CAS-C41-01")
def test_segments_that_a_transfer_recorded_as_dropped_are_a_gap(tmp_path: Path) -> None:
    put(tmp_path / "host", 12)
    errors = tmp_path / "errors" / "host"
    errors.mkdir(parents=True)
    for segment, lost in ((8, True), (10, True), (11, False)):
        note = {"segment": f"CommitLog-7-{segment}.log", "lost": lost}
        (errors / f"CommitLog-7-{segment}.log.reason.json").write_text(json.dumps(note))
    found, after = gaps(tmp_path, NodeOffset(floor=9), landing=True)
    assert found == ["segment 10 of node host was deleted before it was read completely"]
    assert gaps(tmp_path, after, landing=True)[0] == []


def test_segments_lost_before_the_first_batch_are_never_a_gap(tmp_path: Path) -> None:
    """The snapshots of a new connector, or of one that was reset, have it."""
    put(tmp_path / "host", 12)
    errors = tmp_path / "errors" / "host"
    errors.mkdir(parents=True)
    (errors / "CommitLog-7-10.log.reason.json").write_text('{"lost": true}')
    (errors / "CommitLog-7-11.log.reason.json").write_text("{")
    log = LogFolder(str(tmp_path), "")
    found, after = find_gaps(log, None, lambda _: None)
    assert (found, NodeOffset.from_json(after["host"]).position(12)) == ([], 0)
    assert find_gaps(log, after, lambda _: None) == ([], after)
    assert find_gaps(LogFolder(str(tmp_path / "host"), "host"), None, lambda _: None) == ([], {})


def test_segments_read_without_an_index_file_may_go(tmp_path: Path) -> None:
    """They had no CDC data, and the node removes them; except for a node that deletes unread segments."""
    put(tmp_path, 11, 12)
    log = LogFolder(str(tmp_path), "host", beyond_index=True)
    offset = write_offset({"host": NodeOffset(floor=9, open={10: 300})})
    found, after = find_gaps(log, offset, lambda _: None)
    assert (found, find_gaps(log, after, lambda _: 0)) == ([], ([], after))
    assert find_gaps(log, offset, lambda _: 0)[0]


@pytest.mark.covers("CAS-C41-01")
def test_a_loss_makes_each_tables_snapshot_due_until_a_later_one_began() -> None:
    taken = SnapshotProgress(True, started_us=100)
    progress = Progress({}, {"k.a": taken}).with_loss(["k.a", "k.b"], 200, "segment 10")
    again = Progress.from_offset(json.loads(json.dumps(progress.to_offset())))
    assert [again.snapshots[name].outdated for name in ("k.a", "k.b")] == [True, True]
    assert again.snapshots["k.a"].lost == "segment 10"
    assert not SnapshotProgress(True, started_us=201, lost_us=200).outdated
    assert not taken.outdated


def test_gaps_require_a_node_that_returns_its_settings(tmp_path: Path) -> None:
    """Otherwise a loss would be missed, or tables snapshotted unnecessarily."""
    put(tmp_path, 12, 13)
    options = CassandraOptions(cdc_raw=str(tmp_path), node="host")
    offset = write_offset({"host": NodeOffset(floor=9)})
    nowhere = CassandraSource(options, {"host": "127.0.0.1", "port": free_port()}, lambda _: True)
    with pytest.raises(TransientError, match=r"segments of node host are missing, and no node responds"):
        nowhere.gaps(offset)
    without = CassandraSource(options, {}, lambda _: True)
    assert without.gaps(offset) == ([], offset), "offline there are no gaps"
