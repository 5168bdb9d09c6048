"""Numbers of options: within their limits, and numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import Rendered, option, parse


@dataclass(frozen=True)
class Waits:
    """Options of this test."""

    pause_seconds: float = option("A pause", 1.0, minimum=0.0)
    keep_seconds: int = option("A time", 1)
    rate: float = option("A rate", 1.0)
    name: str = option("A name", "")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("pause_seconds", float("inf"), "at most 3162240000"),
        ("pause_seconds", float("nan"), "at least 0.0 and at most 3162240000"),
        ("pause_seconds", -0.1, "at least 0.0"),
        ("keep_seconds", 10**12, "at most 3162240000"),
        ("keep_seconds", 2**63, "at most 3162240000"),
    ],
)
def test_a_time_that_arithmetic_with_64_bits_can_not_hold_is_refused(
    name: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"option {name}: expected {expected}"):
        parse(Waits, {name: value})


def test_a_hundred_years_are_a_time_and_other_numbers_have_no_such_limit() -> None:
    values = {"pause_seconds": 3_162_240_000, "rate": 1e300}
    assert parse(Waits, values) == Waits(pause_seconds=3_162_240_000.0, rate=1e300)


def test_only_a_number_that_a_template_gave_is_a_text() -> None:
    assert parse(Waits, {"name": Rendered("2024", 2024)}).name == "2024"
    with pytest.raises(ConfigurationError, match="expected a string, found 2024"):
        parse(Waits, {"name": 2024})
