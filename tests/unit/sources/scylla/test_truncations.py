"""TRUNCATE records of nodes as fences; and changes that were lost before they were read."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_cdc_provider.changes.fence import FenceRecord, add_fences, generation_at
from airflow_cdc_provider.sources.scylla.generations import Timeline
from airflow_cdc_provider.sources.scylla.log_reach import LogReach
from airflow_cdc_provider.sources.scylla.payload import Position
from airflow_cdc_provider.sources.scylla.position import TablePosition
from airflow_cdc_provider.sources.scylla.stream_ids import first_time
from airflow_cdc_provider.sources.scylla.truncations import (
    Truncation,
    fence_record,
    last_truncations,
    position_at,
    read_truncations,
)
from tests.unit.sources.scylla.server_session import ServerSession

SECOND_US = 1_000_000
NOW_US = 1_700_000_000 * SECOND_US


def test_times_of_several_nodes_are_one_truncate() -> None:
    first = {"a": NOW_US, "b": NOW_US - 3_600 * SECOND_US}
    second = {"a": NOW_US + 40_000, "b": NOW_US}
    late = {"a": NOW_US - 7_200 * SECOND_US}
    assert last_truncations([first, second, late, {}]) == {
        "a": Truncation(NOW_US, NOW_US + 40_000),
        "b": Truncation(NOW_US, NOW_US),
    }
    assert last_truncations([]) == {}


def test_a_fence_parts_changes_of_all_streams_by_their_times() -> None:
    record = fence_record("s.t", Truncation(NOW_US, NOW_US + 9), 1_000)
    record["committed_at"] = datetime.fromtimestamp(NOW_US / SECOND_US, UTC)
    fences = add_fences((), [FenceRecord.of(record)])

    def generation(generation_ms: int, moment_us: int, stream: bytes) -> int:
        place = Position(generation_ms, first_time(moment_us), stream).pack()
        return generation_at(fences, "s.t/5", place)

    assert generation(1_000, NOW_US - 1, b"\xff" * 16) == 0
    assert generation(1_000, NOW_US, b"\1" * 16) == NOW_US
    assert generation(900, NOW_US - 10, b"\1" * 16) == 0
    assert generation(2_000, NOW_US + 20, b"\1" * 16) == NOW_US
    # Rows that are read now have a settled time.
    settled = position_at(1_000, NOW_US - 1) + (NOW_US + 5).to_bytes(8, "big")
    assert generation_at(fences, "", settled) == 0
    settled = position_at(1_000, NOW_US) + (NOW_US + 5).to_bytes(8, "big")
    assert generation_at(fences, "", settled) == NOW_US


def test_expired_and_truncated_changes_are_reported_once() -> None:
    timeline = Timeline((1_000, NOW_US // 1000), lambda ms: {})
    position = TablePosition(1_000, NOW_US - 100 * SECOND_US, {"7": NOW_US}, truncated_us=3)
    kept = LogReach("s.t", timeline, 0, NOW_US)
    assert kept.losses(position) == ([], position)

    expired = LogReach("s.t", timeline, 60, NOW_US)
    (text,), after = expired.losses(position)
    assert "keeps changes for 60 s and was read up to 2023-11-14 22:11:40 UTC" in text
    moved = TablePosition(1_000, NOW_US - 60 * SECOND_US, {"7": NOW_US}, truncated_us=3, started_us=NOW_US)
    assert after == moved
    assert expired.losses(after) == ([], after)
    later = LogReach("s.t", timeline, 60, NOW_US + 50 * SECOND_US)
    assert later.losses(after) == ([], after), "while the snapshot is taken, more expires"

    at_us = NOW_US - 10 * SECOND_US
    truncated = LogReach("s.t", timeline, 60, NOW_US, Truncation(at_us, at_us + 9))
    texts, after = truncated.losses(position)
    assert len(texts) == 2
    assert "the log of s.t was truncated at 2023-11-14 22:13:10 UTC" in texts[1]
    assert after.read_to_us == at_us
    assert truncated.losses(after) == ([], after)
    # The beginning of a log expires all the time: nothing is lost to who began there and hasn't read yet.
    started = LogReach("s.t", timeline, 60, NOW_US).start(0)
    assert started.started_us == NOW_US
    later = LogReach("s.t", timeline, 60, NOW_US + 50 * SECOND_US, Truncation(at_us, at_us))
    assert later.losses(started) == ([], started)
    too_late = LogReach("s.t", timeline, 60, NOW_US + 70 * SECOND_US)
    assert len(too_late.losses(started)[0]) == 1
    assert started.moved(1_000, NOW_US).started_us == 0
    # The record of a table that was dropped lies far ahead (9999).
    ahead = LogReach("s.t", timeline, 0, NOW_US, Truncation(10**17, 10**17))
    assert ahead.losses(position)[0] == []


def test_nodes_without_a_table_of_truncates_report_none_and_are_queried_once() -> None:
    session = ServerSession({}, nodes=2)
    assert read_truncations(session) == []
    assert session.requests == [("system.truncated", "")] * 2
