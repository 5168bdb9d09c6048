"""JSON Schema into topics and out of them: what the encoder describes is what the source sees."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.events.connect import SNAPSHOT, ConnectSchema, schema_of, struct
from airflow_cdc_provider.events.encoder import Converters, Destination, Envelope, encode
from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.events.json_schema import json_schema_of_connect
from airflow_cdc_provider.sources.debezium.converters import FramedConverter
from airflow_cdc_provider.sources.debezium.json_schema import connect_of_json_schema
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas
from tests.unit.sources.debezium.avro_messages import FIELDS, ROW, framed_key, rows, table_rows, with_schema
from tests.unit.sources.debezium.debezium_messages import FEED, Table, text
from tests.unit.sources.debezium.registry_writers import Registered, head

ROW_SCHEMA = replace(schema_of(pa.field("row", ROW, nullable=False)), name="s.Row")


class Registrar:
    """Gives ids as a registry does that the source reads from."""

    def __init__(self) -> None:
        self.registered = Registered()

    def schema_id(self, schema: TopicSchema) -> int:
        assert schema.type == "JSON"
        return self.registered.add(schema.type, schema.text)


def encoded(schema: ConnectSchema, values: pa.Array, registrar: Registrar) -> list[bytes | None]:
    none = np.zeros(len(values), np.int64)
    envelope = Envelope(
        [Destination("t", ConnectSchema("string"), schema)],
        none,
        pa.array(["k"] * len(values)),
        values,
        none.astype(np.bool_),
    )
    made = encode(envelope, Converters("string", "json_schema", registrar=registrar))
    found: list[bytes | None] = made["value"].to_pylist()
    return found


def test_schemas_are_those_of_connect_there_and_back() -> None:
    key = ConnectSchema("int32")
    schema = struct(
        "s.Envelope",
        ("before", replace(ROW_SCHEMA, optional=True)),
        ("after", replace(ROW_SCHEMA, optional=True)),
        ("snapshot", SNAPSHOT),
        ("tags", ConnectSchema("map", keys=ConnectSchema("string"), items=ConnectSchema("int64"))),
        ("pairs", ConnectSchema("map", keys=key, items=ConnectSchema("string", optional=True))),
        ("name", ConnectSchema("string", doc="of a person")),
        version=1,
    )
    described = json_schema_of_connect(schema)
    jsonschema.Draft7Validator.check_schema(json.loads(described))
    assert connect_of_json_schema(described) == json.loads(schema.to_json())


def test_a_schema_reads_as_confluents_does() -> None:
    schema = struct(
        "s.Value",
        ("id", ConnectSchema("int64")),
        ("name", ConnectSchema("string", optional=True)),
    )
    assert json.loads(json_schema_of_connect(schema)) == {
        "title": "s.Value",
        "type": "object",
        "properties": {
            "id": {"type": "integer", "connect.index": 0, "connect.type": "int64"},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}], "connect.index": 1},
        },
    }


@given(st.lists(rows, min_size=1, max_size=4))
def test_values_fit_their_schema_and_are_read_back(given: list[dict[str, Any]]) -> None:
    registrar = Registrar()
    written = encoded(ROW_SCHEMA, pa.array(given, ROW), registrar)
    converter = FramedConverter(RegisteredSchemas(registrar.registered, "json_schema"))
    values = converter.values(pa.array(written), unwrapped=True)
    assert not values.faults.any()
    (stored,) = registrar.registered.schemas
    validator = jsonschema.Draft7Validator(json.loads(stored.text))
    for one in written:
        assert one is not None
        assert one[:5] == head(1)
        content = json.loads(one[5:])
        # Decimals are base64 by default, and NaN is text, though schemas say number: as with Confluent's.
        content |= dict.fromkeys(("amount", "single", "double"))
        validator.validate(content)


@given(st.lists(table_rows(), min_size=1, max_size=5))
def test_the_same_events_give_the_same_mirror_as_json_with_schemas(given: list[dict[str, Any]]) -> None:
    registered = Registered()
    described = with_schema({})["schema"]
    number = registered.add("JSON", json.dumps(_as_json_schema(described)))
    key_number = registered.add("JSON", json.dumps(_as_json_schema(framed_key(1)["schema"])))
    plain = Table()
    own = FramedConverter(RegisteredSchemas(registered, "json_schema"))
    table = Table(feed=replace(FEED, key_converter=own, value_converter=own))
    events: list[dict[str, Any]] = [{"before": None, "after": row, "op": "c"} for row in given]
    first = plain.take(*((framed_key(e["after"]["id"]), with_schema(e)) for e in events))
    second = table.take(
        *(
            (head(key_number) + (text({"id": e["after"]["id"]}) or b""), head(number) + (text(e) or b""))
            for e in events
        )
    )
    assert second.schema == first.schema
    assert second.to_pylist() == first.to_pylist()
    assert [one.name for one in second.schema][:-1] == [one["field"] for one in FIELDS]


def _as_json_schema(schema: dict[str, Any]) -> Any:
    """Describe one of Connect's schemas as JsonSchemaData does."""
    kind = schema["type"]
    found: dict[str, Any] = {"type": {"struct": "object", "map": "object"}.get(kind, kind)}
    if kind == "struct":
        fields = enumerate(schema["fields"])
        # The order of members says nothing.
        shown = {one["field"]: {**_as_json_schema(one), "connect.index": i} for i, one in fields}
        found["properties"] = dict(sorted(shown.items()))
    elif kind == "map":
        found |= {"connect.type": "map", "additionalProperties": _as_json_schema(schema["values"])}
    elif kind == "array":
        found["items"] = _as_json_schema(schema["items"])
    elif kind not in ("string", "boolean"):
        found["type"] = {"bytes": "string", "float": "number", "double": "number"}.get(kind, "integer")
        found["connect.type"] = {"float": "float32", "double": "float64"}.get(kind, kind)
    found |= {name: schema[key] for name, key in _NAMES if key in schema}
    return {"oneOf": [{"type": "null"}, found]} if schema.get("optional") else found


_NAMES = (("title", "name"), ("connect.version", "version"), ("connect.parameters", "parameters"))


def test_maps_with_other_keys_are_lists_of_entries_and_come_to_the_same_column() -> None:
    pairs = ConnectSchema("map", keys=ConnectSchema("int32"), items=ConnectSchema("string", optional=True))
    row = struct("s.Value", ("id", ConnectSchema("int64")), ("m", pairs), optional=True)
    schema = struct("s.Envelope", ("after", row), ("op", ConnectSchema("string")))
    kind = pa.struct([("id", pa.int64()), ("m", pa.map_(pa.int32(), pa.utf8()))])
    values = pa.array(
        [
            {"after": {"id": 1, "m": [(1, "a"), (2, None)]}, "op": "c"},
            {"after": {"id": 2, "m": []}, "op": "c"},
        ],
        pa.struct([("after", kind), ("op", pa.utf8())]),
    )
    registrar = Registrar()
    written = encoded(schema, values, registrar)
    assert (written[0] or b"")[5:] == (
        b'{"after":{"id":1,"m":[{"key":1,"value":"a"},{"key":2,"value":null}]},"op":"c"}'
    )
    own = FramedConverter(RegisteredSchemas(registrar.registered, "json_schema"))
    table = Table(feed=replace(FEED, value_converter=own))
    shown = table.take(*zip([b'{"id":1}', b'{"id":2}'], written, strict=True))
    assert sorted(shown.to_pylist(), key=lambda one: one["id"]) == [
        {"id": 1, "m": [("1", "a"), ("2", None)], "_rest": None},
        {"id": 2, "m": [], "_rest": None},
    ]


def test_what_other_writers_say_becomes_columns_too() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["null", "integer"]},
            "b": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "c": {"$ref": "#/definitions/c"},
            "d": {"type": "object", "additionalProperties": {"type": "number"}},
            "e": {},
        },
        "definitions": {"c": {"type": "string"}},
    }
    shown = connect_of_json_schema(json.dumps(schema))
    assert [(one["field"], one["type"], one["optional"]) for one in shown["fields"]] == [
        ("a", "int64", True),
        ("b", "struct", False),
        ("c", "string", False),
        ("d", "map", False),
        ("e", "struct", False),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        '{"type":"object","properties":[]}',
        '{"type":"object","properties":{"a":3}}',
        '{"$ref":"#"}',
        '{"$ref":"http://elsewhere/x.json"}',
        '{"type":"object","properties":{"a":{"$ref":"#"}}}',
        '{"type":"array","items":' * 3000 + "{}" + "}" * 3000,
    ],
)
def test_schemas_that_are_none_or_have_no_columns_are_refused(schema: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        connect_of_json_schema(schema)
