"""Effects of ``publish`` and ``publish.vitess`` on events, with recorded and built streams."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import struct
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from tests.unit.sources.vitess.events.chosen_events import ID, NAME, events_of
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES, declared, events, records, rows
from tests.unit.vitess_stream import NOT_NULL, PRIMARY, SERVER, UNIQUE, Stream, column


def after(found: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Return the rows after of events."""
    return [record["value"]["after"] for record in found if record["value"]]


def created_rows(stream: Stream, tmp_path: Path, **vitess: Any) -> list[dict[str, Any]]:
    """Return the rows of a built stream's create events."""
    return [row for row in after(events_of(stream, tmp_path, vitess=vitess)) if row is not None]


def cents(values: pa.Array, settings: Mapping[str, Any]) -> pa.Array:
    """Show prices as whole cents: a converter of a user."""
    return pc.multiply(values.cast(pa.float64()), float(settings["factor"])).cast(pa.int64(), safe=False)


# Keys


@pytest.mark.covers("VIT-KEY-02", "VIT-KEY-03")
def test_without_a_primary_key_the_first_unique_column_is_the_key_and_else_there_is_none(
    tmp_path: Path,
) -> None:
    code = column("code", "VARCHAR", "varchar(9)", UNIQUE | NOT_NULL, 255)
    mail = column("mail", "VARCHAR", "varchar(9)", UNIQUE, 255)
    # The first column of an index on several has MySQL's flag MULTIPLE_KEY (8) alone.
    pair = column("pair", "INT32", "int", 8)
    stream = Stream().fields("u", pair, code, mail).change("u", None, (b"1", b"c", b"m"))
    stream.fields("n", pair, NAME).change("n", None, (b"1", b"x"))

    unique, none = events_of(stream, tmp_path)

    assert unique["key"] == {"code": "c"}
    assert none["key"] is None


def test_other_columns_can_be_the_key(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME, column("n", "INT32", "int"))
    stream.change("t", None, (b"1", b"a", b"5")).change("t", (b"1", b"a", b"5"), (b"1", b"b", b"5"))

    created, deleted, tombstone, moved = events_of(
        stream, tmp_path, vitess={"key_columns": {r"shop\.t": "name|n"}}
    )

    assert created["key"] == {"name": "a", "n": 5}
    assert (deleted["key"], deleted["value"]["op"]) == ({"name": "a", "n": 5}, "d")
    assert tombstone["value"] is None
    assert (moved["key"], moved["value"]["op"]) == ({"name": "b", "n": 5}, "c")


@pytest.mark.covers("VIT-EVT-05", "VIT-EVT-06", "VIT-KEY-05")
def test_a_change_of_keys_is_a_delete_a_tombstone_and_a_create(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME)
    stream.begin().row("t", None, (b"1", b"a")).row("t", (b"1", b"a"), (b"2", b"a")).commit()

    _, deleted, tombstone, created = events_of(stream, tmp_path)

    assert (deleted["key"], deleted["value"]["op"], deleted["value"]["before"]) == (
        {"id": 1},
        "d",
        {"id": 1, "name": "a"},
    )
    assert deleted["headers"] == tombstone["headers"] == {"__debezium.newkey": {"id": 2}}
    assert (tombstone["key"], tombstone["value"]) == ({"id": 1}, None)
    assert (created["key"], created["value"]["op"], created["value"]["before"]) == ({"id": 2}, "c", None)
    assert created["headers"] == {"__debezium.oldkey": {"id": 1}}


# Which columns, and how


def test_rows_have_the_time_of_their_commit(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).begin().row("t", None, (b"1", b"a"))
    began = stream.seconds
    stream.seconds += 7
    stream.commit()

    (created,) = events_of(stream, tmp_path)

    assert created["value"]["source"]["ts_ms"] == (began + 7) * 1000


@pytest.mark.covers("VIT-SCO-12", "VIT-SCO-13", "VIT-SCO-14")
def test_columns_are_chosen_in_values_and_keys_keep_theirs(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME, column("n", "INT32", "int")).change("t", None, (b"1", b"a", b"5"))

    (included,) = events_of(stream, tmp_path, vitess={"include_columns": [r"shop\.t\.name"]})
    (excluded,) = events_of(stream, tmp_path, vitess={"exclude_columns": [r"shop\.t\.(id|name)"]})

    assert (included["key"], included["value"]["after"]) == ({"id": 1}, {"name": "a"})
    assert (excluded["key"], excluded["value"]["after"]) == ({"id": 1}, {"n": 5})
    with pytest.raises(ConfigurationError, match="exclude each other"):
        events_of(stream, tmp_path, vitess={"include_columns": ["a"], "exclude_columns": ["b"]})


@pytest.mark.covers("VIT-SCO-20")
def test_updates_of_excluded_columns_are_skipped(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", (b"1", b"a"), (b"1", b"b"))
    vitess = {"exclude_columns": [r"shop\.t\.name"]}
    skipped = SkippedRecords(strict=True)

    assert len(events_of(stream, tmp_path, vitess=vitess)) == 1
    assert events_of(stream, tmp_path, skipped, skip_unchanged=True, vitess=vitess) == []
    assert skipped.by_kind == {"unchanged": 1}


@pytest.mark.covers("VIT-SCO-16")
def test_kinds_of_events_are_left_out_and_transactions_do_not_count_them(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME)
    stream.begin().row("t", None, (b"1", b"a")).row("t", (b"1", b"a"), (b"1", b"b")).row(
        "t", (b"1", b"b")
    ).commit()

    found = events_of(stream, tmp_path, skipped_operations=["u"], transactions=True)

    assert [r["value"]["op"] for r in found if r["value"] and "op" in r["value"]] == ["c", "d"]
    assert found[-1]["value"]["event_count"] == 2
    assert found[2]["value"]["transaction"]["total_order"] == 2


@pytest.mark.covers("VIT-TYP-32")
def test_columns_are_truncated_masked_and_hashed_only_in_values(tmp_path: Path) -> None:
    key = column("id", "VARCHAR", "varchar(64)", PRIMARY | NOT_NULL, 255)
    texts = [
        column(name, "VARCHAR", f"varchar({size})", charset=255)
        for name, size in (("a", 64), ("b", 64), ("c", 9))
    ]
    stream = Stream().fields("t", key, *texts).change("t", None, (b"k", "äöü€".encode(), None, b"secret"))
    masks = {
        r"shop\.t\.(id|b)": "mask:3",
        r"shop\.t\.a": "truncate:2",
        r"shop\.t\.c": "hash-v2:SHA-256:salt",
    }

    (event,) = events_of(stream, tmp_path, vitess={"masks": masks})

    digest = hashlib.sha256(b"saltsecret").hexdigest()
    assert event["key"] == {"id": "k"}
    assert event["value"]["after"] == {"id": "***", "a": "äö", "b": "***", "c": digest[:9]}


@pytest.mark.parametrize("flags", [0, NOT_NULL])
def test_nanoseconds_beyond_64_bits_are_null_if_they_must_not_wrap(tmp_path: Path, flags: int) -> None:
    texts = (
        "9999-12-31 23:59:59",
        "2262-04-11 23:47:16.854775",
        "2262-04-11 23:47:16.854776",
        "1000-01-01 00:00:00",
    )
    stream = Stream().fields("t", ID, column("at", "DATETIME", "datetime(6)", flags))
    for number, text in enumerate(texts):
        stream.change("t", None, (str(number).encode(), text.encode()))
    vitess = {"temporal": "nanoseconds"}

    wrapped, exact = (
        [row["at"] for row in after(found) if row]
        for found in (
            events_of(stream, tmp_path, vitess=vitess),
            events_of(stream, tmp_path, vitess=vitess, times_beyond_64_bits="null"),
        )
    )

    assert exact == [None, 9223372036854775000, None, None]
    assert (wrapped[1], None in wrapped) == (exact[1], False)


def test_masks_are_in_schemas_and_truncate_bytes_as_debezium_does_it(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME, column("data", "BLOB", "blob"))
    stream.change("t", None, (b"1", b"n", b"\xff\xfe\xfd")).change("t", None, (b"2", None, None))
    masks = {r"shop\.t\.name": "mask:2", r"shop\.t\.data": "truncate:1"}
    types = {"source_types_of_columns": [".*"]}

    first, second = events_of(stream, tmp_path, schemas=True, vitess={"masks": masks, **types})

    assert first["value"]["payload"]["after"] == {"id": 1, "name": "**", "data": "/w=="}
    assert second["value"]["payload"]["after"] == {"id": 2, "name": "**", "data": None}
    after = next(one for one in first["value"]["schema"]["fields"] if one["field"] == "after")
    parameters = [one["parameters"] for one in after["fields"]]
    assert [one.get("masked") or one.get("truncateLength") for one in parameters] == [None, "true", "1"]
    assert parameters[1]["__debezium.source.column.length"] == "20"


@pytest.mark.parametrize("value", ["json", "avro", "protobuf"])
def test_a_row_without_columns_is_empty_and_not_missing(tmp_path: Path, value: str) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, (b"1", b"n")).change("t", (b"1", b"n"), None)
    options = {"publish": {"headers": False, "value": value, "vitess": {"include_columns": ["no.such"]}}}
    source = {"type": "vitess", "keyspace": "shop"}
    connector = Connector.from_dict({"name": "cdc", "source": source, **options})

    created, deleted, tombstone = records(connector, stream.write(tmp_path / "made.vstream"))

    assert [r["key"] for r in (created, deleted, tombstone)] == ['{"id":1}'] * 3
    if value == "json":
        rows = [json.loads(r["value"]) for r in (created, deleted)]
        assert [(row["before"], row["after"]) for row in rows] == [(None, {}), ({}, None)]
    else:
        starts = [base64.b64decode(r["value"])[:2] for r in (created, deleted)]
        # Avro: no row before, then a row; Protobuf: field 2, of no bytes, and field 1.
        assert starts == ([b"\0\2", b"\2\0"] if value == "avro" else [b"\x12\0", b"\x0a\0"])


def test_a_mask_of_a_column_without_text_is_rejected(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, (b"1", b"a"))

    assert created_rows(stream, tmp_path, masks={r".*": "truncate:5"}) == [{"id": 1, "name": "a"}]
    with pytest.raises(ConfigurationError, match="no text"):
        created_rows(stream, tmp_path, masks={r"shop\.t\.id": "mask:5"})


@pytest.mark.covers("VIT-TYP-30", "VIT-TYP-31")
@pytest.mark.parametrize(
    "vitess",
    [
        {"source_types_of_columns": [r"shop\.t\.(name|price)"]},
        {"source_types": ["VARCHAR", r"shop\.DECIMAL"]},
        {"source_types": [r"shop\.t\.VARCHAR", r".*\.DECIMAL"]},
        {"source_types": [r"shop\.t\.name", r"shop\.t\.price"]},
        {"source_types_of_columns": [r".*\.name"], "source_types": [r"shop\..*\.DECIMAL"]},
    ],
)
def test_schemas_contain_mysql_types(vitess: dict[str, Any], tmp_path: Path) -> None:
    price = column("price", "DECIMAL", "decimal(9,2)", decimals=2)
    stream = Stream().fields("t", ID, NAME, price).change("t", None, (b"1", b"a", b"1.50"))

    (event,) = events_of(stream, tmp_path, schemas=True, vitess=vitess)

    members = {
        field["field"]: field.get("parameters") for field in event["value"]["schema"]["fields"][1]["fields"]
    }
    lead = "__debezium.source.column"
    assert members["id"] is None
    assert members["name"] == {f"{lead}.type": "VARCHAR", f"{lead}.length": "20", f"{lead}.name": "name"}
    assert members["price"] == {
        f"{lead}.type": "DECIMAL",
        f"{lead}.length": "9",
        f"{lead}.scale": "2",
        f"{lead}.name": "price",
    }


def test_types_are_also_those_of_vstream(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, (b"1", b"a"))

    (event,) = events_of(stream, tmp_path, schemas=True, vitess={"source_types": [r"shop\.t\.INT64"]})

    members = event["value"]["schema"]["fields"][1]["fields"]
    assert [member.get("parameters", {}).get("__debezium.source.column.type") for member in members] == [
        "BIGINT",
        None,
    ]


@pytest.mark.covers("VIT-TYP-29")
def test_a_custom_function_converts_a_column(tmp_path: Path) -> None:
    price = column("price", "DECIMAL", "decimal(9,2)", decimals=2)
    stream = Stream().fields("t", ID, price).change("t", None, (b"1", b"1.50"))
    converter = {
        "type": "tests.unit.sources.vitess.events.test_event_choices:cents",
        "columns": r"shop\.t\.price",
        "schema_name": "cents",
        "factor": "100",
    }

    (event,) = events_of(stream, tmp_path, schemas=True, vitess={"converters": {"cents": converter}})

    assert event["value"]["payload"]["after"] == {"id": 1, "price": 150}
    field = event["value"]["schema"]["fields"][1]["fields"][1]
    assert (field["type"], field["name"]) == ("int64", "cents")


@pytest.mark.covers("VIT-TYP-33", "VIT-TXN-12", "VIT-TXN-13")
def test_debeziums_own_transforms(tmp_path: Path) -> None:
    stream = Stream(shards=("-80", "80-")).fields("t", ID, NAME, shard="80-")
    stream.change("t", None, (b"1", b"a"), shard="80-")

    (event,) = events_of(
        stream,
        tmp_path,
        transactions=True,
        vitess={
            "local_vgtid": True,
            "transaction_records": False,
            "remove_fields": ["source.db", "after.id"],
            "replace_fields": {"source.table": "hidden", "source.keyspace": ""},
        },
    )

    local = [{"keyspace": "shop", "shard": "80-", "gtid": f"MySQL56/{SERVER}:1-1", "table_p_ks": []}]
    assert json.loads(event["value"]["source"]["vgtid"]) == local
    assert json.loads(event["value"]["transaction"]["id"]) == local
    assert event["value"]["after"] == {"name": "a"}
    assert (event["value"]["source"]["table"], event["value"]["source"]["keyspace"]) == ("hidden", "")
    assert "db" not in event["value"]["source"]


# Types


@pytest.mark.recorded
@pytest.mark.covers("VIT-TYP-17", "VIT-TYP-19", "VIT-TYP-20")
def test_mode_text_formats_dates_as_debezium_2_0_did() -> None:
    row = rows(events("default", vitess={"temporal": "text"}), "types_time")[1]
    assert row["y"] == "2024"
    assert row["ts3"] == "2024-02-29 12:00:00.125"
    assert (row["dt0"], row["dt6"]) == ("2024-02-29 23:59:59", "2024-02-29 23:59:59.123456")


@pytest.mark.recorded
@pytest.mark.covers("VIT-TYP-21")
def test_timestamps_have_their_zone() -> None:
    found = rows(events("default", vitess={"timestamps": "zoned"}), "types_time")
    assert found[1]["ts6"] == "2024-02-29T12:00:00.000001Z"
    assert found[4]["ts0"] is None
    assert (found[1]["d"], found[1]["t1"]) == (19782, 45296700000)
    assert (found[1]["dt3"], found[1]["dt6"]) == (1709251199123, 1709251199123456)


@pytest.mark.recorded
@pytest.mark.covers("VIT-TYP-22")
def test_connects_own_types_and_texts_are_offered_and_adaptive_is_not() -> None:
    connect = rows(events("strconnect"), "types_time")
    assert (connect[1]["d"], connect[1]["t3"], connect[1]["dt6"]) == (19782, 45296789, 1709251199123)
    assert connect[2]["t0"] is None, "a time below zero or above a day"
    assert rows(events("iso"), "types_time")[2]["t0"] == "-838:59:59"
    with pytest.raises(ConfigurationError, match=r"publish\.vitess\.temporal"):
        events("default", vitess={"temporal": "adaptive"})


@pytest.mark.recorded
@pytest.mark.covers("VIT-TYP-26")
def test_bits_are_included_if_enabled() -> None:
    row = rows(events("default", vitess={"bits": True}), "types_num")[1]
    assert row["bit1"] is True
    assert base64.b64decode(row["bit20"]) == bytes(
        [0x01, 0x00, 0x08]
    )  # b'1000 0000 0000 0000 0001', lowest first
    assert base64.b64decode(row["bit64"])[::-1] == (1 << 63 | 1).to_bytes(8, "big")


def test_spatial_values_and_vectors_are_included_if_enabled() -> None:
    found = rows(events("default", vitess={"geometries": True, "vectors": True}), "types_misc")
    row = found[1]
    assert (row["p"]["x"], row["p"]["y"], row["p"]["srid"]) == (-1.5, 2.25, None)
    assert row["p4326"]["srid"] == 4326
    assert base64.b64decode(row["ls"]["wkb"])[:5] == b"\x01\x02\x00\x00\x00"
    assert row["vec"] == [1.0, 2.5, -3.0]
    assert found[2]["p"] is None
    assert found[2]["vec"] is None


def test_text_is_read_by_the_charset_of_its_column() -> None:
    row = rows(events("default", vitess={"charsets": "column"}), "types_str")[1]
    assert (row["vc_latin"], row["vc"], row["en"]) == ("latin é", "vär€😀", "b,c")


def test_decimals_are_exact_numbers_if_enabled() -> None:
    row = rows(events("default", vitess={"decimals": "precise"}), "types_num")[1]
    for name, text in (
        ("dec5_2", "-123.45"),
        ("dec65_30", "12345678901234567890123456789012345.012345678901234567890123456789"),
    ):
        number = int.from_bytes(base64.b64decode(row[name]), "big", signed=True)
        assert number == int(text.replace(".", "")), name
        assert Decimal(text).as_tuple().exponent in (-2, -30)
    assert rows(events("default", vitess={"decimals": "double"}), "types_num")[1]["dec5_2"] == -123.45


@pytest.mark.covers("VIT-TYP-23")
def test_dates_that_no_calendar_has_do_not_stop_the_events(tmp_path: Path) -> None:
    moment = column("m", "DATETIME", "datetime")
    sure = column("s", "DATETIME", "datetime", NOT_NULL)
    stream = Stream().fields("t", ID, moment, sure)
    for text in (b"2023-11-00 00:00:00", b"2023-02-31 01:00:00", b"0000-00-00 00:00:00"):
        stream.change("t", None, (b"1", text, text))

    assert created_rows(stream, tmp_path) == [{"id": 1, "m": None, "s": 0}] * 3
    assert created_rows(stream, tmp_path, nullable_dates=True) == [{"id": 1, "m": None, "s": None}] * 3


@pytest.mark.covers("VIT-TYP-16", "VIT-FLT-16")
def test_members_come_as_text_or_as_numbers(tmp_path: Path) -> None:
    size = column("size", "ENUM", "enum('S','M','it''s, L')", charset=255)
    tags = column("tags", "SET", "set('x','y','z w')", charset=255)
    stream = Stream().fields("t", ID, size, tags, texts=False)
    stream.change("t", None, (b"1", b"3", b"5")).change("t", None, (b"2", b"0", b"0"))
    stream.fields("t", ID, size, tags).change("t", None, (b"3", b"M", b"x,y"))
    # Vitess 8 sends no values.
    stream.fields("t", ID, column("size", "ENUM"), column("tags", "SET"), texts=False)
    stream.change("t", None, (b"4", b"3", b"5"))

    assert created_rows(stream, tmp_path) == [
        {"id": 1, "size": "it's, L", "tags": "x,z w"},
        {"id": 2, "size": "", "tags": ""},
        {"id": 3, "size": "M", "tags": "x,y"},
        {"id": 4, "size": "3", "tags": "5"},
    ]


@pytest.mark.covers("VIT-FLT-14")
def test_blanks_in_numbers_of_vitess_8_are_stripped(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, column("n", "DECIMAL", "decimal(13,2)", decimals=2))
    stream.change("t", None, (b"1", b"  12 345.60")).change("t", None, (b"2", b"-.50"))

    assert [row["n"] for row in created_rows(stream, tmp_path)] == ["12345.60", "-0.50"]


def test_columns_that_the_binlog_omits_from_an_update_keep_their_values(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", (b"1", b"a"), (b"1", None))
    bitmap = stream.messages[2].events[0].row_event.row_changes[0].data_columns
    bitmap.count, bitmap.cols = 2, b"\x01"

    assert created_rows(stream, tmp_path) == [{"id": 1, "name": "a"}]


# SkippedRecords


@pytest.mark.parametrize(("values", "reason"), [((b"1",), "1 values"), ((b"x", b"a"), "can't be parsed")])
def test_a_row_that_cannot_be_decoded_is_reported_and_the_others_are_events(
    values: tuple[bytes, ...], reason: str, tmp_path: Path
) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, values).change("t", None, (b"2", b"b"))
    skipped = SkippedRecords(strict=False)

    found = events_of(stream, tmp_path, skipped)

    assert after(found) == [{"id": 2, "name": "b"}]
    assert len(skipped.undecodable) == 1
    assert reason in skipped.undecodable[0]
    with pytest.raises(CorruptInput):
        events_of(stream, tmp_path, SkippedRecords(strict=True))


@pytest.mark.covers("VIT-STR-08")
def test_rows_without_a_commit_are_ignored(tmp_path: Path) -> None:
    stream = (
        Stream().fields("t", ID, NAME).change("t", None, (b"1", b"a")).begin().row("t", None, (b"2", b"b"))
    )
    skipped = SkippedRecords(strict=False)

    assert after(events_of(stream, tmp_path, skipped)) == [{"id": 1, "name": "a"}]
    assert "1 row changes without a COMMIT" in skipped.undecodable[0]


def test_a_restarted_transaction_starts_at_its_last_begin(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).begin().row("t", None, (b"1", b"a"))
    stream.fields("t", ID, NAME).begin().row("t", None, (b"1", b"a")).row("t", None, (b"2", b"b")).commit()

    found = events_of(stream, tmp_path, transactions=True)

    assert [r["value"].get("status") or r["key"]["id"] for r in found] == ["BEGIN", 1, 2, "END"]


@pytest.mark.covers("VIT-TXN-14")
@pytest.mark.parametrize(
    ("shards", "names"), [(True, ["-80.shop.t", "80-.shop.t"]), (False, ["shop.t", "shop.t"])]
)
def test_tables_in_ends_of_transactions_have_their_shard_or_not(
    shards: bool, names: list[str], tmp_path: Path
) -> None:
    stream = Stream(shards=("-80", "80-"))
    for shard in ("-80", "80-"):
        stream.fields("t", ID, NAME, shard=shard).change("t", None, (b"1", b"a"), shard=shard)

    found = events_of(stream, tmp_path, transactions=True, vitess={"shards_in_transactions": shards})

    ends = [record["value"] for record in found if record["value"].get("status") == "END"]
    assert [end["data_collections"] for end in ends] == [
        [{"data_collection": name, "event_count": 1}] for name in names
    ]


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 40))]
)
def test_broken_recordings_are_rejected_or_reported_and_never_crash(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    data = bytearray((FIXTURES / "vstream" / "default.vstream").read_bytes())
    for _ in range(chance.choice([1, 2, 5, 50])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = tmp_path / "broken.vstream"
    path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    connector = declared(
        "default", schemas=False, vitess={"bits": True, "geometries": True, "charsets": "column"}
    )
    skipped = SkippedRecords(strict=False)

    try:
        found = records(connector, path, skipped)
    except CdcError as error:
        assert error.message
    else:
        values = [json.loads(record["value"]) for record in found if record["value"]]
        assert {value["op"] for value in values} <= {"c", "u", "d"}
        assert len(found) <= len(events("default"))
        assert len(found) == len(events("default")) or skipped.undecodable or len(data) > path.stat().st_size


@pytest.mark.covers("VIT-FLT-05")
def test_columns_without_names_are_refused_with_debeziums_words(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, column("@2", "VARCHAR")).change("t", None, (b"1", b"a"))

    with pytest.raises(CorruptInput, match="Illegal prefix '@' for column: @2, from schema: shop, table: t"):
        events_of(stream, tmp_path)


# Transactions, schema changes, topics, forms


@pytest.mark.covers("VIT-TXN-02", "VIT-TXN-05", "VIT-TXN-06", "VIT-TXN-08")
def test_transactions_are_ordered_by_epoch_then_rank_then_order(tmp_path: Path) -> None:
    other = SERVER.replace("ef0f", "aaaa")
    stream = Stream().fields("t", ID, NAME)
    stream.begin().row("t", None, (b"1", b"a")).row("t", (b"1", b"a"), (b"1", b"b"))
    stream.commit(gtid=f"MySQL56/{SERVER}:1-41:50-52,{other}:1-7")
    stream.begin().row("t", (b"1", b"b"), (b"1", b"c")).commit(
        gtid=f"MySQL56/{SERVER}:1-41:50-53,{other}:1-7"
    )
    stream.begin().row("t", (b"1", b"c"), (b"1", b"d")).commit(gtid=f"MySQL56/{other}:1-8")

    found = events_of(stream, tmp_path, transactions=True, vitess={"ordered_transactions": True})
    blocks = [r["value"]["transaction"] for r in found if "op" in r["value"]]

    def place(block: dict[str, Any]) -> tuple[int, int, int]:
        rank = int.from_bytes(base64.b64decode(block["transaction_rank"]), "big", signed=True)
        return block["transaction_epoch"], rank, block["total_order"]

    assert [place(block) for block in blocks] == [(1, 59, 1), (1, 59, 2), (1, 60, 1), (2, 8, 1)]
    assert [r["value"]["status"] for r in found if "status" in r["value"]] == ["BEGIN", "END"] * 3


@pytest.mark.covers("VIT-DDL-01")
def test_statements_go_to_the_topic_of_the_prefix(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, (b"1", b"a"))
    stream.ddl("alter table t add column n int").ddl("what is this").ddl("alter table other add column n int")

    assert len(events_of(stream, tmp_path)) == 1
    found = events_of(stream, tmp_path, schema_changes=True)[1:]

    assert {record["topic"] for record in found} == {"cdc"}
    assert [r["value"]["ddl"] for r in found][:2] == ["alter table t add column n int", "what is this"]
    assert found[0]["value"]["tableChanges"] == [{"type": "ALTER", "id": '"shop"."t"'}]
    assert (found[1]["value"]["source"]["table"], found[1]["value"]["tableChanges"]) == ("<unknown>", [])
    assert found[0]["key"] == {"databaseName": "shop"}


@pytest.mark.covers("VIT-EVT-10")
def test_cloud_events_have_the_vgtid_in_their_id(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, (b"1", b"a"))

    (event,) = events_of(stream, tmp_path, envelope="cloudevents")

    vgtid = event["value"]["iodebeziumvgtid"]
    assert json.loads(vgtid)[0]["shard"] == "0"
    assert event["value"]["id"] == f"name:cdc;vgtid:{vgtid}"
    assert (event["value"]["iodebeziumkeyspace"], event["value"]["source"]) == (
        "shop",
        "/debezium/vitess/cdc",
    )
    assert event["value"]["data"] == {"before": None, "after": {"id": 1, "name": "a"}}


@pytest.mark.covers("VIT-TOP-04", "VIT-TOP-08")
def test_topics_have_other_prefixes_and_delimiters(tmp_path: Path) -> None:
    stream = Stream().fields("t", ID, NAME).change("t", None, (b"1", b"a"))
    stream.fields("u", ID, NAME).change("u", None, (b"1", b"a")).ddl("drop table t")

    found = events_of(
        stream,
        tmp_path,
        topic_delimiter="_",
        schema_changes=True,
        vitess={
            "topic_prefix": "other",
            "topic_prefix_excluded_tables": [r"shop\.u"],
            "schema_changes_topic": "ddl",
        },
    )

    assert [record["topic"] for record in found] == ["other_shop_t", "cdc_shop_u", "ddl"]
    assert found[0]["value"]["source"]["name"] == "cdc"


@pytest.mark.recorded
@pytest.mark.covers("VIT-EVT-07")
def test_tombstones_follow_deletes_unless_they_are_turned_off() -> None:
    found = events("default")
    deletes = [number for number, r in enumerate(found) if r["value"] and r["value"]["op"] == "d"]
    assert deletes
    for number in deletes:
        assert (found[number + 1]["key"], found[number + 1]["value"]) == (found[number]["key"], None)
    assert not [r for r in events("default", tombstones=False) if r["value"] is None]


@pytest.mark.recorded
@pytest.mark.covers("VIT-EVT-12")
def test_the_source_has_the_time_of_the_change_and_the_envelope_its_own() -> None:
    event = next(r for r in reversed(events("default")) if r["value"])
    assert event["value"]["source"]["ts_ms"] % 1000 == 0
    assert event["value"]["source"]["ts_us"] == event["value"]["source"]["ts_ms"] * 1000
    assert event["value"]["ts_ms"] == 1_800_000_000_123
    assert event["value"]["ts_ns"] == 1_800_000_000_123_456_789


@pytest.mark.covers("VIT-NAM-02", "VIT-NAM-04", "VIT-NAM-05", "VIT-NAM-06")
def test_names_are_adjusted_for_avro(tmp_path: Path) -> None:
    stream = Stream().fields("t-1", ID, column("we ird", "INT32", "int")).change("t-1", None, (b"1", b"2"))

    def names(**publish: Any) -> tuple[str, str]:
        (event,) = events_of(stream, tmp_path, schemas=True, **publish)
        schema = event["value"]["schema"]
        return schema["name"], schema["fields"][1]["fields"][1]["field"]

    assert names() == ("cdc.shop.t-1.Envelope", "we ird")
    assert names(schema_names="avro", field_names="avro") == ("cdc.shop.t_1.Envelope", "we_ird")
    assert names(schema_names="avro_unicode", field_names="avro_unicode") == (
        "cdc.shop.t_u002d1.Envelope",
        "we_u0020ird",
    )


@pytest.mark.covers("VIT-NAM-03")
def test_tables_that_would_share_a_schema_are_refused(tmp_path: Path) -> None:
    stream = Stream().fields("a-b", ID, NAME).change("a-b", None, (b"1", b"a"))
    stream.fields("a_b", ID, NAME).change("a_b", None, (b"1", b"a"))

    assert len(events_of(stream, tmp_path)) == 2
    assert len(events_of(stream, tmp_path, schema_names="avro_unicode")) == 2
    with pytest.raises(ConfigurationError, match=r"shop\.a-b and shop\.a_b would share"):
        events_of(stream, tmp_path, schema_names="avro")
    sent, refused = events_of(stream, tmp_path, schema_names="avro", kafka={"connection": "kafka"})
    assert "fault" not in sent
    assert "[CDC-SCHEMA-REJECTED] shop.a-b and shop.a_b would share" in refused["fault"]


def test_keys_and_values_are_written_as_avro(tmp_path: Path) -> None:
    spatial = column("p", "GEOMETRY", "point")
    stream = Stream().fields("t", ID, NAME, spatial).fields("n", NAME)
    point = b"\0\0\0\0\x01\x01\0\0\0" + struct.pack("<dd", 1.5, -2)
    stream.change("t", None, (b"-2", b"a", point)).change("n", None, (b"b",))
    declaration = {
        "name": "cdc",
        "source": {"type": "vitess", "keyspace": "shop"},
        "publish": {"key": "avro", "value": "avro", "schemas": True, "vitess": {"geometries": True}},
    }

    with_key, without = records(Connector.from_dict(declaration), stream.write(tmp_path / "avro.vstream"))

    assert base64.b64decode(with_key["key"]) == b"\x03"  # -2, zigzag
    assert without["key"] is None
    value = base64.b64decode(with_key["value"])
    assert value.startswith(b"\0\x02\x03\x02\x02a\x02" + struct.pack("<dd", 1.5, -2))
    fields = with_key["value_schema"]["fields"][0]["type"][1]["fields"]
    assert [field["name"] for field in fields] == ["id", "name", "p"]


def test_choices_that_say_nothing_are_refused() -> None:
    def declare(kind: str, **publish: Any) -> None:
        source = {"type": kind, "keyspace": "shop"} if kind == "vitess" else {"type": kind}
        Connector.from_dict({"name": "cdc", "source": source, "publish": publish})

    with pytest.raises(ConfigurationError, match="is not supported for source"):
        declare("mongodb", vitess={"bits": True})
    with pytest.raises(ConfigurationError, match="has no effect without transactions"):
        declare("vitess", vitess={"ordered_transactions": True})
    with pytest.raises(ConfigurationError, match="is not supported for source"):
        declare("vitess", unwrap={"enabled": True})
    with pytest.raises(ConfigurationError, match="truncate:N"):
        declare("vitess", vitess={"masks": {"a": "blur"}})


@pytest.mark.covers("VIT-SCO-17")
@pytest.mark.parametrize("skipped", [None, ["t"], ["t", "d"]])
def test_truncations_are_no_events_by_default_nor_where_they_are_skipped(
    tmp_path: Path, skipped: list[str] | None
) -> None:
    stream = Stream().fields("t", ID).change("t", None, [b"1"]).ddl("truncate table t")
    stream.change("t", None, [b"2"])
    chosen: dict[str, Any] = {} if skipped is None else {"skipped_operations": skipped}

    found = events_of(stream, tmp_path, **chosen)

    assert [record["value"]["op"] for record in found] == ["c", "c"]
