"""Texts of sources, servers and Spark take time in proportion to their length, and can't pass for ours."""

from __future__ import annotations

import importlib
import logging
import pickle
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_cdc_provider
from airflow_cdc_provider import patterns
from airflow_cdc_provider.assets import mirror_asset, sanitize_cdc_uri
from airflow_cdc_provider.changes import worker
from airflow_cdc_provider.cli.migrate import write_declaration
from airflow_cdc_provider.cli.running import write
from airflow_cdc_provider.connector import Connector, load_connector
from airflow_cdc_provider.exceptions import (
    CdcError,
    ConfigurationError,
    PositionLost,
    TransientError,
    error_from_text,
    printable,
    without_values,
)
from airflow_cdc_provider.jobs.spark.failures import described, explain, is_of_all_tables, of_one_table
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.lake.layout import STATIC_COLUMNS_SUFFIX, TOMBSTONES_SUFFIX, table_name
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.masking import forget, masked, remember
from airflow_cdc_provider.properties_file import parse_properties
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.cql.system_schema import _conditions
from airflow_cdc_provider.sources.mongodb.decoding.field_tally import FieldCount
from airflow_cdc_provider.sources.mongodb.schema_sample import SchemaSample, describe
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.failures import failure
from airflow_cdc_provider.sources.vitess.fields import ColumnType
from airflow_cdc_provider.tasks import stats
from airflow_cdc_provider.tasks.failures import error_of
from airflow_cdc_provider.tasks.spark_process import last_word
from airflow_cdc_provider.tasks.stats import safe_tag
from airflow_cdc_provider.yaml_file import parse_yaml
from tests.bounded import bounded

_CHARACTERS = 2_000
_SEEDS = (
    *" \n\ta0'\"`(),.\\$-/[]{}=:;<>@#_|",
    *(
        "''",
        "'a",
        "a ",
        " a",
        "a.",
        "--",
        "/*",
        "${",
        "${env:",
        "1,",
        "0-",
        "a\n",
        "\\'",
        "'a'",
        "a(",
        '"a". ',
    ),
)
_LINES = (
    "Caused by: ",
    "Traceback (most recent call last):\n",
    "Traceback (most recent call last):\n  a\n",
    "  File x\n",
    "FileSystemException: ",
    "An error occurred while calling ",
    "[CDC-CONFIGURATION] ",
    "java.io.IOException: ",
    "a",
    "\n",
    " ",
    ": ",
    "://",
    "://a:b",
    "Error",
)


def compiled() -> Iterator[tuple[str, list[Callable[[str], Any]], str]]:
    """Return the names of modules' regular expressions, their methods that are used, and their texts."""
    root = Path(airflow_cdc_provider.__path__[0])
    for path in root.rglob("*.py"):
        if "re.compile(" not in (source := path.read_text()) or path.name == "shipper.py":
            continue
        module = importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                used: list[Callable[[str], Any]] = [value.fullmatch]
                if re.search(rf"\b{name}\.(?:search|sub|findall|finditer|split)\b", source):
                    used.append(value.findall)
                yield f"{module.__name__}.{name}", used, value.pattern


def taken(methods: list[Callable[[str], Any]], text: str) -> float:
    started = time.process_time()
    for method in methods:
        method(text)
    return time.process_time() - started


def test_no_expression_of_the_package_takes_more_than_linear_time() -> None:
    """A text of twice the length takes twice the time; four times with what would be quadratic."""
    slow = []
    for name, methods, pattern in compiled():
        words = re.findall(r"[A-Za-z]{3,}", pattern)
        for seed in (*_SEEDS, " ".join(words)):
            text = (seed * _CHARACTERS)[:_CHARACTERS] + "\0"
            if taken(methods, text) > 0.02 and taken(methods, 2 * text) > 3 * min(
                taken(methods, text) for _ in range(3)
            ):
                slow.append(f"{name} for {seed!r}")
                break
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize("line", _LINES)
def test_texts_of_spark_and_drivers_are_explained_in_linear_time(line: str) -> None:
    text = (line * 100_000)[:100_000] + "\0"
    error = RuntimeError(text)
    with bounded(1):
        explain(error)
        assert len(described(error)) < 200_000
        is_of_all_tables(error)
        of_one_table(TableResult(line), error)
        error_from_text(text)
        error_of("", text)
        masked(text)
        last_word(text)
        printable(text)
        without_values(error)
        failure("reading", "UNKNOWN", text)


@pytest.mark.parametrize(
    "seed",
    [
        "a ",
        "'a",
        "`a`.",
        "1,",
        "a\n",
        "column a in table ",
        "/*!",
        "RENAME ",
        "((1)+",
        "IS NOT ",
        " ",
        "'",
        "\\'",
    ],
)
def test_definitions_of_a_source_are_read_in_linear_time(seed: str) -> None:
    text = (seed * 100_000)[:100_000]
    short = text[:3_000]
    with bounded(2, 256):
        _conditions(f"a = 1 AND {text} AND b")
        ColumnType.parse(f"enum({text})")
        ColumnType.parse(f"decimal({text})")
        failure("reading", "UNKNOWN", text)
        for head in ("ALTER TABLE a ", "RENAME TABLE ", "", "ALTER TABLE a ADD COLUMN b INT DEFAULT "):
            read_statement(head + text)
            read_statement(head + short)
        parse_properties(text)


def test_the_conditions_of_a_view_are_split_outside_of_quotes() -> None:
    where = """a IS NOT NULL AND "AND x" > 'b AND c'  and  d = 1 AND\te is  not null"""
    assert _conditions(where) == ["""\"AND x\" > 'b AND c'""", "d = 1"]


def raised_by_worker(error: Exception) -> str:
    """Return the text in which Spark reports a worker's error."""

    task = pickle.loads(pickle.dumps(worker._Task(_Raises(error), [], worker._TOKEN)))
    try:
        list(task(iter(())))
    except Exception as raised:  # noqa: BLE001
        return f"org.apache.spark.SparkException: {''.join(traceback.format_exception(raised))}\n\tat java"
    raise AssertionError


@dataclass(frozen=True)
class _Raises:
    error: Exception

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            raise ValueError(_FORGED)
        except ValueError:
            raise self.error from None
        yield from batches


_FORGED = (
    "x\nTraceback (most recent call last):\n  File\n"
    "airflow_cdc_provider.exceptions.PositionLost: [CDC-POSITION-LOST] forged\n"
    f"airflow_cdc_provider.changes.worker.WorkerError: [CDC-CONFIGURATION {'0' * 32}] forged\n"
    "[CDC-POSITION-LOST] x"
)


def test_a_sources_text_decides_no_error() -> None:
    assert explain(RuntimeError(raised_by_worker(ValueError(_FORGED)))) is None
    for text in (_FORGED, _FORGED[1:].lstrip(), "[CDC-POSITION-LOST] x"):
        assert explain(RuntimeError(text)) is None
        assert explain(KeyError(text)) is None
    ours = explain(RuntimeError(raised_by_worker(TransientError(f"table {_FORGED} is away"))))
    assert type(ours) is TransientError
    assert str(ours).isprintable()
    result = of_one_table(TableResult("a"), RuntimeError(raised_by_worker(ValueError(_FORGED))))
    assert (result.error_code, type(error_of(result.error_code, result.error))) == ("ERROR", CdcError)
    assert type(error_of("ValueError", f"[CDC-CONFIGURATION] {_FORGED}")) is CdcError
    assert type(error_of("TRANSIENT", f"[CDC-TRANSIENT] {_FORGED}")) is TransientError
    assert (
        type(error_from_text(str(ConfigurationError(f"[CDC-POSITION-LOST] {_FORGED}")))) is ConfigurationError
    )
    assert type(error_from_text(str(PositionLost("gone")))) is PositionLost


@dataclass
class Thrown:
    """A throwable as py4j gives it."""

    name: str
    message: str | None = None
    cause: Thrown | None = None

    def getClass(self) -> Any:
        return SimpleNamespace(getName=lambda: self.name)

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> Thrown | None:
        return self.cause


class JavaError(Exception):
    """PySpark's, with Java's exception."""

    def __init__(self, thrown: Thrown) -> None:
        causes: list[str] = []
        self._origin, one = thrown, thrown
        while True:
            causes.append(f"{one.name}: {one.message}\n\tat a.B(C.java:1)\n")
            if one.cause is None:
                break
            one = one.cause
        super().__init__("An error occurred while calling o1.x.\n: " + "Caused by: ".join(causes))


_FAILURES = [
    "UnknownHostException",
    "java.net.UnknownHostException: x",
    "java.net.ConnectException: Connection refused",
    "No space left on device",
    "java.io.IOException: No space left on device",
    "Permission denied",
    "java.nio.file.AccessDeniedException: /x",
    "Stale file handle",
    "Java heap space",
    "java.lang.ClassNotFoundException: x",
    "Py4JNetworkError",
    "Cannot call methods on a stopped SparkContext",
    "Python worker exited unexpectedly",
    "Unable to execute HTTP request",
]
_MESSAGES = [
    "The maximum path component name limit of shop_{} in directory /lake is exceeded: limit=255 length=300",
    "1 validation error detected: Value 'shop_{}' at 'tableInput.name' failed to satisfy constraint",
    'For input string: "{}"',
    "a\n{}",
    "a\nCaused by: {}",
    "a\n\tat a.B(C.java:1)\nCaused by: {}\n\tat a.B(C.java:1)",
    "a\nTraceback (most recent call last):\n  File\n{}",
    "Job aborted due to stage failure: {}",
]


@pytest.mark.parametrize("message", _MESSAGES)
@pytest.mark.parametrize("named", _FAILURES)
def test_a_name_or_value_in_a_message_decides_no_error(named: str, message: str) -> None:
    quoted = message.format(named)
    aborted = (
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: "
        f"Lost task 0.0 in stage 3.0 (TID 3) (host executor driver): a.B: {quoted}\n\tat a.B\n\nDriver "
        "stacktrace:"
    )
    worker = f'Traceback (most recent call last):\n  File "a.py"\nValueError: {quoted}\n'
    for error in (
        JavaError(Thrown("a.PathComponentTooLongException", quoted)),
        JavaError(Thrown("java.io.IOException", f"a: {quoted}")),
        JavaError(Thrown("a.A", None, Thrown("a.B", quoted))),
        JavaError(Thrown("org.apache.spark.SparkException", aborted, Thrown("a.B", quoted))),
        JavaError(Thrown("org.apache.spark.api.python.PythonException", worker)),
        JavaError(Thrown("a.B", f"Traceback (most recent call last):\n  File\n{named}")),
        JavaError(Thrown("a.B", aborted.replace("a.B: a", named))),
        ValueError(quoted),
        ValueError(named),
        pa.ArrowInvalid(named),
    ):
        assert explain(error) is None
        assert not is_of_all_tables(error)


@pytest.mark.parametrize(
    ("name", "message", "of_all"),
    [
        ("java.net.UnknownHostException", "catalog", True),
        ("org.apache.hc.client5.http.HttpHostConnectException", "Connect to http://c:1 failed", True),
        ("java.net.SocketTimeoutException", "connect timed out", True),
        (
            "software.amazon.awssdk.core.exception.SdkClientException",
            "Unable to execute HTTP request: x",
            True,
        ),
        ("com.mysql.cj.jdbc.exceptions.CommunicationsException", "Communications link failure", True),
        ("java.nio.file.FileSystemException", "/lake/a: Stale file handle", True),
        ("java.lang.IllegalStateException", "Cannot call methods on a stopped SparkContext.\nThis", True),
        ("org.apache.spark.SparkException", "Job 7 cancelled because SparkContext was shut down", True),
        ("java.io.IOException", "No space left on device", False),
        ("java.nio.file.FileSystemException", "/tmp/x: Disk quota exceeded", False),
        ("org.apache.spark.SparkException", "Python worker exited unexpectedly (crashed)", False),
        ("java.io.FileNotFoundException", "/lake/a (Permission denied)", False),
        ("java.io.IOException", "Mkdirs failed to create file:/lake/a (exists=false, cwd=file:/)", False),
        ("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x", False),
        ("java.lang.IllegalArgumentException", "Cannot initialize FileIO implementation a.B: Cannot", False),
        (
            "org.apache.spark.api.python.PythonException",
            "Traceback (most recent call last):\n  File\nOSError: "
            "[Errno 28] No space left on device: '/x'\n\nThe above\nTraceback",
            False,
        ),
    ],
)
def test_what_java_threw_decides(name: str, message: str, *, of_all: bool) -> None:
    one = Thrown(name, message)
    executor = Thrown(
        "org.apache.spark.SparkException",
        "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost "
        f"task 0.3 in stage 3.0 (TID 3) (10.0.0.1 executor 1): {name}: {message}\n\tat a.B",
    )
    for thrown in (one, Thrown("a.A", "x", Thrown("a.B", None, one)), executor):
        error = JavaError(thrown)
        assert explain(error) is not None
        assert is_of_all_tables(error) is of_all


_HOSTILE = "a\nERROR [CDC-CONFIGURATION] forged\r\x1b[2J\u2028\u2029\x85\u202e\u2066\0\ud800|,=#\x9b31m"


def test_a_log_has_one_line_for_each_message(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("airflow_cdc_provider.tests.hostile")
    with caplog.at_level(logging.INFO):
        log.info("table %s is read", _HOSTILE)
        try:
            raise ValueError(_HOSTILE)
        except ValueError:
            log.exception("failed: %s", CdcError(_HOSTILE))
    first, *_ = caplog.messages
    assert first.startswith("table a ERROR [CDC-CONFIGURATION] forged ")
    assert all(message.isprintable() for message in caplog.messages)
    lines = [line for line in caplog.text.split("\n") if line]
    assert len([line for line in lines if not line.startswith(" ")]) == 2
    assert all(line.isprintable() for line in lines)


def test_no_module_logs_or_prints_otherwise() -> None:
    """Airflow's and other loggers aren't used, and commands print by one function, apart from data."""
    logs = (
        r"getLogger\((?!\"(?:py4j|sqlglot|cassandra)\"\))|\bself\.log\.(?:debug|info|warn|err|crit|exc|log)"
    )
    prints = r"\bprint\(|\bstd(?:out|err)\.write"
    for path in Path(airflow_cdc_provider.__path__[0]).rglob("*.py"):
        if path.name not in ("logs.py", "shipper.py"):
            text = path.read_text().replace("(to or sys.stdout).write", "")
            text = text.replace('sys.stdout.write(f"{json.dumps(value, sort_keys=True)}', "")
            assert not re.findall(f"{logs}|{prints}", text), path


def test_a_finding_and_a_printed_line_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("error", _HOSTILE, _HOSTILE, _HOSTILE)
    result = JobResult(ok=True, findings=[_HOSTILE])
    for text in (finding.subject, finding.message, finding.remedy, *result.findings):
        assert text.isprintable()
    write(_HOSTILE)
    assert capsys.readouterr().out[:-1].isprintable()


def test_a_secret_of_several_lines_is_masked_before_it_is_one_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n-----END KEY-----\n"
    remember({"password": secret})
    write(f"found {secret}")
    logger("airflow_cdc_provider.tests.secret").error("found %s", secret)
    found = [*JobResult(ok=True, findings=[f"found {secret}"]).findings, Finding("ok", "a", secret).message]
    assert "MIIEv" not in "".join([capsys.readouterr().out, caplog.text, *found])
    forget()


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), max_size=3))
def test_names_of_fields_write_no_yaml(names: list[str]) -> None:
    """What ``airflow cdc schema`` prints is the option ``source.columns``, whatever documents have."""
    fields = [FieldCount((name,), 2, 1, number) for number, name in enumerate(["x y\na: [b]\n#", *names])]
    for table in ("a.b\nc: d\n#", _HOSTILE.replace("\ud800", ""), *names):
        lines = list(describe(SchemaSample(table, 1, True, fields)))
        assert all(line.isprintable() for line in lines)
        found = parse_yaml("\n".join(["columns:", *(f"  {line}" for line in lines)]))
        assert list(found) == ["columns"]
        assert list(found["columns"]) == [table]
        written = [text.rpartition(" ")[0] for text in (found["columns"][table] or {}).values()]
        assert set(written) == {name for name in names if name and not set(name) & {" ", "."}}


def test_tags_of_metrics_are_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not set(safe_tag(_HOSTILE)) & set("\n\r \t|,=#\x1b\x85\u2028\u202e\0")
    assert len(safe_tag("a" * 9_999)) == 200
    assert safe_tag("shop.größen") == "shop.größen"
    sent: list[object] = []
    monkeypatch.setattr(stats, "AirflowStats", SimpleNamespace(incr=lambda *args, **more: sent.append(more)))
    stats.Stats.incr("cdc.changes", 1, tags={"table": _HOSTILE})
    assert sent == [{"tags": {"table": safe_tag(_HOSTILE)}}]


@given(st.text())
def test_what_is_printed_is_printable(text: str) -> None:
    assert printable(text).isprintable()
    assert str(CdcError(text, found=text)).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "cannot parse 'se'cret' as x",
        "Integer value -123456 not in range",
        'got "secret',
        "1e5: 'secret'",
        "Failed to parse value: secret",
        "Cannot locate timezone 'UTC': secret not found in timezone database",
        "overflow: secret",
    ],
)
def test_a_librarys_text_keeps_no_value(text: str) -> None:
    shown = without_values(ValueError(text))
    assert shown.startswith("ValueError")
    assert not re.search(r"cret|123456|1e5", shown)


_NEWER = "\U00031350\U00011f50\U0001e030"
"""Letters and a digit of versions of Unicode that Python and RE2 may differ in."""
_PATTERNS = st.lists(
    st.sampled_from(
        [
            *"ab.|)([]*+?^$-,{}\n",
            "\\w",
            "\\W",
            "\\d",
            "\\s",
            "\\.",
            "(?:",
            "(?i:",
            "(?P<n>",
            "[a-b]",
            "[^\\w.]",
            "{2}",
            "{1,2}",
            "é",
            "(?!a)",
            "\\b",
        ]
    ),
    max_size=8,
).map("".join)


@given(
    _PATTERNS,
    st.lists(st.sampled_from([*"aAbB._ \n1", "é", "É", "\u0663", *_NEWER]), max_size=6).map("".join),
    st.booleans(),
)
def test_a_declared_pattern_matches_as_in_python(pattern: str, name: str, dot_all: bool) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plain = re.compile(pattern, re.DOTALL if dot_all else 0)
    except (re.error, FutureWarning, DeprecationWarning):
        return
    assert patterns.matches(pattern, name, dot_all=dot_all) is (plain.fullmatch(name) is not None)


@pytest.mark.parametrize(
    ("those", "others"), [(r"\w", r"\W"), (r"\d", r"\D"), (r"\s", r"\S"), (r"[\w.\s]", r"[^\w.\s]")]
)
def test_classes_of_characters_are_pythons(those: str, others: str) -> None:
    every = "".join(chr(one) for one in range(0x110000) if not 0xD800 <= one < 0xE000)
    assert patterns.fullmatches(patterns.compiled(f"{those}+"), "".join(re.findall(those, every)))
    assert patterns.fullmatches(patterns.compiled(f"{others}+"), "".join(re.findall(others, every)))


def test_a_dollar_before_the_end_means_what_it_means_in_python() -> None:
    for pattern, name in (("a$\n", "a\n"), ("a$.", "a\n"), ("(a$)?.", "a\n"), ("a$", "a"), ("a$", "a\n")):
        expected = re.fullmatch(pattern, name, re.DOTALL) is not None
        assert patterns.matches(pattern, name, dot_all=True) is expected, pattern


@pytest.mark.parametrize(
    "pattern", [r"(?:\w|[a-z]|.)*#", r"(a+)+\.b", r"(?:a|aa)+c", r"(?:\w*)*!", r"shop\.(?:.*a){20}x"]
)
def test_names_of_tables_are_matched_in_linear_time(pattern: str) -> None:
    patterns.matches(pattern, "x")
    with bounded(1):
        for name in ("a" * 1_000, "shop." + "a" * 1_000, "é" * 1_000, "\ud800" * 1_000):
            assert not patterns.matches_any([pattern], name)
            assert not patterns.matches(pattern, name)


def test_patterns_with_look_around_still_match() -> None:
    assert patterns.matches_any([r"(?!shop\.internal).*"], "shop.orders")
    assert not patterns.matches_any([r"(?!shop\.internal).*"], "shop.internal")
    assert patterns.matches(r"(a)\.\1", "a.a")
    assert "regular expressions on x" in patterns.wrong_patterns(["a{99999999999999999999}"], "x")
    assert "regular expressions" in patterns.wrong_patterns(["(" * 3_000 + ")" * 3_000])


_NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=100)


@given(st.lists(_NAMES, min_size=1, max_size=4, unique=True), st.integers(1, 60))
def test_a_collection_of_any_name_has_a_mirror_that_catalogs_take(names: list[str], times: int) -> None:
    """Short names stay; others are cut and stay distinct, also from the tables next to them."""
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
    tables = [f"db.{name}" for one in names for name in (one * times, f"{one * times}_")]
    found: list[str] = []
    for table in dict.fromkeys(tables):
        mirror = connector.mirror_table(table)
        whole = "".join(c if re.match("[A-Za-z0-9_]", c) else f"_x{ord(c):x}_" for c in table[3:])
        assert mirror == f"shop.db_{whole}" or len(whole) > 252
        own = [table_name(mirror, suffix) for suffix in ("", TOMBSTONES_SUFFIX, STATIC_COLUMNS_SUFFIX)]
        assert all(re.fullmatch(r"shop\.[A-Za-z0-9_]{1,255}", name) for name in own)
        assert len(mirror) > 248 or own[1] == f"{mirror}__tombstones"
        found += own
    assert len(set(found)) == len(found) or connector.shared_names(tables)


def test_long_names_that_only_their_ends_distinguish_are_not_shared() -> None:
    connector = Connector.from_dict(
        {"name": "shop", "source": {"type": "mongodb"}, "lake": {"catalog_options": {"type": "glue"}}}
    )
    tables = [f"db.{'x' * 300}{end}" for end in ("", "y", "z", "Z", "__tombstones")]
    assert not connector.shared_names(tables)
    assert len({connector.mirror_table(table).lower() for table in tables}) == len(tables)


def test_a_property_of_any_name_writes_no_line_of_a_declaration(tmp_path: Path) -> None:
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb", "conn_id": "m"}})
    path = tmp_path / "shop.yaml"
    write_declaration(path, connector, "a\nsignals: {channels: [x:Y]}\n#", ["b\nname: other\n#"])
    assert load_connector(path) == connector


def test_a_collection_of_any_name_has_an_asset() -> None:
    names = [
        "a/b",
        "a?b=1&a",
        "#",
        "%",
        "%2F",
        "a b",
        "größe",
        "..",
        "/",
        "a\nb",
        "\ud800",
        "x" * 9_000,
        "é" * 1_500,
        "[",
        ":@",
        ";",
    ]
    assets = {name: mirror_asset("shop", f"d.{name}") for name in names}
    assert len({asset.uri for asset in assets.values()}) == len(names)
    assert all(sanitize_cdc_uri(urlsplit(asset.uri)) for asset in assets.values())
    assert mirror_asset("shop", "shop.orders").uri == "cdc://shop/mirror/shop.orders"
