"""What a SELECT shows after writes in any order: the rules one by one."""

from __future__ import annotations

import itertools

import pytest

from server_kit.scylla.partitions import Cell, Marker
from server_kit.scylla.statements import (
    AddElements,
    DeleteColumns,
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    Limit,
    SetElement,
    SetWhole,
    Statement,
    Update,
)
from server_kit.scylla.values import CqlType, pack_elements, sort_key
from tests.unit.server_kit.scylla.item import ITEM, NOW, THINGS, Server, T, descending, i, t

SHOP = (i(7),)


def row(sku: int) -> tuple[bytes]:
    return (i(sku),)


def update(qty: int | None, at: int, ttl: int = 0, sku: int = 1) -> Update:
    value = None if qty is None else i(qty)
    return Update(SHOP, row(sku), (SetWhole("qty", value),), at, ttl)


def shown(*statements: Statement, now: int = NOW) -> list[bytes | None]:
    """Execute statements in all orders, which must show the same, and return column qty of the rows."""
    found = []
    for order in itertools.permutations(statements):
        made = Server(ITEM)
        for statement in order:
            made.execute(statement)
        found.append([r["qty"] for r in made.base.select(now)])
    assert all(rows == found[0] for rows in found)
    return found[0]


def test_the_greater_timestamp_wins() -> None:
    assert shown(update(1, T), update(2, T + 1), update(3, T - 1)) == [i(2)]


def test_at_equal_timestamps_the_greater_value_by_unsigned_bytes_wins() -> None:
    assert shown(update(1, T), update(-1, T), update(2, T)) == [i(-1)]


def test_at_equal_timestamps_deletes_win() -> None:
    assert shown(update(1, T), update(None, T), Insert(SHOP, row(1), {}, T)) == [None]
    assert shown(update(1, T), DeleteRow(SHOP, row(1), T)) == []
    assert shown(Insert(SHOP, row(1), {}, T), DeletePartition(SHOP, T)) == []
    assert shown(update(1, T), DeleteRange(SHOP, (), Limit(i(1), True), None, T)) == []


def test_a_write_after_a_delete_is_kept() -> None:
    assert shown(update(1, T + 1), DeleteRow(SHOP, row(1), T), DeletePartition(SHOP, T)) == [i(1)]


def test_a_cell_with_ttl_beats_one_without_and_then_the_later_expiry() -> None:
    assert shown(update(9, T), update(1, T, 60)) == [i(1)]
    assert shown(update(9, T, 50), update(1, T, 60)) == [i(1)]
    assert Cell(T, b"a", 50, NOW + 60).rank() > Cell(T, b"b", 60, NOW + 60).rank()
    assert Marker(T, 60, NOW + 60).rank() > Marker(T).rank()


def test_an_expired_cell_still_hides_older_ones() -> None:
    kept = Insert(SHOP, row(1), {}, T)
    assert shown(kept, update(1, T), update(2, T + 1, 60), now=NOW + 59) == [i(2)]
    assert shown(kept, update(1, T), update(2, T + 1, 60), now=NOW + 60) == [None]


def test_an_update_without_insert_lives_by_its_cells() -> None:
    assert shown(update(1, T, 60), now=NOW + 59) == [i(1)]
    assert shown(update(1, T, 60), now=NOW + 60) == []
    assert shown(update(1, T), update(None, T + 1)) == []
    assert shown(Insert(SHOP, row(1), {"qty": i(1)}, T, 60), update(2, T + 1), now=NOW + 60) == [i(2)]


def test_ranges_delete_what_is_between_their_bounds() -> None:
    rows = [update(sku, T, sku=sku) for sku in (1, 2, 3)]
    assert shown(*rows, DeleteRange(SHOP, (), Limit(i(1), False), Limit(i(3), False), T)) == [i(1), i(3)]
    assert shown(*rows, DeleteRange(SHOP, (), Limit(i(2), True), None, T)) == [i(1)]
    assert shown(*rows, DeleteRange(SHOP, (), None, Limit(i(2), True), T)) == [i(3)]


def test_descending_rows_come_so_and_ranges_mean_values() -> None:
    made = Server(descending(ITEM))
    for sku in (1, 2, 3):
        made.execute(update(sku, T, sku=sku))
    assert [r["sku"] for r in made.base.select(NOW)] == [i(3), i(2), i(1)]
    made.execute(DeleteRange(SHOP, (), Limit(i(1), False), None, T))
    assert [r["sku"] for r in made.base.select(NOW)] == [i(1)]


def test_static_columns_only_are_a_row_without_clustering() -> None:
    made = Server(ITEM)
    made.execute(Update(SHOP, None, (SetWhole("owner", t("ann")),)))
    empty = {"sku": None, "name": None, "qty": None}
    assert made.base.select(NOW) == [{"shop": i(7), "owner": t("ann"), **empty}]
    made.execute(update(1, T))
    assert [(r["sku"], r["owner"]) for r in made.base.select(NOW)] == [(i(1), t("ann"))]
    made.execute(DeletePartition(SHOP, T))
    assert made.base.select(NOW) == []


def test_elements_compete_one_by_one_and_with_the_columns_tombstone() -> None:
    made = Server(THINGS)

    def tags(*elements: str) -> bytes:
        return pack_elements([t(e) for e in elements])

    made.execute(Update(SHOP, row(1), (AddElements("tags", (t("a"), t("b"))),), T))
    made.execute(Update(SHOP, row(1), (SetWhole("tags", tags("c")),), T + 1))  # its tombstone is at T
    assert made.base.select(NOW)[0]["tags"] == tags("c")
    made.execute(Update(SHOP, row(1), (AddElements("tags", (t("a"),)),), T + 1))
    assert made.base.select(NOW)[0]["tags"] == tags("a", "c")
    made.execute(DeleteColumns(SHOP, row(1), (SetWhole("tags", None),), T + 1))
    assert made.base.select(NOW) == []


def test_a_place_that_a_list_does_not_have_is_refused() -> None:
    made = Server(THINGS)
    with pytest.raises(ValueError, match="place in a list of 0, found 3"):
        made.execute(Update(SHOP, row(1), (SetElement("log", i(3), i(1)),)))


@pytest.mark.parametrize(
    ("name", "ascending"),
    [
        ("int", [i(-1), i(0), i(1)]),
        ("decimal", [b"\0\0\0\1\xff", b"\0\0\0\1\x09", b"\0\0\0\0\1", b"\xff\xff\xff\xff\1"]),
        ("boolean", [b"\0", b"\1"]),
        ("float", [b"\xff\x80\0\0", b"\0\0\0\0", b"\x3f\x80\0\0", b"\x7f\x80\0\0", b"\x7f\xc0\0\0"]),
        (
            "timeuuid",
            [b"\1" + b"\0" * 5 + b"\x10\0" + b"\x80" * 8, b"\1" + b"\0" * 5 + b"\x10\0" + b"\x7f" * 8],
        ),
        ("text", [b"a", b"b", "é".encode()]),
    ],
)
def test_values_of_a_type_are_in_its_order(name: str, ascending: list[bytes]) -> None:
    keys = [sort_key(CqlType(name), value) for value in ascending]
    assert sorted(keys) == keys
    assert len(set(keys)) == len(keys)


def test_decimals_of_one_number_are_one_key() -> None:
    decimal = CqlType("decimal")
    assert sort_key(decimal, b"\0\0\0\1\x0a") == sort_key(decimal, b"\0\0\0\2\x64")
