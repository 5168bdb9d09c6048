"""Planning: what is read, up to where, and what is lost."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.sources.cassandra.capture import (
    LogFolder,
    SegmentSlice,
    earliest,
    head,
    lag,
    plan_segments,
)
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.position import read_offset
from airflow_cdc_provider.sources.cassandra.reader import read_segments
from airflow_cdc_provider.sources.contract import Offset, ReadLimit
from tests.unit.sources.cassandra.commit_logs import (
    HEADER_BYTES,
    put_index,
    put_segment,
    segment,
)
from tests.unit.sources.cassandra.numbered_writes import EVERYTHING, TABLES, keys, sections_of
from tests.unit.sources.cassandra.recordings import places, read_all
from tests.unit.sources.cassandra.updates import PLAIN

HOST = "host-a"


def ends_of(data_sections: Sequence[Sequence[bytes]]) -> list[int]:
    """Where each section ends in a plain segment."""
    at, found = HEADER_BYTES, []
    for mutations in data_sections:
        at += 8 + sum(len(m) + 12 for m in mutations)
        found.append(at)
    return found


@pytest.fixture
def log(tmp_path: Path) -> LogFolder:
    return LogFolder(str(tmp_path), HOST)


def put(log: LogFolder, number: int, sections: Sequence[Sequence[bytes]], **options: object) -> Path:
    data = segment(number, sections, size=8192)
    return put_segment(Path(log.path), number, data, **options)  # type: ignore[arg-type]


@pytest.mark.covers("CAS-D3X-06")
def test_all_segments_are_read_in_order_and_then_no_more(log: LogFolder) -> None:
    for number in (3, 1, 2):
        put(log, number, sections_of(10 * number, 2, 1))
    parts = plan_segments(log, None, head(log), EVERYTHING).partitions
    by_segment = [[number // 10 for number in _read([part])] for part in parts]
    assert sorted(by_segment) == [[1, 1, 1], [2, 2, 2], [3, 3, 3]], "work is parted by segment"
    records, offset = read_all(log, TABLES)
    assert keys(records) == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert offset == head(log) == {HOST: {"v": 1, "floor": 0, "done": [[1, 3]], "open": {}}}
    assert keys(read_all(log, TABLES, offset)[0]) == []
    assert lag(log, offset).bytes == 0
    assert lag(log, offset).seconds == 0.0


def test_earliest_offset_comes_before_everything(log: LogFolder) -> None:
    put(log, 5, sections_of(0, 3))
    assert earliest(log) == {HOST: {"v": 1, "floor": 0, "done": [], "open": {}}}
    assert keys(read_all(log, TABLES, earliest(log))[0]) == [0, 1, 2]
    behind = lag(log, earliest(log))
    assert behind.bytes == 8192
    assert behind.seconds is not None
    assert 0 <= behind.seconds < 60
    assert behind.details == {HOST: {"segments": 1, "bytes": 8192, "kept": 0}}


@pytest.mark.covers("CAS-READ-06", "CAS-D3X-02")
def test_growing_segment_is_read_only_up_to_its_index(log: LogFolder) -> None:
    sections = sections_of(0, 2, 2, 2)
    ends = ends_of(sections)
    put(log, 1, sections, end=ends[0], completed=False)
    first, offset = read_all(log, TABLES)
    assert keys(first) == [0, 1]
    assert offset[HOST]["open"] == {"1": ends[0]}

    put_index(Path(log.path), 1, str(ends[1]))
    second, offset = read_all(log, TABLES, offset)
    assert keys(second) == [2, 3]

    put_index(Path(log.path), 1, f"{ends[2]}\nCOMPLETED")
    third, offset = read_all(log, TABLES, offset)
    assert keys(third) == [4, 5]
    assert offset[HOST] == {"v": 1, "floor": 0, "done": [[1, 1]], "open": {}}


def test_index_truncated_in_a_number_reads_less_never_more(log: LogFolder) -> None:
    sections = sections_of(0, 2, 2)
    ends = ends_of(sections)
    put(log, 1, sections, end=ends[0] + 1, completed=False)
    assert keys(read_all(log, TABLES)[0]) == [0, 1]
    put_index(Path(log.path), 1, str(ends[1])[:1])
    assert keys(read_all(log, TABLES)[0]) == []


@pytest.mark.covers("CAS-C40-04", "CAS-C40-02")
def test_length_that_a_crash_leaves_in_the_index_is_neither_a_bound_nor_damage(log: LogFolder) -> None:
    sections = sections_of(0, 2, 2)
    put(log, 1, sections, end=ends_of(sections)[0], completed=False)
    _, offset = read_all(log, TABLES)
    put(log, 1, sections, end=8192)
    records, offset = read_all(log, TABLES, offset)
    assert keys(records) == [2, 3]
    assert set(records["kind"].to_pylist()) == {CHANGE}

    for path in Path(log.path).iterdir():
        path.unlink()
    put(log, 1, sections, end=8192)
    assert keys(read_all(log, TABLES, offset)[0]) == []


def test_segment_without_index_is_read_once_it_has_one(log: LogFolder) -> None:
    put(log, 1, sections_of(0, 1), completed=False)
    put(log, 2, sections_of(10, 1))
    records, offset = read_all(log, TABLES)
    assert keys(records) == [10]
    put_index(Path(log.path), 1, "8192\nCOMPLETED")
    assert keys(read_all(log, TABLES, offset)[0]) == [0]


@pytest.mark.covers("CAS-C40-03")
def test_segment_without_index_may_vanish(log: LogFolder) -> None:
    path = put(log, 1, sections_of(0, 1), completed=False)
    put(log, 2, sections_of(10, 1))
    _, offset = read_all(log, TABLES)
    path.unlink()
    assert keys(read_all(log, TABLES, offset)[0]) == []


@pytest.mark.covers("CAS-GAP-06")
def test_segment_that_never_completes_keeps_no_other_one_back(log: LogFolder) -> None:
    sections = sections_of(0, 1, 1)
    put(log, 1, sections, end=ends_of(sections)[0], completed=False)
    put(log, 2, sections_of(10, 1))
    records, offset = read_all(log, TABLES)
    assert keys(records) == [0, 10]
    put(log, 3, sections_of(20, 1))
    assert keys(read_all(log, TABLES, offset)[0]) == [20]


def test_reading_beyond_the_index_is_an_option(log: LogFolder) -> None:
    sections = sections_of(0, 1, 1)
    put(log, 1, sections, end=ends_of(sections)[0], completed=False)
    put(log, 2, sections_of(10, 1), completed=False)
    beyond = replace(log, beyond_index=True)
    records, offset = read_all(beyond, TABLES)
    assert keys(records) == [0, 1, 10]
    assert set(offset[HOST]["open"]) == {"1", "2"}


def test_newly_created_segment_is_all_zeros_and_has_no_changes_yet(log: LogFolder) -> None:
    put_segment(Path(log.path), 1, bytes(8192), end=0, completed=False)
    records, offset = read_all(log, TABLES)
    assert keys(records) == []
    assert offset[HOST]["open"] == {}


@pytest.mark.covers("CAS-C40-01")
def test_segments_of_cassandra_3_are_read_whole_in_whatever_order_they_arrive(log: LogFolder) -> None:
    folder = Path(log.path)
    put_segment(folder, 2, segment(2, sections_of(20, 2), version=6), completed=False, version=6)
    records, offset = read_all(log, TABLES)
    assert keys(records) == [20, 21]
    put_segment(folder, 1, segment(1, sections_of(10, 2), version=6), completed=False, version=6)
    records, offset = read_all(log, TABLES, offset)
    assert keys(records) == [10, 11]
    assert keys(read_all(log, TABLES, offset)[0]) == []


@pytest.mark.covers("CAS-D3X-04")
def test_each_node_has_its_own_position(tmp_path: Path) -> None:
    log = LogFolder(str(tmp_path))
    put_segment(tmp_path / "a", 1, segment(1, sections_of(0, 2)))
    put_segment(tmp_path / "b", 1, segment(1, sections_of(10, 2)))
    records, offset = read_all(log, TABLES)
    assert keys(records) == [0, 1, 10, 11]
    assert records["origin"].to_pylist() == ["a", "a", "b", "b"]
    put_segment(tmp_path / "b", 2, segment(2, sections_of(20, 1)))
    later, offset = read_all(log, TABLES, offset)
    assert keys(later) == [20]
    assert [value["done"] for value in offset.values()] == [[[1, 1]], [[1, 2]]]


def test_nodes_share_a_batch(tmp_path: Path) -> None:
    log = LogFolder(str(tmp_path))
    for node in ("a", "b"):
        put_segment(tmp_path / node, 1, segment(1, sections_of(0, *[1] * 10)))
    plan = plan_segments(log, None, head(log), ReadLimit(bytes=400))
    assert {part.origin for part in plan.partitions} == {"a", "b"}
    assert not plan.at_head


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=4),
    st.integers(1, 900),
)
def test_batches_of_any_size_read_each_change_once(
    tmp_path_factory: pytest.TempPathFactory, shape: list[list[int]], limit: int
) -> None:
    log = LogFolder(str(tmp_path_factory.mktemp("log")), HOST)
    number = 0
    expected: list[int] = []
    for segment_id, counts in enumerate(shape, start=1):
        put(log, segment_id, sections_of(number, *counts))
        expected += range(number, number + sum(counts))
        number += sum(counts)
    records, offset = read_all(log, TABLES, limit=ReadLimit(bytes=limit))
    assert keys(records) == expected
    assert offset == head(log)


def test_batch_stops_at_the_given_head(log: LogFolder) -> None:
    sections = sections_of(0, 2, 2)
    put(log, 1, sections, end=ends_of(sections)[0], completed=False)
    early = head(log)
    put_index(Path(log.path), 1, f"{ends_of(sections)[1]}\nCOMPLETED")
    put(log, 2, sections_of(10, 1))

    plan = plan_segments(log, None, early, EVERYTHING)

    assert plan.at_head
    assert plan.end == early
    assert len(_read(plan.partitions)) == 2


def test_large_segment_is_split_into_several_partitions(
    log: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_cdc_provider.sources.cassandra.capture._SLICE_BYTES", 300)
    put(log, 1, sections_of(0, *[2] * 12))
    parts = plan_segments(log, None, head(log), EVERYTHING).partitions
    assert len(parts) > 3
    assert _read(reversed(parts)) == list(range(24))
    assert _read(pickle.loads(pickle.dumps(parts))) == list(range(24))


def test_capture_resumes_from_a_position_inside_a_section(log: LogFolder) -> None:
    put(log, 1, sections_of(0, 3))
    records, _ = read_all(log, TABLES)
    second = Position.unpack(records["position"][1].as_py())
    offset = {HOST: {"v": 1, "floor": 0, "open": {"1": second.end}}}
    assert keys(read_all(log, TABLES, offset)[0]) == [2]


def test_segment_deleted_after_a_partial_read_is_a_lost_position(log: LogFolder) -> None:
    sections = sections_of(0, 1, 1)
    path = put(log, 1, sections, end=ends_of(sections)[0], completed=False)
    _, offset = read_all(log, TABLES)
    path.unlink()
    put(log, 2, sections_of(10, 1))
    with pytest.raises(PositionLost, match="segment 1 of node host-a"):
        plan_segments(log, offset, head(log), EVERYTHING)


def test_deleted_segment_of_the_head_is_a_lost_position(log: LogFolder) -> None:
    path = put(log, 1, sections_of(0, 1))
    put(log, 2, sections_of(10, 1))
    seen = head(log)
    path.unlink()
    with pytest.raises(PositionLost, match="segment 1"):
        plan_segments(log, None, seen, EVERYTHING)


def test_folder_that_vanished_is_remarked_on_until_its_node_is_forgotten(tmp_path: Path) -> None:
    nodes = LogFolder(str(tmp_path))
    sections = sections_of(0, 1, 1)
    ours, theirs = (LogFolder(str(tmp_path / name), name) for name in ("host-a", "host-b"))
    for folder in (ours, theirs):
        Path(folder.path).mkdir()
        put(folder, 1, sections, end=ends_of(sections)[0], completed=False)
    _, offset = read_all(nodes, TABLES)
    assert lag(nodes, offset).remarks == []

    shutil.rmtree(theirs.path)
    put(ours, 2, sections_of(10, 1))
    (remark,) = lag(nodes, offset).remarks
    assert "node host-b no longer has a folder" in remark
    with pytest.raises(PositionLost, match="offsets remove-origin"):
        plan_segments(nodes, offset, head(nodes), EVERYTHING)

    left = {name: value for name, value in offset.items() if name != "host-b"}
    assert lag(nodes, left).remarks == []
    assert keys(read_all(nodes, TABLES, left)[0]) == [10]


def test_empty_folder_is_of_a_node_whose_segments_were_all_removed(tmp_path: Path) -> None:
    nodes, host = LogFolder(str(tmp_path)), LogFolder(str(tmp_path / "host-a"), "host-a")
    Path(host.path).mkdir()
    path = put(host, 1, sections_of(0, 1))
    _, offset = read_all(nodes, TABLES)
    for file in path.parent.iterdir():
        file.unlink()

    assert lag(nodes, offset).remarks == []


@pytest.mark.covers("CAS-C40-03")
def test_segment_deleted_before_its_read_is_a_lost_position(log: LogFolder) -> None:
    path = put(log, 1, sections_of(0, 1))
    plan = plan_segments(log, None, head(log), EVERYTHING)
    path.unlink()
    with pytest.raises(PositionLost):
        _read(plan.partitions)


def test_segments_that_were_read_may_be_deleted(log: LogFolder) -> None:
    paths = [put(log, number, sections_of(10 * number, 1)) for number in (1, 2)]
    _, offset = read_all(log, TABLES)
    for path in paths:
        path.unlink()
        path.with_name(path.name.replace(".log", "_cdc.idx")).unlink()
    put(log, 3, sections_of(30, 1))
    assert keys(read_all(log, TABLES, offset)[0]) == [30]


def test_malformed_offset_is_rejected(log: LogFolder) -> None:
    wrong: Offset = {HOST: {"v": 1, "segment": 5}}
    with pytest.raises(ConfigurationError):
        read_offset(wrong)
    with pytest.raises(ConfigurationError):
        plan_segments(log, wrong, {}, EVERYTHING)


def test_position_of_a_change_is_the_end_of_its_entry(log: LogFolder) -> None:
    sections = sections_of(0, 1, 1)
    put(log, 7, sections)
    records, _ = read_all(log, TABLES)
    assert places(records) == [(7, end, PLAIN.full_name) for end in ends_of(sections)]


def _read(parts: object) -> list[int]:
    found: list[int] = []
    for part in parts:  # type: ignore[attr-defined]
        assert isinstance(part, SegmentSlice)
        for batch in read_segments(part, TABLES):
            found += [int.from_bytes(key, "big") for key in batch["key"].to_pylist()]
    return sorted(found)
