from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, GtidSet
from airflow_cdc_provider.sources.vitess.position import (
    Position,
    ShardPosition,
    next_epoch,
    overlap,
    require_known,
)

A = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"

INTERVALS = st.lists(st.integers(1, 40), min_size=1, max_size=8)
SETS = st.dictionaries(st.sampled_from([A, B, f"{A}:tag"]), INTERVALS, min_size=1, max_size=3)


def text_of(numbers: dict[str, list[int]]) -> str:
    servers = ",".join(f"{server}:{':'.join(map(str, of))}" for server, of in numbers.items())
    return f"MySQL56/{servers}"


def members(numbers: dict[str, list[int]]) -> set[tuple[str, int]]:
    return {(server, number) for server, of in numbers.items() for number in of}


@given(SETS, SETS)
def test_gtid_sets_behave_as_sets(one: dict[str, list[int]], other: dict[str, list[int]]) -> None:
    a, b = GtidSet.parse(text_of(one)), GtidSet.parse(text_of(other))

    assert a.contains(b) == (members(one) >= members(other))
    assert a.count == len(members(one))
    assert a.rank == sum(max(of) for of in one.values())
    assert a.union(b).count == len(members(one) | members(other))
    assert a.union(b).contains(a)
    assert GtidSet.parse(str(a)).servers == a.servers
    assert a.has_servers_of(b) == (set(one) >= set(other))


def test_mariadb_positions_have_all_before_them() -> None:
    old, new = GtidSet.parse("MariaDB/0-1-100,1-1-5"), GtidSet.parse("MariaDB/0-2-101,1-1-5")

    assert new.contains(old)
    assert not old.contains(new)
    assert (old.count, new.rank) == (105, 106)
    assert str(old.union(new)) == "MariaDB/0-2-101,1-1-5"


@pytest.mark.parametrize(
    "text", ["", "current", "rubbish", f"{A}:1-5", f"MySQL56/{A}", f"MySQL56/{A}:5-1", "MariaDB/1-2", "X/1"]
)
def test_an_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(CorruptInput, match="not a valid position"):
        GtidSet.parse(text)


@pytest.mark.covers("VIT-TXN-07")
@pytest.mark.parametrize(
    ("before", "after", "rises"),
    [
        ("", f"MySQL56/{A}:1-5", True),
        (CURRENT, f"MySQL56/{A}:1-5", True),
        (f"MySQL56/{A}:1-5", f"MySQL56/{A}:1-6", False),
        (f"MySQL56/{A}:1-5", f"MySQL56/{A}:1-5,{B}:1", False),
        (f"MySQL56/{A}:1-5,{B}:1", f"MySQL56/{A}:1-6", True),
        (f"MySQL56/{A}:1-5", f"MySQL56/{B}:1-9", True),
        (CURRENT, CURRENT, False),
    ],
)
def test_an_epoch_rises_with_a_lost_server_and_the_first_place(before: str, after: str, rises: bool) -> None:
    assert next_epoch(3, before, after) == 3 + rises


@pytest.mark.covers("VIT-TXN-07")
@pytest.mark.parametrize("after", ["", CURRENT])
def test_a_place_never_turns_into_none(after: str) -> None:
    with pytest.raises(CorruptInput, match="went back"):
        next_epoch(1, f"MySQL56/{A}:1-5", after)


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ("-80", "-40", True),
        ("-80", "40-80", True),
        ("-80", "80-", False),
        ("40-80", "-40", False),
        ("0", "-80", True),
        ("-", "c0-", True),
        ("80-c0", "a0-b0", True),
        ("-4000", "40-", False),
    ],
)
def test_shards_overlap_by_their_keys(one: str, other: str, share: bool) -> None:
    assert overlap(f"shop/{one}", f"shop/{other}") == share
    assert overlap(f"shop/{other}", f"shop/{one}") == share
    assert not overlap(f"shop/{one}", f"lookup/{other}")


def test_merged_shards_start_above_all_their_parents() -> None:
    place = f"MySQL56/{A}:1-5"
    before = Position({"shop/-80": ShardPosition(place, 2, ("shop/0",)), "shop/80-": ShardPosition(place, 4)})

    after, new = before.after({"shop/-": place})

    assert new == ("shop/-",)
    assert after.shards["shop/-"] == ShardPosition(place, 5, ("shop/-80", "shop/80-", "shop/0"))


@given(SETS, st.integers(0, 2**32 - 1))
def test_an_offset_is_read_as_it_was_written(numbers: dict[str, list[int]], epoch: int) -> None:
    position = Position({"shop/-80": ShardPosition(text_of(numbers), epoch, ("shop/0",))})

    assert Position.from_offset(json.loads(json.dumps(position.to_offset()))) == position


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"shop": {"v": 1, "gtid": CURRENT}},
        {"shop/-80": {"v": 2, "gtid": CURRENT}},
        {"shop/-80": {"v": 1}},
        {"shop/-80": {"v": 1, "gtid": "rubbish"}},
        {"shop/-80": {"v": 1, "gtid": CURRENT, "epoch": -1}},
        {"shop/-80": {"v": 1, "gtid": CURRENT, "epoch": True}},
        {"shop/-80": {"v": 1, "gtid": CURRENT, "generation": -1}},
        {"shop/-80": {"v": 1, "gtid": CURRENT, "more": 1}},
        {"shop/-80": {"v": 1, "gtid": CURRENT, "parents": "x"}},
    ],
)
def test_an_invalid_offset_is_rejected(offset: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="not a valid Vitess offset"):
        Position.from_offset(offset)


def test_a_place_that_a_shard_lacks_is_lost() -> None:
    head = Position({"shop/0": ShardPosition(f"MySQL56/{A}:1-5", 1)})

    require_known(Position({"shop/0": ShardPosition(f"MySQL56/{A}:1-5", 1)}), head)
    with pytest.raises(PositionLost, match="shop/0"):
        require_known(Position({"shop/0": ShardPosition(f"MySQL56/{A}:1-6", 1)}), head)


@pytest.mark.covers("VIT-TXN-11")
def test_another_generation_of_the_connector_raises_all_epochs_once() -> None:
    place = f"MySQL56/{A}:1-5"
    stored = Position({"shop/-80": ShardPosition(place, 1), "shop/80-": ShardPosition(place, 4)})

    raised = stored.of_generation(1)

    assert {s: p.epoch for s, p in raised.shards.items()} == {"shop/-80": 2, "shop/80-": 5}
    assert Position.from_offset(json.loads(json.dumps(raised.to_offset()))) == raised
    assert raised.of_generation(1) == raised
    assert stored.of_generation(0) == stored
    assert "generation" not in stored.to_offset()["shop/-80"]
    assert {p.epoch for p in raised.of_generation(3).shards.values()} == {3, 6}
    moved, _ = raised.after({"shop/-80": f"MySQL56/{A}:1-6", "shop/80-": place})
    assert moved.shards["shop/-80"] == ShardPosition(f"MySQL56/{A}:1-6", 2, (), 1)
    children, _ = raised.after({"shop/-40": place, "shop/40-80": place, "shop/80-": place})
    assert children.shards["shop/-40"] == ShardPosition(place, 3, ("shop/-80",), 1)


def test_a_resharded_shard_is_at_its_head() -> None:
    head = Position(
        {"shop/-80": ShardPosition(f"MySQL56/{A}:1-9", 1), "shop/80-": ShardPosition(f"MySQL56/{B}:1", 1)}
    )
    before = Position(
        {"shop/-80": ShardPosition(f"MySQL56/{A}:1-8", 1), "shop/80-": ShardPosition(f"MySQL56/{B}:1", 1)}
    )

    after, _ = before.after(
        {"shop/-40": f"MySQL56/{A}:1", "shop/40-80": f"MySQL56/{A}:1", "shop/80-": f"MySQL56/{B}:1"}
    )

    assert not before.has(head)
    assert after.has(head)
