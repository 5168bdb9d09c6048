"""Protobuf out of topics: read as Google's library reads it, and as our own encoder writes it."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import ConnectSchema, struct
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.protobuf_converter import to_protobuf
from airflow_cdc_provider.events.protobuf_schema import Nullables, protobuf_of_connect
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.sources.debezium.converters import BROKEN, FramedConverter, JsonConverter
from airflow_cdc_provider.sources.debezium.protobuf_json import protobuf_to_json
from airflow_cdc_provider.sources.debezium.protobuf_program import compile_protobuf, parse_protobuf
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas
from tests.unit.events.protobuf_messages import EVERY_TYPE, SCHEMA, expected_text, message_class, rows
from tests.unit.sources.debezium.debezium_messages import FEED, Table
from tests.unit.sources.debezium.every_protobuf_type import EVERYTHING
from tests.unit.sources.debezium.registry_writers import Registered, head

CONNECT = "org.apache.kafka.connect.data"


compiled = cache(lambda text, path: compile_protobuf(parse_protobuf(text), path))


def read(
    text: str, *messages: bytes | None, path: tuple[int, ...] = (0,)
) -> tuple[list[Any], list[bool], dict[str, Any]]:
    """Turn bytes into JSON by their schema."""
    program, shown = compiled(text, path)
    found, broken = protobuf_to_json(program, *binary_buffer(pa.array(messages, pa.binary())))
    found.validate(full=True)
    return (
        [None if one is None else json.loads(one.decode(errors="replace")) for one in found.to_pylist()],
        broken.tolist(),
        dict(shown),
    )


@pytest.mark.parametrize("nullables", ["plain", "optional", "wrapper"])
@given(values=st.lists(rows, max_size=4))
def test_what_our_encoder_writes_is_read_back_as_its_json(nullables: Nullables, values: list[Any]) -> None:
    schema = protobuf_of_connect(SCHEMA, nullables)
    found, broken, shown = read(schema.text, *to_protobuf(schema, pa.array(values, EVERY_TYPE)).to_pylist())
    assert not any(broken)
    expected = pa.array([expected_text(row, nullables) for row in values], EVERY_TYPE)
    assert found == [json.loads(one) for one in to_json(SCHEMA, expected).to_pylist()]
    types = {one["field"]: one["type"] for one in shown["fields"]}
    given = {name: schema.type for name, schema in SCHEMA.fields}
    # A wrapper has no int8; the columns of both types are the same.
    assert types == (given | {"small": "int32"} if nullables == "wrapper" else given)


i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u32, u64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
inner2 = st.fixed_dictionaries({"v": u32})
inner = st.fixed_dictionaries({"a": i64}, optional={"b": st.text(), "more": st.lists(inner2, max_size=2)})
everything = st.fixed_dictionaries(
    {},
    optional={
        "d": st.floats(),
        "f": st.floats(width=32),
        "i64": i64,
        "u64": u64,
        "i32": i32,
        "f64": u64,
        "f32": u32,
        "flag": st.booleans(),
        "s": st.text(),
        "b": st.binary(),
        "u32": u32,
        "kind": st.sampled_from([0, 1, -1]),
        "sf32": i32,
        "sf64": i64,
        "si32": i32,
        "si64": i64,
        "o32": i32,
        "inner": inner,
        "inners": st.lists(inner, max_size=3),
        "packed": st.lists(i32, max_size=4),
        "unpacked": st.lists(i32, max_size=4),
        "texts": st.lists(st.text(), max_size=3),
        "kinds": st.lists(st.sampled_from([0, 1, -1]), max_size=3),
        "longs": st.dictionaries(st.text(), i64, max_size=3),
        "wrapped": i64,
        "doubles": st.lists(st.floats(), max_size=3),
        "choice": st.tuples(st.booleans(), i32),
    },
)


def built(values: dict[str, Any]) -> Any:
    """Make a message of Google's."""
    values = dict(values)
    choice, wrapped = values.pop("choice", None), values.pop("wrapped", None)
    message = message_class(EVERYTHING, "p.All")(**values)
    if wrapped is not None:
        message.wrapped.value = wrapped
    if choice is not None:
        if choice[0]:
            message.left = choice[1]
        else:
            message.right.a = choice[1]
    return message


def number(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def as_json(message: Any) -> Any:
    """Show a message of Google's as Connect's JSON has it."""

    def one(field: Any, value: Any) -> Any:
        if field.message_type is not None:
            return value.value if field.message_type.name == "Int64Value" else as_json(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return known.name if known else str(value)
        if isinstance(value, float):
            return number(value)
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            own = field.message_type.fields_by_name["value"]
            pairs = [(key, one(own, value[key])) for key in value]
            text = field.message_type.fields_by_name["key"].type == 9
            found[field.name] = dict(pairs) if text else [list(pair) for pair in pairs]
        elif field.is_repeated:
            found[field.name] = [one(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = one(field, value)
    return found


def same(found: Any, expected: Any) -> bool:
    """Compare, whatever the order of maps, and floats by what they show (f has 32 bits)."""
    if isinstance(expected, dict):
        return set(found) == set(expected) and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        import numpy as np

        return found == expected or np.float32(found) == np.float32(expected)
    return bool(found == expected and type(found) is type(expected))


@given(st.lists(everything, max_size=3))
def test_messages_are_read_as_googles_library_reads_them(values: list[dict[str, Any]]) -> None:
    messages = [built(one) for one in values]
    found, broken, _ = read(EVERYTHING, *[one.SerializeToString() for one in messages], path=(1,))
    assert not any(broken)
    assert all(same(one, as_json(message)) for one, message in zip(found, messages, strict=True))


@given(everything, everything, st.data())
def test_what_is_cut_off_or_damaged_is_read_as_there_or_broken(
    values: dict[str, Any], others: dict[str, Any], data: st.DataObject
) -> None:
    whole = built(values).SerializeToString()
    cut = data.draw(st.integers(0, len(whole)))
    damaged = whole[:cut] + data.draw(st.binary(max_size=3)) + whole[cut + 1 :]
    twice = whole + built(others).SerializeToString()
    given = [whole[:cut], damaged, twice]
    found, broken, _ = read(EVERYTHING, *given, path=(1,))
    for one, is_broken, raw in zip(found, broken, given, strict=True):
        try:
            expected = message_class(EVERYTHING, "p.All").FromString(raw)
        except DecodeError:
            # Google's library looks at texts, too; ours leaves them to who reads the JSON.
            continue
        # Messages that come twice, values of other wire types and unknown groups are broken for us alone.
        if not is_broken and len(raw) == cut:
            assert same(one, as_json(expected))


@given(everything, st.data())
def test_what_googles_library_refuses_is_broken_or_no_text(
    values: dict[str, Any], data: st.DataObject
) -> None:
    whole = built(values).SerializeToString()
    cut = data.draw(st.integers(0, max(0, len(whole) - 1)))
    try:
        message_class(EVERYTHING, "p.All").FromString(whole[:cut])
    except DecodeError:
        assert read(EVERYTHING, whole[:cut], path=(1,))[:2] == ([None], [True])


def test_fields_that_come_again_and_lists_in_pieces_are_put_together() -> None:
    text = """syntax = "proto3";
    message M { int32 a = 1; repeated int32 l = 2; oneof c { int32 x = 3; int32 y = 4; } }"""
    raw = b"\x08\x01\x12\x02\x05\x06\x18\x07\x08\x02\x10\x09\x12\x00\x12\x01\x08\x20\x03"
    found, broken, _ = read(text, raw)
    assert (found, broken) == ([{"a": 2, "l": [5, 6, 9, 8], "x": None, "y": 3}], [False])


def test_connects_logical_types_are_those_of_json() -> None:
    schema = struct(
        "s.T",
        (
            "amount",
            ConnectSchema("bytes", optional=True, name=f"{CONNECT}.Decimal", parameters={"scale": "2"}),
        ),
        ("day", ConnectSchema("int32", optional=True, name=f"{CONNECT}.Date")),
        ("time", ConnectSchema("int32", optional=True, name=f"{CONNECT}.Time")),
        ("moment", ConnectSchema("int64", optional=True, name=f"{CONNECT}.Timestamp")),
        ("days", ConnectSchema("array", items=ConnectSchema("int32", name=f"{CONNECT}.Date"))),
    )
    kind = pa.struct(
        [
            ("amount", pa.binary()),
            ("day", pa.int32()),
            ("time", pa.int32()),
            ("moment", pa.int64()),
            ("days", pa.list_(pa.int32())),
        ]
    )
    days = [-141_000, -1, 0, 59, 60, 19_782, 2_932_896]
    table: list[dict[str, Any]] = [
        {
            "amount": (day * 7).to_bytes(4, "big", signed=True),
            "day": day,
            "time": abs(day) % 86_400_000,
            "moment": day * 86_400_000 + 123,
            "days": days,
        }
        for day in days
    ]
    nothing: dict[str, Any] = {"amount": None, "day": None, "time": None, "moment": None, "days": []}
    written = protobuf_of_connect(schema, "optional")
    found, broken, shown = read(
        written.text, *to_protobuf(written, pa.array([*table, nothing], kind)).to_pylist()
    )
    assert not any(broken)
    assert found == [
        *(
            {
                "amount": base64.b64encode(row["amount"]).decode(),
                "day": row["day"],
                "time": row["time"] * 1000,
                "moment": row["moment"] * 1000,
                "days": days,
            }
            for row in table
        ),
        nothing,
    ]
    assert [one.get("name") for one in shown["fields"]] == [
        f"{CONNECT}.Decimal",
        f"{CONNECT}.Date",
        "io.debezium.time.MicroTime",
        "io.debezium.time.MicroTimestamp",
        None,
    ]


def test_what_columns_cannot_show_exactly_is_not_rounded() -> None:
    text = """syntax = "proto3";
import "google/protobuf/timestamp.proto"; import "google/type/date.proto";
import "confluent/type/decimal.proto";
message M { google.protobuf.Timestamp at = 1; google.type.Date day = 2; confluent.type.Decimal free = 3; }"""
    at = b"\x0a\x04\x08\x01\x10\x05"  # a second and five nanoseconds
    day = b"\x12\x05\x08\xe8\x0f\x10\x02"  # February of 2024, no day
    free = b"\x1a\x05\x0a\x01\x7b\x18\x01"
    found, broken, shown = read(text, at + day + free)
    assert (found, broken) == (
        [{"at": 1000000.005, "day": "2024-2-0", "free": {"value": "ew==", "precision": 0, "scale": 1}}],
        [False],
    )
    assert shown["fields"][2]["name"] == "io.debezium.data.VariableScaleDecimal"


def test_moments_finer_than_microseconds_and_before_1970_keep_their_digits() -> None:
    text = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message M { google.protobuf.Timestamp at = 1; }"""
    at = message_class(text, "M")
    given = [
        (0, 1),
        (0, 0),
        (-1, 999_999_999),
        (-1, 998_999_999),
        (-1, 0),
        (-5, 1_001),
        (1_700_000_000, 123_456_789),
    ]
    registry = Registered()
    lead = head(registry.add("PROTOBUF", text)) + b"\0"
    messages = [lead + at(at={"seconds": s, "nanos": n}).SerializeToString() for s, n in given]
    texts = FramedConverter(RegisteredSchemas(registry, "protobuf")).keys(pa.array(messages))[0].to_pylist()
    found = [json.loads(one, parse_float=Decimal)["at"] for one in texts]
    assert found == [Decimal(s * 1_000_000_000 + n) / 1000 for s, n in given]
    # Whatever a writer may have in mind.
    hostile = [-(1 << 63), (1 << 63) - 1, 9_000_000_000_001, -9_000_000_000_001]
    messages = [lead + at(at={"seconds": one}).SerializeToString() for one in hostile]
    _, faults = FramedConverter(RegisteredSchemas(registry, "protobuf")).keys(pa.array(messages))
    assert faults.tolist() == [BROKEN] * 4


ENTRY = "message PairEntry { string key = 1; string value = 2; }"


@pytest.mark.parametrize("fields", [("one", "many"), ("many", "one")])
def test_a_map_entry_may_also_be_a_plain_field(fields: tuple[str, str]) -> None:
    declared = {"one": "PairEntry one = 1;", "many": "repeated PairEntry many = 2;"}
    text = f'syntax = "proto3"; message M {{ {" ".join(declared[one] for one in fields)} }} {ENTRY}'
    pair = b"\x06\x0a\x01a\x12\x01b"
    found, broken, shown = read(text, b"\x0a" + pair + b"\x12" + pair)
    assert (found, broken) == ([{"one": {"key": "a", "value": "b"}, "many": {"a": "b"}}], [False])
    assert {one["field"]: one["type"] for one in shown["fields"]} == {"one": "struct", "many": "map"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        'syntax = "proto3"; message M { M m = 1; }',
        'syntax = "proto3"; import "no/such.proto"; message M { no.Such m = 1; }',
        'syntax = "proto3"; import "../../etc/passwd"; message M { int32 a = 1; }',
        'syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 2; } }',
        'syntax = "proto3"; message M0 { int32 a = 1; }'
        + "".join(f"message M{i} {{ M{i - 1} a = 1; M{i - 1} b = 2; }}" for i in range(1, 30)),
    ],
)
def test_schemas_that_are_none_or_have_no_columns_are_refused(text: str) -> None:
    last = (29,) if "M29" in text else (0,)
    with pytest.raises(ValueError, match=r"."):
        compile_protobuf(parse_protobuf(text), last)


def test_hostile_references_stay_in_their_folder() -> None:
    for name in ("../x.proto", "/etc/x.proto", "a/../../x", "confluent/meta.proto/x.proto", "a\0b", ""):
        with pytest.raises(ValueError, match="imports"):
            parse_protobuf('syntax = "proto3"; message M { int32 a = 1; }', [(name, "x")])


def test_a_schema_is_read_with_what_it_imports() -> None:
    other = 'syntax = "proto3"; package o; message Other { int32 v = 1; }'
    text = 'syntax = "proto3"; import "o/other.proto"; message M { o.Other other = 1; }'
    unused = [("files/x.proto", other.replace("package o", "package x")), ("output/x.proto", other)]
    program, _ = compile_protobuf(parse_protobuf(text, [("o/other.proto", other), *unused]), (0,))
    found, _ = protobuf_to_json(program, *binary_buffer(pa.array([b"\x0a\x02\x08\x05"])))
    assert found.to_pylist() == [b'{"other":{"v":5}}']


def row_schema() -> ConnectSchema:
    decimal = ConnectSchema(
        "bytes", optional=True, name=f"{CONNECT}.Decimal", version=1, parameters={"scale": "2"}
    )
    row = struct(
        "s.Value",
        ("id", ConnectSchema("int64")),
        ("name", ConnectSchema("string", optional=True)),
        ("price", decimal),
        ("at", ConnectSchema("int64", optional=True, name=f"{CONNECT}.Timestamp", version=1)),
        optional=True,
    )
    return struct("s.Envelope", ("before", row), ("after", row), ("op", ConnectSchema("string")))


KEY = struct("s.Key", ("id", ConnectSchema("int64")))
ROW = pa.struct([("id", pa.int64()), ("name", pa.utf8()), ("price", pa.binary()), ("at", pa.int64())])
table_rows = st.fixed_dictionaries(
    {
        "id": st.integers(0, 4),
        "name": st.none() | st.text(max_size=4),
        "price": st.none() | st.binary(min_size=1, max_size=9),
        "at": st.none() | st.integers(-(10**13), 10**13),
    }
)


@given(st.lists(st.tuples(st.sampled_from("crud"), table_rows), min_size=1, max_size=6))
def test_the_same_events_as_protobuf_and_as_json_give_the_same_rows(steps: list[tuple[str, Any]]) -> None:
    steps = [("c", steps[0][1]), *steps]
    schema, registry = row_schema(), Registered()
    values = pa.array(
        [
            {"before": row if op == "d" else None, "after": None if op == "d" else row, "op": op}
            for op, row in steps
        ],
        pa.struct([("before", ROW), ("after", ROW), ("op", pa.utf8())]),
    )
    keys = pa.array([{"id": row["id"]} for _, row in steps], pa.struct([("id", pa.int64())]))
    plain = Table()
    lead = b'{"schema":' + schema.to_json().encode() + b',"payload":'
    as_text = [lead + one.encode() + b"}" for one in to_json(schema, values).to_pylist()]
    first = plain.take(*zip((one.encode() for one in to_json(KEY, keys).to_pylist()), as_text, strict=True))
    sides = []
    for side, own in ((keys, KEY), (values, schema)):
        written = protobuf_of_connect(own, "optional")
        lead = head(registry.add("PROTOBUF", written.text)) + b"\0"
        sides.append([lead + one for one in to_protobuf(written, side).to_pylist()])
    converter = FramedConverter(RegisteredSchemas(registry, "protobuf"))
    table = Table(feed=replace(FEED, key_converter=converter, value_converter=converter))
    second = table.take(*zip(*sides, strict=True))
    assert second.schema == first.schema
    assert second.to_pylist() == first.to_pylist()
    assert table.records[0].column("key") == plain.records[0].column("key")


def test_messages_contain_their_type_in_the_schema() -> None:
    registry = Registered()
    text = """syntax = "proto3";
message A { int32 a = 1; message Inside { string s = 1; } }
message B { int32 b = 1; }
message Row { int64 id = 1; }"""
    lead = head(registry.add("PROTOBUF", text))
    converter = FramedConverter(RegisteredSchemas(registry, "protobuf"))
    messages = [
        lead + b"\x00\x08\x05",
        lead + b"\x02\x02\x08\x06",
        lead + b"\x04\x00\x00\x0a\x01x",
        lead + b"\x02\x00\x08\x07",
        lead + b"\x02\x12",  # no such message
        lead + b"\x01",
        lead,
        lead + b"\xff\xff",
    ]
    keys, faults = converter.keys(pa.array(messages))
    assert keys.to_pylist()[:4] == [b'{"a":5}', b'{"b":6}', b'{"s":"x"}', b'{"a":7}']
    assert (faults == 0).tolist() == [True] * 4 + [False] * 4
    values = converter.values(pa.array(messages), unwrapped=True)
    assert len({*values.names.to_pylist()[:4]}) == 3
    assert values.names[0] == values.names[3]
    assert isinstance(JsonConverter().keys(pa.array([b"{}"]))[0], pa.BinaryArray)
