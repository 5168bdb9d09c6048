from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider.events.avro_converter import to_avro
from airflow_cdc_provider.events.avro_schema import (
    AvroSchema,
    avro_of_connect,
    avro_of_struct,
    check_names,
)
from airflow_cdc_provider.events.connect import INT64, SNAPSHOT, STRING, ConnectSchema, struct
from airflow_cdc_provider.events.names import adjust_names, adjusted_field
from airflow_cdc_provider.events.transforms.pieces import named_schema
from airflow_cdc_provider.exceptions import ConfigurationError


def read(schema: AvroSchema, column: pa.Array) -> list[Any]:
    """Encode rows and have fastavro decode them to the last byte."""
    parsed = fastavro.parse_schema(json.loads(schema.to_json()))
    rows = []
    for encoded in to_avro(schema, column).to_pylist():
        stream = io.BytesIO(encoded)
        rows.append(fastavro.schemaless_reader(stream, parsed, None))
        assert stream.tell() == len(encoded)
    return rows


def named(name: str, kind: pa.DataType, full: str) -> pa.Field:
    return pa.field(name, kind, metadata={"avro.name": full})


INNER = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.utf8(), nullable=False)])
EVERY_TYPE = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int8()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.utf8()),
        pa.field("data", pa.binary()),
        pa.field("list", pa.list_(pa.field("element", pa.utf8(), nullable=False))),
        pa.field("map", pa.map_(pa.utf8(), pa.field("value", pa.int64(), nullable=True))),
        named("inner", INNER, "k.inner"),
        pa.field("inners", pa.list_(named("element", INNER, "k.inner").with_nullable(False))),
    ]
)

long_numbers = st.integers(-(1 << 63), (1 << 63) - 1)
inner = st.fixed_dictionaries({"a": st.none() | st.integers(-(1 << 31), (1 << 31) - 1), "b": st.text()})
rows = st.fixed_dictionaries(
    {
        "id": long_numbers,
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-128, 127),
        "single": st.none() | st.floats(width=32, allow_nan=False),
        "double": st.none() | st.floats(allow_nan=False),
        "text": st.none() | st.text(),
        "data": st.none() | st.binary(),
        "list": st.none() | st.lists(st.text()),
        "map": st.none() | st.dictionaries(st.text(), st.none() | long_numbers),
        "inner": st.none() | inner,
        "inners": st.none() | st.lists(inner),
    }
)


@given(st.lists(rows), st.integers(0, 3))
def test_every_type_is_read_back_by_another_library(given: list[dict[str, Any]], skipped: int) -> None:
    schema = avro_of_struct("k.t", "Table k.t", EVERY_TYPE)
    column = pa.array(given, EVERY_TYPE)
    assert read(schema, column) == given
    assert read(schema, column.slice(skipped)) == given[skipped:]


def test_a_record_is_written_out_once_and_named_afterwards() -> None:
    text = avro_of_struct("k.t", "Table k.t", EVERY_TYPE).to_json()
    assert text.startswith(
        '{"type":"record","name":"t","namespace":"k","doc":"Table k.t","fields":[{"name":"id"'
    )
    assert text.count('"name":"inner","fields"') == 1
    assert text.endswith(
        '{"name":"inners","type":["null",{"type":"array","items":"inner"}],"default":null}]}'
    )


def test_connect_schemas_follow_confluents_rules() -> None:
    cell = struct("cell_value", ("value", replace(INT64, optional=True)), optional=True, version=1)
    text_cell = struct("cell_value", ("value", replace(STRING, optional=True)), optional=True, version=1)
    envelope = struct(
        "io.debezium.connector.cassandra.p.k.t.Envelope",
        ("op", STRING),
        ("snapshot", SNAPSHOT),
        ("small", ConnectSchema("int16", name="x.Small", version=2)),
        ("a", cell),
        ("b", text_cell),
        ("map", ConnectSchema("map", keys=replace(STRING, optional=True), items=INT64)),
    )
    schema = avro_of_connect(envelope)
    fields = {f["name"]: f for f in json.loads(schema.to_json())["fields"]}
    assert fields["op"] == {"name": "op", "type": "string"}
    # A default that isn't null comes first in the union.
    assert [t if t == "null" else t["type"] for t in fields["snapshot"]["type"]] == ["string", "null"]
    assert fields["snapshot"]["default"] == "false"
    assert fields["small"]["type"] == {
        "type": "int",
        "connect.version": 2,
        "connect.name": "x.Small",
        "connect.type": "int16",
    }
    assert fields["a"]["default"] is None
    assert fields["a"]["type"][1]["namespace"] == "io.debezium.connector.cassandra.p.k.t.Envelope.a"
    assert fields["b"]["type"][1]["name"] == "cell_value"
    assert fields["map"]["type"]["items"]["name"] == "MapEntry"
    rows: list[dict[str, Any]] = [
        {"op": "i", "snapshot": None, "small": 1, "a": {"value": 5}, "b": None, "map": [("x", 1)]},
        {"op": "u", "snapshot": "last", "small": 2, "a": None, "b": {"value": "y"}, "map": []},
    ]
    value = pa.struct([pa.field("value", pa.int64())]), pa.struct([pa.field("value", pa.utf8())])
    kinds = [pa.utf8(), pa.utf8(), pa.int16(), *value, pa.map_(pa.utf8(), pa.int64())]
    names = [name for name, _ in envelope.fields]
    column = pa.array(rows, pa.struct(list(zip(names, kinds, strict=True))))
    assert read(schema, column) == [
        {**rows[0], "map": [{"key": "x", "value": 1}]},
        {**rows[1], "map": []},
    ]


def test_a_null_where_none_may_be_is_refused() -> None:
    schema = avro_of_struct("k.t", "", EVERY_TYPE)
    with pytest.raises(ConfigurationError, match="row 1 of a batch has a null value"):
        to_avro(schema, pa.array([{"id": 1}, {"id": None}], EVERY_TYPE))


@pytest.mark.parametrize(
    ("name", "column"), [("my-prefix.t", "a"), ("k.t", "a b"), ("k.t", "1a"), ("k.ü", "a")]
)
def test_names_that_avro_does_not_know_are_refused(name: str, column: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a valid Avro name.*publish\.field_names"):
        check_names(avro_of_struct(name, "", pa.struct([(column, pa.int64())])))


def test_structs_without_names_are_distinguished_by_their_paths() -> None:
    deepest = struct("", ("a", INT64))
    inner = struct("", ("b", deepest), ("c", ConnectSchema("array", items=deepest)))
    schema = avro_of_connect(struct("", ("id", inner), ("other", inner)))
    check_names(schema)
    value = {"b": {"a": 1}, "c": [{"a": 2}]}
    column = pa.array([{"id": value, "other": value}])
    assert read(schema, column) == [{"id": value, "other": value}]
    assert '"namespace":"ConnectDefault.id"' in schema.to_json()


ODD_NAMES = st.sampled_from(["a", "b", "a.b", "b.a", "a.b.a", "a_b", "", "1", "a..b", "int"])
ODD_ROWS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([1, "s"]),
    lambda inner: st.one_of(
        st.dictionaries(ODD_NAMES, inner, min_size=1, max_size=4), st.tuples(inner).map(list)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "a.b", "b.a", "a.b.a"]), ODD_ROWS, min_size=2))
@example({"a.b": {"x": 1}, "a": {"b": {"y": "s"}}})
def test_structs_whose_paths_are_one_name_are_read_back(row: dict[str, Any]) -> None:
    column = pa.array([row])
    plain = named_schema(list(column.type), "cdc.shop.t")
    schema = adjust_names(plain, "avro_unicode", "avro_unicode")

    (found,) = read(avro_of_connect(schema), column)

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {adjusted_field(name, "avro_unicode"): renamed(inner) for name, inner in value.items()}
        return [renamed(inner) for inner in value] if isinstance(value, list) else value

    assert found == renamed(row)
