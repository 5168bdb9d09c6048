"""Kernels of values in events against plain Python."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess.events.masks import mask_of
from airflow_cdc_provider.sources.vitess.events.values import (
    BROKEN,
    NO_DATE,
    NO_VALUE,
    VALUE,
    hexadecimal,
    read_moments,
    read_times,
    unscaled_numbers,
)

NUMBER = st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**60), max_value=10**60)


def spans(values: list[bytes | None]) -> tuple[Bytes, Ints, Ints]:
    """Lay values into a buffer with other bytes around them."""
    data, starts, ends = b"7", [], []
    for value in values:
        starts.append(-1 if value is None else len(data))
        data += value or b""
        ends.append(-1 if value is None else len(data))
        data += b"9"
    return np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64)


@given(st.lists(st.one_of(st.none(), st.datetimes(min_value=datetime(1, 1, 1))), max_size=8))
def test_moments_are_read(moments: list[datetime | None]) -> None:
    texts = [None if m is None else f"{m:%Y-%m-%d %H:%M:%S.%f}".rjust(26, "0").encode() for m in moments]
    micros, states = read_moments(*spans(texts))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = [
        0 if m is None else (m.replace(tzinfo=UTC) - epoch) // timedelta(microseconds=1) for m in moments
    ]
    assert micros.tolist() == expected
    assert states.tolist() == [NO_VALUE if m is None else VALUE for m in moments]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (b"2024-02-29", VALUE),
        (b"2023-02-29", NO_DATE),
        (b"2023-11-00 00:00:00", NO_DATE),
        (b"0000-00-00", NO_DATE),
        (b"2023-13-01", NO_DATE),
        (b"2023-01-01 24:00:00", BROKEN),
        (b"2023-01-01 1:00:00", VALUE),
        (b"2023-1-01", BROKEN),
        (b"2023-01-01 00:00:00.1234567", BROKEN),
        (b"", BROKEN),
    ],
)
def test_invalid_dates_are_distinguished_from_broken_text(text: bytes, state: int) -> None:
    assert read_moments(*spans([text]))[1].tolist() == [state]


@given(st.lists(st.timedeltas(min_value=-timedelta(hours=838), max_value=timedelta(hours=838)), max_size=8))
def test_times_are_read(times: list[timedelta]) -> None:
    def text(time: timedelta) -> bytes:
        seconds, micros = divmod(abs(time) // timedelta(microseconds=1), 1_000_000)
        sign = "-" if time < timedelta() else ""
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}".encode()

    micros, states = read_times(*spans([text(time) for time in times]))
    assert micros.tolist() == [time // timedelta(microseconds=1) for time in times]
    assert not states.any()


@given(st.lists(st.one_of(st.none(), NUMBER), max_size=8))
def test_numbers_become_bytes(numbers: list[Decimal | None]) -> None:
    texts = [None if n is None else f"{n:f}".encode() for n in numbers]
    encoded, states = unscaled_numbers(*spans(texts), 4)
    for number, found in zip(numbers, encoded.to_pylist(), strict=True):
        if number is None:
            assert found is None
            continue
        unscaled = int(f"{number:f}".replace(".", ""))
        assert int.from_bytes(found, "big", signed=True) == unscaled
        assert len(found) == (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    assert (states == [NO_VALUE if n is None else VALUE for n in numbers]).all()


@pytest.mark.parametrize("text", [b"1.23456", b"x", b"", b"1-", b"9" * 66, b"1.2.3"])
def test_an_invalid_number_is_reported(text: bytes) -> None:
    encoded, states = unscaled_numbers(*spans([text]), 4)
    assert (encoded.to_pylist(), states.tolist()) == ([None], [BROKEN])


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=6))
def test_bytes_become_text(values: list[bytes | None]) -> None:
    found = spans(values)
    assert hexadecimal(*found).to_pylist() == [v if v is None else v.hex() for v in values]


def test_hashes_are_of_the_text_as_java_writes_it_or_of_its_utf8() -> None:
    column = pa.array(["ü\0😀", None])
    serialised = b"\xac\xed\x00\x05t\x00\x0a\xc3\xbc\xc0\x80\xed\xa0\xbd\xed\xb8\x80"
    for form, hashed in (("hash:SHA-256:s", serialised), ("hash-v2:SHA-256:s", "ü\0😀".encode())):
        mask = mask_of(form, "a.b.c", pa.field("c", pa.utf8()), 0)
        assert mask is not None
        assert mask.apply(column).to_pylist() == [hashlib.sha256(b"s" + hashed).hexdigest(), None]
