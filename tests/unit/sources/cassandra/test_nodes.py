"""Truncations recorded by nodes, and the position of rows that are read then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.changes.fence import FenceRecord, add_fences, generation_at, newest_generation
from airflow_cdc_provider.sources.cassandra import source as cassandra_source
from airflow_cdc_provider.sources.cassandra.commit_log.segments import ONLY_NODE
from airflow_cdc_provider.sources.cassandra.nodes import (
    NO_FEED,
    SETTLED_MS,
    NodeState,
    snapshot_position,
    truncation_rows,
)
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.payload import Position, Truncation

NOON_MS = 1_795_000_000_000
TABLE_ID = "ab" * 16
FIRST, SECOND = Truncation(NOON_MS - 9, 70, NOON_MS), Truncation(NOON_MS - 9, 90, NOON_MS + 5_000)


def node(name: str, truncation: Truncation | None = None, now_ms: int = NOON_MS + 6_000) -> NodeState:
    return NodeState(name, now_ms, {TABLE_ID: truncation} if truncation else {})


def recorded(nodes: list[NodeState], known: dict[tuple[str, str], int]) -> dict[str, Truncation]:
    """Return the records by node, and add them to the known ones, like the offset."""
    found = {}
    for row in list(truncation_rows(nodes, {TABLE_ID: "k.t"}, known)):
        position = Position.unpack(row["position"])
        moment_ms = row["committed_at"] // 1000
        found[row["origin"]] = Truncation(position.segment, position.end, moment_ms)
        assert found[row["origin"]].fence == row["position"]
        known[row["origin"], row["source_table"]] = moment_ms
    return found


def place_generation(nodes: list[NodeState], *known: list[NodeState]) -> tuple[int, int]:
    """Return the generation of rows that are read now, and the newest, by all records of the nodes."""
    origin, position = snapshot_position(nodes, TABLE_ID)
    memory: dict[tuple[str, str], int] = {}
    records = [
        FenceRecord(name, truncation.fence, truncation.truncated_at_ms * 1000)
        for states in (*known, nodes)
        for name, truncation in recorded(states, memory).items()
    ]
    fences = add_fences((), records)
    return generation_at(fences, origin, position + bytes(8)), newest_generation(fences)


def test_each_truncation_is_written_once() -> None:
    known: dict[tuple[str, str], int] = {}

    assert recorded([node("a", FIRST), node("b")], known) == {"a": FIRST}
    assert recorded([node("a", FIRST), node("b", FIRST)], known) == {"b": FIRST}
    assert recorded([node("a", FIRST), node("b", FIRST)], known) == {}
    assert recorded([node("a", SECOND), node("b", FIRST)], known) == {"a": SECOND}


def test_node_that_joined_later_loses_nothing_and_that_is_said_once_it_is_sure() -> None:
    known: dict[tuple[str, str], int] = {}
    a, b = node("a", FIRST), node("b", FIRST._replace(truncated_at_ms=NOON_MS + 300))

    assert "c" not in recorded([a, b, node("c", now_ms=NOON_MS + SETTLED_MS)], known)
    late = NOON_MS + SETTLED_MS + 1_000
    assert recorded([a, node("c", now_ms=late)], known) == {"c": Truncation(0, 0, NOON_MS)}
    assert recorded([a, b, node("c", now_ms=late)], known) == {}, "another node's time of the same TRUNCATE"


def test_node_that_missed_a_truncation_continues_from_its_position() -> None:
    known: dict[tuple[str, str], int] = {}
    newer = Truncation(NOON_MS - 9, 99, NOON_MS + 3_600_000)
    nodes = [node("a", newer), node("b", FIRST, newer.truncated_at_ms + SETTLED_MS + 1)]

    assert recorded(nodes, known)["b"] == FIRST._replace(truncated_at_ms=newer.truncated_at_ms)
    assert recorded(nodes, known) == {}


def test_rows_read_after_a_truncation_count_and_before_one_do_not() -> None:
    done = [node("a", FIRST), node("b", FIRST)]

    generation, newest = place_generation(done)
    assert generation == newest > 0
    assert place_generation([node("a"), node("b")])[0] == 0
    origin, position = snapshot_position(done, TABLE_ID)
    later = add_fences((), [FenceRecord("a", SECOND.fence, 2), FenceRecord("b", SECOND.fence, 2)])
    assert generation_at(later, origin, position) == 0


def test_rows_read_during_a_truncation_precede_it() -> None:
    before = [node("a", FIRST), node("b", FIRST)]
    for nodes in ([node("a", SECOND), node("b", FIRST)], [node("a", FIRST), node("b", SECOND)]):
        generation, newest = place_generation(nodes, before)
        assert (generation, newest) == (NOON_MS * 1000, SECOND.truncated_at_ms * 1000)
    assert snapshot_position([node("a", FIRST), node("b")], TABLE_ID)[0] == NO_FEED


def test_rows_read_count_though_a_node_joined_later() -> None:
    late = NOON_MS + SETTLED_MS + 1_000

    generation, newest = place_generation([node("a", FIRST), node("b", now_ms=late)])

    assert generation == newest > 0


def test_two_truncations_without_a_write_between_are_distinguished() -> None:
    again = FIRST._replace(truncated_at_ms=NOON_MS + 5_000)
    assert again.fence > FIRST.fence

    origin, position = snapshot_position([node("a", FIRST)], TABLE_ID)
    fences = add_fences((), [FenceRecord("a", t.fence, t.truncated_at_ms * 1000) for t in (FIRST, again)])

    assert generation_at(fences, origin, position) == NOON_MS * 1000 < newest_generation(fences)


def test_clusters_of_equally_old_segments_have_no_finding() -> None:
    nothing: dict[Any, int] = {}
    assert recorded([], nothing) == {}
    assert snapshot_position([], TABLE_ID)[0] == NO_FEED


@pytest.mark.parametrize(("members", "origin"), [(1, ONLY_NODE), (3, "b")])
def test_segments_without_a_name_are_of_the_node_that_answers_only_if_it_is_the_only_one(
    members: int, origin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a truncation of ``b`` would end what the log of another node has."""
    (tmp_path / "CommitLog-7-1795247392874.log").touch()
    monkeypatch.setattr(cassandra_source, "node_states", lambda session: [node("b", FIRST)])
    monkeypatch.setattr(cassandra_source, "host_ids", lambda session: dict.fromkeys("abc"[:members], ""))
    source = cassandra_source.CassandraSource(
        CassandraOptions(cdc_raw=str(tmp_path)), {"host": "b"}, lambda name: True
    )
    source.__dict__["_session"] = None
    source._query_nodes()
    assert [state.host_id for state in source._nodes] == [origin]
