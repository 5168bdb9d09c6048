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

Which type a column has, its SQL text says first (``column_type``): text with a binary collation is sent as
BINARY, VARBINARY or BLOB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa

from airflow_cdc_provider.sources.vitess import event_columns as columns
from airflow_cdc_provider.sources.vitess.event_columns import Cells
from airflow_cdc_provider.sources.vitess.protocol import TYPES

CONNECT_NAME: Final = b"connect.name"
"""Metadata of a field: the name of its Connect schema, with the version after a colon."""
CONNECT_PARAMETERS: Final = b"connect.parameters"
"""Metadata of a field: the parameters of its Connect schema, a JSON object."""

NOT_NULL: Final = 1
PRIMARY_KEY: Final = 2
UNIQUE_KEY: Final = 4
UNSIGNED: Final = 32

Temporal = Literal[
    "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds", "text"
]

_TIME: Final = "io.debezium.time."
_LOGICAL: Final = "org.apache.kafka.connect.data."
_DATA: Final = "io.debezium.data."

_INTEGERS: Final[Mapping[str, pa.DataType]] = {
    "INT8": pa.int16(),
    "UINT8": pa.int16(),
    "INT16": pa.int16(),
    "UINT16": pa.int32(),
    "INT24": pa.int32(),
    "UINT24": pa.int32(),
    "INT32": pa.int32(),
    "UINT32": pa.int64(),
    "INT64": pa.int64(),
}
_TEXTS: Final = ("CHAR", "VARCHAR", "TEXT")
_BYTES: Final = ("BINARY", "VARBINARY", "BLOB")
_TEXT_TYPE: Final = re.compile(r"(?:national\s+)?(?:var)?char\b|\w*text\b|enum\b|set\b", re.IGNORECASE)
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")

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

GEOMETRY: Final = pa.struct([pa.field("wkb", pa.binary(), nullable=False), pa.field("srid", pa.int32())])
POINT: Final = pa.struct(
    [
        pa.field("x", pa.float64(), nullable=False),
        pa.field("y", pa.float64(), nullable=False),
        pa.field("wkb", pa.binary()),
        pa.field("srid", pa.int32()),
    ]
)


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


def event_column(field: Any, place: int, types: EventTypes, *, member_texts: bool) -> EventColumn | None:
    """Say how a column is shown.

    Args:
        field: The ``query.Field`` message.
        place: Number of the column in rows.
        types: The choices.
        member_texts: Whether values of ENUM and SET come as text (``enum_set_string_values``).

    Returns:
        None for a column that is left out.
    """
    nullable = not field.flags & NOT_NULL
    shown = _shown(field, types, member_texts)
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
    return EventColumn(pa.field(field.name, shown.type, nullable, metadata or None), place, read)


def members_of(column_type: str) -> list[str]:
    """Return the values that an ENUM or SET allows, in order."""
    return [text.replace("''", "'") for text in _MEMBER.findall(column_type)]


def _is_text(field: Any) -> bool:
    """Tell text from bytes; a server that says no SQL type means bytes by the binary charset alone."""
    if field.column_type:
        return _TEXT_TYPE.match(field.column_type) is not None
    return TYPES.get(field.type) in _TEXTS


@dataclass(frozen=True)
class _Shown:
    """What a type becomes: ``read`` takes the cells, ``by_nullability`` whether they may be null before."""

    type: pa.DataType
    read: Callable[..., pa.Array]
    name: str = ""
    parameters: Mapping[str, str] | None = None
    nullable: bool = False
    by_nullability: bool = False


def _shown(field: Any, types: EventTypes, member_texts: bool) -> _Shown | None:
    kind = TYPES.get(field.type, "")
    if kind in _INTEGERS:
        return _Shown(_INTEGERS[kind], partial(columns.integers, _INTEGERS[kind]))
    if kind == "UINT64":
        return _unsigned(types)
    if kind in ("FLOAT32", "FLOAT64"):
        return _Shown(pa.float64(), partial(columns.floats, single=kind == "FLOAT32"))
    if kind == "DECIMAL":
        return _decimal(field, types)
    if kind in ("DATE", "TIME", "DATETIME", "TIMESTAMP", "YEAR"):
        return _temporal(kind, field, types)
    if kind in ("ENUM", "SET") or re.match(r"(enum|set)\b", field.column_type, re.IGNORECASE):
        return _members(field, types, member_texts)
    if kind == "JSON":
        return _Shown(pa.utf8(), partial(columns.texts, 0), f"{_DATA}Json:1")
    if kind in _TEXTS or kind in _BYTES:
        if _is_text(field):
            return _Shown(pa.utf8(), partial(columns.texts, field.charset if types.charsets == "column" else 0))
        if types.binary == "bytes":
            return _Shown(pa.binary(), columns.bytes_as_they_are)
        return _Shown(pa.utf8(), partial(columns.bytes_as_text, types.binary))
    if kind == "BIT" and types.bits:
        return _bits(field)
    if kind == "GEOMETRY" and types.geometries:
        if field.column_type.lower().split()[0:1] == ["point"]:
            return _Shown(POINT, columns.points, f"{_DATA}geometry.Point:1")
        return _Shown(GEOMETRY, columns.geometries, f"{_DATA}geometry.Geometry:1")
    if kind == "VECTOR" and types.vectors:
        kind_of_list = pa.list_(pa.field("item", pa.float32(), nullable=False))
        return _Shown(kind_of_list, columns.vectors, f"{_DATA}FloatVector:1")
    return None


def _unsigned(types: EventTypes) -> _Shown:
    if types.unsigned_bigints == "string":
        return _Shown(pa.utf8(), columns.unsigned_texts)
    if types.unsigned_bigints == "long":
        return _Shown(pa.int64(), columns.low_integers)
    return _Shown(pa.binary(), partial(columns.unscaled, 0), f"{_LOGICAL}Decimal:1", {"scale": "0"})


def _decimal(field: Any, types: EventTypes) -> _Shown:
    if types.decimals == "string":
        return _Shown(pa.utf8(), columns.decimal_texts)
    if types.decimals == "double":
        return _Shown(pa.float64(), partial(columns.floats, single=False))
    scale = int(field.decimals)
    return _Shown(pa.binary(), partial(columns.unscaled, scale), f"{_LOGICAL}Decimal:1", {"scale": str(scale)})


def _temporal(kind: str, field: Any, types: EventTypes) -> _Shown:
    mode = types.temporal
    plain = _Shown(pa.utf8(), partial(columns.texts, 0))
    if mode == "text":
        return plain
    if kind == "YEAR":
        return _Shown(pa.int32(), partial(columns.integers, pa.int32()), f"{_TIME}Year:1")
    if kind == "TIMESTAMP":
        zoned = f"{_TIME}ZonedTimestamp:1"
        if types.timestamps == "text":
            return _Shown(pa.utf8(), partial(columns.texts, 0), zoned)
        return _Shown(pa.utf8(), columns.zoned, zoned, by_nullability=True)
    if mode == "isostring":
        return plain if kind == "TIME" or not types.nullable_dates else _Shown(
            pa.utf8(), partial(columns.texts, 0), nullable=True
        )
    if kind == "TIME":
        name, kind_of_number, per_second = _TIMES[mode]
        return _Shown(kind_of_number, partial(columns.times, kind_of_number, per_second), name)
    override = types.nullable_dates
    if kind == "DATE":
        name = f"{_LOGICAL}Date:1" if mode == "connect" else f"{_TIME}Date:1"
        return _Shown(pa.int32(), columns.dates, name, nullable=override, by_nullability=True)
    name, per_second = _DATETIMES.get(mode, _DATETIMES["microseconds"])
    if mode == "adaptive_time_microseconds" and field.decimals <= _WHOLE_MILLISECONDS:
        name, per_second = f"{_TIME}Timestamp:1", 1000
    return _Shown(
        pa.int64(), partial(columns.moments, per_second), name, nullable=override, by_nullability=True
    )


def _members(field: Any, types: EventTypes, member_texts: bool) -> _Shown:
    is_set = field.column_type[:3].lower() == "set" or TYPES.get(field.type) == "SET"
    names = members_of(field.column_type)
    name = f"{_DATA}EnumSet:1" if is_set else f"{_DATA}Enum:1"
    allowed = {"allowed": ",".join(names)}
    if member_texts or not names:
        charset = field.charset if types.charsets == "column" else 0
        return _Shown(pa.utf8(), partial(columns.texts, charset), name, allowed)
    return _Shown(pa.utf8(), partial(columns.set_members if is_set else columns.enum_members, names), name, allowed)


def _bits(field: Any) -> _Shown:
    if field.column_length == 1:
        return _Shown(pa.bool_(), columns.single_bits)
    return _Shown(
        pa.binary(), columns.reversed_bytes, f"{_DATA}Bits:1", {"length": str(field.column_length)}
    )
