"""Failures inside Spark, told so that a person can mend them."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.exceptions import CommitConflict, ConfigurationError, CorruptInput, TransientError
from airflow_cdc_provider.jobs.failures import explain

_SPARK = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\n\tat org.apache.spark.Some\n"


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("java.io.IOException: No space left on device", TransientError, "spark.local.dir"),
        ("OSError: [Errno 28] No space left on device: '/x/y'", TransientError, "a disk is full"),
        ("java.lang.OutOfMemoryError: Java heap space", TransientError, "driver_memory"),
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            TransientError,
            "memory",
        ),
        (
            "java.io.FileNotFoundException: /lake/a.avro (Permission denied)",
            ConfigurationError,
            "the right to",
        ),
    ],
)
def test_what_every_installation_meets_gets_one_sentence_and_a_remedy(
    line: str, kind: type[Exception], says: str
) -> None:
    error = explain(RuntimeError(f"{_SPARK}Caused by: {line}\n\tat x.y.Z"))
    assert type(error) is kind
    assert says in str(error)
    assert line in str(error)
    assert "\n" not in str(error)


def test_an_error_of_ours_stays_what_it_is() -> None:
    conflict = CommitConflict("another writer was first")
    assert explain(conflict) is conflict
    inside = explain(RuntimeError(f"{_SPARK}{CorruptInput('segment 7 is broken', found='garbage')}\nmore"))
    assert isinstance(inside, CorruptInput)
    assert str(inside).endswith("segment 7 is broken: found garbage")


def test_the_unknown_keeps_its_own_words() -> None:
    assert explain(ZeroDivisionError("division by zero")) is None
