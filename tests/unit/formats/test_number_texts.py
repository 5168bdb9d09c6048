from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.formats.number_texts import (
    decimal_texts,
    float_texts,
    read_decimals,
    read_floats,
    read_integers,
)
from tests.unit.sources.vitess.spans_of import spans_of

RUBBISH = st.binary(max_size=12)


@given(st.lists(st.none() | st.integers(-(2**66), 2**66), max_size=20), st.sampled_from([32, 64]))
def test_integers_are_exact_or_misfits(numbers: list[int | None], bits: int) -> None:
    data, starts, ends = spans_of([None if n is None else str(n).encode() for n in numbers])
    found, misfits = read_integers(data, starts, ends, bits)
    fits = [n is None or -(2 ** (bits - 1)) <= n < 2 ** (bits - 1) for n in numbers]
    assert found.to_pylist() == [n if fit else None for n, fit in zip(numbers, fits, strict=True)]
    assert list(misfits) == [not fit for fit in fits]


@given(st.lists(RUBBISH, min_size=1, max_size=20))
def test_an_invalid_integer_is_a_misfit(texts: list[bytes]) -> None:
    found, misfits = read_integers(*spans_of(texts), 64)
    for text, value, misfit in zip(texts, found.to_pylist(), misfits, strict=True):
        plain = text.lstrip(b" ")
        is_number = plain.removeprefix(b"-").isdigit() and -(2**63) <= int(plain) < 2**63
        assert misfit == (not is_number)
        assert value == (int(plain) if is_number else None)


@given(
    st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=4), max_size=20),
    st.integers(4, 8),
    st.booleans(),
)
def test_decimals_are_exact_with_all_their_digits(
    numbers: list[Decimal | None], scale: int, short: bool
) -> None:
    texts = [None if n is None else format(n, "f") for n in numbers]
    if short:
        texts = [
            t.replace("0.", ".", 1) if t is not None and t.lstrip("-").startswith("0.") else t for t in texts
        ]
    data, starts, ends = spans_of([None if t is None else t.encode() for t in texts])
    found, misfits = decimal_texts(data, starts, ends, scale)
    assert not misfits.any()
    assert found.to_pylist() == [
        None if n is None else format(abs(n) if n == 0 else n, f".{scale}f") for n in numbers
    ]
    exact, too_wide = read_decimals(data, starts, ends, 38, scale)
    wide = [n is not None and abs(n) >= Decimal(10) ** (38 - scale) for n in numbers]
    assert list(too_wide) == wide
    assert exact.to_pylist() == [
        None if n is None or over else n for n, over in zip(numbers, wide, strict=True)
    ]


@pytest.mark.covers("VIT-FLT-14")
def test_blanks_of_vitess_8_are_no_part_of_a_decimal() -> None:
    spans = spans_of([b"     1234567890123.45", b" 1 234 567 890 123.45", b"- 12.30"])
    assert decimal_texts(*spans, 2)[0].to_pylist() == ["1234567890123.45", "1234567890123.45", "-12.30"]
    assert read_decimals(*spans, 15, 2)[0].to_pylist() == [
        Decimal("1234567890123.45"),
        Decimal("1234567890123.45"),
        Decimal("-12.30"),
    ]


@pytest.mark.parametrize("text", [b"", b" ", b"-", b".", b"1.2.3", b"1e3", b"--1", b"1-", b"0.123", b"+1"])
def test_an_invalid_decimal_of_the_column_is_a_misfit(text: bytes) -> None:
    assert decimal_texts(*spans_of([text]), 2)[1].tolist() == [True]
    found, misfits = read_decimals(*spans_of([text, b"1"]), 10, 2)
    assert misfits.tolist() == [True, False]
    assert found.to_pylist() == [None, Decimal("1.00")]


def test_zeros_behind_the_last_digit_of_a_decimal_say_nothing() -> None:
    spans = spans_of([b"0001.5000", b"-0.00", b"000"])
    assert decimal_texts(*spans, 1)[0].to_pylist() == ["1.5", "0.0", "0.0"]
    assert decimal_texts(*spans_of([b"12.", b"0"]), 0)[0].to_pylist() == ["12", "0"]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_doubles_round_trip(numbers: list[float]) -> None:
    texts = [repr(n).encode() for n in numbers] + [f"{n:.16E}".encode() for n in numbers]
    found, misfits = read_floats(*spans_of([*texts, None]), pa.float64())
    assert not misfits.any()
    assert [None if n is None else repr(n) for n in found.to_pylist()] == [*map(repr, numbers * 2), None]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_floats_round_trip(numbers: list[float]) -> None:
    found, misfits = read_floats(*spans_of([f"{n:.8E}".encode() for n in numbers]), pa.float32())
    assert not misfits.any()
    assert found.to_pylist() == numbers


@given(st.lists(RUBBISH | st.from_regex(rb"\A-?[0-9]*\.?[0-9]*([eE][+-]?[0-9]{0,3})?\Z"), max_size=20))
def test_an_invalid_floating_point_number_is_a_misfit(texts: list[bytes]) -> None:
    found, misfits = read_floats(*spans_of(texts), pa.float64())
    for text, value, misfit in zip(texts, found.to_pylist(), misfits, strict=True):
        try:
            expected = float(text) if text.isascii() and not set(text) - set(b"0123456789.eE+-") else None
        except ValueError:
            expected = None
        if expected is None or text[:1] == b"+" or math.isinf(expected):
            assert misfit
        else:
            assert value == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (1.5, "1.5"),
        (-3.4e38, "-3.4e38"),
        (1e-10, "0.0000000001"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (123456789012345680.0, "1.2345678901234568e17"),
        (1e14, "100000000000000"),
        (1e15, "1e15"),
        (3.141592653589793, "3.141592653589793"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (-1.25e-300, "-1.25e-300"),
    ],
)
def test_doubles_are_formatted_as_in_mysql(number: float, text: str) -> None:
    assert float_texts(pa.array([number, None])).to_pylist() == [text, None]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1, "0.1"), (3.1415927, "3.14159"), (123456789.0, "123457000"), (16777216.0, "16777200")],
)
def test_floats_are_formatted_with_six_digits_as_in_mysql(number: float, text: str) -> None:
    assert float_texts(pa.array([np.float32(number)], pa.float32())).to_pylist() == [text]
