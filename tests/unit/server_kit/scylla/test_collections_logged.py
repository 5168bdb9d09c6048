"""How changes of collections and user-defined types that aren't frozen are logged."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from server_kit.scylla.generations import stream_id
from server_kit.scylla.statements import (
    AddElements,
    Assignment,
    DeleteColumns,
    Insert,
    PrependElements,
    RemoveElements,
    SetElement,
    SetField,
    SetWhole,
    Update,
)
from server_kit.scylla.timeuuids import list_id, time_us
from server_kit.scylla.values import pack_elements, pack_pairs, pack_parts, timeuuid_key
from tests.unit.server_kit.scylla.item import THINGS, Server, T, i, server, t

KEY, PART = (i(1),), (i(2),)
SECOND = 1_000_000


def update(*assignments: Assignment, at: int | None = None, ttl: int = 0) -> Update:
    return Update(KEY, PART, assignments, at, ttl)


def things(**options: Any) -> Server:
    return server(THINGS, **options)


def tags(*elements: str) -> bytes:
    return pack_elements([t(e) for e in elements])


@pytest.mark.parametrize(
    ("assignment", "shown"),
    [
        (AddElements("tags", (t("a"),)), {"tags": ["a"]}),
        (RemoveElements("tags", (t("b"),)), {"gone_tags": ["b"]}),
        (SetWhole("tags", tags("c")), {"tags": ["c"], "del_tags": True}),
        (SetWhole("tags", tags()), {"del_tags": True}),
        (SetWhole("tags", None), {"del_tags": True}),
        (SetElement("attr", t("x"), i(1)), {"attr": {"x": 1}}),
        (SetElement("attr", t("y"), None), {"gone_attr": ["y"]}),
        (AddElements("attr", pairs=((t("x"), i(1)), (t("z"), i(3)))), {"attr": {"x": 1, "z": 3}}),
        (RemoveElements("attr", (t("x"), t("y"))), {"gone_attr": ["x", "y"]}),
        (SetWhole("attr", pack_pairs([(t("k"), i(4))])), {"attr": {"k": 4}, "del_attr": True}),
        (SetField("addr", 1, t("Oslo")), {"addr": (None, "Oslo")}),
        (SetField("addr", 0, None), {"addr": (None, None), "gone_addr": [0]}),
        (SetWhole("addr", pack_parts([t("a"), None])), {"addr": ("a", None), "del_addr": True}),
        (SetWhole("addr", None), {"addr": (None, None), "del_addr": True}),
    ],
)
def test_changes_by_element(assignment: Assignment, shown: dict[str, Any]) -> None:
    assert things().rows(update(assignment)) == [{"op": 1, "eob": True, "part": 2, **shown}]


def test_additions_and_removals_of_one_batch_are_one_row() -> None:
    rows = things().rows(update(AddElements("tags", (t("a"),))), update(RemoveElements("tags", (t("b"),))))
    assert rows == [{"op": 1, "eob": True, "part": 2, "tags": ["a"], "gone_tags": ["b"]}]


def test_static_collection() -> None:
    rows = things().rows(Update(KEY, None, (AddElements("labels", (t("a"),)),)))
    assert rows == [{"op": 1, "eob": True, "labels": ["a"]}]


def test_an_overwrites_tombstone_is_one_microsecond_before_its_cells() -> None:
    made = things()
    made.rows(update(SetWhole("tags", tags("c"))))
    row = made.base.partitions[KEY].row(PART)
    assert row.elements["tags"].tombstone == T - 1
    assert [cell.time for _, cell in row.elements["tags"].in_order()] == [T]


def test_delete_of_a_collection_is_shown_one_microsecond_late() -> None:
    made = things()
    both = DeleteColumns(KEY, PART, (SetWhole("qty", None), SetWhole("tags", None)))
    first, second = made.execute(both)
    assert (first.time, second.time) == (T, T + 1)
    assert made.shown(first) == [{"op": 1, "eob": True, "part": 2, "del_qty": True}]
    assert made.shown(second) == [{"op": 1, "eob": True, "part": 2, "del_tags": True}]
    assert made.base.partitions[KEY].row(PART).elements["tags"].tombstone == T


def test_overwrite_with_ttl_is_two_rows_as_a_tombstone_has_none() -> None:
    rows = things().rows(update(SetWhole("tags", tags("a")), ttl=60))
    assert rows == [
        {"op": 1, "part": 2, "del_tags": True},
        {"op": 1, "ttl": 60, "eob": True, "part": 2, "tags": ["a"]},
    ]


def test_insert_of_a_collection_with_ttl_is_three_rows() -> None:
    rows = things().rows(Insert(KEY, PART, {"tags": tags("a"), "qty": i(5)}, ttl=60))
    assert rows == [
        {"op": 2, "ttl": 60, "part": 2, "qty": 5},
        {"op": 1, "part": 2, "del_tags": True},
        {"op": 1, "ttl": 60, "eob": True, "part": 2, "tags": ["a"]},
    ]


def test_insert_of_a_collection_without_ttl_is_one_row() -> None:
    rows = things().rows(Insert(KEY, PART, {"tags": tags("a"), "qty": i(5)}))
    assert rows == [{"op": 2, "eob": True, "part": 2, "tags": ["a"], "del_tags": True, "qty": 5}]


def test_elements_added_to_a_collection_with_an_insert_are_an_update() -> None:
    rows = things().rows(Insert(KEY, PART, {"qty": i(5)}), update(AddElements("tags", (t("a"),))))
    assert rows == [
        {"op": 2, "part": 2, "qty": 5},
        {"op": 1, "eob": True, "part": 2, "tags": ["a"]},
    ]


# Lists.


def test_list_cells_have_ids_by_the_timestamp_and_are_removed_by_them() -> None:
    made = things()
    first, second = list_id(T, 0), list_id(T, 1)
    assert made.rows(update(AddElements("log", (i(5), i(6))))) == [
        {"op": 1, "eob": True, "part": 2, "log": {first: 5, second: 6}}
    ]
    later = T + SECOND
    assert made.rows(update(SetElement("log", i(1), i(9))), at=later) == [
        {"op": 1, "eob": True, "part": 2, "log": {second: 9}}
    ]
    deletes = DeleteColumns(KEY, PART, (SetElement("log", i(0), None),))
    assert made.rows(deletes, at=later + 1) == [{"op": 1, "eob": True, "part": 2, "gone_log": [first]}]
    assert made.rows(update(RemoveElements("log", (i(9),))), at=later + 2) == [
        {"op": 1, "eob": True, "part": 2, "gone_log": [second]}
    ]


def test_prepended_cells_have_ids_before_2010_in_the_order_of_the_list() -> None:
    made = things()
    made.execute(update(AddElements("log", (i(9),))))
    made.execute(update(PrependElements("log", (i(1), i(2)))), at=T + 1)
    made.execute(update(PrependElements("log", (i(0),))), at=T + 2)
    (row,) = made.base.select(T // SECOND)
    assert row["log"] == pack_elements([i(0), i(1), i(2), i(9)])
    paths = [path for path, _ in made.base.live_elements(KEY, PART, "log", T // SECOND)]
    mirrored = 2 * 1_262_304_000_000_000
    assert [time_us(path) for path in paths] == [mirrored - T - 2, mirrored - T - 1, mirrored - T - 1, T]


def test_list_ids_of_one_request_are_in_order_as_signed_bytes() -> None:
    ids = [list_id(T, number) for number in (*range(300), 0x3FFF, 0x4000, 0x1FFFF)]
    assert ids == sorted(ids, key=timeuuid_key)
    assert len(set(ids)) == len(ids)
    assert {time_us(path) for path in ids} == {T}


def test_stream_and_list_ids_are_big_endian() -> None:
    assert stream_id(-4611686018427387904, 5, 0x2AB3456789).hex() == "c000000000000000aacd159e24000051"
    assert struct.unpack(">H", list_id(T, 0)[6:8])[0] >> 12 == 1
