"""Values at the ends of each type of Cassandra, in its mirror and in Debezium's events."""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.unit.sources.cql.cql_values import parts, varint

MOST_NANOSECONDS: Final = 86_400 * 10**9 - 1
ASCII: Final = bytes(range(128))
TEXT: Final = "\0ü名🙂\U0010ffff"
LEAST_TIMEUUID: Final = bytes(6) + b"\x10" + bytes(9)
GREATEST_TIMEUUID: Final = b"\xff" * 6 + b"\x1f" + b"\xff" * 9


def covers(feature: str, *values: Any) -> Any:
    """Parameters of one type, marked with its feature."""
    return pytest.param(*values, id=values[0], marks=pytest.mark.covers(feature))


def whole(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def ends(size: int) -> list[tuple[bytes, int, int]]:
    """Least, greatest and middle of a whole number's type, alike everywhere."""
    limit = 1 << (8 * size - 1)
    return [(whole(v, size), v, v) for v in (-limit, limit - 1, 0, -1)]


def decimal(unscaled: int, scale: int) -> bytes:
    return struct.pack(">i", scale) + varint(unscaled)


def as_numbers(column: pa.Array) -> list[Any]:
    """Convert dates and timestamps to numbers, as they exceed Python's types."""
    if pa.types.is_date32(column.type):
        return list(column.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(column.type):
        return list(column.view(pa.int64()).to_pylist())
    return list(column.to_pylist())


TYPE_LIMITS: Final = (
    covers(
        "CAS-TYPE-01", "ascii", pa.utf8(), pa.utf8(), "",
        [(b"", "", ""), (ASCII, ASCII.decode(), ASCII.decode())],
    ),
    covers("CAS-TYPE-02", "bigint", pa.int64(), pa.int64(), "", ends(8)),
    covers(
        "CAS-TYPE-03", "blob", pa.binary(), pa.binary(), "",
        [(b"", b"", b""), (bytes(range(256)), bytes(range(256)), bytes(range(256)))],
    ),
    covers(
        "CAS-TYPE-04", "boolean", pa.bool_(), pa.bool_(), "", [(b"\0", False, False), (b"\1", True, True)]
    ),
    covers(
        "CAS-TYPE-06", "date", pa.date32(), pa.int32(), "io.debezium.time.Date:1",
        [
            (bytes(4), -(1 << 31), -(1 << 31)),
            (b"\xff" * 4, (1 << 31) - 1, (1 << 31) - 1),
            (b"\x80\0\0\0", 0, 0),
        ],
    ),
    covers(
        "CAS-TYPE-07", "decimal", pa.utf8(), pa.float64(), "",
        [
            (decimal(-(10**40) - 1, 20), "-100000000000000000000.00000000000000000001", -1e20),
            (decimal(100, 2), "1.00", 1.0),
            (decimal(1, -400), "1E+400", float("inf")),
            (decimal(-1, (1 << 31) - 1), "-1E-2147483647", -0.0),
            (decimal(0, 0), "0", 0.0),
        ],
    ),
    covers(
        "CAS-TYPE-08", "double", pa.float64(), pa.float64(), "",
        [
            (struct.pack(">d", v), v, v)
            for v in (-0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"))
        ],
    ),
    covers(
        "CAS-TYPE-09", "float", pa.float32(), pa.float32(), "",
        [
            (struct.pack(">f", v), v, v)
            for v in (-0.0, 2.0**-149, (2 - 2.0**-23) * 2.0**127, float("-inf"))
        ],
    ),
    covers(
        "CAS-TYPE-11", "inet", pa.utf8(), pa.utf8(), "",
        [
            (b"\1\0\0\0", "1.0.0.0", "/1.0.0.0"),
            (b"\xff" * 4, "255.255.255.255", "/255.255.255.255"),
            (bytes(16), "0:0:0:0:0:0:0:0", "/0:0:0:0:0:0:0:0"),
            (b"\xff" * 16, ":".join(["ffff"] * 8), "/" + ":".join(["ffff"] * 8)),
        ],
    ),
    covers("CAS-TYPE-12", "int", pa.int32(), pa.int32(), "", ends(4)),
    covers("CAS-TYPE-16", "smallint", pa.int32(), pa.int16(), "", ends(2)),
    covers(
        "CAS-TYPE-17", "text", pa.utf8(), pa.utf8(), "", [(b"", "", ""), (TEXT.encode(), TEXT, TEXT)]
    ),
    covers(
        "CAS-TYPE-18", "time", pa.int64(), pa.int64(), "",
        [(whole(v, 8), v, v) for v in (0, MOST_NANOSECONDS)],
    ),
    covers(
        "CAS-TYPE-19", "timestamp", pa.timestamp("us", "UTC"), pa.int64(), "io.debezium.time.Timestamp:1",
        [(whole(v, 8), v * 1000, v) for v in (-9223372036854775, 9223372036854775, 0, -1)],
    ),
    covers(
        "CAS-TYPE-20", "timeuuid", pa.utf8(), pa.utf8(), "io.debezium.data.Uuid:1",
        [
            (LEAST_TIMEUUID, *["00000000-0000-1000-0000-000000000000"] * 2),
            (GREATEST_TIMEUUID, *["ffffffff-ffff-1fff-ffff-ffffffffffff"] * 2),
        ],
    ),
    covers("CAS-TYPE-21", "tinyint", pa.int32(), pa.int8(), "", ends(1)),
    covers(
        "CAS-TYPE-22", "tuple<int, text>",
        pa.struct([("field1", pa.int32()), ("field2", pa.utf8())]),
        pa.struct([("field1", pa.int32()), ("field2", pa.utf8())]),
        "Int32UTF8Tuple",
        [
            (parts([whole(-(1 << 31), 4), b""]), *[{"field1": -(1 << 31), "field2": ""}] * 2),
            (parts([None, None]), *[{"field1": None, "field2": None}] * 2),
        ],
    ),
    covers(
        "CAS-TYPE-23", "uuid", pa.utf8(), pa.utf8(), "io.debezium.data.Uuid:1",
        [
            (bytes(16), *["00000000-0000-0000-0000-000000000000"] * 2),
            (b"\xff" * 16, *["ffffffff-ffff-ffff-ffff-ffffffffffff"] * 2),
        ],
    ),
    covers(
        "CAS-TYPE-24", "varchar", pa.utf8(), pa.utf8(), "", [(b"", "", ""), (TEXT.encode(), TEXT, TEXT)]
    ),
    covers(
        "CAS-TYPE-25", "varint", pa.utf8(), pa.int64(), "",
        [
            (varint(-(1 << 63)), str(-(1 << 63)), -(1 << 63)),
            (varint((1 << 63) - 1), str((1 << 63) - 1), (1 << 63) - 1),
            (varint(10**60), str(10**60), (10**60 + (1 << 63)) % (1 << 64) - (1 << 63)),
            (varint(0), "0", 0),
        ],
    ),
    covers(
        "CAS-C50-05", "vector<float, 3>", pa.list_(pa.float32()), pa.list_(pa.float32()), "",
        [(struct.pack(">3f", 1.5, -0.0, 2.0**-149), *[[1.5, -0.0, 2.0**-149]] * 2)],
    ),
    covers(
        "CAS-C50-05", "vector<text, 2>", pa.list_(pa.utf8()), pa.list_(pa.utf8()), "",
        [(b"\0\2ab", *[["", "ab"]] * 2), (b"\x01a\x80\xc8" + b"b" * 200, *[["a", "b" * 200]] * 2)],
    ),
)  # fmt: skip
"""Parameters of one type each: its name, its types in the mirror and in events, the name of its schema there,
and values: the bytes that Cassandra stores, the mirror's value, the event's value."""
