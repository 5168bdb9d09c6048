from __future__ import annotations

import ipaddress
import struct
import uuid
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.sources.cql.programs import OPS
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from airflow_cdc_provider.sources.cql.text import MALFORMED, write_text
from tests.chance import examples
from tests.unit.sources.cql.cql_values import svint, varint


def _text(name: str, value: bytes) -> str:
    data = np.frombuffer(value, np.uint8)
    length = write_text(OPS[name], data, 0, data.size, new_scratch(data.size), np.empty(0, np.uint8), 0)
    out = np.empty(length, np.uint8)
    assert write_text(OPS[name], data, 0, data.size, new_scratch(data.size), out, 0) == length
    return bytes(out).decode()


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(-(1 << 70), 1 << 70) | st.integers(-(10**200), 10**200))
@example(-(1 << 63))
@example((1 << 64) - 1)
@example(1 << 64)
@example(10**27)
@example(-(1 << 127))
def test_varint_has_all_digits(value: int) -> None:
    assert _text("varint", varint(value)) == str(value)


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(-(10**40), 10**40) | st.integers(-1000, 1000), st.integers(-30, 50))
@example(0, 0)
@example(0, 7)
@example(0, -1)
@example(123, 8)
@example(-1, (1 << 31) - 1)
@example(5, -(1 << 31))
def test_decimal_is_formatted_like_java(unscaled: int, scale: int) -> None:
    # Python's Decimal follows the same General Decimal Arithmetic rule (to-scientific-string).
    sign, digits, _ = Decimal(unscaled).as_tuple()
    assert _text("decimal", struct.pack(">i", scale) + varint(unscaled)) == str(
        Decimal((sign, digits, -scale))
    )


@given(st.uuids())
def test_uuid_has_its_usual_form(value: uuid.UUID) -> None:
    assert _text("uuid", value.bytes) == str(value)


@given(st.ip_addresses())
@example(ipaddress.ip_address("::"))
@example(ipaddress.ip_address("2001:db8::1:0"))
def test_inet_is_formatted_like_java(value: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    expected = str(value)
    if isinstance(value, ipaddress.IPv6Address):
        mapped = value.ipv4_mapped
        expected = str(mapped) if mapped else ":".join(f"{int(g, 16):x}" for g in value.exploded.split(":"))
    assert _text("inet", value.packed) == expected


@pytest.mark.parametrize(
    ("months", "days", "nanoseconds", "expected"),
    [
        (0, 0, 0, ""),
        (-28, -265, -38_964_070_955_808, "-2y4mo265d10h49m24s70ms955us808ns"),
        (12, 0, 1, "1y1ns"),
        (1, 0, 60_000_000_000, "1mo1m"),
        (
            (1 << 31) - 1,
            (1 << 31) - 1,
            (1 << 63) - 1,
            "178956970y7mo2147483647d2562047h47m16s854ms775us807ns",
        ),
    ],
)
def test_duration_has_cqls_form(months: int, days: int, nanoseconds: int, expected: str) -> None:
    assert _text("duration", svint(months) + svint(days) + svint(nanoseconds)) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uuid", b"123"),
        ("inet", b"12345"),
        ("decimal", b"1234"),
        ("duration", b"\0"),
        ("duration", b"\xff\1"),
    ],
)
def test_invalid_bytes_are_rejected(name: str, value: bytes) -> None:
    data = np.frombuffer(value, np.uint8)
    scratch, out = new_scratch(data.size), np.empty(0, np.uint8)
    assert write_text(OPS[name], data, 0, data.size, scratch, out, 0) == MALFORMED
