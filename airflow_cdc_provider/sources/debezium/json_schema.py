"""Converts JSON Schemas of Confluent's JsonSchemaConverter back to Connect schemas.

The rules are those of its class ``JsonSchemaData``: ``title`` is the name; ``connect.type``,
``connect.parameters``, ``connect.version`` and ``connect.index`` are what JSON Schema can't express; a union
with null is optional. Other constructs (``anyOf``, ``allOf``, values of several types) become a JSON column:
a struct without fields, since Connect has no such type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.sources.debezium.json_program import DEEPEST, LARGEST, as_field, connect

_PLAIN: Final[Mapping[str, str]] = {
    "integer": "int64",
    "number": "double",
    "string": "string",
    "boolean": "boolean",
}
_NUMBERS: Final[Mapping[str, str]] = {"float32": "float", "float64": "double"}
_KINDS: Final = frozenset(
    {"int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes"}
)


def connect_of_json_schema(text: str) -> Mapping[str, Any]:
    """Return the Connect schema of a JSON Schema, in the format of Connect's JSON converter.

    Args:
        text: The schema.

    Raises:
        ValueError: The schema is invalid, recursive, or too large.
    """
    try:
        root = json.loads(text)
    except RecursionError:
        raise ValueError("a schema that is nested too deeply") from None
    if not isinstance(root, dict):
        raise ValueError("not a JSON Schema: not an object")
    return _Reader(root).any(root, 0)


class _Reader:
    """Converts the parts of one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._count = 0

    def any(self, schema: Any, depth: int) -> dict[str, Any]:
        """Convert a schema and its nested schemas."""
        self._count += 1
        if depth > DEEPEST or self._count > LARGEST:
            raise ValueError(f"a schema of more than {LARGEST} values, or deeper than {DEEPEST}")
        if not isinstance(schema, dict):
            raise ValueError("not a JSON Schema: a part is not an object")
        if isinstance(schema.get("$ref"), str):
            return self.any(self._resolve(schema["$ref"]), depth + 1)
        members = schema.get("oneOf")
        if isinstance(members, list) and members:
            return self._union(members, depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            others = [one for one in kind if one != "null"]
            if len(others) != 1:
                return _anything(optional="null" in kind)
            found = self.any({**schema, "type": others[0]}, depth)
            return {**found, "optional": "null" in kind}
        connect_type = schema.get("connect.type")
        connect_type = _NUMBERS.get(connect_type, connect_type) if isinstance(connect_type, str) else None
        if connect_type == "map" or (
            kind == "object" and "properties" not in schema and connect_type is None
        ):
            return self._map(schema, depth)
        if kind == "object":
            return self._struct(schema, depth)
        if kind == "array" and isinstance(schema.get("items"), dict):
            return self._named("array", schema, items=self.any(schema["items"], depth + 1))
        plain = (
            connect_type if connect_type in _KINDS else _PLAIN.get(kind) if isinstance(kind, str) else None
        )
        return self._named(plain, schema) if plain else _anything(optional=kind == "null")

    def _resolve(self, reference: str) -> Any:
        found: Any = self._root
        if not reference.startswith("#"):
            raise ValueError(f"a schema that refers to {reference[:100]}")
        for part in filter(None, reference[1:].split("/")):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def _union(self, members: list[Any], depth: int) -> dict[str, Any]:
        others = [one for one in members if not (isinstance(one, dict) and one.get("type") == "null")]
        optional = len(others) < len(members)
        if len(others) != 1:
            return _anything(optional=optional)
        found = self.any(others[0], depth + 1)
        return {**found, "optional": optional or found["optional"]}

    def _struct(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        members = schema.get("properties", {})
        if not isinstance(members, dict):
            raise ValueError("not a JSON Schema: properties are not an object")
        ordered = sorted(members.items(), key=lambda one: _index(one[1]))
        fields = [as_field(self.any(one, depth + 1), name) for name, one in ordered]
        return self._named("struct", schema, fields=fields)

    def _map(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        inside = schema.get("additionalProperties")
        entry = schema.get("items")
        if schema.get("type") == "object" and isinstance(inside, dict):
            return self._named("map", schema, keys=connect("string"), values=self.any(inside, depth + 1))
        if schema.get("type") == "array" and isinstance(entry, dict):
            sides = entry.get("properties")
            if isinstance(sides, dict) and {"key", "value"} <= set(sides):
                keys, values = (self.any(sides[side], depth + 1) for side in ("key", "value"))
                return self._named("map", schema, keys=keys, values=values)
        return _anything(optional=False)

    def _named(self, kind: str, schema: Mapping[str, Any], **inside: Any) -> dict[str, Any]:
        given = schema.get("connect.parameters")
        title = schema.get("title")
        return connect(
            kind,
            title if isinstance(title, str) else "",
            version=schema.get("connect.version"),
            doc=schema.get("connect.doc"),
            parameters=given if isinstance(given, dict) else {},
            default=schema.get("default"),
            **inside,
        )


def _index(schema: Any) -> float:
    index = schema.get("connect.index") if isinstance(schema, dict) else None
    if index is None and isinstance(schema, dict) and isinstance(schema.get("oneOf"), list):
        return min((_index(one) for one in schema["oneOf"]), default=float("inf"))
    return index if isinstance(index, int) else float("inf")


def _anything(*, optional: bool) -> dict[str, Any]:
    return {**connect("struct", fields=[]), "optional": optional}
