from __future__ import annotations

import json
import random
import struct

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.json_text import rows_to_json, value_to_json
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import parse_type
from tests.unit.sources.cql.cell_rows import live_rows
from tests.unit.sources.cql.recordings import VARIANTS, recorded_rows, recorded_schemas, recording


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_formatted_like_the_server(variant: str) -> None:
    folder = recording(variant)
    checked = 0
    for name, table in recorded_schemas(folder).tables.items():
        recorded = list(recorded_rows(folder, name))
        rows = [
            {k: None if v is None else bytes.fromhex(v) for k, v in row["raw"].items()} for row in recorded
        ]
        for found, row in zip(
            rows_to_json(table, live_rows(table, rows, noise=random.Random(3))), recorded, strict=True
        ):
            assert found == row["json"]
            assert json.loads(found) == json.loads(row["json"])
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("date", b"\0\0\0\0", '"-5877641-06-23"'),
        ("date", b"\xff" * 4, '"+5881580-07-11"'),
        ("timestamp", struct.pack(">q", (1 << 63) - 1), '"+292278994-08-17 07:12:55.807Z"'),
        ("timestamp", struct.pack(">q", -62135596800001), '"0001-12-31 23:59:59.999Z"'),
        ("int", b"", '""'),
        ("time", b"", '"null"'),
        ("frozen<map<int, text>>", struct.pack(">iiii", 1, 4, 7, 1) + b"x", '{"7": "x"}'),
        ("frozen<map<frozen<list<int>>, int>>", struct.pack(">iiiiiii", 1, 12, 1, 4, 7, 4, 1), '{"[7]": 1}'),
        ("tuple<int, text>", struct.pack(">ii", 4, 7), "[7, null]"),
        ("'org.example.Own'", b"\1", '"0x01"'),
    ],
)
def test_edge_values(text: str, value: bytes, expected: str) -> None:
    assert value_to_json(parse_type(text), value) == expected


def test_names_that_need_quotes_in_cql_have_them_inside_the_json() -> None:
    table = parse_cql('CREATE TABLE k.t ("Key" int PRIMARY KEY, v int)').tables["k.t"]
    (text,) = rows_to_json(table, live_rows(table, [{"Key": b"\0\0\0\1", "v": None}]))
    assert text == r'{"\"Key\"": 1, "v": null}'
    udt = CqlType("udt", (CqlType("int"),), True, ("F",), "k.u")
    assert value_to_json(udt, struct.pack(">ii", 4, 7)) == r'{"\"F\"": 7}'


@pytest.mark.parametrize(
    ("key", "value"), [(b"\0\7\1\2", None), (b"\0\1x\0\0", None), (b"\0\1x\0", b"\0\0\0")]
)
def test_row_that_breaks_its_format_is_corrupt_and_named(key: bytes, value: bytes | None) -> None:
    table = parse_cql("CREATE TABLE k.t (a blob, b blob, v double, PRIMARY KEY ((a, b)))").tables["k.t"]
    rows = live_rows(table, [{"a": b"x", "b": b"y", "v": value}])
    rows = rows.set_column(rows.schema.get_field_index("key"), "key", pa.array([key], pa.binary()))
    with pytest.raises(CorruptInput, match=r"k\.t can't be decoded"):
        list(rows_to_json(table, rows))
