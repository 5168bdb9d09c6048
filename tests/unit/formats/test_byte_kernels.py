from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.byte_kernels import (
    compare,
    copy,
    load_little16,
    load_little32,
    load_little64,
    same,
    store_little16,
    store_little32,
    store_little64,
)
from airflow_cdc_provider.formats.kernels import Bytes

BYTES = st.binary(max_size=100)


def array_of(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


@given(BYTES, st.integers(0, 100), st.integers(0, 100), st.integers(0, 40))
def test_a_range_is_copied_and_nothing_else_changes(data: bytes, start: int, length: int, at: int) -> None:
    part = data[start : start + length]
    out = np.full(150, 7, np.uint8)

    assert copy(array_of(data), start, len(part), out, at) == at + len(part)

    assert out.tobytes() == b"\7" * at + part + b"\7" * (150 - at - len(part))


@given(BYTES, BYTES, st.integers(0, 50))
def test_ranges_compare_as_bytes_compare(left: bytes, right: bytes, common: int) -> None:
    left, right = left[:common] + left, left[:common] + right

    assert compare(array_of(left), 0, len(left), array_of(right), 0, len(right)) == (left > right) - (
        left < right
    )
    shorter = min(len(left), len(right))
    assert same(array_of(left), 0, array_of(right), 0, shorter) == (left[:shorter] == right[:shorter])


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_stored_little_endian(value: int) -> None:
    out = np.zeros(10, np.uint8)
    store_little64(out, 1, value)
    assert out[1:9].tobytes() == value.to_bytes(8, "little", signed=True)
    assert load_little64(out, 1) == value
    store_little32(out, 1, value)
    store_little16(out, 5, value)
    assert load_little32(out, 1) == value & 0xFFFFFFFF
    assert load_little16(out, 5) == value & 0xFFFF
