"""CQL values for tests: types, native bytes, and Cassandra's order, written without our kernels."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from airflow_cdc_provider.sources.cql.schema import CqlType

Native = bytes | None


def varint(value: int) -> bytes:
    """Encode a number in the fewest bytes of two's complement."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def uvint(value: int) -> bytes:
    """Encode an unsigned variable-length integer."""
    if value < 128:
        return bytes([value])
    extra = 1
    while extra < 8 and value >= 1 << (7 * (extra + 1)):
        extra += 1
    if extra == 8:
        return b"\xff" + value.to_bytes(8, "big")
    return ((((0xFF << (8 - extra)) & 0xFF) << (8 * extra)) | value).to_bytes(extra + 1, "big")


def svint(value: int) -> bytes:
    """Encode a zig-zag variable-length integer."""
    return uvint(((value << 1) ^ (value >> 63)) & ((1 << 64) - 1))


def parts(values: list[Native]) -> bytes:
    """Join values as frozen types do: int32 length, -1 for null, then the bytes."""
    return b"".join(struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)


_UUIDS = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.uuids(version=4).map(lambda u: u.bytes),
    st.builds(
        lambda a, b, c: a + bytes([0x10 | b]) + c,
        st.binary(min_size=6, max_size=6),
        st.integers(0, 15),
        st.binary(min_size=9, max_size=9),
    ),
)
_TIMEUUIDS = st.builds(
    lambda a, b, c: a + bytes([0x10 | b]) + c,
    st.sampled_from([b"\0" * 6, b"\xff" * 6, b"\0\1\2\3\4\5"]) | st.binary(min_size=6, max_size=6),
    st.integers(0, 15),
    st.sampled_from([b"\0" * 9, b"\0" * 8 + b"\x80", b"\0" * 8 + b"\x7f"])
    | st.binary(min_size=9, max_size=9),
)
_NUMBERS = st.one_of(
    st.integers(-300, 300),
    st.integers(-(1 << 70), 1 << 70),
    st.integers(-(10**60), 10**60),
    st.builds(lambda s, e: s * 10**e, st.integers(-9, 9), st.integers(0, 40)),
)
_SCALES = st.integers(-40, 40) | st.sampled_from([-(1 << 31), (1 << 31) - 1])
_BYTES = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 254, 255]), max_size=6).map(bytes)

SCALARS: dict[str, st.SearchStrategy[bytes]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=6).map(str.encode),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1).map(lambda v: struct.pack(">q", v)),
    "blob": _BYTES,
    "boolean": st.sampled_from([b"\0", b"\1"]),
    "date": st.integers(0, (1 << 32) - 1).map(lambda v: struct.pack(">I", v)),
    "decimal": st.builds(lambda s, u: struct.pack(">i", s) + varint(u), _SCALES, _NUMBERS),
    "double": st.one_of(
        st.floats().map(lambda v: struct.pack(">d", v)), st.sampled_from([b"\xff" * 8, b"\x7f" + b"\xff" * 7])
    ),
    "float": st.one_of(
        st.floats(width=32).map(lambda v: struct.pack(">f", v)), st.sampled_from([b"\xff" * 4])
    ),
    "inet": st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    "int": st.integers(-(1 << 31), (1 << 31) - 1).map(lambda v: struct.pack(">i", v)),
    "smallint": st.integers(-(1 << 15), (1 << 15) - 1).map(lambda v: struct.pack(">h", v)),
    "text": st.text(max_size=6).map(str.encode),
    "time": st.integers(0, 86_400 * 10**9 - 1).map(lambda v: struct.pack(">q", v)),
    "timestamp": st.integers(-(1 << 63), (1 << 63) - 1).map(lambda v: struct.pack(">q", v)),
    "timeuuid": _TIMEUUIDS,
    "tinyint": st.integers(-128, 127).map(lambda v: struct.pack(">b", v)),
    "uuid": _UUIDS,
    "varint": _NUMBERS.map(varint)
    | st.builds(lambda v: (b"\xff" if v < 0 else b"\0") * 2 + varint(v), _NUMBERS),
}
"""Strategies of native bytes of each scalar type that a key may have."""

EMPTY_ALLOWED = frozenset({"ascii", "blob", "text", "int", "varint", "uuid", "double", "boolean", "inet"})
"""Some types for which an empty value is legal."""


def types(*, depth: int = 2) -> st.SearchStrategy[CqlType]:
    """Draw types, nested to a depth."""
    scalars = st.sampled_from(sorted(SCALARS)).map(CqlType)
    if depth == 0:
        return scalars
    inner = types(depth=depth - 1)
    return st.one_of(
        scalars,
        st.builds(lambda n, t: CqlType(n, (t,), frozen=True), st.sampled_from(["list", "set"]), inner),
        st.builds(lambda k, v: CqlType("map", (k, v), frozen=True), inner, inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda p: CqlType("tuple", tuple(p))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda p: CqlType("udt", tuple(p), True, tuple(f"f{i}" for i in range(len(p))), "k.u")
        ),
        st.builds(lambda t, n: CqlType("vector", (t,), dimensions=n), inner, st.integers(1, 3)),
    )


def values(cql_type: CqlType, *, empties: bool = True) -> st.SearchStrategy[bytes]:
    """Draw native bytes of a type, sets and maps in Cassandra's order; with ``empties`` also empty values."""
    values_of = functools.partial(values, empties=empties)
    name, inside = cql_type.name, cql_type.parameters
    if name in SCALARS:
        return SCALARS[name] | st.just(b"") if empties and name in EMPTY_ALLOWED else SCALARS[name]
    if name in ("list", "set"):
        elements = st.lists(values_of(inside[0]), max_size=3)
        if name == "set":
            elements = elements.map(functools.partial(_sorted, inside[0]))
        return elements.map(lambda v: struct.pack(">i", len(v)) + parts([*v]))
    if name == "map":
        entries = st.lists(st.tuples(values_of(inside[0]), values_of(inside[1])), max_size=3)
        return entries.map(functools.partial(_map_bytes, inside[0]))
    if name in ("tuple", "udt"):
        fields = [st.none() | values_of(t) for t in inside]
        return st.builds(
            lambda v, n: parts(list(v[:n]) if all(x is None for x in v[n:]) else list(v)),
            st.tuples(*fields),
            st.integers(0, len(inside)),
        )
    from airflow_cdc_provider.sources.cql.types import fixed_length

    fixed = fixed_length(inside[0])
    element = values_of(inside[0]).filter(lambda v: fixed < 0 or len(v) == fixed)
    return st.lists(element, min_size=cql_type.dimensions, max_size=cql_type.dimensions).map(
        lambda v: b"".join(x if fixed >= 0 else uvint(len(x)) + x for x in v)
    )


def _sorted(cql_type: CqlType, drawn: list[bytes]) -> list[bytes]:
    def order_of(a: bytes, b: bytes) -> int:
        return compare(cql_type, a, b)

    order = functools.cmp_to_key(order_of)
    distinct: list[bytes] = []
    for value in sorted(drawn, key=order):
        if not distinct or compare(cql_type, distinct[-1], value) != 0:
            distinct.append(value)
    return distinct


def _map_bytes(key: CqlType, drawn: list[tuple[bytes, bytes]]) -> bytes:
    by_key = dict(drawn)
    entries = [(k, by_key[k]) for k in _sorted(key, list(by_key))]
    return struct.pack(">i", len(entries)) + parts([part for entry in entries for part in entry])


def split(data: bytes) -> list[Native]:
    """Split what :func:`parts` joined."""
    found: list[Native] = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        found.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    return found


def _cmp(a: Any, b: Any) -> int:
    return (a > b) - (a < b)


def _float_order(size: int, value: bytes) -> tuple[int, float, int]:
    """Order as ``Double.compareTo``: -0.0 before 0.0, NaN last, all NaNs alike."""
    number = struct.unpack(">d" if size == 8 else ">f", value)[0]
    if math.isnan(number):
        return (1, 0.0, 0)
    return (0, number, 0 if value[0] & 0x80 else 1)


def _time_fields(value: bytes) -> bytes:
    return value[6:8] + value[4:6] + value[0:4]


def _uuid_order(value: bytes) -> tuple[int, bytes, bytes]:
    version = value[6] >> 4
    return (version, _time_fields(value) if version == 1 else value[:8], value[8:])


def _timeuuid_order(value: bytes) -> tuple[bytes, tuple[int, ...]]:
    return (_time_fields(value), struct.unpack(">8b", value[8:]))


def _decimal_order(value: bytes) -> Any:
    (scale,) = struct.unpack_from(">i", value)
    return _ExactDecimal(int.from_bytes(value[4:], "big", signed=True), scale)


@functools.total_ordering
class _ExactDecimal:
    """A number that compares exactly whatever its scale."""

    def __init__(self, unscaled: int, scale: int) -> None:
        sign, digits, _ = Decimal(unscaled).as_tuple()
        text = "".join(map(str, digits)).rstrip("0")
        self.order: tuple[int, int, str] = (0, 0, "")
        if text:
            # Digits to the right of "0." compare as text; complement them for negative numbers.
            exponent = len(digits) - scale
            if sign:
                flipped = "".join(chr(ord("9") - int(d) + 1) for d in text) + "~"
                self.order = (-1, -exponent, flipped)
            else:
                self.order = (1, exponent, text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ExactDecimal) and self.order == other.order

    def __lt__(self, other: _ExactDecimal) -> bool:
        return self.order < other.order

    __hash__ = None  # type: ignore[assignment]


_ORDERS: dict[str, Callable[[bytes], Any]] = {
    "boolean": lambda v: v != b"\0",
    "decimal": _decimal_order,
    "double": functools.partial(_float_order, 8),
    "float": functools.partial(_float_order, 4),
    "timeuuid": _timeuuid_order,
    "uuid": _uuid_order,
    **dict.fromkeys(
        ("bigint", "int", "smallint", "tinyint", "timestamp", "varint"),
        lambda v: int.from_bytes(v, "big", signed=True),
    ),
}


def compare(cql_type: CqlType, a: bytes, b: bytes) -> int:
    """Compare two values as ``AbstractType.compare`` of Cassandra 5.0 does."""
    if not a or not b:
        return _cmp(len(a) > 0, len(b) > 0)
    name, inside = cql_type.name, cql_type.parameters
    if name in ("list", "set", "map"):
        return _compare_collections(inside, a, b)
    if name in ("tuple", "udt"):
        return _compare_tuples(inside, a, b)
    if name == "vector":
        left, right = vector_parts(cql_type, a), vector_parts(cql_type, b)
        return next((c for x, y in zip(left, right, strict=True) if (c := compare(inside[0], x, y))), 0)
    order = _ORDERS.get(name, bytes)
    return _cmp(order(a), order(b))


def vector_parts(cql_type: CqlType, value: bytes) -> list[bytes]:
    """Split a vector's value; lengths below 128 only."""
    from airflow_cdc_provider.sources.cql.types import fixed_length

    fixed = fixed_length(cql_type.parameters[0])
    if fixed >= 0:
        return [value[i : i + fixed] for i in range(0, len(value), fixed)]
    found = []
    at = 0
    while at < len(value):
        length, at = value[at], at + 1
        if length >= 0x80:
            length, at = ((length & 0x3F) << 8) | value[at], at + 1
        found.append(value[at : at + length])
        at += length
    return found


def _compare_collections(inside: tuple[CqlType, ...], a: bytes, b: bytes) -> int:
    left, right = split(a[4:]), split(b[4:])
    for index, (x, y) in enumerate(zip(left, right, strict=False)):
        assert x is not None
        assert y is not None
        result = compare(inside[index % len(inside)], x, y)
        if result:
            return result
    return _cmp(len(left), len(right))


def _compare_tuples(inside: tuple[CqlType, ...], a: bytes, b: bytes) -> int:
    left: list[Native] = split(a)
    right: list[Native] = split(b)
    left += [None] * (len(inside) - len(left))
    right += [None] * (len(inside) - len(right))
    for cql_type, x, y in zip(inside, left, right, strict=True):
        missing = x is None or y is None
        result = _cmp(x is not None, y is not None) if missing else compare(cql_type, x or b"", y or b"")
        if result:
            return result
    return 0
