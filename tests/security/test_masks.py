"""A mask changes what is shown, and nothing else: no decision, name, key, number, state or offset."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import AuthenticationFailed, InvalidRequest, ReadTimeout, Unauthorized, Unavailable
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo import errors as mongodb

from airflow_cdc_provider import masking
from airflow_cdc_provider.changes.worker import _TOKEN, WorkerError, _Task
from airflow_cdc_provider.connections.secrets_masker import keep_secret
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, SchemaRejected, error_from_text
from airflow_cdc_provider.jobs.spark.failures import as_error, described, is_of_all_tables
from airflow_cdc_provider.jobs.spark.redaction import with_redaction
from airflow_cdc_provider.jobs.spec import (
    IncrementalResult,
    JobResult,
    OriginResult,
    PublishResult,
    SnapshotResult,
    TableResult,
    TableStatus,
)
from airflow_cdc_provider.jobs.stream import StreamState
from airflow_cdc_provider.kafka import errors as kafka
from airflow_cdc_provider.kafka.registry import _status_error
from airflow_cdc_provider.notifications.channels import FileChannel
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.notifications.notifier import Notifier
from airflow_cdc_provider.pulsar import errors as pulsar
from airflow_cdc_provider.secrets import resolve_secrets
from airflow_cdc_provider.sources.cql.connection import translated
from airflow_cdc_provider.sources.mongodb.driver.server_errors import translated as of_mongodb
from airflow_cdc_provider.sources.vitess.failures import StaleTabletSchema, failure
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.tasks.rendered_arguments import mask_arguments
from tests.bounded import bounded

OF_VTGATE = [
    "target: shop.0.primary: cannot determine table columns for shop_items: event has [int], schema has [a]",
    "unknown database column 7 in table shop_items -- with available 3 columns; failed to build ENUM and SET",
    "found for ENUM column kind in table shop_items, bytes 1",
    "Cannot replicate because the source purged required binary logs, GTIDSet 1-5",
    "node not found in the commerce keyspace",
    "could not decode position from MySQL56/x",
    "table shop_items not present in the database",
    "failed to build table replication plan for shop_items",
    "node doesn't exist: keyspaces/commerce",
    "CERTIFICATE_VERIFY_FAILED: self signed",
    "stream needs a position or a table to copy",
    "not all journaling participants are in the stream",
    "grpc: received message larger than max (5 vs. 4)",
    "connection refused",
]
OF_SPARK = [
    "java.io.IOException: No space left on device",
    "java.lang.OutOfMemoryError: Java heap space",
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
    "org.apache.hadoop.security.AccessControlException: Permission denied",
    "java.lang.ClassNotFoundException: org.postgresql.Driver",
    "java.net.ConnectException: Connection refused",
    "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext",
    "org.apache.iceberg.exceptions.RESTException: x\n\tat x.y\nCaused by: java.net.UnknownHostException: y",
]


def of_registry(status: int) -> Exception:
    error = SimpleNamespace(http_status_code=status, error_message="Schema being registered is incompatible")
    schema: Any = SimpleNamespace(side="value", topic="shop_items")
    return _status_error(error, "registry http://r", "shop_items-value", schema)


def of_mongodb_error(error: Exception) -> CdcError:
    with pytest.raises(CdcError) as raised, of_mongodb("reading shop_items"):
        raise error
    return raised.value


OTHERS: dict[str, Callable[[], Any]] = {
    "kafka's topic": lambda: kafka.rejection_of(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "shop_items"),
    **{
        f"kafka {code}": partial(kafka.error_of, KafkaError(code), "sending records")
        for code in (KafkaError._AUTHENTICATION, KafkaError._TRANSPORT, KafkaError._FENCED, 29)
    },
    **{f"registry {status}": partial(of_registry, status) for status in (401, 404, 409, 422, 500)},
    **{f"pulsar {code}": partial(pulsar.error_of, code, "", "sending") for code in (3, 4, 6, 25)},
    **{
        f"cql {kind}": partial(translated, kind("read of shop_items failed"), "reading")
        for kind in (AuthenticationFailed, InvalidRequest, Unauthorized, ReadTimeout, Unavailable, OSError)
    },
    **{
        f"mongodb {error}": partial(of_mongodb_error, error)
        for error in (
            mongodb.OperationFailure("resume point may no longer be in the oplog", 286),
            mongodb.OperationFailure("not authorized on shop_items", 13),
            mongodb.OperationFailure("Authentication failed", 18),
            mongodb.ServerSelectionTimeoutError("db1: CERTIFICATE_VERIFY_FAILED certificate verify failed"),
            mongodb.NetworkTimeout("timed out"),
        )
    },
}


def words_of(*texts: str) -> Iterator[str]:
    """Return the words of texts, and parts of them: what a secret might be."""
    for word in sorted({word for text in texts for word in re.findall(r"[\w'.-]+", text)}):
        yield from {word, word[:5], word[2:], *word.split("_")}
    yield from texts


def facts(error: Any) -> tuple[Any, ...]:
    return type(error), getattr(error, "table", None), getattr(error, "topic", None)


@pytest.mark.parametrize("text", OF_VTGATE)
def test_no_secret_changes_what_a_text_of_vtgate_means(text: str) -> None:
    meant = facts(failure("streaming changes", "UNKNOWN", text))
    for secret in words_of(text):
        masking.forget()
        masking.remember(secret, secret=True)
        error = failure("streaming changes", "UNKNOWN", text)
        assert facts(error) == meant, secret
        assert facts(error_from_text(str(error)))[0] is not None


def test_a_table_that_lost_changes_is_named_whatever_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VitessSource, "tables", lambda _: ["commerce.shop_items", "commerce.orders"])
    for secret in ("shop", "shop_items", "items", "commerce.shop_items", "table"):
        masking.remember(secret, secret=True)
        error = failure("streaming", "UNKNOWN", OF_VTGATE[0])
        assert isinstance(error, StaleTabletSchema)
        lost = VitessSource._loss_of(VitessSource.__new__(VitessSource), error)
        assert lost is not None
        assert lost.tables == ["commerce.shop_items"]


@pytest.mark.parametrize("text", [*OF_SPARK, "shop_items: something else"])
def test_no_secret_changes_what_a_text_of_spark_means(text: str) -> None:
    meant = facts(as_error(RuntimeError(text))), is_of_all_tables(RuntimeError(text))
    assert (meant[0][0] is not CdcError) is text.startswith(("java", "org"))
    for secret in words_of(text):
        masking.forget()
        masking.remember(secret, secret=True)
        assert (facts(as_error(RuntimeError(text))), is_of_all_tables(RuntimeError(text))) == meant, secret
        assert len(secret) < 8 or secret in masking._COMMON or secret not in described(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        PermissionError(13, "Permission denied", "/lake/shop_items"),
        ConnectionRefusedError(111, "Connection refused"),
        ValueError("shop_items: something else"),
    ],
    ids=repr,
)
def test_no_secret_changes_what_an_error_of_a_worker_means(error: Exception) -> None:
    def fails(batches: Any) -> Iterator[Any]:
        raise error
        yield batches

    meant = facts(as_error(error))
    for secret in words_of(str(error)):
        masking.forget()
        masking.remember(secret, secret=True)
        with pytest.raises((type(error), RuntimeError, WorkerError)) as raised:
            list(_Task(fails, [], _TOKEN, masking.known())(iter(())))
        assert facts(as_error(raised.value)) == meant, secret


@pytest.mark.parametrize("make", OTHERS.values(), ids=map(str, OTHERS))
def test_no_secret_changes_an_error_of_a_client(make: Callable[[], Any]) -> None:
    meant, text = facts(make()), str(make())
    for secret in words_of(text):
        masking.forget()
        masking.remember(secret, secret=True)
        error = make()
        assert facts(error) == meant, secret
        assert isinstance(error_from_text(str(error)), SchemaRejected) == isinstance(error, SchemaRejected)


NAMED = JobResult(
    ok=True,
    offset={"error": {"v": 1, "file": "shop"}, "findings": ["shop"]},
    origins=(OriginResult("shop", file="shop.log"),),
    status=(TableStatus("shop.orders", "done", offset={"errors": {"shop": "shop"}}),),
    signals=({"signal": "shop", "outcome": "done"}, {"copy": "shop.orders", "kind": "shop", "next": "shop"}),
    selected=("shop.orders",),
    tables=(TableResult("shop.orders", error_code="TRANSIENT"),),
    snapshot=SnapshotResult(rows_by_table={"shop.orders": 1}),
    incremental=IncrementalResult("shop", "running", table="shop.orders", chunk_from="shop", table_to="done"),
    table_snapshots={"shop.orders": {"done": True, "error": "done"}},
    published=PublishResult(1, errors={"shop.orders": ""}),
)


def test_results_states_and_notifications_keep_names_keys_and_states(tmp_path: Path) -> None:
    state = StreamState(1, "shop", "shop", 1.0, 1.0, offset={"shop": "done"}, metrics={"error": "shop"})
    data = {"connector_name": "shop", "data_collections": "shop.orders", "total_rows_scanned": "51234"}
    masking.remember(["shop", "orders", "done", "running", "1234", "TRANSIENT", "file"], secret=True)

    NAMED.write(str(tmp_path / "result"))
    state.write(tmp_path / "state")
    Notifier([FileChannel(tmp_path / "sent")]).send(Notification("shop", "shop", "shop", data))

    assert json.loads((tmp_path / "result").read_text()) == json.loads(json.dumps(asdict(NAMED)))
    assert JobResult.read(str(tmp_path / "result")).status == NAMED.status
    assert json.loads((tmp_path / "state").read_text()) == json.loads(json.dumps(asdict(state)))
    assert json.loads((tmp_path / "sent").read_text())["additional_data"] == data


def test_a_secret_that_is_a_name_is_masked_where_a_secret_is_expected() -> None:
    secrets = ("shop", "orders", "lake", "commerce", "required", "mongodb")
    masking.remember(list(secrets), secret=True)
    source = {"type": "vitess", "keyspace": "commerce"}
    Connector.from_dict({"name": "shop", "source": source, "tables": [r"commerce\.orders"]})
    for secret in secrets:
        shown = f"table {secret}.items of {secret}_x is {secret}: expected {secret}"
        assert masking.masked(shown) == shown
        for written in (
            f"password={secret} is wrong",
            f"{{'password': '{secret}', 'host': 'a'}}",
            f'{{"token": "{secret}"}}',
            f"mongodb://me:{secret}@host/x",
            f"SASL_PASSWORD: {secret}",
            json.dumps({"body": json.dumps({"password": secret})}),
            f"{{'password': b'{secret}'}}",
            f"<password>{secret}</password>",
            f"PASSWORD '{secret}'",
            f"user_info=u:{secret}",
        ):
            hidden = masking.masked(written)
            assert hidden.count(secret) == written.removeprefix("mongodb").count(secret) - 1 + (
                secret == "mongodb" and written.startswith("mongodb")
            ), hidden


def test_a_value_that_is_quoted_in_part_and_a_name_that_is_escaped_are_masked() -> None:
    masking.remember(["admin", "correct-horse-9"], secret=True)
    assert masking.masked("password=%61dmin") == "password=***"
    assert masking.masked("Failed to parse 'correct-hors' as int") == "Failed to parse '***' as int"


@pytest.mark.parametrize(
    "extra",
    [
        {"authMechanismProperties": "SERVICE_NAME:mongodbx,ENVIRONMENT:azure,TOKEN_RESOURCE:api://app1-x"},
        {
            "authMechanismProperties": {
                "SERVICE_NAME": "mongo-db1",
                "ENVIRONMENT": "azure",
                "SERVICE_REALM": "R",
            }
        },
        {"uri_options": "authMechanismProperties=SERVICE_NAME:mongo-db1&maxPoolSize=20"},
        {"headers": {"X-Team": "orders", "Accept": "text/plain"}},
        {"headers": "X-Team:orders,X-Region:eu"},
        {"headers": [["X-Team", "orders"], "X-Team: orders"]},
        {"sasl.oauthbearer.config": "principal=svc-orders1 scope=shop"},
        {"sasl.jaas.config": 'org.x.PlainLoginModule required username="orders1" password="t0ken-aa";'},
    ],
)
def test_what_is_public_is_no_secret(extra: dict[str, Any]) -> None:
    for written in (extra, json.dumps(extra)):
        keep_secret({"extra": written})
        assert masking.known().secrets <= {"t0ken-aa"}, masking.known().secrets


WRITTEN: dict[str, Callable[[str], str]] = {
    "Go's login": lambda s: f"http://me:{s.replace('!', '%21').replace(' ', '%20')}@host",
    "JavaScript": lambda s: "".join(
        c if c in "!'*()" or (c.isalnum() and c < "\x7f") else percent(c) for c in s
    ),
    "every character": lambda s: "".join(map(percent, s)),
    "Java's properties": lambda s: re.sub(r"([!#:= ])", r"\\\1", s),
    "SQL": lambda s: "'" + s.replace("'", "''") + "'",
    "a shell": lambda s: "'" + s.replace("'", r"'\''") + "'",
    "NFD": lambda s: unicodedata.normalize("NFD", s),
    "Jackson": lambda s: "".join(c if c < "\x7f" else f"\\u{ord(c):04X}" for c in s),
    "Protobuf": lambda s: "".join(c if c < "\x7f" else octal(c) for c in s),
    "octal": lambda s: "".join(map(octal, s)),
    "entities": lambda s: "".join(c if c.isalnum() and c < "\x7f" else f"&#{ord(c)};" for c in s),
    "hexadecimal entities": lambda s: "".join(f"&#x{ord(c):x};" for c in s),
    "Latin-1": lambda s: s.encode().decode("latin-1"),
    "JSON of an address": lambda s: json.dumps({"a": f"x?t={''.join(map(percent, s))}"}),
    "an address of JSON": lambda s: "".join(map(percent, json.dumps(s))),
    "cut by Pydantic": lambda s: f"[input_value='{s[: max(8, len(s) - 3)]}...', input_type=str]",
    "cut in its middle": lambda s: f"'{s[:9]}...{s[-9:]}' of x",
    "cut by a bracket": lambda s: f"{s[: max(8, len(s) - 3)]}[...]",
    "hexadecimal with colons": lambda s: s.encode().hex(":"),
    "cut by an ellipsis": lambda s: f"{s[: max(8, len(s) - 3)]}… and more",
}


def percent(character: str) -> str:
    return "".join(f"%{one:02X}" for one in character.encode())


def octal(character: str) -> str:
    return "".join(f"\\{one:03o}" for one in character.encode())


@pytest.mark.parametrize("secret", ["a!b&cdefg", "it's$ecret1 of", "pässwörd99", "p=ä s:'\"é\\x#!%41&amp;z"])
@pytest.mark.parametrize("shape", WRITTEN)
def test_each_special_character_may_be_escaped_in_any_way(shape: str, secret: str) -> None:
    masking.remember({"password": secret})
    text = masking.masked(f"login of {WRITTEN[shape](secret)} failed")
    left = text.replace(masking.MASK, "").removeprefix("login of ").removesuffix(" failed")
    assert masking.MASK in text
    assert len(re.sub(r"[\\'\"]", "", left)) < 40
    assert not any(part in text for part in (secret[:4], secret[-4:])), text


ORDINARY = re.findall(r"\S+", "the order table of shop is not found in 'x' 5 … ... % & \\ /b a+b")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ORDINARY)))
def test_ordinary_text_stays(words: list[str]) -> None:
    masking.forget()
    masking.remember({"password": "correct-horse 9", "token": "s3cr\\et%41=", "private_key": "Qk%20Zz9ab"})
    text = " ".join(words)
    assert masking.masked(text) == text
    assert masking.masked(masking.masked("x correct-horse%209 y")) == "x *** y"


@pytest.mark.parametrize(
    "unit",
    [
        "%41",
        "%25",
        "\\",
        "\\x",
        "&amp;",
        "é",
        "à",
        "...",
        "'",
        "password='",
        "a\n",
        "a:",
        "://a:",
        "password:",
    ],
)
def test_masks_take_time_by_the_length_of_a_text_of_escapes(unit: str) -> None:
    masking.remember(["p4ss-w0rd%ä", "table", unit * 9], secret=True)
    masking.masked("x")
    with bounded(seconds=1, mebibytes=64):
        masking.masked(unit * (100_000 // len(unit)))


@pytest.mark.parametrize(
    ("given", "secrets"),
    [
        ("mongodb://u:" + 243 * "x" + "@h/db", 243 * "x"),
        ("mongodb://u:my secret pw9@h", "my secret pw9"),
        ("https://u1:eins-aa@r1,https://u2:zwei-bb@r2", "eins-aa zwei-bb"),
        ("u:geheim-cc@reg", "geheim-cc"),
        ("https://tokentoken1@reg/x", "tokentoken1"),
        ("jdbc:oracle:thin:scott/tiger-dd@h:1521/x", "tiger-dd"),
        ("-Djavax.net.ssl.trustStorePassword=geheim-ee", "geheim-ee"),
    ],
)
def test_logins_in_values_of_any_name_are_secrets(given: str, secrets: str) -> None:
    expected = {secrets} if secrets in given else set(secrets.split())
    keep_secret({"host": given})
    assert masking.known().secrets >= expected
    masking.forget()
    mask_arguments(None, {"DATABASE": given})
    assert masking.known().secrets >= expected


SETTINGS = {
    "passcode": "correcthorse", "pin": "4711", "pat": "abc123.def456ghi",
    "gitlab": "glpat-abcdefgh12.01.12345", "letters": "abcdefabcdef", "digits": "123456",
    "path": "/t00abc/xyz/xyzsecretxyz",
    "url": "https://hooks.host/t00abc/xyzsecret", "my.type": "opensesame", "x-source": "opensesame2",
}  # fmt: skip


def declared(options: dict[str, Any], place: str) -> Connector:
    given: dict[str, Any] = {"name": "shop", "source": {"type": "mongodb"}}
    if place == "lake":
        given["lake"] = {"catalog_options": {"type": "rest", "uri": "https://catalog/v1", **options}}
    else:
        given["signals"] = {"settings": options}
    return Connector.from_dict(given)


@pytest.mark.parametrize("place", ["lake", "signals"])
def test_a_setting_of_an_unknown_name_is_a_secret_whatever_its_form(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"PLANTED_{name.upper()}", value)
    references = {name: f"${{env:PLANTED_{name.upper()}}}" for name in SETTINGS}
    for options in (SETTINGS, references):
        masking.forget()
        connector = declared(options, place)
        plain, taken = connector.split_secrets()
        assert not [value for value in SETTINGS.values() if value in json.dumps(plain)]
        assert masking.known().secrets >= set(SETTINGS.values())
        assert bool(taken) == (options is SETTINGS)
        found = connector.lake.catalog_options if place == "lake" else connector.signals.settings
        assert {**found, **options} == found
        assert resolve_secrets(found, "x") == {**found, **SETTINGS}
        assert Connector.with_secrets(plain, taken) == connector


def test_well_known_settings_of_a_catalog_are_public_unless_they_have_a_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WAREHOUSE", "s3://bucket/lake")
    public = {"warehouse": "${env:WAREHOUSE}", "io-impl": "org.x.S3FileIO", "cache-enabled": "false"}
    plain, taken = declared(public, "lake").split_secrets()
    assert taken == []
    assert plain["lake"]["catalog_options"]["warehouse"] == "s3://bucket/lake"
    assert not masking.known().secrets
    for value in ("s3://me:w0rd-aa@bucket/lake", "jdbc:x://h?password=w0rd-aa"):
        monkeypatch.setenv("WAREHOUSE", value)
        plain, taken = declared(public, "lake").split_secrets()
        assert taken == []
        assert "w0rd" not in json.dumps(plain)
        assert masking.masked(f"at {value}").count("w0rd") == 0


@pytest.mark.parametrize("name", ["DB_PASS", "MYSQL_PWD", "PGPASS", "pass", "pwd"])
def test_spark_hides_the_names_that_we_hide(name: str) -> None:
    pattern = re.compile(with_redaction("").replace("(?i)", ""), re.IGNORECASE)
    assert pattern.search(f"spark.executorEnv.{name}")
    assert not pattern.search("spark.executorEnv.PASSENGERS")
