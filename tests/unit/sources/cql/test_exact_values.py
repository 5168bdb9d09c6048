from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.cql.exact_values import decimals, durations, integers, low_64_bits


def shortest(number: int) -> bytes:
    """Write a number as Java's BigInteger.toByteArray does."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def longer(number: int, more: int) -> bytes:
    return (b"\xff" if number < 0 else b"\0") * more + shortest(number)


@given(st.lists(st.none() | st.tuples(st.integers(-(1 << 200), 1 << 200), st.integers(0, 3))))
def test_numbers_keep_their_value_in_the_fewest_bytes(given: list[tuple[int, int] | None]) -> None:
    stored = pa.array([None if n is None else longer(*n) for n in given], pa.binary())
    assert integers(stored).to_pylist() == [None if n is None else shortest(n[0]) for n in given]


@given(st.lists(st.none() | st.tuples(st.integers(-(1 << 20_000), 1 << 20_000), st.integers(0, 3))))
def test_numbers_of_any_length_wrap_to_64_bits(given: list[tuple[int, int] | None]) -> None:
    stored = pa.array([None if n is None else longer(*n) for n in given], pa.binary())
    wrapped = [None if n is None else (n[0] + (1 << 63)) % (1 << 64) - (1 << 63) for n in given]
    assert low_64_bits(stored).to_pylist() == wrapped


@given(st.lists(st.tuples(st.integers(-(1 << 80), 1 << 80), st.integers(-(1 << 31), (1 << 31) - 1))))
def test_decimals_are_split_exactly(given: list[tuple[int, int]]) -> None:
    stored = [scale.to_bytes(4, "big", signed=True) + shortest(number) for number, scale in given]
    scales, numbers = decimals(pa.array(stored, pa.binary()))
    decoded = zip(scales.to_pylist(), numbers.to_pylist(), strict=True)
    assert [(int.from_bytes(n, "big", signed=True), s) for s, n in decoded] == given


def test_a_decimal_is_its_number_by_ten_to_the_minus_scale() -> None:
    scales, numbers = decimals(pa.array([b"\0\0\0\x02\x04\xd2", None, b""], pa.binary()))
    assert Decimal(int.from_bytes(numbers[0].as_py(), "big")).scaleb(-scales[0].as_py()) == Decimal("12.34")
    assert scales.to_pylist()[1:] == numbers.to_pylist()[1:] == [None, None]


def test_durations_are_split() -> None:
    # 1y2mo, 3d and -4ns as zig-zag vints.
    stored = pa.array([bytes([28, 6, 0]), bytes([0, 0, 7]), None, b""], pa.binary())
    assert [column.to_pylist() for column in durations(stored)] == [
        [14, 0, None, None],
        [3, 0, None, None],
        [0, -4, None, None],
    ]


def test_malformed_values_are_rejected() -> None:
    for stored in (b"\0\0\0", b"\0\0\0\x01"):
        with pytest.raises(CorruptInput, match="not a decimal"):
            decimals(pa.array([stored]))
    for stored in (b"\x02\x02", b"\x02\x02\x02\x02", b"\x02\xff"):
        with pytest.raises(CorruptInput, match="not a duration"):
            durations(pa.array([stored]))
