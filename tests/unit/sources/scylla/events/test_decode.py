"""Log rows as events: which rows make one, what they say of columns of each type, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.events.connect import schema_of
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder
from airflow_cdc_provider.sources.scylla.events.tables import event_table
from server_kit.scylla.log_rows import Change, LogRow
from server_kit.scylla.statements import (
    AddElements,
    Assignment,
    DeleteColumns,
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    Limit,
    PrependElements,
    RemoveElements,
    SetElement,
    SetField,
    SetWhole,
    Update,
)
from server_kit.scylla.tables import Column, Preimage, Table
from server_kit.scylla.values import CqlType, pack_elements, pack_pairs, pack_parts
from tests.unit.server_kit.scylla.item import ADDRESS, INT, ITEM, TEXT, THINGS, Server, T, i, server, t
from tests.unit.sources.scylla.events.published import decoded
from tests.unit.sources.scylla.logged import record_of_change, schema_payload

SHOP = (i(7),)
KEY, PART = (i(1),), (i(2),)


def things(*assignments: Assignment, ttl: int = 0) -> dict[str, Any]:
    """Return the event of an update of things, whose log holds elements before."""
    (change,) = server(THINGS).execute(Update(KEY, PART, assignments, ttl=ttl))
    (event,) = decoded(THINGS, [change], KEY).events.to_pylist()
    return dict(event)


def changed(column: str, *assignments: Assignment) -> tuple[Any, Any]:
    """Return what an event says of a column with a cell per element: its value, and what changed."""
    event = things(*assignments)
    return event["set"][column], event["collections"][column]


def elements(*texts: str) -> bytes:
    return pack_elements([t(text) for text in texts])


@pytest.mark.covers("SCY-COL-01", "SCY-COL-05")
def test_sets_report_added_removed_and_replaced_elements() -> None:
    def of(assignment: Assignment) -> tuple[Any, ...]:
        value, change = changed("tags", assignment)
        return value, change["removed"], change["replaced"]

    assert of(AddElements("tags", (t("a"),))) == (["a"], None, False)
    assert of(RemoveElements("tags", (t("b"),))) == (None, ["b"], False)
    assert of(SetWhole("tags", elements("c"))) == (["c"], None, True)
    assert of(SetWhole("tags", elements())) == (None, None, True)
    assert of(SetWhole("tags", None)) == (None, None, True)


@pytest.mark.covers("SCY-COL-02")
def test_maps_report_written_pairs_and_removed_keys() -> None:
    def of(*assignments: Assignment) -> tuple[Any, ...]:
        value, change = changed("attr", *assignments)
        return value, change["removed"], change["replaced"]

    both = (SetElement("attr", t("x"), i(1)), RemoveElements("attr", (t("y"),)))
    assert of(*both) == ([{"key": "x", "value": 1}], ["y"], False)
    assert of(SetWhole("attr", pack_pairs([(t("z"), i(2))]))) == ([{"key": "z", "value": 2}], None, True)


@pytest.mark.covers("SCY-COL-03")
def test_lists_are_in_the_order_of_their_cells_times_and_name_their_ids() -> None:
    value, change = changed("log", AddElements("log", (i(5), i(6), i(7))))
    assert value == [5, 6, 7]
    assert len(change["added"]) == len(set(change["added"])) == 3
    assert changed("log", PrependElements("log", (i(2), i(1))))[0] == [2, 1]
    database = server(THINGS)
    (first,) = database.execute(Update(KEY, PART, (SetWhole("log", pack_elements([i(8), i(9)])),)))
    log_changes = decoded(THINGS, [first], KEY).events.to_pylist()[0]["collections"]["log"]
    (second,) = database.execute(DeleteColumns(KEY, PART, (SetElement("log", i(1), None),)), at=T + 10)
    event = decoded(THINGS, [second], KEY).events.to_pylist()[0]
    assert event["collections"]["log"]["removed"] == [log_changes["added"][1]]
    assert (log_changes["replaced"], event["collections"]["log"]["replaced"]) == (True, False)


def test_a_list_that_the_log_holds_in_another_order_is_sorted_by_time_and_then_by_signed_bytes() -> None:
    def cell(time: int, rest: int) -> bytes:
        return struct.pack(">IHH", time, 0, 0x1000) + bytes([rest]) * 8

    unsorted = pack_pairs([(cell(2, 1), i(30)), (cell(1, 0x01), i(20)), (cell(1, 0x81), i(10))])
    change = Change(T, (LogRow(1, PART, values={"log": unsorted}, end_of_batch=True),))
    (event,) = decoded(THINGS, [change], KEY).events.to_pylist()
    assert event["set"]["log"] == [10, 20, 30]
    assert [text[:8] for text in event["collections"]["log"]["added"]] == ["00000001", "00000001", "00000002"]


@pytest.mark.covers("SCY-COL-04")
def test_user_defined_types_report_written_and_nulled_fields() -> None:
    assert changed("addr", SetField("addr", 1, t("Oslo"))) == (
        {"street": None, "city": "Oslo"},
        {"added": None, "removed": None, "replaced": False},
    )
    value, change = changed("addr", SetField("addr", 0, None))
    assert (value, change["removed"]) == (None, ["street"])
    assert changed("addr", SetWhole("addr", pack_parts([t("A"), None])))[1]["replaced"] is True


def test_a_user_defined_type_whose_value_is_all_nulls_was_not_touched() -> None:
    change = Change(T, (LogRow(1, PART, values={"addr": pack_parts([None, None])}, end_of_batch=True),))
    (event,) = decoded(THINGS, [change], KEY).events.to_pylist()
    assert (event["set"]["addr"], event["modified"]["addr"]) == (None, False)
    assert event["collections"]["addr"] is None


def test_columns_that_a_statement_did_not_modify_are_distinguished() -> None:
    event = things(SetWhole("qty", None), AddElements("tags", (t("a"),)))
    assert {n for n, yes in event["modified"].items() if yes} == {"qty", "tags"}


@pytest.mark.parametrize("statement", ["insert", "update"])
def test_a_collection_written_with_a_ttl_is_one_event_though_its_tombstone_has_none(statement: str) -> None:
    value = SetWhole("tags", elements("a"))
    if statement == "insert":
        request: Any = Insert(KEY, PART, {"tags": elements("a"), "qty": i(1)}, ttl=60)
    else:
        request = Update(KEY, PART, (value, SetWhole("qty", i(1))), ttl=60)
    (change,) = server(THINGS).execute(request)
    assert len(change.rows) > 1
    (event,) = decoded(THINGS, [change], KEY).events.to_pylist()
    assert (event["op"], event["ttl"]) == (statement[0].replace("i", "c"), 60)
    assert (event["set"]["tags"], event["set"]["qty"]) == (["a"], 1)
    assert event["collections"]["tags"]["replaced"]


def test_rows_of_one_key_with_other_ttls_stay_events_of_their_own() -> None:
    changes = server().execute(
        Update(SHOP, (i(1),), (SetWhole("name", t("tea")),), ttl=60),
        Update(SHOP, (i(1),), (SetWhole("qty", i(3)),), ttl=90),
    )
    events_found = decoded(ITEM, changes, SHOP).events.to_pylist()
    assert [(e["ttl"], e["set"]["name"], e["set"]["qty"]) for e in events_found] == [
        (60, "tea", None),
        (90, None, 3),
    ]


@pytest.mark.covers("SCY-EVT-04", "SCY-EVT-05")
def test_a_range_is_recognised_by_its_pair_and_gives_no_event() -> None:
    database = server()
    changes = [
        *database.execute(DeleteRange(SHOP, (), Limit(i(1), False), Limit(i(5), True))),
        *database.execute(DeleteRange(SHOP, (), None, Limit(i(5), False)), at=T + 1),
        *database.execute(DeleteRow(SHOP, (i(1),)), at=T + 2),
    ]
    found = decoded(ITEM, changes, SHOP)
    assert [(e["op"], e["row"]) for e in found.events.to_pylist()] == [("d", 2)]
    assert (found.undecodable, found.left_out) == ({}, {"range delete": 2})


@pytest.mark.covers("SCY-EVT-25", "SCY-LOG-12")
def test_a_partition_delete_is_an_event_where_a_partition_is_a_row() -> None:
    plain = Table("shop", "plain", (Column("id", INT),), (), (), (Column("v", INT),))
    newer = server(preimage=Preimage.ON, preimage_of_partition_deletes=True).table.cdc
    with_preimages = replace(plain, cdc=newer)
    for table, before in ((plain, None), (with_preimages, {"v": 3})):
        database = Server(table)
        changes = [
            *database.execute(Insert(KEY, (), {"v": i(3)})),
            *database.execute(DeletePartition(KEY), at=T + 1),
        ]
        events_found = decoded(table, changes, KEY).events.to_pylist()
        assert [(e["op"], e["before"]) for e in events_found] == [("c", None), ("d", before)]
    found = decoded(ITEM, server().execute(DeletePartition(SHOP)), SHOP)
    assert (found.events.num_rows, found.left_out) == (0, {"partition delete": 1})


@pytest.mark.parametrize(("code", "clustering", "table"), [(-3, PART, ITEM), (-4, (), None)])
@pytest.mark.covers("SCY-LOG-14")
def test_deletes_of_the_expiry_service_are_deletes_with_a_mark(
    code: int, clustering: tuple[bytes, ...], table: Table | None
) -> None:
    table = table or Table("shop", "plain", (Column("id", INT),), (), (), (Column("v", INT),))
    change = Change(T, (LogRow(code, clustering, end_of_batch=True),))
    (event,) = decoded(table, [change], KEY).events.to_pylist()
    assert (event["op"], event["by_service"]) == ("d", True)


@pytest.mark.covers("SCY-LOG-12")
def test_row_and_partition_deletes_are_no_ones_of_the_service() -> None:
    (event,) = decoded(ITEM, server().execute(DeleteRow(SHOP, (i(1),))), SHOP).events.to_pylist()
    assert (event["op"], event["by_service"]) == ("d", False)


@pytest.mark.covers("SCY-IMG-04")
def test_images_are_found_by_their_keys_among_the_rows_of_a_batch() -> None:
    database = server(preimage=Preimage.FULL, postimage=True)
    inserts = database.execute(*(Insert(SHOP, (i(n),), {"qty": i(n)}) for n in (1, 2, 3)))
    made = decoded(database.table, inserts, SHOP).events.to_pylist()
    assert [(e["op"], e["before"]) for e in made] == [("c", None)] * 3, "no row was there before"
    changes = database.execute(
        Update(SHOP, (i(1),), (SetWhole("qty", i(10)),)),
        DeleteRow(SHOP, (i(2),)),
        Update(SHOP, (i(3),), (SetWhole("qty", i(30)),)),
        at=T + 1,
    )
    events_found = decoded(database.table, changes, SHOP).events.to_pylist()
    found = {
        e["key"]["sku"]: (e["op"], e["before"]["qty"], e["after"] and e["after"]["qty"]) for e in events_found
    }
    assert found == {1: ("u", 1, 10), 2: ("d", 2, None), 3: ("u", 3, 30)}


@pytest.mark.covers("SCY-IMG-05")
def test_a_preimage_distinguishes_null_columns_from_missing_ones() -> None:
    database = server(preimage=Preimage.ON)
    changes = [
        *database.execute(Insert(SHOP, (i(1),), {"name": t("tea")})),
        *database.execute(Update(SHOP, (i(1),), (SetWhole("qty", i(3)),)), at=T + 1),
    ]
    event = decoded(database.table, changes, SHOP).events.to_pylist()[1]
    assert event["before"] == {"name": None, "owner": None, "qty": None}
    assert event["before_known"] == {"name": False, "owner": False, "qty": True}


SCALARS = [
    ("ascii", t("a"), "a", "string", ""),
    ("text", t("ä"), "ä", "string", ""),
    ("uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f", "string", ""),
    (
        "timeuuid",
        bytes.fromhex("04afc000833b11ee8080808080808080"),
        "04afc000-833b-11ee-8080-808080808080",
        "string",
        "",
    ),
    ("inet", bytes([127, 0, 0, 1]), "127.0.0.1", "string", ""),
    ("inet", bytes(15) + b"\1", "0:0:0:0:0:0:0:1", "string", ""),
    ("decimal", struct.pack(">i", 2) + (1234567).to_bytes(3, "big"), "12345.67", "string", ""),
    ("varint", (1 << 70).to_bytes(9, "big"), str(1 << 70), "string", ""),
    # 1 day, 12 h 30 min: months 0, days 1, nanoseconds, as zig-zag vints.
    ("duration", b"\0\2" + b"\xfc" + (2 * 45_000_000_000_000).to_bytes(6, "big"), "1d12h30m", "string", ""),
    ("tinyint", b"\xff", -1, "int8", ""),
    ("smallint", b"\xff\xfe", -2, "int16", ""),
    ("int", i(-3), -3, "int32", ""),
    ("bigint", struct.pack(">q", 1 << 40), 1 << 40, "int64", ""),
    ("counter", struct.pack(">q", 7), 7, "int64", ""),
    ("float", struct.pack(">f", 1.5), 1.5, "float", ""),
    ("double", struct.pack(">d", 2.5), 2.5, "double", ""),
    ("boolean", b"\1", True, "boolean", ""),
    ("blob", b"\0\xff", b"\0\xff", "bytes", ""),
    ("date", struct.pack(">I", (1 << 31) + 19_000), 19_000, "int32", "org.apache.kafka.connect.data.Date"),
    (
        "timestamp",
        struct.pack(">q", T // 1000),
        T // 1000,
        "int64",
        "org.apache.kafka.connect.data.Timestamp",
    ),
    ("time", struct.pack(">q", 1_234_567_890), 1_234_567_890, "int64", ""),
]


def shown(cql_type: CqlType, value: bytes) -> tuple[Any, Any]:
    """Return how a value of a column is shown, and its Connect schema."""
    table = Table("shop", "types", (Column("id", INT),), (), (), (Column("v", cql_type),))
    change = Change(T, (LogRow(2, (), values={"v": value}, end_of_batch=True),))
    events = decoded(table, [change], KEY).events
    return events["set"][0].as_py()["v"], schema_of(events.schema.field("set").type.field("v"))


@pytest.mark.covers(
    "SCY-TYP-01", "SCY-TYP-02", "SCY-TYP-03", "SCY-TYP-04", "SCY-TYP-05", "SCY-TYP-06", "SCY-TYP-07"
)
@pytest.mark.parametrize(("name", "stored", "value", "connect", "named"), SCALARS)
def test_scalars_have_the_connectors_types(
    name: str, stored: bytes, value: object, connect: str, named: str
) -> None:
    found, schema = shown(CqlType(name), stored)
    assert found == value
    assert (schema.type, schema.optional, schema.name) == (connect, True, named)


@pytest.mark.covers("SCY-TYP-08", "SCY-TYP-09", "SCY-TYP-10", "SCY-TYP-11")
def test_nested_values_are_arrays_and_structs_named_after_their_types() -> None:
    numbers = CqlType("list", (INT,), frozen=True)
    assert shown(numbers, pack_elements([i(2), i(1)]))[0] == [2, 1]
    value, schema = shown(CqlType("set", (TEXT,), frozen=True), elements("a", "b"))
    assert (value, schema.type, schema.items and schema.items.type) == (["a", "b"], "array", "string")
    value, schema = shown(
        CqlType("map", (TEXT, numbers), frozen=True), pack_pairs([(t("k"), pack_elements([i(1)]))])
    )
    assert value == [{"key": "k", "value": [1]}]
    assert schema.items is not None
    assert (schema.items.name, schema.items.optional) == ("my.shop.types.MapEntry_TEXT_List_INT", False)
    value, schema = shown(CqlType("tuple", (INT, TEXT)), pack_parts([i(1), None]))
    assert value == {"field_0": 1, "field_1": None}
    assert (schema.name, schema.optional) == ("my.shop.types.Tuple_INT_TEXT", True)
    value, schema = shown(replace(ADDRESS, frozen=True), pack_parts([t("A"), t("Oslo")]))
    assert value == {"street": "A", "city": "Oslo"}
    assert (schema.name, [name for name, _ in schema.fields]) == (
        "my.shop.types.UDT_address",
        ["street", "city"],
    )


def refused(*given: bytes) -> dict[int, str]:
    decoder = EventDecoder(event_table(schema_payload(ITEM)), "my.shop.item.")
    found = decoder.decode(pa.array(given, pa.binary()))
    assert found.events.num_rows == sum(number not in found.undecodable for number in range(len(given)))
    return found.undecodable


def one(row: LogRow) -> bytes:
    return bytes(record_of_change(ITEM, Change(T, (row,)), SHOP)["payload"])


def test_what_is_no_whole_change_is_named_and_the_others_are_decoded() -> None:
    good = one(LogRow(2, (i(1),), end_of_batch=True))
    assert refused(good, one(LogRow(77, (i(1),), end_of_batch=True)), good) == {
        1: "cdc$operation 77 is unknown"
    }
    assert refused(good, one(LogRow(2, (i(1),)))) == {
        1: "its last row has no cdc$end_of_batch: it is incomplete"
    }
    assert refused(one(LogRow(5, (i(1),), end_of_batch=True))) == {0: "a range delete has only one bound"}
    assert refused(one(LogRow(8, (i(1),), end_of_batch=True))) == {0: "a range delete has only one bound"}


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 9, 40, -1])
def test_a_payload_that_is_cut_anywhere_is_refused_alone(cut: int) -> None:
    good = one(LogRow(2, (i(1),), values={"name": t("tea")}, end_of_batch=True))
    assert refused(good, good[:cut], good) == {1: "its payload is malformed"}
    assert refused(good + b"\0") == {0: "its payload is malformed"}


def test_a_value_of_the_wrong_size_names_its_column() -> None:
    with pytest.raises(CorruptInput, match=r"shop\.item, column qty of its log"):
        refused(one(LogRow(2, (i(1),), values={"qty": b"\0\0"}, end_of_batch=True)))


def test_a_schema_record_that_is_none_is_refused() -> None:
    with pytest.raises(CorruptInput, match="schema record"):
        event_table(b'{"v": 1}')
