"""Avro schemas of keys and values.

They are derived from Connect schemas by the rules of Confluent's AvroConverter (names, ``connect.*``
properties, null first in unions), or from Arrow fields with additional metadata:

``avro.logical``   logical type
``avro.name``      full name of a record
``avro.doc``       its description

The JSON of a schema equals that of Avro's Java library: a record is defined at its first occurrence and
referenced by name afterwards; a name without namespace within another namespace has an empty namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    """Avro schema. An optional schema is a union with null, which comes first.

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
        null_last: Whether null is last in the union, because the default isn't null.
        default: Default value.
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
        return json.dumps(_nullable(self, "", {}), separators=(",", ":"), ensure_ascii=False)


def avro_of_connect(schema: ConnectSchema) -> AvroSchema:
    """Return the Avro schema of a Connect schema, like Confluent's AvroConverter.

    A struct without namespace gets the path of the enclosing record and field as its namespace, because Avro
    names must be unique: each column's ``cell_value`` is a different record.
    """
    return _from_connect(schema, "")


def avro_of_struct(name: str, doc: str, kind: pa.StructType) -> AvroSchema:
    """Return the Avro record of an Arrow struct; nullable fields are optional.

    Args:
        name: Full name of the record, including its namespace.
        doc: Its description.
        kind: The struct.
    """
    namespace, _, last = name.rpartition(".")
    members = tuple((f.name, _from_field(f)) for f in kind)
    return AvroSchema("record", name=last, namespace=namespace, doc=doc, fields=members)


def check_names(schema: AvroSchema) -> None:
    """Validate names.

    Raises:
        ConfigurationError: A name is not valid in Avro.
    """
    names = [schema.name] if schema.type == "record" else []
    names += schema.namespace.split(".") if schema.namespace else []
    for name in [*names, *(name for name, _ in schema.fields)]:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not a valid Avro name",
                expected="letters, digits and _, not starting with a digit",
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


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _from_connect(schema: ConnectSchema, path: str) -> AvroSchema:
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
        own_namespace, name = namespace or path, name or "ConnectDefault"
        full = _inside(own_namespace, name)
        fields = tuple((n, _from_connect(s, _inside(full, n))) for n, s in schema.fields)
        return AvroSchema("record", name=name, namespace=own_namespace, fields=fields, **common)
    if schema.type == "array" and schema.items:
        return AvroSchema("array", items=_from_connect(schema.items, _inside(path, "element")), **common)
    if schema.type == "map" and schema.keys and schema.items:
        value = _from_connect(schema.items, _inside(path, "value"))
        if schema.keys.type == "string" and not schema.keys.optional:
            return AvroSchema("map", items=value, **common)
        entry = AvroSchema(
            "record",
            name="MapEntry",
            namespace=path or _CONFLUENT,
            fields=(("key", _from_connect(schema.keys, _inside(path, "key"))), ("value", value)),
        )
        return AvroSchema("array", items=entry, **common)
    return AvroSchema(_OF_CONNECT[schema.type], **common)


def _from_field(field: pa.Field) -> AvroSchema:
    metadata = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
    kind = field.type
    common: dict[str, Any] = {"logical": metadata.get("avro.logical", ""), "optional": field.nullable}
    if kind in _OF_ARROW:
        return AvroSchema(_OF_ARROW[kind], **common)
    if pa.types.is_map(kind):
        return AvroSchema("map", items=_from_field(kind.item_field), **common)
    if pa.types.is_list(kind):
        return AvroSchema("array", items=_from_field(kind.value_field), **common)
    namespace, _, name = metadata["avro.name"].rpartition(".")
    fields = tuple((f.name, _from_field(f)) for f in kind)
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


def _nullable(schema: AvroSchema, space: str, known: dict[str, AvroSchema]) -> Any:
    written = _type(schema, space, known)
    if not schema.optional:
        return written
    return [written, "null"] if schema.null_last else ["null", written]


def _type(schema: AvroSchema, space: str, known: dict[str, AvroSchema]) -> Any:
    extra = {**({"logicalType": schema.logical} if schema.logical else {}), **schema.properties}
    if schema.type == "record":
        while known.get(full := _inside(schema.namespace, schema.name), schema).fields != schema.fields:
            schema = replace(schema, name=f"{schema.name}_")  # another struct: of field a.b, or of b in a
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
        return {"type": "array", "items": _nullable(schema.items, space, known), **extra}
    if schema.type == "map" and schema.items:
        return {"type": "map", "values": _nullable(schema.items, space, known), **extra}
    return {"type": schema.type, **extra} if extra else schema.type


def _field(name: str, schema: AvroSchema, space: str, known: dict[str, AvroSchema]) -> dict[str, Any]:
    members = {"name": name, "type": _nullable(schema, space, known)}
    if schema.optional:
        members["default"] = schema.default
    return members
