from __future__ import annotations

import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.shortest_decimal import multiply_high, shortest_decimal


def decimal_of(value: float, *, two_digits: bool) -> tuple[int, int]:
    digits, exponent = shortest_decimal(
        np.frombuffer(struct.pack("<d", value), np.uint64)[0], False, two_digits
    )
    return int(digits), int(exponent)


def as_repr(value: float) -> tuple[int, int]:
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    return int("".join(map(str, digits))), exponent if value else 0


@given(st.floats(min_value=0, allow_infinity=False))
@example(5e-324)
@example(2.2250738585072014e-308)
@example(9007199254740993.0)
@example(2e23)
@example(1.7976931348623157e308)
def test_the_digits_are_those_of_repr(value: float) -> None:
    assert decimal_of(value, two_digits=False) == as_repr(value)


@pytest.mark.parametrize(
    ("value", "decimal"), [(5e-324, (49, -325)), (1e-323, (99, -325)), (2e23, (2, 23)), (0.1, (1, -1))]
)
def test_two_digits_are_the_closest_ones(value: float, decimal: tuple[int, int]) -> None:
    assert decimal_of(value, two_digits=True) == decimal


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_upper_half_of_a_product(a: int, b: int) -> None:
    assert int(multiply_high(np.uint64(a), np.uint64(b))) == a * b >> 64
