"""Schemas of Kafka Connect as the JSON converter writes them, and the lake type of each type in them.

The one place that says which lake type a type has; ``docs/source-debezium.md`` shows its table. Nothing is
rounded or set to null in silence: a value that its column can't hold exactly stands, as its JSON, in the
mirror's column :data:`REST`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

REST: Final = "_rest"
"""Column of a mirror: what no other column holds, a JSON object; null where there is nothing."""

WIDEST_DECIMAL: Final = 38
_MOST_DIGITS: Final = (1 << 31) - 1
NO_SCHEMA: Final = ""
"""Name of the schema of rows that came without one."""

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
"""Local dates and times, with the nanoseconds that one unit of each is."""
CLOCKS: Final[Mapping[str, int]] = {
    _CONNECT + "Time": 1_000_000,
    _TIME + "Time": 1_000_000,
    _TIME + "MicroTime": 1_000,
    _TIME + "NanoTime": 1,
}
"""Times of day, likewise."""

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
    """What holds for some types of Connect alike, for people."""

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
    TypeRow("bytes; io.debezium.data.Bits", "binary", "Bits: lowest byte first, as Debezium has them"),
    TypeRow("org.apache.kafka.connect.data.Date, io.debezium.time.Date", "date32"),
    TypeRow(
        "org.apache.kafka.connect.data.Timestamp, io.debezium.time.Timestamp, MicroTimestamp, NanoTimestamp",
        "timestamp without zone (µs)",
        "nanoseconds are cut off in the column and whole in `_rest`",
    ),
    TypeRow(
        "io.debezium.time.ZonedTimestamp",
        "timestamp (µs, UTC)",
        "text without a zone counts as UTC, as Vitess' connector writes it",
    ),
    TypeRow(
        "org.apache.kafka.connect.data.Time, io.debezium.time.Time, MicroTime, NanoTime",
        "int64",
        "microseconds: MySQL's go from -838:59:59 to 838:59:59",
    ),
    TypeRow(
        "org.apache.kafka.connect.data.Decimal",
        "decimal(p,s)",
        "38 digits where the schema tells no precision; string for more. As bytes in base64 or as numbers",
    ),
    TypeRow("io.debezium.data.VariableScaleDecimal", "string", "all its digits"),
    TypeRow("struct; io.debezium.data.geometry.Geometry, Geography, Point", "struct", "field by field"),
    TypeRow("array; io.debezium.data.DoubleVector, FloatVector", "list"),
    TypeRow("map", "map", "keys are strings"),
)


@dataclass(frozen=True)
class ConnectField:
    """A type of Connect.

    Args:
        name: Of the field that has it; empty for elements.
        type: ``int32``, ``struct`` and so on.
        logical: The schema's name, empty without one.
        scale: Of a decimal.
        precision: Of a decimal whose schema tells it, else 0.
        fields: Of a struct; of an array its elements; of a map keys and values.
    """

    name: str
    type: str
    logical: str = ""
    scale: int = 0
    precision: int = 0
    fields: tuple[ConnectField, ...] = ()

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> ConnectField:
        """Read a schema.

        Raises:
            ValueError: It is none.
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
            raise ValueError("a decimal whose scale or precision is no number of Java's")
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
        return next((one for one in self.fields if one.name == name), None)

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
                return pa.string()  # for no lake can hold it
            return pa.struct([pa.field(one.name, one.lake_type) for one in self.fields])
        if self.type == "array":
            return pa.list_(pa.field("element", self.fields[0].lake_type))
        if self.type == "map":
            return pa.map_(pa.string(), self.fields[1].lake_type)
        return _PRIMITIVES[self.type]

    @property
    def is_variable_decimal(self) -> bool:
        """Whether values are decimals that each tell their own scale."""
        return self.logical == VARIABLE_DECIMAL and self.type == "struct"


def clash(names: Iterable[str]) -> bool:
    """Tell whether a struct can't have such fields: one without a name, or two that engines tell as one."""
    lower = [name.lower() for name in names]
    return "" in lower or len(set(lower)) < len(lower)


def row_schema(schema: Mapping[str, Any], *, unwrapped: bool) -> Mapping[str, Any] | None:
    """Return the part of a value's schema that describes rows.

    Args:
        schema: As it stands in the message.
        unwrapped: The value is a row, not an envelope with rows.

    Returns:
        The schema of a struct; None where rows have none, as MongoDB's, which are text.

    Raises:
        ValueError: It is no schema.
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
    """Return the name of a row's schema, 32 hexadecimal digits, and its text in one form.

    Rows before and after a change have the same.
    """
    plain = {name: value for name, value in schema.items() if name not in ("field", "optional", "name")}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest(), text


def type_table() -> str:
    """Return the table of types as the documentation shows it."""
    lines = ["| Kafka Connect | lake (Arrow) | notes |", "|---|---|---|"]
    lines += [f"| {row.names} | {row.lake} | {row.note} |" for row in TYPES]
    return "\n".join(lines)
