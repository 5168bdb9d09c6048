"""Log rows as the database's documentation has them, and what they say of rows, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.cell_row import Cell, read_cell_row
from airflow_cdc_provider.changes.cells import (
    CELL_COMPLEX_DELETION,
    CELL_EXPIRING,
    CELL_TOMBSTONE,
    NEVER,
    ROW_DELETION,
    ROW_LIVENESS,
    ROW_STATIC,
)
from airflow_cdc_provider.changes.contribution import (
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
    STATIC,
    UNRESOLVED,
)
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cql.native_rows import native_rows
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec, recall_scylla_codec
from airflow_cdc_provider.sources.scylla.payload import schema_digest
from server_kit.scylla.tables import CdcOptions, Delta, Table
from server_kit.scylla.timeuuids import EPOCH_TICKS
from server_kit.scylla.values import pack_elements, pack_pairs, pack_parts
from tests.unit.server_kit.scylla.item import ITEM, NOW, PAIRS, THINGS, T, descending, i, t
from tests.unit.sources.scylla.logged import (
    LogRow,
    change_record,
    changes,
    codec_of,
    schema_payload,
    table_schema,
)

STREAM = bytes.fromhex("c000000000000000aacd159e24000051")
TRUE = b"\1"

ITEMS = codec_of(ITEM)


def cdc_time(us: int, rest: bytes = b"\x80\x01\x7f\xff\x00\x02\xfe\x03") -> bytes:
    ticks = us * 10 + EPOCH_TICKS
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 0x1000
    return low.to_bytes(4, "big") + middle.to_bytes(2, "big") + high.to_bytes(2, "big") + rest


def rows(*given: dict[str, Any], at: int = T, key: str = "shop") -> list[LogRow]:
    """Write a change: of each row ``op``, perhaps ``ttl``, and what isn't null."""
    found: list[LogRow] = []
    for number, row in enumerate(given):
        values = {name: value for name, value in row.items() if name not in ("op", "ttl")}
        found.append(
            {
                "cdc$stream_id": STREAM,
                "cdc$time": cdc_time(at),
                "cdc$batch_seq_no": i(number),
                "cdc$operation": row["op"].to_bytes(1, "big", signed=True),
                "cdc$ttl": row["ttl"].to_bytes(8, "big") if "ttl" in row else None,
                "cdc$end_of_batch": TRUE if number == len(given) - 1 else None,
                key: i(7),
                **values,
            }
        )
    return found


def contributions_of(
    codec: ScyllaCodec, table: Table, *given: dict[str, Any], **how: Any
) -> list[dict[str, Any]]:
    """Decode one change and show its contributions: what isn't so is left out."""
    key = table.partition[0].name
    decoded = codec.decode(changes([change_record(table, rows(*given, key=key), **how)]), [])
    assert not decoded.reasons
    return [shown(codec, one) for one in decoded.contributions.to_pylist()]


def shown(codec: ScyllaCodec, one: dict[str, Any]) -> dict[str, Any]:
    assert one["key"] == i(7)
    found: dict[str, Any] = {"scope": one["scope"]}
    if one["state"] is None:
        return found
    row = read_cell_row(one["state"])
    assert bool(row.flags & ROW_STATIC) == (one["scope"] == STATIC)
    if row.clustering:
        found["row"] = row.clustering
    if row.flags & ROW_LIVENESS:
        found["live"] = _written(row.liveness_us, row.ttl, row.expiry_seconds)
    if row.flags & ROW_DELETION:
        assert row.deletion_seconds == row.deletion_us // 1_000_000
        found["deleted"] = row.deletion_us
    if one["scope"] == RANGE_DELETION:
        found["from"], found["to"] = one["clustering"], one["clustering_end"]
    names = {c.id: c.name for c in codec.schema.columns}
    for cell in row.cells:
        found.setdefault(names[cell.column], []).append(_cell(cell))
    return found


def _written(time_us: int, ttl: int, end: int) -> Any:
    return time_us if ttl == 0 and end == NEVER else (time_us, ttl, end)


def _cell(cell: Cell) -> Any:
    if cell.flags & CELL_COMPLEX_DELETION:
        return ("cleared", cell.time_us)
    value: Any = "dead" if cell.flags & CELL_TOMBSTONE else cell.value
    named = (cell.path, value) if cell.flags & 4 else (value,)
    expiring = (cell.ttl, cell.end_seconds) if cell.flags & CELL_EXPIRING else ()
    assert cell.time_us == T
    return (*named, *expiring)


def sku(number: int) -> bytes:
    """Return the clustering of a row as a cell row has it."""
    return b"\4\0\0\0" + i(number)


def place(number: int, after: bool = False, flip: int = 0) -> bytes:
    """Return the place of a row of one int column among the rows, or of what comes after it."""
    value = bytes([3]) + bytes([i(number)[0] ^ 0x80]) + i(number)[1:]
    return bytes(byte ^ flip for byte in value) + b"\xff" * after


@pytest.mark.covers("SCY-LOG-06")
def test_an_insert_sets_columns_and_makes_the_row_live() -> None:
    insert = {"op": 2, "sku": i(1), "name": t("tea"), "cdc$deleted_qty": TRUE}
    assert contributions_of(ITEMS, ITEM, insert) == [
        {"scope": ROW, "row": sku(1), "live": T, "name": [(b"tea",)], "qty": [("dead",)]}
    ]


@pytest.mark.covers("SCY-LOG-05")
def test_an_update_sets_columns_and_leaves_the_others() -> None:
    update = {"op": 1, "sku": i(1), "cdc$deleted_name": TRUE, "qty": i(3)}
    assert contributions_of(ITEMS, ITEM, update) == [
        {"scope": ROW, "row": sku(1), "name": [("dead",)], "qty": [(i(3),)]}
    ]


@pytest.mark.covers("SCY-EVT-27")
def test_values_expire_and_nulls_of_the_same_statement_do_not() -> None:
    jam = {"op": 2, "ttl": 60, "sku": i(2), "name": t("jam")}
    null = {"op": 1, "sku": i(2), "cdc$deleted_qty": TRUE}
    end = NOW + 60
    assert contributions_of(ITEMS, ITEM, jam, null) == [
        {"scope": ROW, "row": sku(2), "live": (T, 60, end), "name": [(b"jam", 60, end)]},
        {"scope": ROW, "row": sku(2), "qty": [("dead",)]},
    ]


@pytest.mark.covers("SCY-EVT-28")
def test_a_row_expires_with_its_ttl_without_a_log_row() -> None:
    decoded = ITEMS.decode(
        changes([change_record(ITEM, rows({"op": 2, "ttl": 60, "sku": i(2), "name": t("jam")}))]), []
    )
    contributions = pa.Table.from_batches([decoded.contributions])
    assert len(reconcile_cells(contributions, NOW + 59, "scylla").live) == 1
    assert len(reconcile_cells(contributions, NOW + 60, "scylla").live) == 0
    assert contributions_of(ITEMS, ITEM, {"op": -3, "sku": i(2)}) == [
        {"scope": ROW, "row": sku(2), "deleted": T}
    ]


@pytest.mark.covers("SCY-EVT-26")
def test_a_static_write_is_of_the_partition_and_of_no_row() -> None:
    assert contributions_of(ITEMS, ITEM, {"op": 1, "owner": t("ann")}) == [
        {"scope": STATIC, "owner": [(b"ann",)]}
    ]
    both = ({"op": 1, "owner": t("bob")}, {"op": 2, "sku": i(3), "qty": i(9)})
    assert contributions_of(ITEMS, ITEM, *both) == [
        {"scope": STATIC, "owner": [(b"bob",)]},
        {"scope": ROW, "row": sku(3), "live": T, "qty": [(i(9),)]},
    ]


@pytest.mark.covers("SCY-LOG-12")
def test_deletes_of_rows_and_of_partitions_also_by_the_expiry_service() -> None:
    for code in (3, -3):
        assert contributions_of(ITEMS, ITEM, {"op": code, "sku": i(1)}) == [
            {"scope": ROW, "row": sku(1), "deleted": T}
        ]
    for code in (4, -4):
        assert contributions_of(ITEMS, ITEM, {"op": code}) == [{"scope": PARTITION_DELETION, "deleted": T}]


@pytest.mark.covers("SCY-LOG-13", "SCY-EVT-05")
@pytest.mark.parametrize(
    ("begin", "end", "low", "high"),
    [
        ((6, 1), (7, 5), place(1, after=True), place(5, after=True)),
        ((5, 1), (8, 5), place(1), place(5)),
        ((5, None), (8, 5), b"", place(5)),
        ((6, 1), (7, None), place(1, after=True), None),
    ],
)
def test_a_pair_of_rows_is_one_range(
    begin: tuple[int, int | None], end: tuple[int, int | None], low: bytes, high: bytes | None
) -> None:
    pair = [{"op": op} | ({} if number is None else {"sku": i(number)}) for op, number in (begin, end)]
    assert contributions_of(ITEMS, ITEM, *pair) == [
        {"scope": RANGE_DELETION, "deleted": T, "from": low, "to": high}
    ]


def test_ranges_of_a_descending_column_are_in_the_order_of_the_table() -> None:
    table = descending(ITEM)
    codec = codec_of(table)
    assert contributions_of(codec, table, {"op": 5, "sku": i(5)}, {"op": 8, "sku": i(1)}) == [
        {"scope": RANGE_DELETION, "deleted": T, "from": place(5, flip=0xFF), "to": place(1, flip=0xFF)}
    ]
    assert place(5, flip=0xFF) < place(1, flip=0xFF)
    assert contributions_of(codec, table, {"op": 6, "sku": i(5)}, {"op": 7}) == [
        {"scope": RANGE_DELETION, "deleted": T, "from": place(5, flip=0xFF) + b"\xff", "to": None}
    ]


def test_a_null_in_a_bound_of_a_prefix_is_no_bound() -> None:
    codec = codec_of(PAIRS)
    assert contributions_of(codec, PAIRS, {"op": 5, "a": i(1)}, {"op": 7, "a": i(1)}) == [
        {"scope": RANGE_DELETION, "deleted": T, "from": place(1), "to": place(1, after=True)}
    ]


@pytest.mark.covers("SCY-LOG-11")
def test_images_say_nothing_of_rows() -> None:
    before = {"op": 0, "sku": i(3), "qty": i(9), "cdc$deleted_name": TRUE}
    update = {"op": 1, "sku": i(3), "qty": i(4)}
    after = {"op": 9, "sku": i(3), "qty": i(4)}
    assert contributions_of(ITEMS, ITEM, before, update, after) == [
        {"scope": ROW, "row": sku(3), "qty": [(i(4),)]}
    ]


@pytest.mark.covers("SCY-COL-01", "SCY-COL-02", "SCY-COL-04", "SCY-COL-05")
def test_elements_are_cells_of_their_own() -> None:
    codec = codec_of(THINGS)

    def one(**values: bytes) -> dict[str, Any]:
        written = {name.replace("cdc_", "cdc$"): value for name, value in values.items()}
        (found,) = contributions_of(codec, THINGS, {"op": 1, "part": i(1), **written})
        assert (found.pop("scope"), found.pop("row")) == (ROW, sku(1))
        return found

    def elements(*values: bytes) -> bytes:
        return pack_elements(values)

    assert one(tags=elements(b"a")) == {"tags": [(b"a", b"")]}
    assert one(cdc_deleted_elements_tags=elements(b"b")) == {"tags": [(b"b", "dead")]}
    cleared = ("cleared", T - 1)
    assert one(tags=elements(b"c"), cdc_deleted_tags=TRUE) == {"tags": [cleared, (b"c", b"")]}
    assert one(cdc_deleted_tags=TRUE) == {"tags": [cleared]}
    assert one(attr=pack_pairs([(b"x", i(1))])) == {"attr": [(b"x", i(1))]}
    assert one(cdc_deleted_elements_attr=elements(b"y")) == {"attr": [(b"y", "dead")]}
    assert one(addr=pack_parts([None, b"Oslo"])) == {"addr": [(b"\0\1", b"Oslo")]}
    nulls = {"addr": pack_parts([None, None]), "cdc_deleted_elements_addr": elements(b"\0\0")}
    assert one(**nulls) == {"addr": [(b"\0\0", "dead")]}
    assert one(tags=elements(b"a", b"c"), cdc_deleted_elements_tags=elements(b"b")) == {
        "tags": [(b"a", b""), (b"b", "dead"), (b"c", b"")]
    }
    (static_row,) = contributions_of(codec, THINGS, {"op": 1, "labels": elements(b"l")})
    assert static_row == {"scope": STATIC, "labels": [(b"l", b"")]}


def test_a_user_defined_type_of_nulls_alone_says_nothing() -> None:
    nothing = {"op": 1, "part": i(1), "addr": pack_parts([None, None])}
    assert contributions_of(codec_of(THINGS), THINGS, nothing) == []


@pytest.mark.covers("SCY-COL-03")
def test_a_list_is_in_the_order_of_the_ids_of_its_elements() -> None:
    codec = codec_of(THINGS)
    # By their bytes, or as numbers with sign, the later of two ids can be the lesser one.
    first, second = cdc_time(T, b"\x80" + bytes(7)), cdc_time(T, b"\x7f" + bytes(7))
    mirrored, later = cdc_time(1_000_000_000_000_000), cdc_time(T + 429_496_729)
    assert later < first
    written = {first: 1, second: 2, mirrored: 0, later: 3}

    def record(at: int, **values: bytes) -> dict[str, object]:
        row = {"op": 1, "part": i(1), **{n.replace("cdc_", "cdc$"): v for n, v in values.items()}}
        return change_record(THINGS, rows(row, at=at, key="id"))

    records = [
        record(T, log=pack_pairs([(path, i(number)) for path, number in written.items()])),
        record(T + 1, cdc_deleted_elements_log=pack_elements([second])),
    ]
    assert _selected(codec, records[:1])["log"] == pack_elements([i(n) for n in range(4)])
    assert _selected(codec, records)["log"] == pack_elements([i(0), i(1), i(3)])


@pytest.mark.covers("SCY-LOG-17")
def test_a_log_of_keys_leaves_the_partition_unresolved_and_deletes_still_delete() -> None:
    table = replace(ITEM, cdc=CdcOptions(delta=Delta.KEYS))
    codec = codec_of(table)
    assert contributions_of(codec, table, {"op": 2, "sku": i(1)}) == [{"scope": UNRESOLVED}]
    assert contributions_of(codec, table, {"op": 1}) == [{"scope": UNRESOLVED}]
    assert contributions_of(codec, table, {"op": 3, "sku": i(1)}) == [
        {"scope": ROW, "row": sku(1), "deleted": T}
    ]


@pytest.mark.covers("SCY-LOG-17")
def test_a_log_of_unknown_delta_is_applied_and_unresolved_without_column_data() -> None:
    payload = schema_payload(ITEM).replace(b'"full"', b'"unreported"')
    name = schema_digest(payload)
    codec = recall_scylla_codec(table_schema(ITEM), {name: payload}, None)

    def of(row: dict[str, Any]) -> list[dict[str, Any]]:
        decoded = codec.decode(changes([change_record(ITEM, rows(row)) | {"schema_id": name}]), [])
        assert not decoded.reasons
        return [shown(codec, one) for one in decoded.contributions.to_pylist()]

    assert of({"op": 1, "sku": i(1), "qty": i(3)}) == [{"scope": ROW, "row": sku(1), "qty": [(i(3),)]}]
    assert of({"op": 1, "sku": i(1), "cdc$deleted_qty": TRUE})[0]["scope"] == ROW
    assert of({"op": 2, "sku": i(1)}) == [{"scope": ROW, "row": sku(1), "live": T}, {"scope": UNRESOLVED}]
    assert of({"op": 1}) == [{"scope": UNRESOLVED}]
    assert of({"op": 3, "sku": i(1)}) == [{"scope": ROW, "row": sku(1), "deleted": T}]


def _selected(codec: ScyllaCodec, records: Iterable[dict[str, object]]) -> dict[str, bytes | None]:
    decoded = codec.decode(changes(records), [])
    assert not decoded.reasons
    live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW, "scylla").live
    (batch,) = live.combine_chunks().to_batches()
    (row,) = native_rows(codec.schema, batch)
    return dict(row)


# From when TTLs count.

LOG_TTL = ITEM.cdc.ttl
JAM = {"op": 2, "ttl": 60, "sku": i(2)}


@pytest.mark.parametrize("skew_seconds", [0, 1, -3, 10])
def test_a_ttl_counts_from_the_write_time_where_the_log_rows_life_agrees(skew_seconds: int) -> None:
    how = {"read_at": NOW + 100 + skew_seconds, "life_seconds": LOG_TTL - 100}
    (found,) = contributions_of(ITEMS, ITEM, JAM, **how)
    assert found["live"] == (T, 60, NOW + 60)


@pytest.mark.parametrize("ago", [11, 3600])
def test_a_ttl_counts_from_the_coordinators_clock_where_a_client_chose_the_write_time(ago: int) -> None:
    how = {"read_at": NOW + ago + 100, "life_seconds": LOG_TTL - 100}
    (found,) = contributions_of(ITEMS, ITEM, JAM, **how)
    assert found["live"] == (T, 60, NOW + ago + 60)


def test_a_ttl_is_unresolved_if_the_log_rows_ttl_may_not_be_that_of_the_schema() -> None:
    how = {"read_at": NOW + 3700, "life_seconds": LOG_TTL - 100}
    altered = codec_of(ITEM, ITEM.with_cdc(ttl=100))
    unresolved = [{"scope": ROW, "row": sku(2), "live": (T, 60, NOW + 60)}, {"scope": UNRESOLVED}]
    assert contributions_of(altered, ITEM, JAM, **how) == unresolved
    from_beyond = {"read_at": NOW, "life_seconds": LOG_TTL + 50}
    assert contributions_of(ITEMS, ITEM, JAM, **from_beyond) == unresolved
    before_its_write = {"read_at": NOW + 70, "life_seconds": LOG_TTL - 100}
    assert contributions_of(ITEMS, ITEM, JAM, **before_its_write) == unresolved
    assert contributions_of(altered, ITEM, JAM, read_at=NOW, life_seconds=LOG_TTL) == unresolved[:1]


def test_a_ttl_counts_from_the_write_time_where_log_rows_stay_for_ever() -> None:
    table = ITEM.with_cdc(ttl=0)
    (found,) = contributions_of(codec_of(table), table, JAM, read_at=NOW + 99999)
    assert found["live"] == (T, 60, NOW + 60)


def test_of_two_values_that_expire_together_the_shorter_ttl_wins() -> None:
    def record(ttl: int, value: bytes, written: int) -> dict[str, object]:
        row = rows({"op": 1, "ttl": ttl, "sku": i(2), "name": value})
        return change_record(ITEM, row, read_at=written, life_seconds=LOG_TTL)

    both = [record(60, b"z", NOW + 1000), record(30, b"a", NOW + 1030)]
    assert _selected(ITEMS, both)["name"] == b"a"
    assert _selected(ITEMS, both[::-1])["name"] == b"a"
    same = [record(60, b"a", NOW + 1000), record(60, b"z", NOW + 1000)]
    assert _selected(ITEMS, same)["name"] == _selected(ITEMS, same[::-1])["name"] == b"z"
