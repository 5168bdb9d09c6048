"""Offsets of ScyllaDB's source connector: which position they are, and back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.connect import to_rest
from airflow_cdc_provider.migration.offsets.scylla import (
    ScyllaOffsets,
    import_positions,
    read_offsets,
    to_connect,
)
from airflow_cdc_provider.sources.scylla.generations import Timeline, by_token, by_vnode
from airflow_cdc_provider.sources.scylla.log_state import LogState
from airflow_cdc_provider.sources.scylla.position import TablePosition
from server_kit.scylla.generations import stream_id
from tests.unit.migration.offsets.scylla_offsets import FIRST, NOW, SECOND, bound, entry

VNODES = 3


def logs(
    *begins: int, ttl: int = 86_400, tablets: bool = False, tables: tuple[str, ...] = ("shop.item",)
) -> LogState:
    """Build the state of logs whose generations have three vnodes of two shards, or three tablets."""
    streams = [stream_id(10 * n + shard, 0 if tablets else n, 7) for n in range(VNODES) for shard in (0, 1)]
    groups = by_token(streams[::2]) if tablets else by_vnode(streams)
    timeline = Timeline(begins or (FIRST, SECOND), lambda _: groups)
    return LogState(NOW * 1000, dict.fromkeys(tables, timeline), dict.fromkeys(tables, ttl))


def imported(entries: list[Any], of: LogState) -> tuple[Mapping[str, TablePosition], tuple[str, ...]]:
    return import_positions(read_offsets(json.dumps({"offsets": entries}).encode()), of)


@pytest.mark.covers("SCY-OFF-05")
def test_each_vnode_resumes_at_its_window_and_a_change_inside_it_is_read_again() -> None:
    change: dict[str, Any] = {
        "change_id_stream_id": "0x" + stream_id(1, 2, 7).hex(),
        "change_id_time": bound(FIRST + 45_000, 5),
    }
    entries = [entry(0, FIRST + 60_000), entry(1, FIRST + 90_000), entry(2, FIRST + 30_000, **change)]
    found, remarks = imported(entries, logs(FIRST))
    ahead = {"0": (FIRST + 60_000) * 1000, "1": (FIRST + 90_000) * 1000}
    assert found == {"shop.item": TablePosition(FIRST, (FIRST + 30_000) * 1000, ahead)}
    assert remarks == ()


@pytest.mark.covers("SCY-OFF-05")
def test_a_generation_that_is_read_to_its_end_is_left_behind() -> None:
    old = [entry(n, SECOND + 1) for n in range(VNODES)]
    found, _ = imported([*old, entry(1, SECOND + 9000, SECOND)], logs())
    assert found["shop.item"] == TablePosition(SECOND, SECOND * 1000, {"1": (SECOND + 9000) * 1000})
    found, _ = imported(old, logs())
    assert found["shop.item"] == TablePosition(SECOND, SECOND * 1000), "none of the next one is read"


@pytest.mark.covers("SCY-OFF-05")
def test_a_generation_that_one_vnode_has_not_finished_is_first() -> None:
    old = [entry(0, SECOND + 1), entry(1, SECOND - 5), entry(2, SECOND + 1)]
    found, remarks = imported([*old, entry(0, SECOND + 9000, SECOND)], logs())
    ahead = dict.fromkeys(("0", "2"), (SECOND + 1) * 1000)
    assert found["shop.item"] == TablePosition(FIRST, (SECOND - 5) * 1000, ahead)
    assert "isn't read to its end" in remarks[0]


@pytest.mark.covers("SCY-OFF-05")
def test_a_vnode_without_an_offset_is_read_from_the_start_of_its_generation() -> None:
    found, remarks = imported([entry(0, FIRST + 5000)], logs(FIRST))
    assert found["shop.item"] == TablePosition(FIRST, FIRST * 1000, {"0": (FIRST + 5000) * 1000})
    assert remarks == (
        f"2 of the vnodes of shop.item have no offset in generation {FIRST}, so they are read from its "
        "start: 1, 2",
    )


def test_one_offset_is_that_of_all_tablets() -> None:
    found, _ = imported([entry(0, FIRST + 5000)], logs(FIRST, tablets=True))
    assert found["shop.item"] == TablePosition(FIRST, (FIRST + 5000) * 1000)


def test_expired_generations_do_not_hold_up_later_ones() -> None:
    of = logs(ttl=50)  # the first one ended 100 s ago
    found, _ = imported([entry(0, FIRST + 5000), entry(0, SECOND + 9, SECOND)], of)
    assert found["shop.item"].generation_ms == SECOND
    found, _ = imported([entry(n, FIRST + 5000) for n in range(VNODES)], of)
    assert found["shop.item"] == TablePosition(FIRST, (FIRST + 5000) * 1000), "a run reports what is lost"


def test_streams_that_the_cluster_no_longer_lists_keep_the_stored_position() -> None:
    found, remarks = imported([entry(0, FIRST + 5000)], logs(SECOND, ttl=50))
    assert found["shop.item"] == TablePosition(FIRST, (FIRST + 5000) * 1000)
    assert "have expired" in remarks[0]


@pytest.mark.parametrize(
    ("entries", "of", "message"),
    [
        ([entry(0, SECOND, SECOND - 7)], logs(), "generation that this cluster doesn't have"),
        ([entry(0, FIRST, FIRST - 7)], logs(), "generation that this cluster doesn't have"),
        ([entry(0, NOW + 1)], logs(FIRST), "is in the future"),
        ([entry(0, FIRST, table="other")], logs(), "no offset belongs to a selected table"),
        ([], logs(), "found no offset"),
        ([{"partition": {"server": "shop"}, "offset": {"vgtid": "[]"}}], logs(), "source connector"),
        ([entry(0, FIRST, change_id_time="x", change_id_stream_id="0x")], logs(), "source connector"),
        ([entry(0, FIRST, window_start=str(uuid.UUID(int=4)))], logs(), "not a UUID of version 1"),
    ],
)
@pytest.mark.covers("SCY-OFF-05")
def test_offsets_that_can_not_be_resumed_are_rejected(entries: list[Any], of: LogState, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        imported(entries, of)


def test_tables_with_and_without_offsets_are_reported() -> None:
    of = logs(FIRST, tables=("shop.item", "shop.unit"))
    entries = [*(entry(n, FIRST + 9) for n in range(VNODES)), entry(0, FIRST, table="old")]
    found, remarks = imported(entries, of)
    assert list(found) == ["shop.item"]
    assert remarks == (
        "shop.old has no log or isn't selected: its offsets are skipped",
        "shop.unit has no offset: its capture starts as for a new connector",
    )


@given(
    places=st.lists(st.integers(0, (NOW - SECOND) * 1000), min_size=VNODES, max_size=VNODES),
    tablets=st.booleans(),
)
@pytest.mark.covers("SCY-OFF-05")
def test_what_is_exported_comes_back_less_than_a_millisecond_earlier(
    places: list[int], tablets: bool
) -> None:
    of = logs(tablets=tablets)
    groups = of.timelines["shop.item"].groups(SECOND)
    positions = {group: SECOND * 1000 + us for group, us in zip(groups, places, strict=True)}
    least = min(positions.values())
    position = TablePosition(SECOND, least, {g: us for g, us in positions.items() if us > least})

    content = to_rest(to_connect({"shop.item": position}, of, 30)).encode()
    assert ScyllaOffsets.recognizes(content)
    found, remarks = import_positions(read_offsets(content), of)
    back = found["shop.item"]
    assert (back.generation_ms, remarks) == (SECOND, ())
    for group, us in positions.items():
        expected = least if tablets else us  # tablets have one offset together
        assert back.group_reads_from(group) == max(expected // 1000, SECOND) * 1000


@pytest.mark.covers("SCY-OFF-05")
def test_the_connectors_master_begins_with_the_generation_that_is_exported() -> None:
    """By its rule: a generation is done if all its vnodes have windows that begin after its end."""
    stored = to_connect({"shop.item": TablePosition(SECOND, NOW * 1000)}, logs(), 30)
    first = {p["vnode_id"]: o for p, o in stored if p["generation_start"] == str(FIRST)}
    assert set(first) == {"0", "1", "2"}
    end = bound(SECOND, 0x8080808080808080)
    assert all(uuid.UUID(o["window_start"]).time > uuid.UUID(end).time for o in first.values())
    second = {p["vnode_id"]: o for p, o in stored if p["generation_start"] == str(SECOND)}
    assert second["0"] == entry(0, NOW)["offset"], "bounds as the connector itself writes them"
