"""Kafka Connect schemas of keys and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import pyarrow as pa

ConnectType = Literal[
    "boolean",
    "int8",
    "int16",
    "int32",
    "int64",
    "float",
    "double",
    "string",
    "bytes",
    "array",
    "map",
    "struct",
]


@dataclass(frozen=True)
class ConnectSchema:
    """One schema.

    Args:
        type: Its type as JsonConverter writes it.
        optional: Whether null is allowed.
        name: Its name, empty for none.
        version: Its version.
        doc: Its description.
        parameters: Further properties of the name.
        default: Default value.
        fields: Of a struct: name and schema, in order.
        items: Of an array: its elements; of a map: its values.
        keys: Of a map.
        omit_nulls: Of a struct: omit null fields in JSON.
        entry_objects: Of a map whose keys are not strings or are nullable: write entries as JSON objects with
            key and value, not as pairs.
    """

    type: ConnectType
    optional: bool = False
    name: str = ""
    version: int | None = None
    doc: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    default: Any = None
    fields: tuple[tuple[str, ConnectSchema], ...] = ()
    items: ConnectSchema | None = None
    keys: ConnectSchema | None = None
    omit_nulls: bool = False
    entry_objects: bool = False

    def named(self, name: str) -> ConnectSchema:
        """Return the same schema with another name."""
        return replace(self, name=name)

    def to_json(self) -> str:
        """Write the schema like JsonConverter: no white space, members in its order."""
        return json.dumps(self._members(), separators=(",", ":"), ensure_ascii=False)

    def _members(self, field_name: str = "") -> dict[str, Any]:
        members: dict[str, Any] = {"type": self.type}
        if self.type == "struct":
            members["fields"] = [schema._members(name) for name, schema in self.fields]
        elif self.type == "map" and self.keys and self.items:
            members["keys"] = self.keys._members()
            members["values"] = self.items._members()
        elif self.items:
            members["items"] = self.items._members()
        members["optional"] = self.optional
        if self.name:
            members["name"] = self.name
        if self.version is not None:
            members["version"] = self.version
        if self.doc:
            members["doc"] = self.doc
        if self.parameters:
            members["parameters"] = dict(self.parameters)
        if self.default is not None:
            members["default"] = self.default
        if field_name:
            members["field"] = field_name
        return members


def struct(name: str, *fields: tuple[str, ConnectSchema], **more: Any) -> ConnectSchema:
    """Build the schema of a struct."""
    return ConnectSchema("struct", name=name, fields=fields, **more)


Values = tuple[ConnectSchema, pa.Array]
"""A schema and values of it."""
Member = tuple[str, ConnectSchema, Any]
"""A field of structs: name, schema, and an array of values, or one that all structs have."""


def struct_values(name: str, *members: Member, **more: Any) -> Values:
    """Build structs and their schema.

    Args:
        name: Name of the schema.
        members: The fields; at least one has an array.
        more: Further properties of the schema.
    """
    count = next(len(values) for _, _, values in members if isinstance(values, pa.Array))
    arrays = [
        values if isinstance(values, pa.Array) else pa.repeat(values, count) for _, _, values in members
    ]
    schema = struct(name, *((field_name, member) for field_name, member, _ in members), **more)
    return schema, pa.StructArray.from_arrays(arrays, [field_name for field_name, _, _ in members])


STRING: Final = ConnectSchema("string")
OPTIONAL_STRING: Final = ConnectSchema("string", optional=True)
INT32: Final = ConnectSchema("int32")
OPTIONAL_INT32: Final = ConnectSchema("int32", optional=True)
INT64: Final = ConnectSchema("int64")
OPTIONAL_INT64: Final = ConnectSchema("int64", optional=True)
BOOLEAN: Final = ConnectSchema("boolean")

SNAPSHOT: Final = ConnectSchema(
    "string",
    optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters={
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    default="false",
)
"""The field ``snapshot`` of every Debezium source block."""

TRANSACTION: Final = struct(
    "event.block",
    ("id", STRING),
    ("total_order", INT64),
    ("data_collection_order", INT64),
    optional=True,
    version=1,
)
"""The field ``transaction`` of Debezium's envelopes."""

_ARROW_TYPES: Final[dict[Any, ConnectType]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.utf8(): "string",
    pa.large_utf8(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
}


def schema_of(field: pa.Field) -> ConnectSchema:
    """Return the Connect schema of an Arrow field; nullable fields and keys of maps are optional.

    Args:
        field: Field with optional metadata: ``connect.name``, with the version after a colon;
            ``connect.doc``; ``connect.parameters``, ``name=value`` lines or a JSON object.
    """
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    name, _, version = metadata.get("connect.name", "").partition(":")
    encoded = metadata.get("connect.parameters", "")
    parameters = (
        json.loads(encoded) if encoded.startswith("{") else [n.split("=", 1) for n in encoded.splitlines()]
    )
    common: dict[str, Any] = {
        "optional": field.nullable,
        "name": name,
        "version": int(version) if version else None,
        "doc": metadata.get("connect.doc", ""),
        "parameters": dict(parameters),
    }
    kind = field.type
    if kind in _ARROW_TYPES:
        return ConnectSchema(_ARROW_TYPES[kind], **common)
    if pa.types.is_map(kind):
        return ConnectSchema(
            "map",
            keys=schema_of(kind.key_field.with_nullable(True)),
            items=schema_of(kind.item_field),
            **common,
        )
    if pa.types.is_list(kind):
        return ConnectSchema("array", items=schema_of(kind.value_field), **common)
    return ConnectSchema("struct", fields=tuple((f.name, schema_of(f)) for f in kind), **common)
