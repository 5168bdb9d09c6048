"""Native bytes of values of any type, drawn with a seed; few enough that they meet again."""

from __future__ import annotations

import random
import struct

from server_kit.scylla.values import (
    CqlType,
    Native,
    pack_elements,
    pack_pairs,
    pack_parts,
    sort_key,
)

KEY_TYPES = (
    "ascii",
    "bigint",
    "blob",
    "boolean",
    "date",
    "decimal",
    "double",
    "float",
    "inet",
    "int",
    "smallint",
    "text",
    "time",
    "timestamp",
    "timeuuid",
    "tinyint",
    "uuid",
    "varint",
)
"""Scalar types that a key, a set's element or a map's key may have."""
SCALAR_TYPES = (*KEY_TYPES, "duration")

_WIDTHS = {"bigint": 8, "int": 4, "smallint": 2, "tinyint": 1}
_DAY_NS = 86_400_000_000_000


def draw_value(chance: random.Random, cql_type: CqlType) -> bytes:
    """Draw a value; sets and maps come in the database's order, numbers in their shortest form."""
    name, inside = cql_type.name, cql_type.parameters
    if name == "list":
        return pack_elements([draw_value(chance, inside[0]) for _ in range(chance.randrange(4))])
    if name == "set":
        return pack_elements(draw_set(chance, inside[0]))
    if name == "map":
        keys = draw_set(chance, inside[0])
        return pack_pairs([(key, draw_value(chance, inside[1])) for key in keys])
    if name in ("tuple", "udt"):
        return pack_parts([_or_null(chance, part) for part in inside])
    return _scalar(chance, name)


def draw_set(chance: random.Random, element: CqlType) -> list[bytes]:
    """Draw up to three different values, in order."""
    drawn = [draw_value(chance, element) for _ in range(chance.randrange(1, 4))]
    by_place = {sort_key(element, value): value for value in drawn}
    return [by_place[place] for place in sorted(by_place)]


def _or_null(chance: random.Random, cql_type: CqlType) -> Native:
    return None if chance.random() < 0.2 else draw_value(chance, cql_type)


def _scalar(chance: random.Random, name: str) -> bytes:
    if name in _WIDTHS:
        bits = 8 * _WIDTHS[name]
        number = chance.choice(
            [0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1), chance.getrandbits(bits - 1)]
        )
        return number.to_bytes(_WIDTHS[name], "big", signed=True)
    match name:
        case "ascii":
            return bytes(chance.choices(b"abZ 09~", k=chance.randrange(1, 5)))
        case "text":
            return "".join(chance.choices("aé漢😀\n'", k=chance.randrange(1, 4))).encode()
        case "blob":
            return bytes(chance.choices([0, 1, 0x7F, 0x80, 0xFF], k=chance.randrange(1, 5)))
        case "boolean":
            return chance.choice([b"\0", b"\1"])
        case "date":
            return struct.pack(">I", (1 << 31) + chance.randrange(-40_000, 40_000))
        case "time":
            return struct.pack(">q", chance.choice([0, _DAY_NS - 1, chance.randrange(_DAY_NS)]))
        case "timestamp":
            return struct.pack(">q", chance.choice([0, -1, 1_700_000_000_123, chance.getrandbits(40)]))
        case "double" | "float":
            real = chance.choice([0.0, 1.5, -1.5, 1e30, -1e-30, float("inf")])
            return struct.pack(">d" if name == "double" else ">f", real)
        case "decimal":
            digits = chance.choice([0, 1, -1, 10**20 + 1, -(10**9) - 7, chance.randrange(-99, 100) * 10 + 1])
            return struct.pack(">i", chance.randrange(-3, 9) if digits else 0) + _shortest(digits)
        case "varint":
            return _shortest(chance.choice([0, 1, -1, 127, 128, -129, 10**30, -(10**30)]))
        case "inet":
            return chance.randbytes(chance.choice([4, 16]))
        case "uuid":
            return _uuid(chance, chance.choice([1, 4]))
        case "timeuuid":
            return _uuid(chance, 1)
        case "duration":
            return b"".join(_zigzag(chance.randrange(0, 1 << bits)) for bits in (6, 12, 40))
    raise ValueError(f"expected a type of CQL, found {name}")


def _shortest(number: int) -> bytes:
    """Write a number in the fewest bytes of two's complement."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def _uuid(chance: random.Random, version: int) -> bytes:
    value = bytearray(chance.randbytes(16))
    value[6] = version << 4 | value[6] & 0x0F
    value[8] = 0x80 | value[8] & 0x3F
    return bytes(value)


def _zigzag(number: int) -> bytes:
    """Write a number of a duration: zigzag, then as many leading ones as further bytes follow."""
    number = number << 1 ^ number >> 63
    size = 1
    while size < 9 and number >= 1 << 7 * size:
        size += 1
    leading = 0xFF << (9 - size) & 0xFF
    return (number | leading << 8 * (size - 1)).to_bytes(size, "big")
