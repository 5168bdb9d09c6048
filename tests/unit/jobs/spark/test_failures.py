"""Failures inside Spark are reported with their class and remedy."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes import worker
from airflow_cdc_provider.exceptions import (
    CdcError,
    CommitConflict,
    ConfigurationError,
    CorruptInput,
    OffsetMissing,
    TransientError,
)
from airflow_cdc_provider.jobs.spark.failures import (
    described,
    explain,
    is_of_all_tables,
    of_all_tables,
    of_one_table,
    with_errors,
)
from airflow_cdc_provider.jobs.spec import TableResult

_SPARK = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\n\tat org.apache.spark.Some\n"


def raised_by_worker(error: CdcError) -> str:
    """Return the end of the traceback of a worker that raised an error."""

    def work(batches: object) -> Iterator[pa.RecordBatch]:
        raise error
        yield

    task = worker._Task(work, [], worker._TOKEN)
    with pytest.raises(worker.WorkerError) as raised:
        list(task(iter(())))
    return "".join(traceback.format_exception(raised.value))


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
            "access to",
        ),
        (
            "java.nio.file.FileSystemException: /etc/hostname/x/shop: Not a directory",
            ConfigurationError,
            "correct the lake's warehouse",
        ),
        ('UnsupportedFileSystemException: No FileSystem for scheme "s3"', ConfigurationError, "add the jar"),
        (
            "SQLException: No suitable driver found for jdbc:postgresql://h/x",
            ConfigurationError,
            "add the jar",
        ),
        ("java.lang.ClassNotFoundException: org.x.S3FileIO", ConfigurationError, "add the jar"),
        ("UnsupportedOperationException: Unknown catalog type: hadop", ConfigurationError, "catalog_options"),
        (
            "HttpHostConnectException: Connect to http://catalog:8181 failed: Connection refused",
            TransientError,
            "the lake can't be reached",
        ),
        (
            "IllegalStateException: Cannot call methods on a stopped SparkContext.",
            TransientError,
            "Spark has stopped",
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
    inside = explain(
        RuntimeError(f"{_SPARK}{raised_by_worker(CorruptInput('part 7', found='garbage'))}\nmore")
    )
    assert isinstance(inside, CorruptInput)
    assert str(inside) == "[CDC-CORRUPT-INPUT] part 7: found garbage"


@pytest.mark.parametrize(
    ("text", "of_all"),
    [
        ("Caused by: java.net.ConnectException: Connection refused", True),
        ("Caused by: java.net.UnknownHostException: catalog", True),
        ("Caused by: org.apache.iceberg.exceptions.ServiceFailureException: Server error: 503", True),
        ("Caused by: java.io.IOException: Stale file handle", True),
        ("Caused by: java.lang.OutOfMemoryError: Java heap space", False),
        ("Caused by: java.io.IOException: No space left on device", False),
        ("Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", False),
        ("Caused by: java.nio.file.AccessDeniedException: /lake/shop/orders", False),
        ("KeyError: 'x'", False),
    ],
)
def test_failures_of_all_tables_are_distinguished_from_those_of_one(text: str, *, of_all: bool) -> None:
    """A table may be too large for the memory or the disk that there is, and others not."""
    assert is_of_all_tables(RuntimeError(_SPARK + text)) is of_all
    ours = f"{raised_by_worker(ConfigurationError('a column'))}\n{text}"
    assert not is_of_all_tables(RuntimeError(_SPARK + ours))


def test_the_unknown_keeps_its_own_words() -> None:
    assert explain(ZeroDivisionError("division by zero")) is None


def failed(table: str, error: Exception) -> TableResult:
    return of_one_table(TableResult(table, merged_through=7), error)


def test_a_tables_failure_keeps_its_class_and_what_to_do() -> None:
    error = ConfigurationError("a column _cdc_x", expected="no such name", found="one", remedy="rename it")
    outcome = failed("shop.bad", error)
    assert (outcome.table, outcome.merged_through, outcome.error_code) == ("shop.bad", 7, "CONFIGURATION")
    assert outcome.error == str(error)
    unforeseen = failed("shop.bad", KeyError("x\ny"))
    assert (unforeseen.error_code, unforeseen.error) == ("ERROR", "[CDC-ERROR] KeyError: 'x\\ny'")


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([ConfigurationError("a"), ConfigurationError("b")], ConfigurationError),
        ([ConfigurationError("a"), OffsetMissing("b")], CdcError),
        ([CommitConflict("a"), ConfigurationError("b")], CommitConflict),
        ([TransientError("a"), ConfigurationError("b"), TransientError("c")], TransientError),
        ([TransientError("a"), CommitConflict("b")], CdcError),
        ([KeyError("a"), ConfigurationError("b")], CdcError),
    ],
)
def test_a_job_fails_by_what_its_tables_failed_of(errors: list[Exception], kind: type[CdcError]) -> None:
    tables = [TableResult("shop.good"), *(failed(f"shop.t{n}", error) for n, error in enumerate(errors))]
    error = of_all_tables(tables)
    assert type(error) is kind
    assert f"{len(errors)} of {len(tables)} tables failed" in str(error)
    assert all(f"shop.t{n}: " in str(error) for n in range(len(errors)))
    assert str(error).count("[CDC-") == 1, "one class, so that the text identifies it"


def test_equal_errors_of_tables_are_reported_once_with_their_names(caplog: pytest.LogCaptureFixture) -> None:
    many = [
        failed(f"shop.t{n}", ConfigurationError(f"shop.t{n} has no key", remedy="add one")) for n in range(22)
    ]
    other = failed("shop.t1x", ConfigurationError("shop.t1x has too many columns, shop.t1 hasn't"))
    text = str(of_all_tables([*many, other, TableResult("shop.good")]))
    names = ", ".join(f"shop.t{n}" for n in range(10))
    assert text == (
        f"[CDC-CONFIGURATION] 23 of 24 tables failed: {names} and 12 more: the table has no key. add one; "
        "shop.t1x: shop.t1x has too many columns, shop.t1 hasn't"
    )
    assert all(
        f"shop.t{n}: [CDC-CONFIGURATION] shop.t{n} has no key. add one" in caplog.text for n in range(22)
    )
    assert [record.exc_info is not None for record in caplog.records] == [True, *[False] * 21, True]


def test_a_job_whose_tables_are_merged_has_no_error() -> None:
    assert of_all_tables([TableResult("shop.good")]) is None
    assert of_all_tables([]) is None


_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
  File "/x/read.py", line 7, in read
    raise ValueError("value 7 of column b")
ValueError: value 7 of column b
"""


class ParseException(Exception):
    """As Spark's: its text begins with an empty line."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ParseException("\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'name'.(line 1)\n\n== SQL ==\nx"),
            "ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near 'name'.(line 1)",
        ),
        (
            RuntimeError(
                "An error occurred while calling o65.sql.\n: java.lang.IllegalStateException: x\n\tat a.B\n"
                "Caused by: java.lang.RuntimeException: y\n\tat a.B\nCaused by: a.B: column a.b\n\tat a.C\n"
            ),
            "RuntimeError: java.lang.IllegalStateException: x, caused by a.B: column a.b",
        ),
        (
            RuntimeError(f"{_SPARK}{_WORKER}\n\tat a.B\nCaused by: a.P: {_WORKER}"),
            "ValueError: value 7 of column b",
        ),
        (AssertionError(), "AssertionError"),
        (ConfigurationError("a\nb", found="c\nd"), "[CDC-CONFIGURATION] a b: found c d"),
    ],
)
def test_a_failure_is_described_by_its_root_cause_in_one_line(error: Exception, text: str) -> None:
    assert described(error) == text
    assert failed("shop.t", error).error.endswith(text.removeprefix("[CDC-CONFIGURATION] "))


def test_what_python_raised_first_is_the_cause() -> None:
    try:
        try:
            raise KeyError("b")
        except KeyError as first:
            raise RuntimeError("a") from first
    except RuntimeError as error:
        assert described(error) == "KeyError: 'b'"


def test_errors_of_several_parts_of_a_job_are_joined_by_table() -> None:
    tables = [TableResult("a"), failed("b", ConfigurationError("merge"))]
    texts = {name: failed(name, TransientError("read")).error for name in "abc"}
    found = {t.table: (t.error_code, t.error) for t in with_errors(tables, texts)}
    assert found == {
        "a": ("TRANSIENT", "[CDC-TRANSIENT] read"),
        "b": ("CONFIGURATION", "[CDC-CONFIGURATION] merge; read"),
        "c": ("TRANSIENT", "[CDC-TRANSIENT] read"),
    }
