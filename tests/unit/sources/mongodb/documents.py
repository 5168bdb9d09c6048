"""Random BSON for property tests: documents of every type, raw elements, and damage."""

from __future__ import annotations

import struct
from typing import Any

import bson
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import strategies as st

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.one_of(
    st.sampled_from(["a", "b", "ab", "_id", "0", "1", ""]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)
# Doubles by their bits reach every exponent; NaNs have one form in Python.
DOUBLES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]),
    st.sampled_from([0.0, -0.0, 1e16, 1e-5, 9.99, 5e-324, 2.0**63, 1e22, 1e23]),
)
DECIMALS = st.one_of(
    st.binary(min_size=16, max_size=16).map(Decimal128.from_bid),
    st.tuples(st.integers(-(10**34) + 1, 10**34 - 1), st.integers(-40, 40)).map(
        lambda parts: Decimal128(f"{parts[0]}E{parts[1]}")
    ),
    st.sampled_from(["NaN", "-NaN", "Infinity", "-Infinity", "-0", "0E+3", "1E-6176", "9E+6111"]).map(
        Decimal128
    ),
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    INT32,
    INT64.map(Int64),
    DOUBLES,
    DECIMALS,
    TEXT,
    st.binary(max_size=12).map(Binary),
    st.tuples(st.binary(max_size=18), st.sampled_from([1, 2, 5, 6, 128, 255])).map(lambda p: Binary(*p)),
    st.binary(min_size=16, max_size=16).map(lambda b: Binary(b, 4)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    INT64.map(DatetimeMS),
    st.tuples(UINT32, UINT32).map(lambda p: Timestamp(*p)),
    st.tuples(TEXT.filter(lambda t: "\0" not in t), st.sets(st.sampled_from("imsx")).map("".join)).map(
        lambda p: Regex(p[0], "".join(sorted(p[1])))
    ),
    TEXT.map(Code),
    st.just(MinKey()),
    st.just(MaxKey()),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(NAMES, inner, max_size=4),
        st.tuples(TEXT, st.dictionaries(NAMES, inner, max_size=2)).map(lambda p: Code(*p)),
    ),
    max_leaves=12,
)
DOCUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(NAMES, VALUES, max_size=6)

READ = bson.CodecOptions(
    datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
)


def raw_element(kind: int, name: str, payload: bytes = b"") -> bytes:
    return bytes([kind]) + name.encode() + b"\0" + payload


def raw_string(text: bytes) -> bytes:
    return struct.pack("<i", len(text) + 1) + text + b"\0"


def raw_document(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def mutated(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """Overwrite bytes at offsets, modulo the length."""
    out = bytearray(data)
    for offset, value in changes:
        out[offset % len(out)] = value
    return bytes(out)


MUTATIONS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)
