"""What can't be decoded is left out whole, with a reason that names table, stream and time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.fence import Fence
from airflow_cdc_provider.changes.record import SNAPSHOT
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cql import schema as cql
from airflow_cdc_provider.sources.cql.native_rows import native_rows
from airflow_cdc_provider.sources.cql.reasons import CODES
from airflow_cdc_provider.sources.cql.schema import DroppedColumn
from airflow_cdc_provider.sources.cql.snapshot_payload import state_payload
from airflow_cdc_provider.sources.scylla.codec import ScyllaCodec, recall_scylla_codec
from airflow_cdc_provider.sources.scylla.log_options import CdcOption
from airflow_cdc_provider.sources.scylla.log_table import LogTable
from airflow_cdc_provider.sources.scylla.payload import Position, schema_digest, time_us
from airflow_cdc_provider.sources.scylla.schema_history import log_tables
from server_kit.scylla.schemas import log_columns
from server_kit.scylla.tables import Column, Table
from server_kit.scylla.values import CqlType, pack_elements, pack_pairs, pack_parts
from tests.unit.server_kit.scylla.item import INT, ITEM, NOW, TEXT, THINGS, T, i, t
from tests.unit.sources.scylla.log_rows import STREAM, TRUE, cdc_time, rows
from tests.unit.sources.scylla.logged import (
    GENERATION_MS,
    OTHER_ID,
    TABLE_ID,
    LogRow,
    change_record,
    changes,
    codec_of,
    cql_type,
    schema_payload,
    table_schema,
)

ITEMS = codec_of(ITEM)
TEA = {"op": 2, "sku": i(1), "name": t("tea")}


def refused(codec: ScyllaCodec, given: list[LogRow], table: Table = ITEM) -> str:
    """Decode a broken change together with a valid one; return its reason."""
    sound = change_record(table, rows({"op": 4}, key=table.partition[0].name))
    decoded = codec.decode(changes([sound, change_record(table, given), sound]), [])
    assert decoded.undecodable == [1]
    assert list(decoded.rows) == [0, 2]
    assert decoded.contributions.num_rows == 2
    (reason,) = decoded.reasons
    assert f"{table.full_name}, byte " in reason
    assert f"stream {STREAM.hex()}, written at {T} us" in reason
    return reason


def edited(given: list[LogRow], number: int, **values: Any) -> list[LogRow]:
    found = [dict(row) for row in given]
    found[number] |= {name.replace("cdc_", "cdc$"): value for name, value in values.items()}
    return [*found]


def test_an_unknown_operation_is_reported_with_its_position() -> None:
    for code in (10, -1, -2, -5, 127, -128):
        reason = refused(ITEMS, rows({"op": code, "sku": i(1)}))
        assert reason.startswith("unknown-operation: ")
        assert f"code {code}" in reason


@pytest.mark.parametrize(
    "broken",
    [
        edited(rows(TEA), 0, cdc_end_of_batch=None),
        edited(rows(TEA), 0, cdc_batch_seq_no=i(1)),
        edited(rows(TEA, TEA), 1, cdc_batch_seq_no=i(0)),
        edited(rows(TEA, TEA), 0, cdc_end_of_batch=TRUE),
    ],
)
def test_a_change_of_which_rows_are_missing_is_not_taken_for_whole(broken: list[LogRow]) -> None:
    assert refused(ITEMS, broken).startswith("unfinished-change: ")


@pytest.mark.parametrize(
    "broken",
    [
        rows({"op": 5, "sku": i(1)}),
        rows({"op": 7, "sku": i(1)}),
        rows({"op": 5, "sku": i(1)}, TEA),
        rows({"op": 5, "sku": i(1)}, {"op": 6, "sku": i(2)}, {"op": 7}),
        rows({"op": 6}, {"op": 7}),
        rows({"op": 5}, {"op": 8}),
    ],
)
def test_ends_of_ranges_come_in_pairs(broken: list[LogRow]) -> None:
    assert refused(ITEMS, broken).startswith("bad-marker: ")


def test_a_change_is_of_one_partition() -> None:
    assert refused(ITEMS, edited(rows(TEA, TEA), 1, shop=i(8))).startswith("bad-key: ")
    assert refused(ITEMS, edited(rows(TEA), 0, shop=None)).startswith("bad-key: ")


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (rows({"op": 3}), "bad-clustering"),
        (rows({**TEA, "sku": b"\0\1"}), "bad-clustering"),
        (rows({**TEA, "owner": t("ann")}), "bad-log-row"),
        (edited(rows(TEA), 0, cdc_operation=None), "bad-log-row"),
        (rows({**TEA, "ttl": 1 << 31}), "bad-expiry"),
    ],
)
def test_a_row_that_is_none_of_its_table_is_refused(broken: list[LogRow], code: str) -> None:
    assert refused(ITEMS, broken).startswith(f"{code}: ")


@pytest.mark.parametrize("value", [b"", i(2), i(-1), i(1) + i(5), i(1) + i(-1), pack_elements([b"a"]) + b"x"])
def test_a_collection_that_breaks_its_form_is_refused(value: bytes) -> None:
    row = rows({"op": 1, "part": i(1), "tags": value}, key="id")
    assert refused(codec_of(THINGS), row, THINGS).startswith("bad-value: ")


def test_a_change_whose_schema_is_not_known_waits_for_it() -> None:
    other = replace(ITEM, regular=(*ITEM.regular, Column("price", INT)))
    record = change_record(other, rows({**TEA, "price": i(5)}))
    reason = ITEMS.decode(changes([record]), []).reasons[0]
    assert reason.startswith("unknown-schema: ")
    # The log's schema is known, the table's is older than that.
    lagging = codec_of(ITEM, other)
    assert lagging.decode(changes([record]), []).reasons[0].startswith("unknown-column: ")
    untouched = change_record(other, rows(TEA))
    assert not lagging.decode(changes([untouched]), []).reasons


def test_a_schema_record_that_is_none_is_refused() -> None:
    sound = schema_payload(ITEM)
    for broken in (b"", b"{}", b"[]", sound.replace(b'"v": 1', b'"v": 2'), sound[:-1]):
        with pytest.raises(CorruptInput):
            LogTable.of(broken)
    without = sound.replace(b"cdc$operation", b"operation")
    with pytest.raises(CorruptInput, match="has missing columns"):
        recall_scylla_codec(table_schema(ITEM), {schema_digest(without): without}, None).decode(
            changes([]), []
        )


def test_the_records_that_the_capture_makes_of_logs_decode_them() -> None:
    base = table_schema(THINGS)
    columns = [
        cql.Column(name, "regular", -1, cql_type(kind, THINGS.keyspace)) for name, kind in log_columns(THINGS)
    ]
    log = cql.TableSchema("shop", THINGS.log_name, OTHER_ID, cql.order_columns(columns))
    schemas = cql.Schemas(tables={table.full_name: table for table in (base, log)})
    made = log_tables(schemas, {base.full_name: CdcOption(enabled=True, ttl_seconds=86400)})[base.full_name]
    codec = recall_scylla_codec(base, {made.schema_id: made.payload}, None)
    row = {"op": 2, "part": i(1), "tags": pack_elements([b"a"]), "qty": i(3)}
    record = {**change_record(THINGS, rows(row, key="id")), "schema_id": made.schema_id}
    found = _selected(codec, [record])
    assert (found["part"], found["tags"], found["qty"]) == (i(1), pack_elements([b"a"]), i(3))


def test_changes_of_a_dropped_table_are_skipped() -> None:
    other = schema_payload(ITEM, OTHER_ID)
    own = schema_payload(ITEM)
    codec = recall_scylla_codec(
        table_schema(ITEM), {schema_digest(other): other, schema_digest(own): own}, None
    )
    records = [change_record(ITEM, rows(TEA), table_id=OTHER_ID), change_record(ITEM, rows({"op": 4}))]
    decoded = codec.decode(changes(records), [])
    assert not decoded.reasons
    assert list(decoded.rows) == [1]


def test_a_column_that_was_dropped_counts_no_more() -> None:
    """Neither as it was, nor under the name of one that was added later, whatever its form."""
    dropped_column = DroppedColumn("name", "regular", table_schema(ITEM).columns[-1].type, T)
    rest = replace(ITEM, regular=(Column("qty", INT),))
    record = change_record(ITEM, rows({**TEA, "qty": i(2)}))
    for table in (rest, replace(ITEM, regular=(Column("name", TEXT), Column("qty", INT)))):
        schema = replace(table_schema(table), dropped={"name": dropped_column})
        assert _selected(codec_of(table, ITEM, schema=schema), [record]) == {
            **dict.fromkeys(c.name for c in schema.columns),
            "shop": i(7),
            "sku": i(1),
            "qty": i(2),
        }
    loose = replace(ITEM, regular=(Column("name", CqlType("set", (TEXT,))), Column("qty", INT)))
    assert _selected(codec_of(loose, ITEM), [record])["name"] is None


def test_logs_of_several_schemas_are_decoded_in_one_batch() -> None:
    now = replace(ITEM, regular=(*ITEM.regular, Column("price", INT)))
    records = [
        change_record(ITEM, rows(TEA)),
        change_record(now, rows({"op": 1, "sku": i(1), "price": i(5)})),
        change_record(ITEM, rows({"op": 1, "sku": i(1), "qty": i(2)})),
    ]
    found = _selected(codec_of(now, ITEM), records)
    assert found == {
        "shop": i(7), "sku": i(1), "owner": None, "name": t("tea"), "price": i(5), "qty": i(2)
    }  # fmt: skip


def test_what_a_snapshot_read_merges_with_changes() -> None:
    first = ITEMS.decode(changes([change_record(ITEM, rows(TEA))]), []).contributions
    state = first["state"][0].as_py()
    snapshot = {
        **change_record(ITEM, rows(TEA)),
        "kind": SNAPSHOT,
        "key": i(7),
        "schema_id": TABLE_ID,
        "payload": state_payload(ITEMS.schema, state),
    }
    later = change_record(ITEM, rows({"op": 1, "sku": i(1), "qty": i(2)}))
    found = _selected(ITEMS, [later, snapshot])
    assert (found["name"], found["qty"]) == (t("tea"), i(2))
    of_another = {**snapshot, "schema_id": OTHER_ID}
    assert ITEMS.decode(changes([of_another]), []).contributions.num_rows == 0


def test_changes_behind_a_fence_are_of_the_generation_that_it_begins() -> None:
    fence = Fence(5, "", Position(GENERATION_MS, cdc_time(T), b"\xff" * 16).pack(), T)
    before, after = change_record(ITEM, rows(TEA)), change_record(ITEM, rows(TEA, at=T + 1))
    found = ITEMS.decode(changes([before, after]), [fence]).contributions
    assert found["generation"].to_pylist() == [0, 5]


def test_positions_sort_as_the_database_reads() -> None:
    moments = [(T, b"\x80" * 8), (T, b"\xff" * 8), (T, b"\x00" * 8), (T, b"\x7f" * 8), (T + 1, b"\x80" * 8)]
    places = [Position(1, cdc_time(us, rest), STREAM) for us, rest in moments]
    packed = [place.pack() for place in places]
    assert packed == sorted(packed)
    assert Position(2, cdc_time(0), STREAM).pack() > packed[-1]
    assert [Position.unpack(p) for p in packed] == places
    assert [time_us(place.time) for place in places] == [us for us, _ in moments]


def _selected(codec: ScyllaCodec, records: list[dict[str, object]]) -> dict[str, bytes | None]:
    decoded = codec.decode(changes(records), [])
    assert not decoded.reasons
    live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW, "scylla").live
    (batch,) = live.combine_chunks().to_batches()
    (row,) = native_rows(codec.schema, batch)
    return dict(row)


# Damaged bytes.


def test_damaged_payloads_are_decoded_or_refused_with_a_reason() -> None:
    chance = random.Random(3)
    codes = {name for name, _ in CODES.values()}
    refused_changes = 0
    for table, given in _samples():
        codec = codec_of(table)
        record = change_record(table, given)
        payload = record["payload"]
        assert isinstance(payload, bytes)
        assert not codec.decode(changes([record]), []).reasons
        broken = [payload[:length] for length in range(len(payload))]
        broken += [_damaged(payload, chance) for _ in range(400)]
        decoded = codec.decode(changes([{**record, "payload": p} for p in broken]), [])
        assert all(reason.split(":")[0] in codes for reason in decoded.reasons)
        assert not set(decoded.rows) & set(decoded.undecodable)
        assert set(range(len(payload))) <= set(decoded.undecodable)  # every beginning of it
        refused_changes += len(decoded.reasons)
        reconcile_cells(pa.Table.from_batches([decoded.contributions]), NOW, "scylla")
    assert refused_changes > 1000


def _samples() -> list[tuple[Table, list[LogRow]]]:
    things = {
        "part": i(1),
        "tags": pack_elements([b"a", b"c"]),
        "cdc$deleted_elements_tags": pack_elements([b"b"]),
        "attr": pack_pairs([(b"x", i(1)), (b"y", i(2))]),
        "cdc$deleted_attr": TRUE,
        "log": pack_pairs([(cdc_time(T), i(1))]),
        "addr": pack_parts([None, b"Oslo"]),
        "qty": i(3),
    }
    return [
        (ITEM, rows({"op": 1, "owner": t("ann")}, TEA, {"op": 3, "sku": i(2)})),
        (ITEM, rows({"op": 6, "sku": i(1)}, {"op": 7, "sku": i(5)}, {"op": 4})),
        (THINGS, rows({"op": 2, "ttl": 60, **things}, key="id")),
    ]


def _damaged(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(out))
        match chance.randrange(4):
            case 0:
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del out[at : at + chance.randrange(1, 9)]
            case _:
                out[at:at] = chance.randbytes(chance.randrange(1, 9))
    return bytes(out) or b"L"
