"""Malformed schemas: their messages are quarantined, and the capture continues."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.registry import RegisteredSchema
from airflow_cdc_provider.sources.debezium.connect_schema import ConnectField
from airflow_cdc_provider.sources.debezium.converters import (
    BAD_SCHEMA,
    WRONG_SCHEMA,
    FramedConverter,
    JsonConverter,
)
from airflow_cdc_provider.sources.debezium.registered import RegisteredSchemas, Written
from tests.unit.sources.debezium.registry_writers import Registered, head

DECIMAL = "org.apache.kafka.connect.data.Decimal"
LONG_CHAIN = {
    "type": "record",
    "name": "X",
    "fields": [
        {
            "name": f"f{i}",
            "type": {
                "type": "record",
                "name": f"N{i}",
                "fields": [{"name": "a", "type": f"N{i - 1}" if i else "int"}],
            },
        }
        for i in range(1500)
    ],
}


def row(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})


def fixed(size: Any) -> str:
    return row({"type": "fixed", "name": "F", "size": size})


def scaled(scale: str) -> str:
    return f"""syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
    message M {{ confluent.type.Decimal d = 1
      [(confluent.field_meta) = {{params: [{{key: "scale", value: "{scale}"}}]}}]; }}"""


def with_own(file: str, text: str, used: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    imported = f'syntax = "proto3"; import "{file}"; message M {{ {used} a = 1; int64 b = 2; }}'
    return imported, ((file, 'syntax = "proto3"; ' + text),)


DATE = "google/type/date.proto"


@pytest.mark.parametrize(
    ("written", "text", "references", "fault"),
    [
        ("avro", fixed(1 << 70), (), WRONG_SCHEMA),
        ("avro", fixed(None), (), WRONG_SCHEMA),
        ("avro", fixed([1]), (), WRONG_SCHEMA),
        ("avro", row("N1499"), (("x", json.dumps(LONG_CHAIN)),), WRONG_SCHEMA),
        ("avro", '{"connect.doc":"\\ud800",' + row("int")[1:], (), BAD_SCHEMA),
        ("avro", row({"type": "string", "connect.default": "?"}).replace("?", "\\ud83d"), (), BAD_SCHEMA),
        (
            "json_schema",
            '{"type":"object","properties":{"a":{"type":"string","default":"\\ud83d"}}}',
            (),
            BAD_SCHEMA,
        ),
        ("protobuf", scaled("9" * 20), (), WRONG_SCHEMA),
        (
            "protobuf",
            *with_own(
                DATE,
                "package google.type; message Date { X y = 1; } enum X { A = 0; }",
                "google.type.Date",
            ),
            WRONG_SCHEMA,
        ),
        (
            "protobuf",
            *with_own(DATE, "package google.type; message Date { int32 year = 1; }", "google.type.Date"),
            WRONG_SCHEMA,
        ),
        (
            "protobuf",
            *with_own(
                "google/protobuf/wrappers.proto",
                "package google.protobuf; message Int32Value { X value = 1; } enum X { A = 0; }",
                "google.protobuf.Int32Value",
            ),
            WRONG_SCHEMA,
        ),
    ],
)
def test_messages_of_schemas_that_fail_in_any_way_are_quarantined(
    written: Written, text: str, references: tuple[tuple[str, str], ...], fault: int
) -> None:
    registry = Registered()
    kind = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}[written]
    body = {"avro": b"\0", "json_schema": b'{"a":"x"}', "protobuf": b"\0\x0a\0"}[written]
    message = head(registry.add(kind, text, references)) + body
    converter = FramedConverter(RegisteredSchemas(registry, written))
    values = converter.values(pa.array([message, b"\0" * 4]), unwrapped=True)
    assert values.faults[0] == fault
    assert values.schemas == {}


def test_what_is_wrong_with_us_is_no_fault_of_schemas() -> None:
    class Refusing:
        def schema_of(self, schema_id: int) -> RegisteredSchema | None:
            raise ConfigurationError(f"{schema_id} is refused")

    with pytest.raises(ConfigurationError):
        FramedConverter(RegisteredSchemas(Refusing(), "avro")).keys(pa.array([head(1)]))


@pytest.mark.parametrize(
    "parameters",
    [
        '{"scale":"99999999999999999999"}',
        '{"scale":"-9223372036854775808"}',
        '{"scale":2147483648}',
        '{"scale":1e999}',
        '{"scale":"2","connect.decimal.precision":"-1"}',
        '{"scale":"2","connect.decimal.precision":"2147483648"}',
        '{"scale":[]}',
    ],
)
def test_messages_with_scales_and_precisions_out_of_javas_range_are_quarantined(parameters: str) -> None:
    schema = (
        f'{{"type":"struct","fields":[{{"field":"d","type":"bytes","name":"{DECIMAL}",'
        f'"parameters":{parameters}}}]}}'
    )
    message = f'{{"schema":{schema},"payload":{{"d":"AQ=="}}}}'.encode()
    values = JsonConverter().values(pa.array([message]), unwrapped=True)
    assert values.faults.tolist() == [BAD_SCHEMA]


def test_the_largest_scales_are_reported() -> None:
    for scale in (-(1 << 31) + 1, (1 << 31) - 1):
        assert (
            ConnectField.of({"type": "bytes", "name": DECIMAL, "parameters": {"scale": scale}}).scale == scale
        )
