"""Messages as the converters write them that keep schemas in a registry, made by the libraries of others."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import fastavro

from airflow_cdc_provider.kafka.registry import RegisteredSchema

DECIMAL = "org.apache.kafka.connect.data.Decimal"


class Registering(Protocol):
    """Gives schemas their ids."""

    def add(self, kind: str, text: str) -> int:
        """Register a schema."""


class Registered:
    """A registry in memory, which counts requests."""

    def __init__(self) -> None:
        self.schemas: list[RegisteredSchema] = []
        self.requested: Counter[int] = Counter()

    def add(self, kind: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> int:
        """Return a schema's id, the same one for the same schema."""
        schema = RegisteredSchema(kind, text, references)
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema) + 1

    def schema_of(self, schema_id: int) -> RegisteredSchema | None:
        self.requested[schema_id] += 1
        return self.schemas[schema_id - 1] if 0 < schema_id <= len(self.schemas) else None


def head(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


_AVRO = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}


def avro_of(schema: Mapping[str, Any], known: set[str], place: str = "Value") -> Any:
    """Return the schema that AvroConverter gives one of Connect's (AvroData.fromConnectSchema)."""
    kind = schema["type"]
    own: dict[str, Any] = {"type": _AVRO.get(kind, kind)}
    if kind in ("int8", "int16"):
        own["connect.type"] = kind
    if schema.get("parameters"):
        own["connect.parameters"] = schema["parameters"]
    if schema.get("version"):
        own["connect.version"] = schema["version"]
    if schema.get("name"):
        own["connect.name"] = schema["name"]
    if schema.get("name") == DECIMAL:
        own |= {"logicalType": "decimal", "scale": int(schema["parameters"]["scale"]), "precision": 64}
    if kind == "struct":
        name = schema.get("name") or f"n.{place}"
        if name in known:
            own = {"type": name}
        else:
            known.add(name)
            fields = [
                {"name": one["field"], "type": avro_of(one, known, f"{place}_{one['field']}")}
                for one in schema["fields"]
            ]
            own |= {"type": "record", "name": name, "fields": fields}
    elif kind == "array":
        own["items"] = avro_of(schema["items"], known, place + "_element")
    elif kind == "map":
        own["values"] = avro_of(schema["values"], known, place + "_value")
    shown: Any = own["type"] if set(own) == {"type"} else own
    return ["null", shown] if schema.get("optional") else shown


def avro_value(schema: Mapping[str, Any], value: Any) -> Any:
    """Return what fastavro takes for a value of JsonConverter's."""
    if value is None:
        return None
    kind = schema["type"]
    if kind == "struct":
        return {one["field"]: avro_value(one, value.get(one["field"])) for one in schema["fields"]}
    if kind == "array":
        return [avro_value(schema["items"], one) for one in value]
    if kind == "map":
        return {key: avro_value(schema["values"], one) for key, one in value.items()}
    return base64.b64decode(value) if kind == "bytes" else value


def to_avro(schema: Mapping[str, Any], value: Any, registered: Registering) -> bytes:
    """Write a value of JsonConverter's as AvroConverter does."""
    avro = avro_of(schema, set())
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro), avro_value(schema, value))
    return head(registered.add("AVRO", json.dumps(avro))) + out.getvalue()


def as_avro(message: bytes | None, registered: Registering) -> bytes | None:
    """Write a message of JsonConverter's, with its schema, as AvroConverter does; what has none stays."""
    if message is None:
        return None
    content = json.loads(message)
    return to_avro(content["schema"], content["payload"], registered)
