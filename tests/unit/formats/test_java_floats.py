from __future__ import annotations

import math
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.java_floats import DOUBLE_CHARACTERS, write_number


def double_text(value: float) -> str:
    return _text(struct.unpack("<Q", struct.pack("<d", value))[0], is_float=False)


def float_text(value: float) -> str:
    return _text(struct.unpack("<I", struct.pack("<f", value))[0], is_float=True)


def _text(bits: int, *, is_float: bool) -> str:
    out = np.zeros(DOUBLE_CHARACTERS, np.uint8)
    return out[: write_number(np.uint64(bits), is_float, out, 0)].tobytes().decode()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (123.0, "123.0"),
        (12.34, "12.34"),
        (0.001, "0.001"),
        (9.999e-4, "9.999E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1.5e300, "1.5E300"),
        (2e23, "2.0E23"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
        (-1.7976931348623157e308, "-1.7976931348623157E308"),
        (5e-324, "4.9E-324"),
        (2.0**-44, "5.684341886080802E-14"),
    ],
)
def test_doubles_are_written_as_java_19_writes_them(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.5, "1.5"), (0.1, "0.1"), (3.4028235e38, "3.4028235E38"), (1.4e-45, "1.4E-45"), (1e10, "1.0E10")],
)
def test_floats_are_written_as_java_19_writes_them(value: float, text: str) -> None:
    assert float_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_reads_back_and_has_no_more_digits_than_the_shortest(value: float) -> None:
    text = double_text(value)
    assert float(text) == value
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    shortest = len(Decimal(repr(value)).normalize().as_tuple().digits)
    assert len(Decimal(text).normalize().as_tuple().digits) <= max(2, shortest)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_reads_back(value: float) -> None:
    assert np.float32(float_text(value)) == np.float32(value)
