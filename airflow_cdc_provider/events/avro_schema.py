"""Avro schemas: what describes keys and values that are written as Avro.

Made of one of two things: of Connect schemas, by the rules of Confluent's AvroConverter (names, ``connect.*``
properties, null first in unions), or of Arrow fields whose metadata say what Arrow's types don't:

``avro.logical``   logical type
``avro.name``      full name of a record
``avro.doc``       its description

The text of a schema is that of Avro's Java library: a record is written out where it first occurs and named
afterwards; a name without namespace inside another namespace has an empty one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.exceptions import ConfigurationError

AvroType = Literal[
    "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map", "record", "union"
]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class AvroSchema:
    """One schema. A null is allowed where ``optional`` says so, as the first member of a union.

    Args:
        type: Its type.
        optional: Whether it is a union with null.
        name: Of a record: its name, without namespace.
        namespace: Of a record.
        doc: Of a record: its description.
        logical: Logical type.
        properties: Further properties, in order.
        fields: Of a record: name and schema, in order.
        items: Of an array: its elements; of a map: its values.
        null_last: Null is the last member of the union: there is a default that isn't null.
        default: That default.
    """

    type: AvroType
    optional: bool = False
    name: str = ""
    namespace: str = ""
    doc: str = ""
    logical: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[tuple[str, AvroSchema], ...] = ()
    items: AvroSchema | None = None
    null_last: bool = False
    default: Any = None

    def to_json(self) -> str:
        """Write the schema as Java's ``Schema.toString`` does."""
        return json.dumps(_shown(self, "", {}), separators=(",", ":"), ensure_ascii=False)


def avro_of_connect(schema: ConnectSchema) -> AvroSchema:
    """Return the Avro schema that Confluent's AvroConverter gives a Connect schema.

    A struct whose name has no namespace gets that of its place (the enclosing record's full name and the
    field), as Avro can't define one name twice: each column's ``cell_value`` is another record.
    """
    return _of_connect(schema, "")


def avro_of_struct(name: str, doc: str, kind: pa.StructType) -> AvroSchema:
    """Return the record of an Arrow struct; fields that may be null are optional.

    Args:
        name: Its full name; what is before the last dot is its namespace.
        doc: Its description.
        kind: The struct.
    """
    namespace, _, last = name.rpartition(".")
    members = tuple((f.name, _of_field(f)) for f in kind)
    return AvroSchema("record", name=last, namespace=namespace, doc=doc, fields=members)


def check_names(schema: AvroSchema) -> None:
    """Refuse names that Avro doesn't know as such.

    Raises:
        ConfigurationError: Shows the name.
    """
    names = [schema.name] if schema.type == "record" else []
    names += schema.namespace.split(".") if schema.namespace else []
    for name in [*names, *(name for name, _ in schema.fields)]:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is no name in Avro",
                expected="letters, digits and _, no digit first",
                remedy="set publish.schema_names and publish.field_names to auto, avro or avro_unicode",
            )
    for inner in (*(s for _, s in schema.fields), *([schema.items] if schema.items else [])):
        check_names(inner)


_OF_CONNECT: Final[Mapping[str, AvroType]] = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_DEFAULT_PRECISION: Final = 64
_CONFLUENT: Final = "io.confluent.connect.avro"


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _of_connect(schema: ConnectSchema, place: str) -> AvroSchema:
    namespace, _, name = schema.name.rpartition(".")
    properties: dict[str, Any] = {}
    logical = ""
    if schema.name == _DECIMAL:
        logical = "decimal"
        scale = int(schema.parameters.get("scale", "0"))
        properties |= {"scale": scale, "precision": _DEFAULT_PRECISION}
    if schema.doc:
        properties["connect.doc"] = schema.doc
    if schema.version is not None:
        properties["connect.version"] = schema.version
    if schema.parameters:
        properties["connect.parameters"] = dict(schema.parameters)
    if schema.default is not None:
        properties["connect.default"] = schema.default
    if schema.name:
        properties["connect.name"] = schema.name
    if schema.type in ("int8", "int16"):
        properties["connect.type"] = schema.type
    common: dict[str, Any] = {
        "optional": schema.optional,
        "null_last": schema.optional and schema.default is not None,
        "default": schema.default,
        "logical": logical,
        "properties": properties,
    }
    if schema.type == "struct":
        own, name = namespace or place, name or "ConnectDefault"
        full = _inside(own, name)
        fields = tuple((n, _of_connect(s, _inside(full, n))) for n, s in schema.fields)
        return AvroSchema("record", name=name, namespace=own, fields=fields, **common)
    if schema.type == "array" and schema.items:
        return AvroSchema("array", items=_of_connect(schema.items, _inside(place, "element")), **common)
    if schema.type == "map" and schema.keys and schema.items:
        value = _of_connect(schema.items, _inside(place, "value"))
        if schema.keys.type == "string" and not schema.keys.optional:
            return AvroSchema("map", items=value, **common)
        entry = AvroSchema(
            "record",
            name="MapEntry",
            namespace=place or _CONFLUENT,
            fields=(("key", _of_connect(schema.keys, _inside(place, "key"))), ("value", value)),
        )
        return AvroSchema("array", items=entry, **common)
    return AvroSchema(_OF_CONNECT[schema.type], **common)


def _of_field(field: pa.Field) -> AvroSchema:
    metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
    kind = field.type
    common: dict[str, Any] = {"logical": metadata.get("avro.logical", ""), "optional": field.nullable}
    if kind in _OF_ARROW:
        return AvroSchema(_OF_ARROW[kind], **common)
    if pa.types.is_map(kind):
        return AvroSchema("map", items=_of_field(kind.item_field), **common)
    if pa.types.is_list(kind):
        return AvroSchema("array", items=_of_field(kind.value_field), **common)
    namespace, _, name = metadata["avro.name"].rpartition(".")
    fields = tuple((f.name, _of_field(f)) for f in kind)
    doc = metadata.get("avro.doc", "")
    return AvroSchema("record", name=name, namespace=namespace, doc=doc, fields=fields, **common)


_OF_ARROW: Final[Mapping[Any, AvroType]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.utf8(): "string",
    pa.binary(): "bytes",
}


def _shown(schema: AvroSchema, space: str, known: dict[str, AvroSchema]) -> Any:
    shown = _type(schema, space, known)
    if not schema.optional:
        return shown
    return [shown, "null"] if schema.null_last else ["null", shown]


def _type(schema: AvroSchema, space: str, known: dict[str, AvroSchema]) -> Any:
    extra = {**({"logicalType": schema.logical} if schema.logical else {}), **schema.properties}
    if schema.type == "record":
        full = f"{schema.namespace}.{schema.name}" if schema.namespace else schema.name
        if full in known:
            return schema.name if schema.namespace in ("", space) else full
        known[full] = schema
        members: dict[str, Any] = {"type": "record", "name": schema.name}
        if schema.namespace != space:
            members["namespace"] = schema.namespace
        if schema.doc:
            members["doc"] = schema.doc
        members["fields"] = [_field(name, s, schema.namespace, known) for name, s in schema.fields]
        return {**members, **extra}
    if schema.type == "array" and schema.items:
        return {"type": "array", "items": _shown(schema.items, space, known), **extra}
    if schema.type == "map" and schema.items:
        return {"type": "map", "values": _shown(schema.items, space, known), **extra}
    return {"type": schema.type, **extra} if extra else schema.type


def _field(name: str, schema: AvroSchema, space: str, known: dict[str, AvroSchema]) -> dict[str, Any]:
    members = {"name": name, "type": _shown(schema, space, known)}
    if schema.optional:
        members["default"] = schema.default
    return members
