"""Protobuf as ProtobufConverter writes it: its schemas are read by protoc, its bytes by Google's library."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import SNAPSHOT, STRING, ConnectSchema, schema_of, struct
from airflow_cdc_provider.events.protobuf_converter import to_protobuf
from airflow_cdc_provider.events.protobuf_schema import Nullables, ProtobufSchema, protobuf_of_connect
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.debezium.protobuf_program import compile_protobuf, parse_protobuf
from tests.unit.events.protobuf_messages import EVERY_TYPE, SCHEMA, expected_text, message_class, rows


def decode(schema: ProtobufSchema, column: pa.Array) -> list[Any]:
    """Encode rows and have Google's library decode them, without a byte that it doesn't know."""
    kind = message_class(schema.text, schema.full_name)
    messages = []
    for encoded in to_protobuf(schema, column).to_pylist():
        message = kind.FromString(encoded)
        known = kind.FromString(encoded)
        known.DiscardUnknownFields()
        assert known.ByteSize() == message.ByteSize()
        messages.append(message)
    return messages


def shown(message: Any, schema: ConnectSchema, nullables: Nullables) -> dict[str, Any]:
    """Return a message's fields as the rows have them; None where a field is not there."""
    values: dict[str, Any] = {}
    for name, field in schema.fields:
        value = getattr(message, name)
        expected = message.DESCRIPTOR.fields_by_name[name].has_presence
        if field.type == "array" and field.items:
            values[name] = [_value(one, field.items, nullables) for one in value]
        elif field.type == "map" and field.items:
            values[name] = [(one.key, _of_entry(one, field.items, nullables)) for one in value]
        elif expected and not message.HasField(name):
            values[name] = None
        else:
            values[name] = _value(value, field, nullables)
    return values


def _of_entry(entry: Any, schema: ConnectSchema, nullables: Nullables) -> Any:
    has = not entry.DESCRIPTOR.fields_by_name["value"].has_presence or entry.HasField("value")
    return _value(entry.value, schema, nullables) if has else None


def _value(value: Any, schema: ConnectSchema, nullables: Nullables) -> Any:
    if schema.type == "struct":
        return shown(value, schema, nullables)
    if nullables == "wrapper" and schema.optional:
        return value.value
    return value


@pytest.mark.parametrize("nullables", ["plain", "optional", "wrapper"])
@given(values=st.lists(rows, min_size=1, max_size=5), cut=st.integers(0, 4))
def test_googles_library_reads_what_is_written(nullables: Nullables, values: list[Any], cut: int) -> None:
    cut = min(cut, len(values) - 1)
    column = pa.array(values, EVERY_TYPE).slice(cut)
    read = decode(protobuf_of_connect(SCHEMA, nullables), column)
    assert [shown(message, SCHEMA, nullables) for message in read] == [
        expected_text(row, nullables) for row in values[cut:]
    ]


@given(values=st.lists(rows, min_size=1, max_size=3))
def test_bytes_are_those_of_googles_library(values: list[Any]) -> None:
    """Written again by it, each message is the same to the byte: order, packing, what is left out."""
    schema = protobuf_of_connect(SCHEMA, "plain")
    column = pa.array(values, EVERY_TYPE)
    encoded = to_protobuf(schema, column).to_pylist()
    again = [m.SerializeToString(deterministic=True) for m in decode(schema, column)]
    assert encoded == again


def test_logical_types_are_the_messages_of_confluent_and_google() -> None:
    lead = "org.apache.kafka.connect.data"
    scale = {"scale": "2"}
    schema = struct(
        "T",
        ("amount", ConnectSchema("bytes", optional=True, name=f"{lead}.Decimal", parameters=scale)),
        ("day", ConnectSchema("int32", optional=True, name=f"{lead}.Date")),
        ("time", ConnectSchema("int32", optional=True, name=f"{lead}.Time")),
        ("moment", ConnectSchema("int64", optional=True, name=f"{lead}.Timestamp")),
        ("days", ConnectSchema("array", items=ConnectSchema("int32", name=f"{lead}.Date"))),
    )
    numbers = [
        0,
        5,
        -5,
        127,
        -128,
        10**9,
        -(10**9),
        10**18 - 1,
        10**18,
        -(2**63),
        10**30 + 7,
        -(10**60),
        1 - 10**45,
    ]
    days = [datetime.date(1583, 1, 1), datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]
    moments = [-1, 0, 1_700_000_000_123, -1_000]
    kind = pa.struct(
        [
            ("amount", pa.binary()),
            ("day", pa.int32()),
            ("time", pa.int32()),
            ("moment", pa.int64()),
            ("days", pa.list_(pa.int32())),
        ]
    )
    table = [
        {
            "amount": number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True),
            "day": (days[i % 3] - datetime.date(1970, 1, 1)).days,
            "time": (i * 7_654_321) % 86_400_000,
            "moment": moments[i % 4],
            "days": [i, -i],
        }
        for i, number in enumerate(numbers)
    ]
    read = decode(protobuf_of_connect(schema, "plain"), pa.array([*table, dict.fromkeys(table[0])], kind))
    for i, (message, number) in enumerate(zip(read, numbers, strict=False)):
        unscaled = int.from_bytes(message.amount.value, "big", signed=True)
        assert (unscaled, message.amount.scale) == (number, 2)
        assert message.amount.precision == len(Decimal(number).as_tuple().digits)
        assert datetime.date(message.day.year, message.day.month, message.day.day) == days[i % 3]
        clock = message.time
        seconds = clock.hours * 3600 + clock.minutes * 60 + clock.seconds
        assert seconds * 1000 + clock.nanos // 1_000_000 == (i * 7_654_321) % 86_400_000
        assert message.moment.seconds * 1000 + message.moment.nanos // 1_000_000 == moments[i % 4]
        assert 0 <= message.moment.nanos < 1_000_000_000
        assert [(d.year, d.month, d.day) for d in message.days] == [
            (day.year, day.month, day.day)
            for day in (datetime.date(1970, 1, 1) + datetime.timedelta(sign * i) for sign in (1, -1))
        ]
    assert not read[-1].ListFields()


def test_text_of_a_schema_is_that_of_confluents_class() -> None:
    value = struct(
        "shop.orders.Value",
        ("id", ConnectSchema("int64")),
        ("small", ConnectSchema("int16", optional=True)),
        optional=True,
    )
    envelope = struct(
        "shop.orders.Envelope",
        ("before", value),
        ("after", value),
        ("Value", ConnectSchema("map", keys=STRING, items=ConnectSchema("int64"))),
        ("tags", ConnectSchema("array", items=STRING)),
    )
    assert protobuf_of_connect(envelope, "plain").text == (
        'syntax = "proto3";\n'
        "package shop.orders;\n"
        "\n"
        'import "confluent/meta.proto";\n'
        "\n"
        "message Envelope {\n"
        "  ValueMessage before = 1;\n"
        "  ValueMessage after = 2;\n"
        "  repeated ConnectDefault1Entry Value = 3;\n"
        "  repeated string tags = 4;\n"
        "\n"
        "  message ValueMessage {\n"
        "    int64 id = 1;\n"
        "    int32 small = 2 [(confluent.field_meta) = {\n"
        "      params: [\n"
        "        {\n"
        '          key: "connect.type",\n'
        '          value: "int16"\n'
        "        }\n"
        "      ]\n"
        "    }];\n"
        "  }\n"
        "  message ConnectDefault1Entry {\n"
        "    string key = 1;\n"
        "    int64 value = 2;\n"
        "  }\n"
        "}\n"
    )


@pytest.mark.parametrize("names", [["fooBar", "foo_bar"], ["foo_bar", "foo__bar"], ["_", "__"]])
def test_fields_that_json_would_call_alike_are_written_all_the_same(names: list[str]) -> None:
    small = ConnectSchema("int16", optional=True)
    schema = struct("s.Row", *((name, small) for name in names))
    column = pa.array([{name: number for number, name in enumerate(names)}])
    found = protobuf_of_connect(schema, "optional")
    (message,) = decode(found, column)
    assert [getattr(message, name) for name in names] == list(range(len(names)))


def test_columns_whose_structs_share_a_name_are_distinguished() -> None:
    """Cells of Cassandra are all named alike, and are of their column's type."""
    fields = [
        (name, struct("cell_value", ("value", ConnectSchema(kind, optional=True)), optional=True))  # type: ignore[arg-type]
        for name, kind in (("a", "string"), ("b", "int32"), ("c", "string"), ("cell_value", "double"))
    ]
    schema = protobuf_of_connect(struct("k.Row", *fields), "optional")
    kind = pa.struct(
        [
            ("a", pa.struct([("value", pa.utf8())])),
            ("b", pa.struct([("value", pa.int32())])),
            ("c", pa.struct([("value", pa.utf8())])),
            ("cell_value", pa.struct([("value", pa.float64())])),
        ]
    )
    row = {"a": {"value": "x"}, "b": {"value": 0}, "c": {"value": None}, "cell_value": {"value": 0.5}}
    (message,) = decode(schema, pa.array([row], kind))
    assert (message.a.value, message.b.value, message.cell_value.value) == ("x", 0, 0.5)
    assert message.b.HasField("value")
    assert message.HasField("c")
    assert not message.c.HasField("value")
    assert message.a.DESCRIPTOR is message.c.DESCRIPTOR


def test_a_default_replaces_null() -> None:
    schema = protobuf_of_connect(struct("S", ("snapshot", SNAPSHOT)), "plain")
    column = pa.array([{"snapshot": None}, {"snapshot": "last"}], pa.struct([("snapshot", pa.utf8())]))
    assert [m.snapshot for m in decode(schema, column)] == ["false", "last"]
    nothing = pa.StructArray.from_arrays([pa.nulls(2)], ["snapshot"])
    assert [m.snapshot for m in decode(schema, nothing)] == ["false", "false"]


@pytest.mark.parametrize(
    ("kind", "column", "values"),
    [
        ("string", pa.array(["a", ""]), ["a", ""]),
        ("int16", pa.array([-3, 0], pa.int16()), [-3, 0]),
        ("int64", pa.array([1 << 62, 0]), [1 << 62, 0]),
        ("double", pa.array([-0.0, math.inf]), [-0.0, math.inf]),
        ("boolean", pa.array([True, False]), [True, False]),
        ("bytes", pa.array([b"\xff", b""]), [b"\xff", b""]),
    ],
)
def test_single_values_are_googles_wrappers(kind: Any, column: pa.Array, values: list[Any]) -> None:
    schema = protobuf_of_connect(ConnectSchema(kind, optional=True, name="io.debezium.data.Json"), "plain")
    known = message_class(
        'syntax = "proto3"; import "google/protobuf/wrappers.proto";'
        "message M { google.protobuf.BoolValue a = 1; }",
        schema.full_name,
    )
    read = [known.FromString(encoded) for encoded in to_protobuf(schema, column).to_pylist()]
    assert [m.value for m in read] == values
    file = known.DESCRIPTOR.file
    assert list(file.message_types_by_name)[schema.indexes[0]] == known.DESCRIPTOR.name


def test_what_protobuf_has_not_is_refused_by_name() -> None:
    lists = ConnectSchema("array", items=ConnectSchema("array", items=STRING))
    with pytest.raises(ConfigurationError, match="field 'l' is an array of arrays"):
        protobuf_of_connect(struct("T", ("l", lists)), "plain")
    with pytest.raises(ConfigurationError, match="'a-b' is not a valid Protobuf name"):
        protobuf_of_connect(struct("T", ("a-b", STRING)), "plain")
    with pytest.raises(ConfigurationError, match="no message that is a array"):
        protobuf_of_connect(lists, "plain")
    schema = protobuf_of_connect(struct("T", ("l", ConnectSchema("array", items=STRING))), "plain")
    column = pa.array([{"l": ["a"]}, {"l": ["a", None]}], pa.struct([("l", pa.list_(pa.utf8()))]))
    with pytest.raises(ConfigurationError, match="row 1 of a batch has a null in the list 'l'"):
        to_protobuf(schema, column)


def test_a_struct_without_fields_and_no_rows() -> None:
    schema = protobuf_of_connect(struct("", ("empty", struct("e"))), "plain")
    kind = pa.struct([("empty", pa.struct([]))])
    assert schema.full_name == "ConnectDefault1"
    assert not len(to_protobuf(schema, pa.array([], kind)))
    (message,) = decode(schema, pa.array([{"empty": {}}], kind))
    assert message.HasField("empty")


LOGICAL = "org.apache.kafka.connect.data"


@pytest.mark.parametrize("lead", ["a.confluent.Value", "google.b.Value", "a.b.Value", "a.google"])
@pytest.mark.parametrize("struct", ["confluent", "google", "other"])
def test_names_of_others_are_found_whatever_databases_and_structs_are_called(lead: str, struct: str) -> None:
    decimal = {"connect.name": f"{LOGICAL}.Decimal:1", "connect.parameters": '{"scale": "2"}'}
    fields = [
        pa.field("at", pa.int64(), metadata={"connect.name": f"{LOGICAL}.Timestamp:1"}),
        pa.field("amount", pa.binary(), metadata=decimal),
        pa.field("small", pa.int16()),
    ]
    inner = pa.field("s", pa.struct(fields), metadata={"connect.name": f"k.{struct}"})
    row = pa.struct([*fields, inner])
    schema = replace(schema_of(pa.field("row", row, nullable=False)), name=lead)

    found = protobuf_of_connect(schema, "wrapper")

    assert message_class(found.text, found.full_name).DESCRIPTOR.full_name == lead
    compile_protobuf(parse_protobuf(found.text, ()), found.indexes)
