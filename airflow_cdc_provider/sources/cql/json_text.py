"""``SELECT JSON *``: rows in Cassandra's JSON format, for display and for comparison.

It follows ``AbstractType.toJSONString`` of Cassandra 5.0 including its quirks: map keys are always strings,
NaN and infinities are null, an empty value of a type without empty values is ``""``, BC years in timestamps
have no sign.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import date, timedelta

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.cql.java_floating import java_floating
from airflow_cdc_provider.sources.cql.native_rows import Native, native_rows
from airflow_cdc_provider.sources.cql.programs import OPS
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from airflow_cdc_provider.sources.cql.text import write_text
from airflow_cdc_provider.sources.cql.types import fixed_length


def rows_to_json(table: TableSchema, rows: pa.RecordBatch) -> Iterator[str]:
    """Format live rows (``LIVE_ROW_SCHEMA``).

    Args:
        table: The rows' table.
        rows: The rows.

    Yields:
        The JSON text of each row.

    Raises:
        CorruptInput: A key, a state or a value violates its format.
    """
    names = [(c.name, json_string(_column_name(c.name)), c.type) for c in table.columns]
    try:
        for values in native_rows(table, rows):
            fields = (f"{name}: {value_to_json(cql_type, values[key])}" for key, name, cql_type in names)
            yield "{" + ", ".join(fields) + "}"
    except (ArithmeticError, LookupError, ValueError, struct.error) as error:
        raise CorruptInput(f"a row of {table.full_name} can't be decoded", found=str(error)) from error


def value_to_json(cql_type: CqlType, value: Native) -> str:
    """Format one native value."""
    if value is None:
        return "null"
    name, inside = cql_type.name, cql_type.parameters
    if name in _TEXTS:
        return _TEXTS[name](value)
    if name in ("list", "set"):
        return "[" + ", ".join(value_to_json(inside[0], v) for v in _parts(value[4:])) + "]"
    if name == "map":
        parts = _parts(value[4:])
        entries = zip(parts[::2], parts[1::2], strict=True)
        texts = (
            f"{_map_key(value_to_json(inside[0], k))}: {value_to_json(inside[1], v)}" for k, v in entries
        )
        return "{" + ", ".join(texts) + "}"
    if name == "vector":
        return "[" + ", ".join(value_to_json(inside[0], v) for v in _vector_parts(cql_type, value)) + "]"
    if name not in ("tuple", "udt"):
        return f'"0x{value.hex()}"'
    parts = _parts(value)[: len(inside)]
    parts += [None] * (len(inside) - len(parts))
    items = [value_to_json(t, v) for t, v in zip(inside, parts, strict=True)]
    if name == "tuple":
        return "[" + ", ".join(items) + "]"
    fields = (f"{json_string(_column_name(f))}: {t}" for f, t in zip(cql_type.fields, items, strict=True))
    return "{" + ", ".join(fields) + "}"


_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    **{chr(i): f"\\u{i:04X}" for i in range(32) if chr(i) not in "\b\t\n\f\r"},
}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)


def json_string(text: str) -> str:
    """Quote a text like Jackson."""
    return '"' + text.translate(_ESCAPE_TABLE) + '"'


def _column_name(name: str) -> str:
    return name if name == name.lower() else f'"{name}"'


def _map_key(text: str) -> str:
    return text if text.startswith('"') else json_string(text)


def _parts(data: bytes) -> list[Native]:
    parts: list[Native] = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        parts.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    return parts


def _vector_parts(cql_type: CqlType, data: bytes) -> list[bytes]:
    fixed = fixed_length(cql_type.parameters[0])
    parts, at = [], 0
    for _ in range(cql_type.dimensions):
        length, at = (fixed, at) if fixed >= 0 else _uvint(data, at)
        parts.append(data[at : at + length])
        at += length
    return parts


def _uvint(data: bytes, at: int) -> tuple[int, int]:
    extra = 8 - (data[at] ^ 0xFF).bit_length()
    value = int.from_bytes(bytes([data[at] & (0xFF >> extra)]) + data[at + 1 : at + 1 + extra], "big")
    return value, at + 1 + extra


def _number(value: bytes) -> str:
    return str(int.from_bytes(value, "big", signed=True)) if value else '""'


def _floating(value: bytes) -> str:
    return (java_floating(value) or "null") if value else '""'


def _by_kernel(name: str, value: bytes) -> str:
    data = np.frombuffer(value, np.uint8)
    scratch = new_scratch(data.size)
    size = write_text(OPS[name], data, 0, data.size, scratch, np.empty(0, np.uint8), 0)
    out = np.empty(max(size, 0), np.uint8)
    write_text(OPS[name], data, 0, data.size, scratch, out, 0)
    return bytes(out).decode()


def _bare(name: str) -> Callable[[bytes], str]:
    return lambda value: _by_kernel(name, value) if value else '""'


def _quoted(name: str) -> Callable[[bytes], str]:
    return lambda value: f'"{_by_kernel(name, value)}"' if value else '""'


def civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970, in any year."""
    # The Gregorian calendar repeats every 400 years, which are 146,097 days.
    cycles, rest = divmod(days - date(2000, 1, 1).toordinal() + date(1970, 1, 1).toordinal(), 146_097)
    moment = date(2000, 1, 1) + timedelta(days=rest)
    return moment.year + 400 * cycles, moment.month, moment.day


def _year(year: int) -> str:
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}"


def _date(value: bytes) -> str:
    if not value:
        return '""'
    year, month, day = civil_date(int.from_bytes(value, "big") - (1 << 31))
    return f'"{_year(year)}-{month:02}-{day:02}"'


def _timestamp(value: bytes) -> str:
    if not value:
        return '""'
    days, milliseconds = divmod(int.from_bytes(value, "big", signed=True), 86_400_000)
    year, month, day = civil_date(days)
    # The pattern's "yyyy" is the year of the era: 1 BC is 0001 too.
    year = year if year > 0 else 1 - year
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    time = f"{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}Z"
    return f'"{_year(year)}-{month:02}-{day:02} {time}"'


def _time(value: bytes) -> str:
    if not value:
        return '"null"'
    seconds, nanoseconds = divmod(int.from_bytes(value, "big", signed=True), 1_000_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f'"{hours:02}:{minutes:02}:{seconds:02}.{nanoseconds:09}"'


def _boolean(value: bytes) -> str:
    return '""' if not value else "true" if value != b"\0" else "false"


_TEXTS: dict[str, Callable[[bytes], str]] = {
    "ascii": lambda v: json_string(v.decode()),
    "text": lambda v: json_string(v.decode()),
    "blob": lambda v: f'"0x{v.hex()}"',
    "boolean": _boolean,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "decimal": _bare("decimal"),
    "varint": _bare("varint"),
    "double": _floating,
    "float": _floating,
    "duration": _quoted("duration"),
    "inet": _quoted("inet"),
    "uuid": _quoted("uuid"),
    "timeuuid": _quoted("timeuuid"),
    "empty": lambda _: '""',
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "counter"), _number),
}
