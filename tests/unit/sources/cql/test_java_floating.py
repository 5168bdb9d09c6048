from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.sources.cql.java_floating import java_floating


# Printed by Java 17.
@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [
        (">d", 0.0, "0.0"),
        (">d", -0.0, "-0.0"),
        (">d", 100.0, "100.0"),
        (">d", 9999999.0, "9999999.0"),
        (">d", 1e7, "1.0E7"),
        (">d", 0.001, "0.001"),
        (">d", 0.00099, "9.9E-4"),
        (">d", 123456.789, "123456.789"),
        (">d", 1.7976931348623157e308, "1.7976931348623157E308"),
        (">d", 2.0**-44, "5.6843418860808015E-14"),
        (">d", 1e-323, "1.0E-323"),
        (">d", 5e-324, "4.9E-324"),
        (">d", 2.0**63, "9.223372036854776E18"),
        (">f", 1.17549435e-38, "1.17549435E-38"),
        (">f", 499867.12, "499867.12"),
        (">f", 4.2303697e25, "4.2303696E25"),
        (">f", 3.4028234663852886e38, "3.4028235E38"),
    ],
)
def test_numbers_are_printed_as_java_17_does(code: str, number: float, expected: str) -> None:
    assert java_floating(struct.pack(code, number)) == expected


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_values_missing_in_json_are_none(number: float) -> None:
    assert java_floating(struct.pack(">d", number)) is None
    assert java_floating(struct.pack(">f", number)) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_texts_read_back_to_the_same_number(number: float) -> None:
    text = java_floating(struct.pack(">d", number))
    assert text is not None
    read = float(text)
    # Java 17's own text of the least numbers is not exact enough either.
    assert read == number or abs(number) < 1e-320
