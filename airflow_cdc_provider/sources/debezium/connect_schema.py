"""Kafka Connect schemas in the JSON converter's format, and their mapping to lake types.

This is the only definition of the type mapping; ``docs/source-debezium.md`` contains its table. No value is
silently rounded or set to null: a value that its column can't represent exactly is stored as JSON in the
mirror's column :data:`REST`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes.column_names import clash

REST: Final = "_rest"
"""Column of a mirror with the values that no other column holds, as a JSON object; null for none."""

WIDEST_DECIMAL: Final = 38
_MOST_DIGITS: Final = (1 << 31) - 1
NO_SCHEMA: Final = ""
"""Schema name of rows without a schema."""

UTC: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")

_CONNECT: Final = "org.apache.kafka.connect.data."
_TIME: Final = "io.debezium.time."
DATE: Final = frozenset({_CONNECT + "Date", _TIME + "Date"})
INSTANTS: Final = frozenset({_TIME + "ZonedTimestamp"})
DECIMAL: Final = _CONNECT + "Decimal"
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
MOMENTS: Final[Mapping[str, int]] = {
    _CONNECT + "Timestamp": 1_000_000,
    _TIME + "Timestamp": 1_000_000,
    _TIME + "MicroTimestamp": 1_000,
    _TIME + "NanoTimestamp": 1,
}
"""Local timestamps, with the nanoseconds per unit."""
CLOCKS: Final[Mapping[str, int]] = {
    _CONNECT + "Time": 1_000_000,
    _TIME + "Time": 1_000_000,
    _TIME + "MicroTime": 1_000,
    _TIME + "NanoTime": 1,
}
"""Times of day, with the nanoseconds per unit."""

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


@dataclass(frozen=True)
class TypeRow:
    """A row of the documented type table."""

    names: str
    lake: str
    note: str = ""


TYPES: Final = (
    TypeRow("int8, int16, int32; io.debezium.time.Year", "int32"),
    TypeRow("int64; io.debezium.time.MicroDuration, NanoDuration", "int64"),
    TypeRow("float, double", "float32, float64", "NaN and the infinities too"),
    TypeRow("boolean", "boolean"),
    TypeRow(
        "string; io.debezium.data.Json, Xml, Uuid, Enum, EnumSet, Ltree, Tsvector; "
        "io.debezium.time.Interval, ZonedTime, IsoDate, IsoTime, IsoTimestamp",
        "string",
    ),
    TypeRow("bytes; io.debezium.data.Bits", "binary", "Bits: lowest byte first, as in Debezium"),
    TypeRow("org.apache.kafka.connect.data.Date, io.debezium.time.Date", "date32"),
    TypeRow(
        "org.apache.kafka.connect.data.Timestamp, io.debezium.time.Timestamp, MicroTimestamp, NanoTimestamp",
        "timestamp without zone (µs)",
        "nanoseconds are truncated in the column and complete in `_rest`",
    ),
    TypeRow(
        "io.debezium.time.ZonedTimestamp",
        "timestamp (µs, UTC)",
        "text without a time zone counts as UTC, as written by Vitess' connector",
    ),
    TypeRow(
        "org.apache.kafka.connect.data.Time, io.debezium.time.Time, MicroTime, NanoTime",
        "int64",
        "microseconds; MySQL's range is -838:59:59 to 838:59:59",
    ),
    TypeRow(
        "org.apache.kafka.connect.data.Decimal",
        "decimal(p,s)",
        "38 digits if the schema has no precision; string for more. Read from base64 bytes or numbers",
    ),
    TypeRow("io.debezium.data.VariableScaleDecimal", "string", "all its digits"),
    TypeRow("struct; io.debezium.data.geometry.Geometry, Geography, Point", "struct", "field by field"),
    TypeRow("array; io.debezium.data.DoubleVector, FloatVector", "list"),
    TypeRow("map", "map", "keys are strings"),
)


@dataclass(frozen=True)
class ConnectField:
    """A Connect schema.

    Args:
        name: Name of its field; empty for elements.
        type: ``int32``, ``struct`` and so on.
        logical: The schema's name, empty for none.
        scale: Scale of a decimal.
        precision: Precision of a decimal, 0 if the schema doesn't have it.
        fields: Fields of a struct; the element of an array; key and value of a map.
    """

    name: str
    type: str
    logical: str = ""
    scale: int = 0
    precision: int = 0
    fields: tuple[ConnectField, ...] = ()

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> ConnectField:
        """Parse a schema.

        Raises:
            ValueError: The schema is invalid.
        """
        if not isinstance(schema, Mapping) or not isinstance(schema.get("type"), str):
            raise ValueError("a schema without a type")
        kind = schema["type"]
        parts: Sequence[Mapping[str, Any]] = ()
        if kind == "struct":
            parts = schema.get("fields") or ()
        elif kind == "array":
            parts = (schema["items"],) if "items" in schema else ()
        elif kind == "map":
            parts = tuple(schema[name] for name in ("keys", "values") if name in schema)
        elif kind not in _PRIMITIVES:
            raise ValueError(f"a schema of type {kind}")
        if len(parts) != {"array": 1, "map": 2}.get(kind, len(parts)):
            raise ValueError(f"a schema of type {kind} without its elements")
        given = schema.get("parameters") or {}
        scale, precision = int(given.get("scale", 0)), int(given.get("connect.decimal.precision", 0))
        if abs(scale) > _MOST_DIGITS or not 0 <= precision <= _MOST_DIGITS:
            raise ValueError("a decimal whose scale or precision is out of Java's int range")
        return cls(
            str(schema.get("field", "")),
            kind,
            str(schema.get("name") or ""),
            scale,
            precision,
            tuple(cls.of(part) for part in parts),
        )

    def field(self, name: str) -> ConnectField | None:
        """Return a field of a struct."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, ConnectField]:
        return {one.name: one for one in reversed(self.fields)}

    @property
    def lake_type(self) -> pa.DataType:
        """The lake type of such values."""
        if self.logical in DATE and self.type == "int32":
            return pa.date32()
        if self.logical in MOMENTS and self.type == "int64":
            return LOCAL
        if self.logical in CLOCKS and self.type in ("int32", "int64"):
            return pa.int64()
        if self.logical in INSTANTS and self.type == "string":
            return UTC
        if self.logical == DECIMAL and self.type == "bytes":
            precision = self.precision or WIDEST_DECIMAL
            return (
                pa.decimal128(precision, self.scale)
                if precision <= WIDEST_DECIMAL and 0 <= self.scale <= precision
                else pa.string()
            )
        if self.is_variable_decimal:
            return pa.string()
        if self.type == "struct":
            if not self.fields or clash(one.name for one in self.fields):
                return pa.string()  # no lake format supports such a struct
            return pa.struct([pa.field(one.name, one.lake_type) for one in self.fields])
        if self.type == "array":
            return pa.list_(pa.field("element", self.fields[0].lake_type))
        if self.type == "map":
            return pa.map_(pa.string(), self.fields[1].lake_type)
        return _PRIMITIVES[self.type]

    @property
    def is_variable_decimal(self) -> bool:
        """Whether each value is a decimal with its own scale."""
        return self.logical == VARIABLE_DECIMAL and self.type == "struct"


def row_schema(schema: Mapping[str, Any], *, unwrapped: bool) -> Mapping[str, Any] | None:
    """Return the part of a value's schema that describes its rows.

    Args:
        schema: The schema in the message.
        unwrapped: The value is a row, not an envelope with rows.

    Returns:
        The schema of a struct; None if rows have none, such as MongoDB's rows, which are text.

    Raises:
        ValueError: The schema is invalid.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "struct":
        raise ValueError("a schema of something other than a struct")
    if unwrapped:
        return schema
    fields = schema.get("fields")
    if not isinstance(fields, list):
        raise ValueError("a schema without fields")
    rows = [one for one in fields if isinstance(one, Mapping) and one.get("field") in ("after", "before")]
    row = min(rows, key=lambda one: one["field"], default=None)
    return row if row is not None and row.get("type") == "struct" else None


def name_of(schema: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the name of a row's schema, 32 hexadecimal digits, and its canonical text.

    Rows before and after a change have the same name.
    """
    plain = {name: value for name, value in schema.items() if name not in ("field", "optional", "name")}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest(), text


def type_table() -> str:
    """Return the type table of the documentation."""
    lines = ["| Kafka Connect | lake (Arrow) | notes |", "|---|---|---|"]
    lines += [f"| {row.names} | {row.lake} | {row.note} |" for row in TYPES]
    return "\n".join(lines)
