"""Which rows the log gets of which statement, literally.

The order of columns in the examples: operation, TTL, end of batch, clustering, values, ``del_`` for
``cdc$deleted_``, ``gone_`` for ``cdc$deleted_elements_``. What isn't shown is null.
"""

from __future__ import annotations

import pytest

from server_kit.scylla.statements import (
    DeleteColumns,
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    Limit,
    SetWhole,
    Statement,
    Update,
)
from server_kit.scylla.tables import Column, Delta, Table
from tests.unit.server_kit.scylla.item import INT, ITEM, PAIRS, T, descending, i, server, t

SHOP = (i(7),)


def row(sku: int) -> tuple[bytes]:
    return (i(sku),)


def update(sku: int, at: int | None = None, ttl: int = 0, **values: bytes | None) -> Update:
    return Update(SHOP, row(sku), tuple(SetWhole(c, v) for c, v in values.items()), at, ttl)


def test_insert_shows_set_columns_a_null_as_flag_and_the_rest_as_nothing() -> None:
    rows = server().rows(Insert(SHOP, row(1), {"name": t("tea"), "qty": None}))
    assert rows == [{"op": 2, "eob": True, "sku": 1, "name": "tea", "del_qty": True}]


def test_update_with_null() -> None:
    rows = server().rows(update(1, name=None, qty=i(3)))
    assert rows == [{"op": 1, "eob": True, "sku": 1, "qty": 3, "del_name": True}]


def test_delete_of_a_column_is_an_update_to_null() -> None:
    rows = server().rows(DeleteColumns(SHOP, row(1), (SetWhole("qty", None),)))
    assert rows == [{"op": 1, "eob": True, "sku": 1, "del_qty": True}]


def test_insert_with_ttl() -> None:
    rows = server().rows(Insert(SHOP, row(2), {"name": t("jam")}, ttl=60))
    assert rows == [{"op": 2, "ttl": 60, "eob": True, "sku": 2, "name": "jam"}]


def test_insert_of_a_null_with_ttl_is_two_rows_as_a_null_has_none() -> None:
    rows = server().rows(Insert(SHOP, row(2), {"name": t("jam"), "qty": None}, ttl=60))
    assert rows == [
        {"op": 2, "ttl": 60, "sku": 2, "name": "jam"},
        {"op": 1, "eob": True, "sku": 2, "del_qty": True},
    ]


def test_static_column_has_no_clustering() -> None:
    rows = server().rows(Update(SHOP, None, (SetWhole("owner", t("ann")),)))
    assert rows == [{"op": 1, "eob": True, "owner": "ann"}]


def test_static_and_row_in_one_insert_are_two_rows() -> None:
    rows = server().rows(Insert(SHOP, row(3), {"owner": t("bob"), "qty": i(9)}))
    assert rows == [{"op": 1, "owner": "bob"}, {"op": 2, "eob": True, "sku": 3, "qty": 9}]


def test_insert_of_static_columns_only_makes_no_row() -> None:
    rows = server().rows(Insert(SHOP, None, {"owner": t("bob")}))
    assert rows == [{"op": 1, "eob": True, "owner": "bob"}]


def test_row_delete_and_partition_delete() -> None:
    assert server().rows(DeleteRow(SHOP, row(1))) == [{"op": 3, "eob": True, "sku": 1}]
    assert server().rows(DeletePartition(SHOP)) == [{"op": 4, "eob": True}]


def test_delete_of_a_row_without_clustering_key_is_one_of_its_partition() -> None:
    plain = Table("shop", "plain", (Column("id", INT),), regular=(Column("v", INT),))
    assert server(plain).rows(DeleteRow(SHOP, ())) == [{"op": 4, "eob": True}]


def test_deletes_by_the_expiry_service_have_codes_of_their_own() -> None:
    plain = Table("shop", "plain", (Column("id", INT),), regular=(Column("v", INT),))
    assert server().rows(DeleteRow(SHOP, row(1), by_service=True)) == [{"op": -3, "eob": True, "sku": 1}]
    assert server(plain).rows(DeleteRow(SHOP, (), by_service=True)) == [{"op": -4, "eob": True}]


@pytest.mark.parametrize(
    ("table", "low", "high", "rows"),
    [
        (ITEM, Limit(i(1), False), Limit(i(5), True), [{"op": 6, "sku": 1}, {"op": 7, "sku": 5}]),
        (ITEM, None, Limit(i(5), False), [{"op": 5}, {"op": 8, "sku": 5}]),
        (ITEM, Limit(i(2), True), None, [{"op": 5, "sku": 2}, {"op": 7}]),
        (descending(ITEM), Limit(i(1), False), Limit(i(5), True), [{"op": 5, "sku": 5}, {"op": 8, "sku": 1}]),
        (descending(ITEM), None, Limit(i(5), False), [{"op": 6, "sku": 5}, {"op": 7}]),
    ],
)
def test_range_delete_is_its_start_and_its_end_in_clustering_order(
    table: Table, low: Limit | None, high: Limit | None, rows: list[dict[str, int]]
) -> None:
    rows[-1]["eob"] = True
    assert server(table).rows(DeleteRange(SHOP, (), low, high)) == rows


def test_range_of_a_prefix_leaves_the_other_column_null() -> None:
    assert server(PAIRS).rows(DeleteRange(SHOP, (i(1),))) == [
        {"op": 5, "a": 1},
        {"op": 7, "eob": True, "a": 1},
    ]
    assert server(PAIRS).rows(DeleteRange(SHOP, (), Limit(i(1), False))) == [
        {"op": 6, "a": 1},
        {"op": 7, "eob": True},
    ]
    assert server(PAIRS).rows(DeleteRange(SHOP, (i(1),), Limit(i(2), False))) == [
        {"op": 6, "a": 1, "b": 2},
        {"op": 7, "eob": True, "a": 1},
    ]


def test_a_range_that_holds_nothing_is_not_logged() -> None:
    nothing = DeleteRange(SHOP, (), Limit(i(5), False), Limit(i(5), True))
    assert server().execute(nothing) == []


# Batches.


def test_rows_of_a_batch_are_numbered_in_clustering_order() -> None:
    rows = server().rows(update(3, qty=i(3)), Insert(SHOP, row(1), {"qty": i(1)}), update(2, qty=i(2)))
    assert rows == [
        {"op": 2, "sku": 1, "qty": 1},
        {"op": 1, "sku": 2, "qty": 2},
        {"op": 1, "eob": True, "sku": 3, "qty": 3},
    ]


def test_assignments_of_a_batch_to_one_cell_leave_the_one_that_wins() -> None:
    rows = server().rows(update(1, qty=i(5)), update(1, qty=i(-1)), update(1, name=t("x")))
    # -1 is the greater value by unsigned bytes
    assert rows == [{"op": 1, "eob": True, "sku": 1, "qty": -1, "name": "x"}]


def test_kinds_of_a_batch_come_static_inserts_updates_row_deletes_ranges_partition() -> None:
    rows = server().rows(
        DeletePartition(SHOP),
        DeleteRange(SHOP, (), Limit(i(5), True)),
        DeleteRow(SHOP, row(1)),
        update(2, qty=i(2)),
        Insert(SHOP, row(3), {"qty": i(3)}),
        Update(SHOP, None, (SetWhole("owner", t("ann")),)),
    )
    assert rows == [
        {"op": 1, "owner": "ann"},
        {"op": 2, "sku": 3, "qty": 3},
        {"op": 1, "sku": 2, "qty": 2},
        {"op": 3, "sku": 1},
        {"op": 5, "sku": 5},
        {"op": 7},
        {"op": 4, "eob": True},
    ]


def test_a_row_delete_before_updates_of_later_rows_leaves_a_batch_unsplit() -> None:
    rows = server().rows(DeleteRow(SHOP, row(1)), Insert(SHOP, row(2), {"qty": i(2)}))
    assert rows == [{"op": 3, "sku": 1}, {"op": 2, "eob": True, "sku": 2, "qty": 2}]
    rows = server().rows(DeleteRow(SHOP, row(2)), Insert(SHOP, row(1), {"qty": i(2)}))
    assert rows == [{"op": 2, "sku": 1, "qty": 2}, {"op": 3, "eob": True, "sku": 2}]


def test_ttls_of_a_batch_split_it_with_the_shorter_first() -> None:
    rows = server().rows(update(1, qty=i(1), ttl=90), update(1, name=t("x"), ttl=60), update(2, qty=i(2)))
    assert rows == [
        {"op": 1, "ttl": 60, "sku": 1, "name": "x"},
        {"op": 1, "ttl": 90, "sku": 1, "qty": 1},
        {"op": 1, "eob": True, "sku": 2, "qty": 2},
    ]


def test_timestamps_of_a_batch_make_a_change_each() -> None:
    made = server()
    first, second = made.execute(update(1, at=T + 5, qty=i(1)), update(1, at=T, name=t("x")))
    assert (first.time, second.time) == (T, T + 5)
    assert made.shown(first) == [{"op": 1, "eob": True, "sku": 1, "name": "x"}]
    assert made.shown(second) == [{"op": 1, "eob": True, "sku": 1, "qty": 1}]


def test_partitions_of_a_batch_make_a_change_each() -> None:
    other = Insert((i(8),), row(1), {"qty": i(8)})
    assert len(server().execute(update(1, qty=i(1)), other)) == 2


def test_overlapping_ranges_of_a_batch_are_cut_and_equal_neighbours_joined() -> None:
    def over(low: int, high: int, at: int) -> Statement:
        return DeleteRange(SHOP, (), Limit(i(low), True), Limit(i(high), False), at)

    assert server().rows(over(1, 5, T), over(5, 9, T), over(3, 6, T)) == [
        {"op": 5, "sku": 1},
        {"op": 8, "eob": True, "sku": 9},
    ]
    made = server()
    older, newer = made.execute(over(1, 9, T), over(3, 5, T + 1))
    assert made.shown(newer) == [{"op": 5, "sku": 3}, {"op": 8, "eob": True, "sku": 5}]
    assert made.shown(older) == [
        {"op": 5, "sku": 1},
        {"op": 8, "sku": 3},
        {"op": 5, "sku": 5},
        {"op": 8, "eob": True, "sku": 9},
    ]


# Delta modes.


def test_delta_keys_shows_keys_operation_and_ttl_alone() -> None:
    made = server(delta=Delta.KEYS)
    rows = made.rows(Insert(SHOP, row(2), {"name": t("jam"), "qty": None}, ttl=60))
    assert rows == [{"op": 2, "ttl": 60, "sku": 2}, {"op": 1, "eob": True, "sku": 2}]
    limited = DeleteRange(SHOP, (), Limit(i(1), False))
    assert made.rows(limited) == [{"op": 6, "sku": 1}, {"op": 7, "eob": True}]


def test_delta_off_shows_images_alone() -> None:
    made = server(delta=Delta.OFF, postimage=True)
    assert made.rows(Insert(SHOP, row(1), {"qty": i(1)})) == [{"op": 9, "eob": True, "sku": 1, "qty": 1}]
    assert server(delta=Delta.OFF).execute(update(1, qty=i(1))) == []
