"""JSON Schemas of Connect schemas, like Confluent's JsonSchemaConverter.

Format of its class ``JsonSchemaData`` (draft 7): ``title`` is the schema name; ``connect.type`` distinguishes
types that are equal in JSON; ``connect.index`` is the order of fields; ``connect.version`` and
``connect.parameters`` are those of Connect; nullable types are unions with null. Maps whose keys are not
strings are arrays of objects with ``key`` and ``value``, in schemas and data. The order of members in a
schema may differ, which registries ignore.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from airflow_cdc_provider.events.connect import ConnectSchema

_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_TYPES: Final[dict[str, tuple[str, str]]] = {
    "boolean": ("boolean", ""),
    "int8": ("integer", "int8"),
    "int16": ("integer", "int16"),
    "int32": ("integer", "int32"),
    "int64": ("integer", "int64"),
    "float": ("number", "float32"),
    "double": ("number", "float64"),
    "string": ("string", ""),
    "bytes": ("string", "bytes"),
}
"""Types of JSON Schema and ``connect.type``, by Connect type."""


def json_schema_of_connect(schema: ConnectSchema) -> str:
    """Return the JSON Schema of a Connect schema."""
    return json.dumps(_shown(schema, None), separators=(",", ":"), ensure_ascii=False)


def with_entry_objects(schema: ConnectSchema) -> ConnectSchema:
    """Return a schema whose maps with non-string keys are written as objects with key and value."""
    fields = tuple((name, with_entry_objects(one)) for name, one in schema.fields)
    items = with_entry_objects(schema.items) if schema.items else None
    keys = with_entry_objects(schema.keys) if schema.keys else None
    return replace(schema, fields=fields, items=items, keys=keys, entry_objects=schema.type == "map")


def _shown(schema: ConnectSchema, index: int | None) -> dict[str, Any]:
    members = _members(schema, None if schema.optional else index)
    if not schema.optional:
        return members
    union: dict[str, Any] = {"oneOf": [{"type": "null"}, members]}
    return union if index is None else {**union, "connect.index": index}


def _members(schema: ConnectSchema, index: int | None) -> dict[str, Any]:
    members: dict[str, Any] = {"title": schema.name} if schema.name else {}
    if schema.default is not None:
        members["default"] = schema.default
    connect_type = ""
    if schema.type == "struct":
        members["type"] = "object"
        members["properties"] = {name: _shown(one, place) for place, (name, one) in enumerate(schema.fields)}
    elif schema.type == "array" and schema.items:
        members |= {"type": "array", "items": _shown(schema.items, None)}
    elif schema.type == "map" and schema.keys and schema.items:
        connect_type = "map"
        if schema.keys.type == "string" and not schema.keys.optional:
            members |= {"type": "object", "additionalProperties": _shown(schema.items, None)}
        else:
            sides = {"key": _shown(schema.keys, 0), "value": _shown(schema.items, 1)}
            members |= {"type": "array", "items": {"type": "object", "properties": sides}}
    else:
        kind, connect_type = _TYPES[schema.type]
        members["type"] = "number" if schema.name == _DECIMAL else kind
    if index is not None:
        members["connect.index"] = index
    if connect_type:
        members["connect.type"] = connect_type
    if schema.version is not None:
        members["connect.version"] = schema.version
    if schema.doc:
        members["connect.doc"] = schema.doc
    if schema.parameters:
        members["connect.parameters"] = dict(schema.parameters)
    return members
