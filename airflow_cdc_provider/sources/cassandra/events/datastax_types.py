"""CQL values in the format of DataStax's CDC for Apache Cassandra: Arrow columns with Avro names as metadata.

The input is the columns of a projection (:mod:`airflow_cdc_provider.sources.cql.projection`) with
:data:`LAKE_TYPES`. Only ``time`` is rounded, to microseconds:

================================ =============================================================
CQL                              event
================================ =============================================================
tinyint, smallint, int           int
bigint, counter                  long
ascii, text, inet                string
blob                             bytes
date                             int, days since 1970, ``date``
time                             long, microseconds, ``time-micros``
timestamp                        long, milliseconds, ``timestamp-millis``
uuid, timeuuid                   string, ``uuid``
varint                           bytes, ``cql_varint``: big-endian two's complement
decimal                          record ``cql_decimal``: ``bigint`` (bytes as above), ``scale``
duration                         record ``cql_duration``: ``months``, ``days``, ``nanoseconds``
list, set, vector                array
map                              map; keys as text in the format of Java's ``toString``
UDT                              record by the type's name, all fields optional
tuple                            record ``Tuple_<hash>``: ``index_0``, ``index_1`` ...
================================ =============================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cql.events.scalars import EVENT_SCALARS
from airflow_cdc_provider.sources.cql.exact_values import decimals, durations, integers
from airflow_cdc_provider.sources.cql.json_text import civil_date, value_to_json
from airflow_cdc_provider.sources.cql.lake_types import LakeTypes
from airflow_cdc_provider.sources.cql.schema import CqlType

LAKE_TYPES: Final = LakeTypes("milliseconds", ("varint", "decimal", "duration"))
"""Lake types of the projections that :meth:`EventTypes.array` converts."""

_DECIMAL: Final = pa.struct(
    [pa.field("bigint", pa.binary(), nullable=False), pa.field("scale", pa.int32(), nullable=False)]
)
_DURATION: Final = pa.struct(
    [
        pa.field("months", pa.int32(), nullable=False),
        pa.field("days", pa.int32(), nullable=False),
        pa.field("nanoseconds", pa.int64(), nullable=False),
    ]
)
_SCALARS: Final = {
    **EVENT_SCALARS,
    "decimal": _DECIMAL,
    "duration": _DURATION,
    "smallint": pa.int32(),
    "tinyint": pa.int32(),
    "varint": pa.binary(),
}
_LOGICAL: Final = {
    "date": "date",
    "decimal": "cql_decimal",
    "duration": "cql_duration",
    "time": "time-micros",
    "timestamp": "timestamp-millis",
    "timeuuid": "uuid",
    "uuid": "uuid",
    "varint": "cql_varint",
}


@dataclass(frozen=True)
class EventTypes:
    """Types of a keyspace's columns in events.

    Args:
        keyspace: Its name, the namespace of tuples' records.
    """

    keyspace: str

    def field(self, name: str, cql_type: CqlType, *, nullable: bool = True) -> pa.Field:
        """Return the event field of a CQL type."""
        metadata = {}
        logical = _LOGICAL.get(cql_type.name)
        if logical:
            metadata["avro.logical"] = logical
        if cql_type.name in ("decimal", "duration"):
            metadata["avro.name"] = f"cql_{cql_type.name}"
        elif cql_type.name == "tuple":
            text = cql_text(cql_type)
            metadata |= {
                "avro.name": f"{self.keyspace}.Tuple_{java_hash(text):x}",
                "avro.doc": f"CQL type {text}",
            }
        elif cql_type.name == "udt":
            metadata |= {"avro.name": cql_type.udt, "avro.doc": f"CQL type {cql_type.udt}"}
        return pa.field(name, self._type(cql_type), nullable=nullable, metadata=metadata or None)

    def _type(self, cql_type: CqlType) -> pa.DataType:
        if cql_type.name in _SCALARS:
            return _SCALARS[cql_type.name]
        inside = cql_type.parameters
        if cql_type.name == "map":
            return pa.map_(pa.utf8(), self.field("value", inside[1], nullable=False))
        if cql_type.name in ("list", "set", "vector"):
            return pa.list_(self.field("element", inside[0], nullable=False))
        return pa.struct([self.field(n, t) for n, t in zip(_field_names(cql_type), inside, strict=True)])

    def array(self, column: pa.Array, cql_type: CqlType) -> pa.Array:
        """Convert a column of a projection to its event form.

        Args:
            column: From a projection with :data:`LAKE_TYPES`; whole, not a slice.
            cql_type: The type of its values.

        Returns:
            The converted column.

        Raises:
            ConfigurationError: A map has keys of a type that events can't represent as text.
        """
        name, inside, target = cql_type.name, cql_type.parameters, self._type(cql_type)
        if name in _SCALARS:
            return _scalars(name, column, target)
        buffers = column.buffers()
        if name == "map":
            lake_map = pa.types.is_map(column.type)
            keys, values = (
                (column.keys, column.items) if lake_map else (column.values.field(0), column.values.field(1))
            )
            converted = [_key_texts(keys, inside[0]), self.array(values, inside[1])]
            entries = pa.StructArray.from_arrays(converted, fields=[target.key_field, target.item_field])
            return pa.Array.from_buffers(target, len(column), buffers[:2], children=[entries])
        if pa.types.is_list(column.type):
            elements = self.array(column.values, inside[0])
            return pa.Array.from_buffers(target, len(column), buffers[:2], children=[elements])
        children = [self.array(column.field(i), t) for i, t in enumerate(inside)]
        return pa.Array.from_buffers(target, len(column), buffers[:1], children=children)


def cql_text(cql_type: CqlType) -> str:
    """Return a type's name in the format of DataStax's driver, without ``frozen``."""
    if cql_type.name == "udt":
        return cql_type.udt
    if cql_type.name == "vector":
        return f"vector<{cql_text(cql_type.parameters[0])}, {cql_type.dimensions}>"
    if not cql_type.parameters:
        return cql_type.name
    return f"{cql_type.name}<{', '.join(cql_text(p) for p in cql_type.parameters)}>"


def java_hash(text: str) -> int:
    """Return ``String.hashCode`` as an unsigned 32-bit integer, as ``Integer.toHexString`` formats it."""
    value = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value


def _field_names(cql_type: CqlType) -> tuple[str, ...]:
    return cql_type.fields or tuple(f"index_{i}" for i in range(len(cql_type.parameters)))


def _scalars(name: str, column: pa.Array, target: pa.DataType) -> pa.Array:
    if name == "varint":
        return integers(column)
    if name == "decimal":
        scales, numbers = decimals(column)
        return pa.StructArray.from_arrays([numbers, scales], fields=list(target), mask=scales.is_null())
    if name == "duration":
        parts = durations(column)
        return pa.StructArray.from_arrays(list(parts), fields=list(target), mask=parts[0].is_null())
    if name == "date":
        return column.view(target)
    if name == "time":
        # Java's division; a time is never negative.
        return pc.divide(column, 1000)
    return column.cast(target)


def _key_texts(keys: pa.Array, cql_type: CqlType) -> pa.Array:
    """Return the keys of maps in the format of Java's ``toString``."""
    if pa.types.is_string(keys.type):
        return keys
    if pa.types.is_integer(keys.type) and cql_type.name not in ("time", "timestamp"):
        return keys.cast(pa.utf8())
    values = keys.cast(_with_days(keys.type)).to_pylist()
    return pa.array([_java_text(cql_type, key) for key in values], pa.utf8())


def _with_days(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers instead of dates: Cassandra's range exceeds Python's."""
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_with_days(kind.key_type), _with_days(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_days(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_days(field.type)) for field in kind])
    return kind


def _java_text(cql_type: CqlType, value: Any) -> str:
    name, inside = cql_type.name, cql_type.parameters
    if value is None:
        return "null"
    if name in _JAVA_TEXTS:
        return _JAVA_TEXTS[name](value)
    if name in ("list", "set", "vector"):
        return "[" + ", ".join(_java_text(inside[0], v) for v in value) + "]"
    if name == "map":
        entries = ((e["key"], e["value"]) if isinstance(e, dict) else e for e in value)
        texts = (f"{_java_text(inside[0], k)}={_java_text(inside[1], v)}" for k, v in entries)
        return "{" + ", ".join(texts) + "}"
    raise ConfigurationError(
        f"a map has keys of type {cql_text(cql_type)}, which DataStax's format can't represent",
        expected="keys that are text, numbers, times or collections of these",
        remedy="exclude the column with publish.exclude_columns, or use envelope debezium",
    )


def _java_number(name: str) -> Callable[[bytes], str]:
    return lambda value: value_to_json(CqlType(name), value).strip('"')


def _java_floating(value: float) -> str:
    if np.isfinite(value):
        return value_to_json(CqlType("double"), np.array(value, ">f8").tobytes())
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _java_single(value: float) -> str:
    if np.isfinite(value):
        return value_to_json(CqlType("float"), np.array(value, ">f4").tobytes())
    return _java_floating(value)


def _java_date(days: int) -> str:
    return value_to_json(CqlType("date"), (days + (1 << 31)).to_bytes(4, "big")).strip('"')


def _java_time(nanoseconds: int) -> str:
    """Format ``LocalTime``: without seconds if they are zero, the fraction in groups of three digits."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}"
    if not second and not fraction:
        return text
    return f"{text}:{second:02}{_fraction(fraction)}"


def _java_instant(milliseconds: int) -> str:
    days, rest = divmod(milliseconds, 86_400_000)
    year, month, day = civil_date(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    moment = timedelta(milliseconds=rest)
    minutes, second = divmod(moment.seconds, 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(moment.microseconds * 1000)}"
    return f"{sign}{abs(year):04}-{month:02}-{day:02}T{clock}Z"


def _fraction(nanoseconds: int) -> str:
    digits = f"{nanoseconds:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""


_JAVA_TEXTS: Final[dict[str, Callable[[Any], str]]] = {
    **dict.fromkeys(("ascii", "text", "inet", "uuid", "timeuuid"), str),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "counter"), str),
    "boolean": lambda value: "true" if value else "false",
    "date": _java_date,
    "decimal": _java_number("decimal"),
    "double": _java_floating,
    "duration": _java_number("duration"),
    "float": _java_single,
    "time": _java_time,
    "timestamp": _java_instant,
    "varint": _java_number("varint"),
}
