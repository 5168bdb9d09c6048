from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.vitess.debezium_offset import (
    is_debeziums,
    position_of,
    read_offsets,
    to_debezium,
)
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, GtidSet
from airflow_cdc_provider.sources.vitess.position import (
    Position,
    ShardPlace,
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
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CorruptInput, match="no position"):
        GtidSet.parse(text)


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


def test_merged_shards_begin_above_all_their_parents() -> None:
    place = f"MySQL56/{A}:1-5"
    before = Position({"shop/-80": ShardPlace(place, 2, ("shop/0",)), "shop/80-": ShardPlace(place, 4)})

    after, new = before.after({"shop/-": place})

    assert new == ("shop/-",)
    assert after.shards["shop/-"] == ShardPlace(place, 5, ("shop/-80", "shop/80-", "shop/0"))


@given(SETS, st.integers(0, 2**32 - 1))
def test_an_offset_is_read_as_it_was_written(numbers: dict[str, list[int]], epoch: int) -> None:
    position = Position({"shop/-80": ShardPlace(text_of(numbers), epoch, ("shop/0",))})

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
        {"shop/-80": {"v": 1, "gtid": CURRENT, "more": 1}},
        {"shop/-80": {"v": 1, "gtid": CURRENT, "parents": "x"}},
    ],
)
def test_an_offset_of_another_form_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="no offset of a Vitess source"):
        Position.from_offset(offset)


def test_a_place_that_a_shard_lacks_is_lost() -> None:
    head = Position({"shop/0": ShardPlace(f"MySQL56/{A}:1-5", 1)})

    require_known(Position({"shop/0": ShardPlace(f"MySQL56/{A}:1-5", 1)}), head)
    with pytest.raises(PositionLost, match="shop/0"):
        require_known(Position({"shop/0": ShardPlace(f"MySQL56/{A}:1-6", 1)}), head)


VGTID: list[dict[str, Any]] = [
    {"keyspace": "shop", "shard": "-80", "gtid": f"MySQL56/{A}:1-41", "table_p_ks": []},
    {"keyspace": "shop", "shard": "80-", "gtid": f"MySQL56/{B}:1-38"},
]
STORED = {"vgtid": json.dumps(VGTID), "transaction_epoch": '{"-80":2,"80-":1}'}


@pytest.mark.covers("VIT-OFS-13")
@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"offsets": [{"partition": {"server": "pre"}, "offset": STORED}]}),
        json.dumps(["name", {"server": "pre"}]) + "\t" + json.dumps(STORED),
        json.dumps(STORED),
    ],
)
def test_debeziums_offset_is_taken_over_with_its_epochs(content: str) -> None:
    assert is_debeziums(content.encode())

    position, remarks = position_of(read_offsets(content.encode()), "pre")

    assert position.shards == {
        "shop/-80": ShardPlace(f"MySQL56/{A}:1-41", 2),
        "shop/80-": ShardPlace(f"MySQL56/{B}:1-38", 1),
    }
    assert remarks == ()
    again, _ = position_of(read_offsets(json.dumps(to_debezium(position)).encode()), "pre")
    assert again == position


def test_offsets_of_tasks_are_put_together() -> None:
    entries = [
        {
            "partition": {"server": "pre", "task_key": f"task{n}_2_1"},
            "offset": {"vgtid": json.dumps([entry])},
        }
        for n, entry in enumerate(VGTID)
    ]
    plain = {"partition": {"server": "pre"}, "offset": STORED}
    content = json.dumps({"offsets": [plain, *entries]}).encode()

    position, _ = position_of(read_offsets(content), "pre")

    assert set(position.shards) == {"shop/-80", "shop/80-"}
    older = {
        "partition": {"server": "pre", "task_key": "task0_1_1"},
        "offset": {"vgtid": json.dumps(VGTID)},
    }
    with pytest.raises(ConfigurationError, match="two offsets tell"):
        position_of(read_offsets(json.dumps({"offsets": [older, *entries]}).encode()), "pre")


def test_an_unfinished_copy_of_debezium_is_told() -> None:
    copying = [{**VGTID[0], "table_p_ks": [{"table_name": "orders", "lastpk": None}]}]

    _, remarks = position_of(read_offsets(json.dumps({"vgtid": json.dumps(copying)}).encode()), "pre")

    assert remarks == ("Debezium's copy of shard shop/-80 was not finished (orders): take a snapshot",)


@pytest.mark.parametrize("gtid", ["", CURRENT, "rubbish"])
def test_an_offset_without_a_place_is_refused(gtid: str) -> None:
    nowhere = json.dumps({"vgtid": json.dumps([{**VGTID[0], "gtid": gtid}])}).encode()

    with pytest.raises(ConfigurationError, match="shop/-80"):
        position_of(read_offsets(nowhere), "pre")


def test_our_own_offset_is_not_taken_for_debeziums() -> None:
    own = Position({"shop/0": ShardPlace(f"MySQL56/{A}:1-5", 1)}).to_offset()

    assert not is_debeziums(json.dumps(own).encode())
