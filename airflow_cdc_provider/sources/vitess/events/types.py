"""Maps Vitess columns to event fields of Debezium's connector (3.5): Arrow fields, Connect's metadata.

======================== ===================================================================================
MySQL                    event
======================== ===================================================================================
TINYINT, SMALLINT        int16, also TINYINT UNSIGNED and BOOL; SMALLINT UNSIGNED int32
MEDIUMINT, INT           int32; INT UNSIGNED int64
BIGINT                   int64; unsigned: option ``unsigned_bigints``
FLOAT, DOUBLE            float64; FLOAT with the precision of 32 bits, as in Debezium
DECIMAL                  text of its digits; option ``decimals``: bytes with a scale, or float64
CHAR, VARCHAR, TEXT      text, for any collation
BINARY, VARBINARY, BLOB  bytes, or text with option ``binary``
ENUM, SET, JSON          text named ``io.debezium.data.Enum``, ``EnumSet``, ``Json``
DATE, TIME, DATETIME     option ``temporal``
TIMESTAMP                MySQL's text, in UTC, named ``io.debezium.time.ZonedTimestamp``; with
                         ``timestamps: zoned`` ISO 8601 with its zone
YEAR                     int32 named ``io.debezium.time.Year``
BIT, spatial, VECTOR     omitted, unless ``bits``, ``geometries``, ``vectors`` are set
======================== ===================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import pyarrow as pa

from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME, CONNECT_PARAMETERS
from airflow_cdc_provider.sources.vitess.events import columns
from airflow_cdc_provider.sources.vitess.events.columns import Cells
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.lake_types import SPATIAL, family_of

Temporal = Literal[
    "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds", "text"
]

_TIME: Final = "io.debezium.time."
_LOGICAL: Final = "org.apache.kafka.connect.data."
_DATA: Final = "io.debezium.data."

_INTEGERS: Final[Mapping[tuple[str, bool], pa.DataType]] = {
    ("tinyint", False): pa.int16(),
    ("tinyint", True): pa.int16(),
    ("smallint", False): pa.int16(),
    ("smallint", True): pa.int32(),
    ("mediumint", False): pa.int32(),
    ("mediumint", True): pa.int32(),
    ("int", False): pa.int32(),
    ("int", True): pa.int64(),
    ("bigint", False): pa.int64(),
}
"""By SQL type name, and whether it is unsigned."""

_DATETIMES: Final[Mapping[str, tuple[str, int]]] = {
    "microseconds": (f"{_TIME}MicroTimestamp:1", 1_000_000),
    "nanoseconds": (f"{_TIME}NanoTimestamp:1", 1_000_000_000),
    "connect": (f"{_LOGICAL}Timestamp:1", 1000),
}
_TIMES: Final[Mapping[str, tuple[str, pa.DataType, int]]] = {
    "adaptive_time_microseconds": (f"{_TIME}MicroTime:1", pa.int64(), 1_000_000),
    "microseconds": (f"{_TIME}MicroTime:1", pa.int64(), 1_000_000),
    "nanoseconds": (f"{_TIME}NanoTime:1", pa.int64(), 1_000_000_000),
    "connect": (f"{_LOGICAL}Time:1", pa.int32(), 1000),
}
_WHOLE_MILLISECONDS: Final = 3
"""Maximum fractional digits of a DATETIME for which adaptive modes use milliseconds."""


@dataclass(frozen=True)
class EventTypes:
    """Options of the column types; the defaults are Debezium's.

    Args:
        temporal: ``time.precision.mode``; ``text``: as in Debezium 2.0, MySQL's text for DATE, TIME,
            DATETIME, TIMESTAMP and YEAR.
        decimals: ``string``: digits; ``precise``: ``org.apache.kafka.connect.data.Decimal``; ``double``.
        unsigned_bigints: ``bigint.unsigned.handling.mode``.
        binary: ``binary.handling.mode``.
        nullable_dates: Invalid dates are null in all DATE and DATETIME columns, which are therefore optional
            (``override.datetime.to.nullable``). Otherwise NOT NULL columns contain 1970-01-01.
        include_unknown_types: Omitted columns are included as optional bytes, always null
            (``include.unknown.datatypes``).
        bits: Include BIT columns: BIT(1) as boolean, others as bytes (``io.debezium.data.Bits``).
        geometries: Include spatial columns, as ``io.debezium.data.geometry.Geometry`` or ``Point``.
        vectors: Include VECTOR columns, as ``io.debezium.data.FloatVector``.
        charsets: ``utf8``: decode all text as UTF-8, as Debezium does; ``column``: by the column's charset.
        timestamps: ``text``: as MySQL prints them; ``zoned``: ISO 8601, in UTC.
        wraps: Nanoseconds beyond 64 bits are their low 64 bits. Otherwise they are null, and all DATETIME
            columns optional.
    """

    temporal: Temporal = "adaptive_time_microseconds"
    decimals: Literal["string", "precise", "double"] = "string"
    unsigned_bigints: Literal["string", "precise", "long"] = "string"
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    nullable_dates: bool = False
    include_unknown_types: bool = False
    bits: bool = False
    geometries: bool = False
    vectors: bool = False
    charsets: Literal["utf8", "column"] = "utf8"
    timestamps: Literal["text", "zoned"] = "text"
    wraps: bool = True


@dataclass(frozen=True)
class EventColumn:
    """A column of events.

    Args:
        field: Name, Arrow type, nullability, and Connect's metadata.
        index: Index of the column in rows.
        read: Converts the cells of the column.
    """

    field: pa.Field
    index: int
    read: Callable[[Cells], pa.Array]


def event_column(column: Column, index: int, types: EventTypes) -> EventColumn | None:
    """Return the event column of a table column.

    Args:
        column: The table column.
        index: Its index in rows.
        types: The options.

    Returns:
        The event column; None if the column is omitted.
    """
    nullable = column.nullable
    event_type = _event_type(column, types)
    if event_type is None:
        if not types.include_unknown_types:
            return None
        event_type = _EventType(pa.binary(), columns.nulls)
        nullable = True
    metadata: dict[bytes, bytes] = {}
    if event_type.name:
        metadata[CONNECT_NAME] = event_type.name.encode()
    if event_type.parameters:
        metadata[CONNECT_PARAMETERS] = json.dumps(event_type.parameters, ensure_ascii=False).encode()
    nullable = nullable or event_type.nullable
    read = partial(event_type.read, nullable) if event_type.by_nullability else event_type.read
    return EventColumn(pa.field(column.name, event_type.type, nullable, metadata or None), index, read)


@dataclass(frozen=True)
class _EventType:
    """Event type of a column. With ``by_nullability``, ``read`` takes the nullability before the cells."""

    type: pa.DataType
    read: Callable[..., pa.Array]
    name: str = ""
    parameters: Mapping[str, str] | None = None
    nullable: bool = False
    by_nullability: bool = False


def _event_type(column: Column, types: EventTypes) -> _EventType | None:
    type_name, charset = column.type.name, column.charset if types.charsets == "column" else ""
    match family_of(column):
        case "integer":
            kind = _INTEGERS.get((type_name, column.unsigned))
            return _EventType(kind, partial(columns.integers, kind)) if kind is not None else _unsigned(types)
        case "float":
            return _EventType(pa.float64(), partial(columns.floats, type_name == "float"))
        case "decimal":
            return _decimal(column.scale, types)
        case "date" | "time" | "datetime" | "timestamp" | "year":
            return _temporal(type_name, column.scale, types)
        case "members":
            return _members(column, charset)
        case "json":
            return _EventType(pa.utf8(), partial(columns.texts, ""), f"{_DATA}Json:1")
        case "text":
            return _EventType(pa.utf8(), partial(columns.texts, charset))
        case "bit":
            return _bits(column) if types.bits else None
        case "vector":
            kind = pa.list_(pa.field("item", pa.float32(), nullable=False))
            return _EventType(kind, columns.vectors, f"{_DATA}FloatVector:1") if types.vectors else None
    if type_name in SPATIAL:
        return _spatial(type_name) if types.geometries else None
    if not type_name:
        return None
    if types.binary == "bytes":
        return _EventType(pa.binary(), columns.raw_bytes)
    return _EventType(pa.utf8(), partial(columns.bytes_as_text, types.binary))


def _unsigned(types: EventTypes) -> _EventType:
    if types.unsigned_bigints == "string":
        return _EventType(pa.utf8(), partial(columns.decimals, 0))
    if types.unsigned_bigints == "long":
        return _EventType(pa.int64(), columns.low_integers)
    return _precise(0)


def _decimal(scale: int, types: EventTypes) -> _EventType:
    if types.decimals == "string":
        return _EventType(pa.utf8(), partial(columns.decimals, scale))
    if types.decimals == "double":
        return _EventType(pa.float64(), partial(columns.floats, False))
    return _precise(scale)


def _precise(scale: int) -> _EventType:
    return _EventType(
        pa.binary(), partial(columns.unscaled, scale), f"{_LOGICAL}Decimal:1", {"scale": str(scale)}
    )


def _temporal(type_name: str, digits: int, types: EventTypes) -> _EventType:
    mode = types.temporal
    plain = _EventType(pa.utf8(), partial(columns.texts, ""))
    if mode == "text":
        return plain
    if type_name == "year":
        return _EventType(pa.int32(), partial(columns.integers, pa.int32()), f"{_TIME}Year:1")
    if type_name == "timestamp":
        zoned = f"{_TIME}ZonedTimestamp:1"
        if types.timestamps == "text":
            return replace(plain, name=zoned)
        return _EventType(pa.utf8(), columns.zoned, zoned, by_nullability=True)
    override = types.nullable_dates and type_name != "time"
    if mode == "isostring":
        return replace(plain, nullable=override)
    if type_name == "time":
        name, kind, per_second = _TIMES[mode]
        return _EventType(kind, partial(columns.times, kind, per_second), name)
    if type_name == "date":
        name = f"{_LOGICAL}Date:1" if mode == "connect" else f"{_TIME}Date:1"
        return _EventType(pa.int32(), columns.dates, name, nullable=override, by_nullability=True)
    name, per_second = _DATETIMES.get(mode, _DATETIMES["microseconds"])
    if mode == "adaptive_time_microseconds" and digits <= _WHOLE_MILLISECONDS:
        name, per_second = f"{_TIME}Timestamp:1", 1000
    read = partial(columns.moments, per_second, types.wraps)
    loses = per_second > columns.MICROSECONDS and not types.wraps
    return _EventType(pa.int64(), read, name, nullable=override or loses, by_nullability=True)


def _members(column: Column, charset: str) -> _EventType:
    """Return the type of ENUM and SET. Vitess 8 doesn't send member names, so its values remain numbers."""
    name = f"{_DATA}EnumSet:1" if column.type.name == "set" else f"{_DATA}Enum:1"
    allowed = {"allowed": ",".join(column.type.members)}
    if charset or not column.as_text:
        return _EventType(pa.utf8(), partial(columns.members, column), name, allowed)
    return _EventType(pa.utf8(), partial(columns.texts, ""), name, allowed)


def _bits(column: Column) -> _EventType:
    size = column.type.sizes[0] if column.type.sizes else 1
    if size == 1:
        return _EventType(pa.bool_(), columns.single_bits)
    return _EventType(pa.binary(), columns.reversed_bytes, f"{_DATA}Bits:1", {"length": str(size)})


def _spatial(type_name: str) -> _EventType:
    if type_name == "point":
        return _EventType(columns.POINT, columns.points, f"{_DATA}geometry.Point:1")
    return _EventType(columns.GEOMETRY, columns.geometries, f"{_DATA}geometry.Geometry:1")
