"""Records as Kafka Connect has them, one by one with their schemas, as our envelopes have them: columns."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.transforms.pieces import Piece

_ARROW = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "bytes": pa.binary(),
}


def schema_of(expected: Mapping[str, Any]) -> ConnectSchema:
    return ConnectSchema(
        expected["type"],
        optional=expected["optional"],
        name=expected.get("name", ""),
        version=expected.get("version"),
        default=expected.get("default"),
        fields=tuple((one["field"], schema_of(one)) for one in expected.get("fields", ())),
        items=schema_of(expected.get("items") or expected["values"])
        if expected["type"] in ("array", "map")
        else None,
        keys=schema_of(expected["keys"]) if expected["type"] == "map" else None,
    )


def arrow_type(schema: ConnectSchema) -> pa.DataType:
    if schema.type == "struct":
        return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in schema.fields])
    if schema.type == "array" and schema.items:
        return pa.list_(arrow_type(schema.items))
    if schema.type == "map" and schema.items and schema.keys:
        return pa.map_(arrow_type(schema.keys), arrow_type(schema.items))
    return _ARROW[schema.type]


def _payload(schema: ConnectSchema, payload: Any) -> Any:
    if payload is None:
        return None
    if schema.type == "bytes":
        return base64.b64decode(payload)
    if schema.type == "map":
        return list(payload.items())
    if schema.type == "struct":
        return {name: _payload(inner, payload[name]) for name, inner in schema.fields}
    return payload


def _column(side: str, records: Sequence[Mapping[str, Any]]) -> tuple[ConnectSchema, pa.Array]:
    expected = [record[side] for record in records]
    schema = schema_of(next(one for one in expected if one)["schema"])
    values = [_payload(schema, one["payload"]) if one else None for one in expected]
    return schema, pa.array(values, arrow_type(schema))


def pieces_of(records: Sequence[Mapping[str, Any]]) -> list[Piece]:
    """Return records as pieces, those of one topic in one; a row is the record's number."""
    of_topic: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        of_topic.setdefault(record["topic"], []).append(number)
    pieces = []
    for topic, numbers in of_topic.items():
        some = [records[number] for number in numbers]
        key_schema, key = _column("key", some)
        value_schema, value = _column("value", some)
        names = dict.fromkeys(name for record in some for name, _ in record["headers"])
        headers = {
            name: pa.array(
                [
                    json.dumps(found[0]["payload"], ensure_ascii=False) if found else None
                    for found in ([text for n, text in record["headers"] if n == name] for record in some)
                ],
                pa.large_utf8(),
            )
            for name in names
        }
        envelope = Envelope(
            [Destination(topic, key_schema, value_schema)],
            np.zeros(len(some), np.int64),
            key,
            value,
            np.zeros(len(some), np.bool_),
            headers,
            timestamp=pa.array([record["timestamp"] for record in some], pa.int64()),
        )
        pieces.append(Piece(envelope, np.array(numbers)))
    return pieces
