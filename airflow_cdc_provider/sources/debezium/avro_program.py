"""Compiles Avro schemas to a program for the kernel and to the Connect schema.

The rules are those of Confluent's AvroConverter (class ``AvroData``): ``connect.name``,
``connect.parameters``, ``connect.version`` and ``connect.type`` define a value's Connect type, else its
logical type does. In addition, logical types of writers other than Connect are supported: micro- and
nanoseconds map to Debezium's types, not to plain integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow_cdc_provider.exceptions import from_extra
from airflow_cdc_provider.sources.debezium import avro_json as kinds
from airflow_cdc_provider.sources.debezium.connect_schema import DECIMAL
from airflow_cdc_provider.sources.debezium.json_program import (
    CompiledNode,
    Part,
    Program,
    ProgramBuilder,
    as_field,
    connect,
    member_leads,
    quoted,
)

_PRIMITIVES: Final[Mapping[str, tuple[int, str]]] = {
    "boolean": (kinds.BOOLEAN, "boolean"),
    "int": (kinds.INT, "int32"),
    "long": (kinds.LONG, "int64"),
    "float": (kinds.FLOAT, "float"),
    "double": (kinds.DOUBLE, "double"),
    "bytes": (kinds.BYTES, "bytes"),
    "string": (kinds.STRING, "string"),
    "fixed": (kinds.FIXED, "bytes"),
}
_LOGICAL: Final[Mapping[tuple[str, str], str]] = {
    ("int", "date"): "org.apache.kafka.connect.data.Date",
    ("int", "time-millis"): "org.apache.kafka.connect.data.Time",
    ("long", "time-micros"): "io.debezium.time.MicroTime",
    ("long", "timestamp-millis"): "org.apache.kafka.connect.data.Timestamp",
    ("long", "local-timestamp-millis"): "org.apache.kafka.connect.data.Timestamp",
    ("long", "timestamp-micros"): "io.debezium.time.MicroTimestamp",
    ("long", "local-timestamp-micros"): "io.debezium.time.MicroTimestamp",
    ("long", "timestamp-nanos"): "io.debezium.time.NanoTimestamp",
    ("long", "local-timestamp-nanos"): "io.debezium.time.NanoTimestamp",
}
_UNION: Final = "io.confluent.connect.avro.Union"
_ENTRY: Final = "MapEntry"
_LOGICAL_DECIMAL: Final = "cdc.decimal"
"""Marks a decimal in a loaded schema under a name that fastavro doesn't validate."""
_DEEPEST_TEXT: Final = 400


def compile_avro(text: str, references: Sequence[str] = ()) -> tuple[Program, Mapping[str, Any]]:
    """Compile a writer's schema.

    Args:
        text: The schema.
        references: Schemas that define names that it uses, in order of dependency.

    Returns:
        The program, and the schema in the format of Connect's JSON converter.

    Raises:
        ValueError: It isn't a valid Avro schema, or has no columns: it is recursive, or too large.
    """
    with from_extra("registry"):
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    known: dict[str, Any] = {}
    try:
        for one in references:
            parse_schema(_loaded(one), known)
        parsed = parse_schema(_loaded(text), known)
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a valid Avro schema: {type(error).__name__} {error}"[:300]) from None
    compiler = _Compiler(known)
    compiled = compiler.any(parsed)
    return compiler.builder.done(), compiled.schema


def _loaded(text: str) -> Any:
    """Load JSON after checking its nesting depth."""
    deep = most = 0
    for character in text:
        deep += (character in "[{") - (character in "]}")
        most = max(most, deep)
    if most > _DEEPEST_TEXT:
        raise ValueError(f"a schema's text nested deeper than {_DEEPEST_TEXT}")
    schema = json.loads(text)
    _hide_decimals(schema)
    return schema


def _hide_decimals(schema: Any) -> None:
    """Hide decimals from fastavro, which rejects scales above the precision, and negative ones."""
    if isinstance(schema, list):
        for one in schema:
            _hide_decimals(one)
    elif isinstance(schema, dict):
        if schema.get("logicalType") == "decimal":
            del schema["logicalType"]
            schema[_LOGICAL_DECIMAL] = True
        for name in ("type", "items", "values", "fields"):
            _hide_decimals(schema.get(name))


class _Compiler:
    """Compiles a schema and the types that it uses; each record once."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.builder = ProgramBuilder()
        self._known = known
        self._compiled_records: dict[str, CompiledNode | None] = {}

    def any(self, schema: Any) -> CompiledNode:
        """Compile a schema and its nested schemas."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            schema = self._known.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, (list, dict)):
            return self.any(kind)
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "enum":
            symbols = [Part(None, quoted(symbol)) for symbol in schema["symbols"]]
            return self.builder.add(kinds.ENUM, self._connect("string", schema), 0, symbols)
        if kind == "array":
            return self._array(schema)
        if kind == "map":
            inside = self.any(schema["values"])
            shown = self._connect("map", schema, keys=connect("string"), values=inside.schema)
            return self.builder.add(kinds.MAP, shown, 0, [Part(inside, b"")])
        if kind == "null":
            return self.builder.add(kinds.NULL, {**connect("string"), "optional": True})
        if kind not in _PRIMITIVES:
            raise ValueError(f"unsupported Avro type {str(kind)[:100]}")
        size = schema.get("size", 0)
        if not isinstance(size, int) or not 0 <= size < 1 << 31:
            raise ValueError(f"a fixed of size {str(size)[:100]}")
        number, plain = _PRIMITIVES[kind]
        shown = self._connect(str(schema.get("connect.type") or plain), schema)
        return self.builder.add(number, shown, size)

    def _record(self, schema: Mapping[str, Any]) -> CompiledNode:
        name = schema["name"]
        if name in self._compiled_records:
            compiled = self._compiled_records[name]
            if compiled is None:
                raise ValueError(f"record {name} is recursive")
            return compiled
        self._compiled_records[name] = None
        fields = [(one["name"], self.any(one["type"])) for one in schema["fields"]]
        leads = member_leads([field for field, _ in fields])
        shown = self._connect(
            "struct", schema, name, fields=[as_field(compiled.schema, field) for field, compiled in fields]
        )
        parts = [Part(compiled, lead) for (_, compiled), lead in zip(fields, leads, strict=True)]
        compiled = self.builder.add(kinds.RECORD, shown, ord("}"), parts)
        self._compiled_records[name] = compiled
        return compiled

    def _array(self, schema: Mapping[str, Any]) -> CompiledNode:
        items = schema["items"]
        if isinstance(items, str):
            items = self._known.get(items, items)
        if isinstance(items, dict) and _is_entry(items):
            key, value = (self.any(one["type"]) for one in items["fields"])
            pair = self.builder.add(kinds.RECORD, {}, ord("]"), [Part(key, b"["), Part(value, b",")])
            shown = self._connect("map", schema, keys=key.schema, values=value.schema)
            return self.builder.add(kinds.ARRAY, shown, 0, [Part(pair, b"")])
        inside = self.any(items)
        return self.builder.add(
            kinds.ARRAY, self._connect("array", schema, items=inside.schema), 0, [Part(inside, b"")]
        )

    def _union(self, members: Sequence[Any]) -> CompiledNode:
        compiled = [None if _is_null(one) else self.any(one) for one in members]
        others = [one for one in compiled if one is not None]
        optional = len(others) < len(compiled)
        if len(others) == 1:
            shown = {**others[0].schema, "optional": optional or others[0].schema["optional"]}
            if not optional:
                return self.builder.add(kinds.NULLABLE, shown, 0, [Part(others[0], b"")])
            return self.builder.add(
                kinds.NULLABLE, shown, compiled.index(None), [Part(one, b"") for one in compiled]
            )
        full = [
            _full_name(one, self._known)
            for one, own in zip(members, compiled, strict=True)
            if own is not None
        ]
        names = _branches(full)
        leads = iter(member_leads(names))
        fields = [
            as_field({**one.schema, "optional": True}, name) for one, name in zip(others, names, strict=True)
        ]
        shown = {**connect("struct", _UNION, fields=fields), "optional": optional}
        parts = [Part(one, b"" if one is None else next(leads)) for one in compiled]
        return self.builder.add(kinds.CHOICE, shown, 0, parts)

    def _connect(
        self, kind: str, schema: Mapping[str, Any], record: str = "", **inside: Any
    ) -> dict[str, Any]:
        """Return the Connect schema of an Avro schema, from its properties."""
        logical = str(schema.get("logicalType") or "")
        given = schema.get("connect.parameters")
        parameters = dict(given) if isinstance(given, dict) else {}
        name = str(schema.get("connect.name") or "") or _LOGICAL.get((str(schema["type"]), logical), record)
        if schema.get(_LOGICAL_DECIMAL) and kind == "bytes" and name in ("", DECIMAL):
            name = DECIMAL
            parameters.setdefault("scale", str(schema.get("scale", 0)))
            if not given and "precision" in schema:
                parameters["connect.decimal.precision"] = str(schema["precision"])
        version = schema.get("connect.version")
        return connect(
            kind,
            name,
            version=version,
            doc=schema.get("connect.doc"),
            parameters=parameters,
            default=schema.get("connect.default"),
            **inside,
        )


def _is_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def _is_entry(schema: Mapping[str, Any]) -> bool:
    """Return whether a record is an entry of a map with non-string keys."""
    if schema.get("type") != "record" or [one["name"] for one in schema["fields"]] != ["key", "value"]:
        return False
    return schema.get("connect.internal.type") == _ENTRY or schema["name"].rpartition(".")[2] == _ENTRY


def _full_name(schema: Any, known: Mapping[str, Any]) -> str:
    """Return the name of a union's branch: its own, or its type."""
    if isinstance(schema, str):
        schema = known.get(schema, {"type": schema})
    return str(schema.get("name") or schema["type"])


def _branches(full: Sequence[str]) -> list[str]:
    """Return names of a union's branches: the last part of each name, or the full name if ambiguous."""
    last = [name.rpartition(".")[2] for name in full]
    names = [
        short if last.count(short) == 1 else name.replace(".", "_")
        for name, short in zip(full, last, strict=True)
    ]
    if len(set(names)) < len(names):
        raise ValueError(f"a union whose branches have the same name: {', '.join(full)}"[:300])
    return names
