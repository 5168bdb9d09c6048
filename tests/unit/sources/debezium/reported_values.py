"""What a mirror must show of a value, by the text that the database itself has for it.

It goes by the database's type, and by the name that Debezium gave the schema. Of the code under test only
the reader of schemas is used.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.sources.debezium.connect_schema import ConnectField

_NANOSECONDS: Final = (datetime(1677, 9, 21, 0, 12, 44), datetime(2262, 4, 11, 23, 47, 16))
_SPECIAL: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_DAYS_OF_MONTH: Final = Decimal("30.4375")


def reported(text: str | None, kind: str, field: ConnectField, binary: Callable[[bytes], Any]) -> Any:
    """Return what a column must show, as Python has it.

    Args:
        text: The database's text; None for null.
        kind: The database's type.
        field: Debezium's.
        binary: How bytes are written.
    """
    if text is None:
        return None
    if kind.endswith("[]"):
        return _list(text, kind[:-2], field.fields[0], binary)
    name = re.sub(r"\(.*\)", "", kind).removesuffix(" zerofill").strip()
    logical = field.logical.rpartition(".")[2]
    if name.removesuffix(" unsigned") in _NUMBERS:
        return _number(text, name, field, logical)
    if name == "boolean":
        return text == "true"
    if name in ("bit", "bit varying"):
        return _bits(text, kind, field)
    if name == "bytea":
        return binary(bytes.fromhex(text.removeprefix("\\x")))
    if name.endswith(("blob", "binary")):
        return binary(bytes.fromhex(text))
    if name in ("date", "datetime", "timestamp") or name.startswith("timestamp "):
        return _moment(text, name, logical)
    if name.startswith("time"):
        return _clock(text, name, logical)
    if name == "interval":
        return _interval(text, logical)
    if name in ("hstore", "MySQL's json"):
        return json.loads(text)
    if name in ("point", "geometry", "linestring", "polygon", "geomcollection"):
        found = _shape(text)
        return {one.name: found[one.name] for one in field.fields}
    if name == "inet":  # whose text has the mask of a single host, too
        return re.sub(r"/(32|128)$", "", text)
    if kind.startswith("character("):
        return text.ljust(int(kind[len("character(") : -1]))
    return text


def shown(value: Any, kind: str, field: ConnectField, *, nested: bool = False) -> Any:
    """Return a mirror's value in the canonical form of :func:`reported`."""
    if value is None:
        return None
    name = kind.partition("(")[0]
    if kind.endswith("[]"):
        return [shown(one, kind[:-2], field.fields[0], nested=True) for one in value]
    if (name == "jsonb" and nested) or kind == "MySQL's json":
        return json.loads(value)
    if name == "hstore":
        return dict(value) if field.type == "map" else json.loads(value)
    if name == "interval" and isinstance(value, str):
        return _parts(value)
    if name in ("point", "geometry", "linestring", "polygon", "geomcollection"):
        return dict(value)
    return str(value) if isinstance(value, float) and math.isnan(value) else value


_NUMBERS: Final = (
    "tinyint",
    "smallint",
    "mediumint",
    "int",
    "bigint",
    "integer",
    "oid",
    "numeric",
    "money",
    "real",
    "double precision",
    "decimal",
    "float",
    "double",
    "year",
)


def _number(text: str, name: str, field: ConnectField, logical: str) -> Any:
    if field.type in ("float", "double"):
        value = float(text)
        value = struct.unpack("f", struct.pack("f", value))[0] if field.type == "float" else value
        return str(value) if math.isnan(value) else value
    if logical in ("Decimal", "VariableScaleDecimal"):
        if text in _SPECIAL:
            return None
        return Decimal(text) if pa.types.is_decimal(field.lake_type) else text
    return _SPECIAL.get(text, text) if field.type == "string" else int(text)


def _bits(text: str, kind: str, field: ConnectField) -> Any:
    """Read bits, lowest byte first: MySQL's, a number here, in all bytes; PostgreSQL's in as few as do."""
    size = kind.partition("(")[2].rstrip(")")
    if kind.startswith("bit(") and len(text) != int(size):
        return int(text).to_bytes((int(size) + 7) // 8, "little")
    if field.type == "boolean":
        return text == "1"
    number = int(text or "0", 2)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _moment(text: str, name: str, logical: str) -> Any:
    if logical in ("IsoDate", "IsoTimestamp"):
        if text.startswith("0000"):
            return None
        day, _, clock = text.replace("T", " ").partition(" ")
        clock = re.sub(r"\.?0+$", "", clock) if "." in clock else clock
        return f"{day}T{clock or '00:00:00'}Z" if logical == "IsoTimestamp" else f"{day}Z"
    parsed = _parsed(text)
    if name == "date":
        return None if parsed is None else parsed.date()
    if parsed is None:
        return None
    if name == "timestamp with time zone" or logical == "ZonedTimestamp":
        return parsed.replace(tzinfo=UTC)
    if logical == "NanoTimestamp" and not _NANOSECONDS[0] < parsed < _NANOSECONDS[1]:
        return None
    if logical == "Timestamp":
        return parsed.replace(microsecond=parsed.microsecond // 1000 * 1000)
    return parsed


def _parsed(text: str) -> datetime | None:
    """Read a moment of the years 1 to 9999; None for others, and for what is none."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d+))?)?(?:\+00(?::00)?)?", text)
    if match is None or match[1].startswith("0000"):
        return None
    day, clock, fraction = match.groups()
    return datetime.fromisoformat(f"{day}T{clock or '00:00:00'}.{(fraction or '').ljust(6, '0')}")


def _micros(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    return sign * (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + sign * int(
        Decimal(seconds) * 1_000_000
    )


def _clock(text: str, name: str, logical: str) -> Any:
    if name == "time with time zone":
        clock, sign, zone = re.fullmatch(r"([\d:.]+)([-+])([\d:]+)", text).groups()  # type: ignore[union-attr]
        hours, _, minutes = zone.partition(":")
        east = (int(hours) * 60 + int(minutes or 0)) * 60_000_000 * (1 if sign == "+" else -1)
        return _clock_text((_micros(clock) - east) % 86_400_000_000)
    if logical == "IsoTime":
        return _clock_text(_micros(text) % 86_400_000_000)
    return _micros(text) // 1000 * 1000 if logical == "Time" else _micros(text)


def _clock_text(micros: int) -> str:
    moment = (datetime(2000, 1, 1) + timedelta(microseconds=micros)).time()
    return _without_zeros(moment) + "Z"


def _without_zeros(moment: time) -> str:
    text = moment.isoformat()
    return text.rstrip("0") if "." in text else text


def _parts(text: str) -> dict[str, Decimal]:
    """Read an interval as ISO 8601 has it; what is 0 is left out."""
    day, _, clock = text.removeprefix("P").partition("T")
    found = {
        f"{letter}{part}": Decimal(number)
        for part, side in (("d", day), ("t", clock))
        for number, letter in re.findall(r"(-?[\d.]+)([A-Z])", side)
    }
    return {name: number for name, number in found.items() if number}


def _interval(text: str, logical: str) -> Any:
    parts = _parts(text)
    if logical == "Interval":
        return parts
    months = parts.get("Yd", Decimal(0)) * 12 + parts.get("Md", Decimal(0))
    days = months * _DAYS_OF_MONTH + parts.get("Dd", Decimal(0))
    seconds = (
        parts.get("Ht", Decimal(0)) * 3600 + parts.get("Mt", Decimal(0)) * 60 + parts.get("St", Decimal(0))
    )
    return min(int((days * 86400 + seconds) * 1_000_000), (1 << 63) - 1)


def _shape(text: str) -> dict[str, Any]:
    if text.startswith("("):
        x, y = map(float, text[1:-1].split(","))
        return {"wkb": struct.pack("<BIdd", 1, 1, x, y), "srid": None, "x": x, "y": y}
    srid, _, raw = text.partition(" ")
    wkb = bytes.fromhex(raw)
    known: dict[str, Any] = {"wkb": wkb, "srid": int(srid) or None}
    if len(wkb) == struct.calcsize("<BIdd"):
        _, _, x, y = struct.unpack("<BIdd", wkb)
        known |= {"x": x, "y": y}
    return known


def _list(text: str, kind: str, field: ConnectField, binary: Callable[[bytes], Any]) -> list[Any]:
    if kind in ("jsonb", "hstore"):
        return list(json.loads(text))
    elements = json.loads(text, parse_float=str, parse_int=str)
    return [reported(_element(one, kind), kind, field, binary) for one in elements]


def _element(one: Any, kind: str) -> str | None:
    if one is None or isinstance(one, str):
        return one
    if isinstance(one, bool):
        return "true" if one else "false"
    raise ValueError(one)
