"""Rows before and after a write, literally."""

from __future__ import annotations

from typing import Any

import pytest

from server_kit.scylla.statements import (
    AddElements,
    DeleteColumns,
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    Limit,
    PrependElements,
    RemoveElements,
    SetField,
    SetWhole,
    Statement,
    Update,
)
from server_kit.scylla.tables import Column, Delta, Preimage, Table
from server_kit.scylla.timeuuids import list_id
from server_kit.scylla.values import pack_elements
from tests.unit.server_kit.scylla.item import INT, THINGS, Server, T, i, server, t

SHOP, LATER = (i(7),), T + 1_000_000


def row(sku: int) -> tuple[bytes]:
    return (i(sku),)


def update(sku: int, at: int | None = None, **values: bytes | None) -> Update:
    return Update(SHOP, row(sku), tuple(SetWhole(c, v) for c, v in values.items()), at)


def stocked(**options: Any) -> Server:
    """A table with row 3 (qty 9, no name), row 4 (name tea, qty 1) and the owner ann."""
    made = server(**options)
    made.execute(Insert(SHOP, row(3), {"qty": i(9)}))
    made.execute(Insert(SHOP, row(4), {"name": t("tea"), "qty": i(1), "owner": t("ann")}))
    return made


def test_preimage_shows_touched_columns_and_postimage_the_whole_row() -> None:
    rows = stocked(preimage=Preimage.ON, postimage=True).rows(update(3, qty=i(4)), at=LATER)
    assert rows == [
        {"op": 0, "sku": 3, "qty": 9},
        {"op": 1, "sku": 3, "qty": 4},
        {"op": 9, "eob": True, "sku": 3, "qty": 4},
    ]


def test_full_preimage_shows_all_columns_and_flags_nulls() -> None:
    rows = stocked(preimage=Preimage.FULL).rows(update(3, qty=i(4)), at=LATER)
    assert rows == [
        {"op": 0, "sku": 3, "del_name": True, "qty": 9},
        {"op": 1, "eob": True, "sku": 3, "qty": 4},
    ]


def test_preimage_of_a_touched_null_is_flagged() -> None:
    rows = stocked(preimage=Preimage.ON).rows(update(3, name=t("x")), at=LATER)
    assert rows == [{"op": 0, "sku": 3, "del_name": True}, {"op": 1, "eob": True, "sku": 3, "name": "x"}]


def test_a_row_that_was_not_there_has_no_preimage() -> None:
    rows = stocked(preimage=Preimage.FULL, postimage=True).rows(update(5, qty=i(4)), at=LATER)
    assert rows == [{"op": 1, "sku": 5, "qty": 4}, {"op": 9, "eob": True, "sku": 5, "qty": 4}]


def test_a_row_delete_has_a_preimage_of_all_columns_and_no_postimage() -> None:
    rows = stocked(preimage=Preimage.ON, postimage=True).rows(DeleteRow(SHOP, row(4)), at=LATER)
    assert rows == [{"op": 0, "sku": 4, "name": "tea", "qty": 1}, {"op": 3, "eob": True, "sku": 4}]


@pytest.mark.parametrize("statement", [DeletePartition(SHOP), DeleteRange(SHOP, (), Limit(i(3), True))])
def test_deletes_of_many_rows_have_no_images(statement: Statement) -> None:
    rows = stocked(preimage=Preimage.FULL, postimage=True).rows(statement, at=LATER)
    assert {shown["op"] for shown in rows} <= {4, 5, 7}


@pytest.mark.parametrize("since_2026_1", [False, True])
def test_delete_of_a_row_without_clustering_key_has_a_preimage_since_2026_1(since_2026_1: bool) -> None:
    plain = Table("shop", "plain", (Column("id", INT),), regular=(Column("v", INT), Column("w", INT)))
    made = server(plain, preimage=Preimage.ON, preimage_of_partition_deletes=since_2026_1)
    made.execute(Insert(SHOP, (), {"v": i(1)}))
    rows = made.rows(DeleteRow(SHOP, ()), at=LATER)
    before = [{"op": 0, "v": 1, "del_w": True}] if since_2026_1 else []
    assert rows == [*before, {"op": 4, "eob": True}]


def test_images_of_static_columns_are_separate_rows() -> None:
    owner = Update(SHOP, None, (SetWhole("owner", t("bob")),))
    rows = stocked(preimage=Preimage.ON, postimage=True).rows(owner, at=LATER)
    assert rows == [
        {"op": 0, "owner": "ann"},
        {"op": 1, "owner": "bob"},
        {"op": 9, "eob": True, "owner": "bob"},
    ]


def test_in_a_batch_all_preimages_come_first_and_all_postimages_last() -> None:
    made = stocked(preimage=Preimage.ON, postimage=True)
    rows = made.rows(update(4, qty=i(2)), update(3, qty=i(8)), at=LATER)
    assert [(shown["op"], shown["sku"]) for shown in rows] == [(0, 3), (0, 4), (1, 3), (1, 4), (9, 3), (9, 4)]
    assert rows[4] == {"op": 9, "sku": 3, "qty": 8}
    assert rows[5] == {"op": 9, "eob": True, "sku": 4, "name": "tea", "qty": 2}


def test_a_write_that_loses_in_storage_is_in_its_own_postimage() -> None:
    made = stocked(postimage=True)
    made.execute(update(3, qty=i(5)), at=LATER)
    rows = made.rows(update(3, qty=i(6)), at=LATER - 1, now=LATER)
    assert rows[-1] == {"op": 9, "eob": True, "sku": 3, "qty": 6}
    assert [shown["qty"] for shown in made.base.select(LATER)] == [i(5), i(1)]


def test_preimages_of_later_rows_know_only_columns_that_the_first_row_touches() -> None:
    made = stocked(preimage=Preimage.ON)
    rows = made.rows(update(3, qty=i(1)), update(4, name=t("x")), at=LATER)
    # Row 4 has a name; but the server read what row 3 needs.
    assert rows[:2] == [{"op": 0, "sku": 3, "qty": 9}, {"op": 0, "sku": 4, "del_name": True}]


def test_a_rows_cells_that_expired_are_null_before() -> None:
    made = server(preimage=Preimage.FULL)
    made.execute(Insert(SHOP, row(3), {"name": t("x")}))
    made.execute(Update(SHOP, row(3), (SetWhole("qty", i(1)),), ttl=60))
    rows = made.rows(update(3, name=t("y")), at=LATER, now=T // 1_000_000 + 60)
    assert rows[0] == {"op": 0, "sku": 3, "name": "x", "del_qty": True}


def test_images_with_keys_alone() -> None:
    rows = stocked(delta=Delta.KEYS, postimage=True).rows(update(3, qty=i(4)), at=LATER)
    assert rows == [{"op": 1, "sku": 3}, {"op": 9, "eob": True, "sku": 3, "qty": 4}]


# Collections.


def thing(*assignments: Any) -> Update:
    return Update(SHOP, row(2), tuple(assignments))


def filled() -> Server:
    made = server(THINGS, preimage=Preimage.ON, postimage=True)
    made.execute(
        thing(
            AddElements("tags", (t("a"), t("b"))),
            AddElements("log", (i(5), i(6))),
            SetField("addr", 0, t("Main")),
        )
    )
    return made


def test_images_of_collections_are_whole_and_lists_have_their_ids() -> None:
    first, second, new = list_id(T, 0), list_id(T, 1), list_id(LATER, 0)
    rows = filled().rows(
        thing(RemoveElements("tags", (t("a"),)), AddElements("log", (i(7),)), SetField("addr", 1, t("Oslo"))),
        at=LATER,
    )
    before = {"tags": ["a", "b"], "log": {first: 5, second: 6}, "addr": ("Main", None)}
    delta = {"gone_tags": ["a"], "log": {new: 7}, "addr": (None, "Oslo")}
    after = {"tags": ["b"], "log": {first: 5, second: 6, new: 7}, "addr": ("Main", "Oslo")}
    assert rows == [
        {"op": 0, "part": 2, **before},
        {"op": 1, "part": 2, **delta},
        {"op": 9, "eob": True, "part": 2, **after},
    ]


def test_preimages_of_a_batchs_later_timestamps_follow_its_earlier_ones() -> None:
    made = filled()
    first, second = made.execute(
        Update(SHOP, row(2), (AddElements("tags", (t("x"),)),), LATER),
        Update(SHOP, row(2), (AddElements("tags", (t("y"),)),), LATER + 1),
    )
    assert [shown["tags"] for shown in made.shown(first)] == [["a", "b"], ["x"], ["a", "b", "x"]]
    assert [shown["tags"] for shown in made.shown(second)] == [["a", "b", "x"], ["y"], ["a", "b", "x", "y"]]


def test_a_collection_that_lost_its_last_element_is_empty_after_and_a_cleared_one_null() -> None:
    rows = filled().rows(thing(RemoveElements("tags", (t("a"), t("b")))), at=LATER)
    assert rows[-1]["tags"] == []
    rows = filled().rows(thing(SetWhole("tags", None)), at=LATER)
    assert "tags" not in rows[-1]


def test_an_overwritten_collection_is_the_new_one_after() -> None:
    rows = filled().rows(thing(SetWhole("tags", pack_elements([t("c")]))), at=LATER)
    assert rows[-1]["tags"] == ["c"]


def test_prepended_elements_are_first_in_the_postimage() -> None:
    rows = filled().rows(thing(PrependElements("log", (i(0),))), at=LATER)
    assert list(rows[-1]["log"].values()) == [0, 5, 6]


def test_delete_of_columns_leaves_a_postimage_of_keys() -> None:
    made = server(postimage=True)
    made.execute(Insert(SHOP, row(3), {"qty": i(9)}))
    rows = made.rows(DeleteColumns(SHOP, row(3), (SetWhole("qty", None),)), at=LATER)
    assert rows == [{"op": 1, "sku": 3, "del_qty": True}, {"op": 9, "eob": True, "sku": 3}]
