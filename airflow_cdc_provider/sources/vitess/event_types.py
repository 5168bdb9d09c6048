"""Columns of Vitess as Debezium's connector (3.5) shows them: Arrow fields, Connect's names as metadata.

======================== ===================================================================================
MySQL                    event
======================== ===================================================================================
TINYINT, SMALLINT        int16, also TINYINT UNSIGNED and BOOL; SMALLINT UNSIGNED int32
MEDIUMINT, INT           int32; INT UNSIGNED int64
BIGINT                   int64; unsigned as ``unsigned_bigints`` says
FLOAT, DOUBLE            float64; FLOAT by way of 32 bits, as Debezium does it
DECIMAL                  text of its digits; ``decimals``: a number of bytes with a scale, or float64
CHAR, VARCHAR, TEXT      text, whatever the collation
BINARY, VARBINARY, BLOB  bytes, or text as ``binary`` says
ENUM, SET, JSON          text named ``io.debezium.data.Enum``, ``EnumSet``, ``Json``
DATE, TIME, DATETIME     as ``temporal`` says
TIMESTAMP                the text that MySQL gives, in UTC, named ``io.debezium.time.ZonedTimestamp``; with
                         ``timestamps: zoned`` ISO 8601 with its zone
YEAR                     int32 named ``io.debezium.time.Year``
BIT, spatial, VECTOR     left out; or shown where ``bits``, ``geometries``, ``vectors`` say so
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
from airflow_cdc_provider.sources.vitess import event_columns as columns
from airflow_cdc_provider.sources.vitess.event_columns import Cells
from airflow_cdc_provider.sources.vitess.fields import Column
from airflow_cdc_provider.sources.vitess.lake_types import family_of

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
"""By SQL's word, and whether it is unsigned."""
_SPATIAL: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)

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
"""Digits behind a DATETIME's seconds up to which adaptive modes count milliseconds."""


@dataclass(frozen=True)
class EventTypes:
    """How columns are shown; by default as Debezium shows them.

    Args:
        temporal: ``time.precision.mode``; ``text``: as Debezium 2.0 did, MySQL's text for DATE, TIME,
            DATETIME, TIMESTAMP and YEAR.
        decimals: ``string``: digits; ``precise``: ``org.apache.kafka.connect.data.Decimal``; ``double``.
        unsigned_bigints: ``bigint.unsigned.handling.mode``.
        binary: ``binary.handling.mode``.
        nullable_dates: Dates that no calendar has are null in all DATE and DATETIME columns, which may
            therefore be null (``override.datetime.to.nullable``). Else NOT NULL columns show 1970-01-01.
        unknown_types: Columns that are left out appear as optional bytes, always null
            (``include.unknown.datatypes``).
        bits: Whether BIT columns are shown: BIT(1) as boolean, others as bytes (``io.debezium.data.Bits``).
        geometries: Whether spatial columns are shown, as ``io.debezium.data.geometry.Geometry`` or ``Point``.
        vectors: Whether VECTOR columns are shown, as ``io.debezium.data.FloatVector``.
        charsets: ``utf8``: all text is read as UTF-8, as Debezium does; ``column``: by the column's charset.
        timestamps: ``text``: as MySQL gives them; ``zoned``: ISO 8601, in UTC.
    """

    temporal: Temporal = "adaptive_time_microseconds"
    decimals: Literal["string", "precise", "double"] = "string"
    unsigned_bigints: Literal["string", "precise", "long"] = "string"
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    nullable_dates: bool = False
    unknown_types: bool = False
    bits: bool = False
    geometries: bool = False
    vectors: bool = False
    charsets: Literal["utf8", "column"] = "utf8"
    timestamps: Literal["text", "zoned"] = "text"


@dataclass(frozen=True)
class EventColumn:
    """A column as events show it.

    Args:
        field: Name, Arrow type, whether it may be null, and Connect's names.
        place: Number of the column in rows.
        read: Makes the values of the column's cells.
    """

    field: pa.Field
    place: int
    read: Callable[[Cells], pa.Array]


def event_column(column: Column, place: int, types: EventTypes) -> EventColumn | None:
    """Say how a column is shown.

    Args:
        column: The column.
        place: Its number in rows.
        types: The choices.

    Returns:
        None for a column that is left out.
    """
    nullable = column.nullable
    shown = _shown(column, types)
    if shown is None:
        if not types.unknown_types:
            return None
        shown = _Shown(pa.binary(), columns.nothing)
        nullable = True
    metadata: dict[bytes, bytes] = {}
    if shown.name:
        metadata[CONNECT_NAME] = shown.name.encode()
    if shown.parameters:
        metadata[CONNECT_PARAMETERS] = json.dumps(shown.parameters, ensure_ascii=False).encode()
    nullable = nullable or shown.nullable
    read = partial(shown.read, nullable) if shown.by_nullability else shown.read
    return EventColumn(pa.field(column.name, shown.type, nullable, metadata or None), place, read)


@dataclass(frozen=True)
class _Shown:
    """What a type becomes: ``read`` takes the cells, ``by_nullability`` whether they may be null before."""

    type: pa.DataType
    read: Callable[..., pa.Array]
    name: str = ""
    parameters: Mapping[str, str] | None = None
    nullable: bool = False
    by_nullability: bool = False


def _shown(column: Column, types: EventTypes) -> _Shown | None:
    word, charset = column.type.word, column.charset if types.charsets == "column" else ""
    match family_of(column):
        case "integer":
            kind = _INTEGERS.get((word, column.unsigned))
            return _Shown(kind, partial(columns.integers, kind)) if kind is not None else _unsigned(types)
        case "float":
            return _Shown(pa.float64(), partial(columns.floats, word == "float"))
        case "decimal":
            return _decimal(column.scale, types)
        case "date" | "time" | "datetime" | "timestamp" | "year":
            return _temporal(word, column.scale, types)
        case "members":
            return _members(column, charset)
        case "json":
            return _Shown(pa.utf8(), partial(columns.texts, ""), f"{_DATA}Json:1")
        case "text":
            return _Shown(pa.utf8(), partial(columns.texts, charset))
        case "bit":
            return _bits(column) if types.bits else None
        case "vector":
            kind = pa.list_(pa.field("item", pa.float32(), nullable=False))
            return _Shown(kind, columns.vectors, f"{_DATA}FloatVector:1") if types.vectors else None
    if word in _SPATIAL:
        return _spatial(word) if types.geometries else None
    if not word:
        return None
    if types.binary == "bytes":
        return _Shown(pa.binary(), columns.bytes_as_they_are)
    return _Shown(pa.utf8(), partial(columns.bytes_as_text, types.binary))


def _unsigned(types: EventTypes) -> _Shown:
    if types.unsigned_bigints == "string":
        return _Shown(pa.utf8(), partial(columns.decimals, 0))
    if types.unsigned_bigints == "long":
        return _Shown(pa.int64(), columns.low_integers)
    return _precise(0)


def _decimal(scale: int, types: EventTypes) -> _Shown:
    if types.decimals == "string":
        return _Shown(pa.utf8(), partial(columns.decimals, scale))
    if types.decimals == "double":
        return _Shown(pa.float64(), partial(columns.floats, False))
    return _precise(scale)


def _precise(scale: int) -> _Shown:
    return _Shown(
        pa.binary(), partial(columns.unscaled, scale), f"{_LOGICAL}Decimal:1", {"scale": str(scale)}
    )


def _temporal(word: str, digits: int, types: EventTypes) -> _Shown:
    mode = types.temporal
    plain = _Shown(pa.utf8(), partial(columns.texts, ""))
    if mode == "text":
        return plain
    if word == "year":
        return _Shown(pa.int32(), partial(columns.integers, pa.int32()), f"{_TIME}Year:1")
    if word == "timestamp":
        zoned = f"{_TIME}ZonedTimestamp:1"
        if types.timestamps == "text":
            return replace(plain, name=zoned)
        return _Shown(pa.utf8(), columns.zoned, zoned, by_nullability=True)
    override = types.nullable_dates and word != "time"
    if mode == "isostring":
        return replace(plain, nullable=override)
    if word == "time":
        name, kind, per_second = _TIMES[mode]
        return _Shown(kind, partial(columns.times, kind, per_second), name)
    if word == "date":
        name = f"{_LOGICAL}Date:1" if mode == "connect" else f"{_TIME}Date:1"
        return _Shown(pa.int32(), columns.dates, name, nullable=override, by_nullability=True)
    name, per_second = _DATETIMES.get(mode, _DATETIMES["microseconds"])
    if mode == "adaptive_time_microseconds" and digits <= _WHOLE_MILLISECONDS:
        name, per_second = f"{_TIME}Timestamp:1", 1000
    read = partial(columns.moments, per_second)
    return _Shown(pa.int64(), read, name, nullable=override, by_nullability=True)


def _members(column: Column, charset: str) -> _Shown:
    """Show ENUM and SET. Vitess 8 tells no names: there a number stays one."""
    name = f"{_DATA}EnumSet:1" if column.type.word == "set" else f"{_DATA}Enum:1"
    allowed = {"allowed": ",".join(column.type.members)}
    if charset or not column.as_text:
        return _Shown(pa.utf8(), partial(columns.members, column), name, allowed)
    return _Shown(pa.utf8(), partial(columns.texts, ""), name, allowed)


def _bits(column: Column) -> _Shown:
    size = column.type.sizes[0] if column.type.sizes else 1
    if size == 1:
        return _Shown(pa.bool_(), columns.single_bits)
    return _Shown(pa.binary(), columns.reversed_bytes, f"{_DATA}Bits:1", {"length": str(size)})


def _spatial(word: str) -> _Shown:
    if word == "point":
        return _Shown(columns.POINT, columns.points, f"{_DATA}geometry.Point:1")
    return _Shown(columns.GEOMETRY, columns.geometries, f"{_DATA}geometry.Geometry:1")
