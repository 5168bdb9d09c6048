from __future__ import annotations

import pickle

import pytest

from airflow_cdc_provider.exceptions import (
    CdcError,
    ConfigurationError,
    PositionLost,
    TransientError,
    error_from_text,
)


def test_message_says_what_was_expected_what_was_found_and_the_remedy() -> None:
    error = ConfigurationError(
        "invalid value for option x", expected="a number", found="'a'", remedy="Set x to 1"
    )

    assert (
        str(error)
        == "[CDC-CONFIGURATION] invalid value for option x: expected a number, found 'a'. Set x to 1"
    )
    assert (error.message, error.expected, error.found) == ("invalid value for option x", "a number", "'a'")


@pytest.mark.parametrize("cls", [ConfigurationError, PositionLost, TransientError])
def test_class_survives_being_turned_into_text(cls: type[CdcError]) -> None:
    found = error_from_text(str(cls("gone", found="nothing")))

    assert type(found) is cls
    assert found is not None
    assert "gone: found nothing" in str(found)


def test_text_without_one_of_our_errors_gives_none() -> None:
    assert error_from_text("java.lang.NullPointerException") is None


def test_error_crosses_processes_unchanged() -> None:
    error = PositionLost("gone", expected="a", found="b", remedy="c")

    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy), copy.remedy) == (PositionLost, str(error), "c")
