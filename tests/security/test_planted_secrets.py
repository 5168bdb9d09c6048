"""A distinct secret in each option of each connection and declaration; no output has it, in any shape."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import dataclasses
import json
import logging
import multiprocessing
import os
import pickle
import re
import time
import traceback
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_cdc_provider import masking
from airflow_cdc_provider.changes.worker import _Task
from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connections.pulsar import pulsar_values
from airflow_cdc_provider.connections.registry import registry_values
from airflow_cdc_provider.connections.secrets_masker import keep_secret
from airflow_cdc_provider.connections.stores import _aws_values
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.declaration import _Declaration
from airflow_cdc_provider.events.transforms.options import HashOptions
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.get_provider_info import get_provider_info
from airflow_cdc_provider.jobs.application import _Masking
from airflow_cdc_provider.jobs.spark.redaction import with_redaction
from airflow_cdc_provider.jobs.spec import JobResult, TableResult
from airflow_cdc_provider.logs import MaskedLog
from airflow_cdc_provider.operators import spark_stage
from airflow_cdc_provider.operators.stages import CdcSyncOperator
from airflow_cdc_provider.secrets import resolve_secret
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.registry import source_names, source_plugin
from airflow_cdc_provider.tasks.lineage import catalog_namespace, source_namespace
from airflow_cdc_provider.tasks.run_folder import RunFolder
from tests.bounded import bounded
from tests.security.leaks import SHAPES, leaks
from tests.unit.airflow_context import TaskContext
from tests.unit.fake_spark import DECLARATION, FakeSpark, spark_submit, work_folder  # noqa: F401  # fixtures

PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq{n}hkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIB{n}AQDq\n-----END-----\n"
FORMS = ("pl4in-{n}-w0rd", "g<'\"\\&%ä ={n};,x/+@:y", "Qk{n}Zz9", PEM)
"""What a secret may look like."""

PUBLIC = {
    "local_datacenter", "driver_config_file", "tls", "tls_ca_file", "tls_certificate_file", "tls_key_file",
    "tls_config_file", "trustStore.location", "keyStore.location", "cipherSuites", "tls_check_hostname",
    "replicaSet", "authSource", "authMechanism", "srv", "tlsCAFile", "tlsCertificateKeyFile", "tls_cert_file",
    "tls_server_name", "keepalive_seconds", "max_message_bytes", "load_balancing", "caller_id", "vtctld_host",
    "vtctld_port", "vtctld_login", "uri_options",
}  # fmt: skip
"""Fields of our connection types that hold no secret. A new field is one until it is here."""

OWN = {kind["connection-type"]: kind["conn-fields"] for kind in get_provider_info()["connection-types"]}
STOCK: dict[str, tuple[str, ...]] = {
    "kafka": (
        "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret", "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ),
    "http": (
        "basic.auth.user.info", "bearer.auth.token", "bearer.auth.client.secret", "ssl.key.password",
        "headers",
        "sasl.password",
    ),
    "generic": ("token", "private_key", "oauth_client_secret", "basic_password"),
    "aws": ("aws_session_token",),
}  # fmt: skip
"""Secret settings in the extra of Airflow's own types; each also has a password."""
READ = {"kafka": kafka_values, "http": registry_values, "generic": pulsar_values, "aws": _aws_values}

CATALOG = (
    "credential", "token", "header.X-Api-Key", "header.Authorization", "s3.secret-access-key",
    "s3.session-token",
    "s3.access-key-id", "adls.sas-token.account", "adls.auth.shared-key.account.key", "gcs.oauth2.token",
    "jdbc.password", "rest.sigv4-signing-secret", "encryption.kms-key", "client.something-of-a-new-release",
)  # fmt: skip


def secret(number: int, form: str = FORMS[0]) -> str:
    return form.replace("{n}", f"{number:03d}")


def planted(names: Iterator[str] | list[str] | tuple[str, ...], start: int = 0) -> dict[str, str]:
    """Return a secret for each name; their forms take turns."""
    return {
        name: secret(start + number, FORMS[number % len(FORMS)]) for number, name in enumerate(sorted(names))
    }


def secret_fields(kind: str) -> list[str]:
    return [name for name in OWN[kind] if name not in PUBLIC]


def assert_masked(values: Mapping[str, str], text_of: Any = masking.masked) -> None:
    for name, value in values.items():
        for shape, write in SHAPES.items():
            text = text_of(write(value))
            assert not leaks(text, value), f"{name} as {shape}: {text}"


def connect(monkeypatch: pytest.MonkeyPatch, kind: str, extra: Mapping[str, Any], password: str) -> None:
    values = {"conn_type": kind, "host": "db1", "login": "me", "password": password, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PLANTED", json.dumps(values))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", sorted(OWN))
def test_each_field_of_our_connections_is_masked_in_all_shapes(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hook,) = [source_plugin(name).hook for name in source_names() if kind == f"cdc_{name}"]
    module, _, name = hook.partition(":")
    fields = {field: secret(number, form) for number, field in enumerate(secret_fields(kind))}
    public = {"tls_ca_file": "/etc/ca.pem", "authSource": "admin", "local_datacenter": "dc1"}
    known = {field: value for field, value in public.items() if field in OWN[kind]}
    connect(monkeypatch, kind, {**fields, **known}, secret(99, form))
    getattr(__import__(module, fromlist=[name]), name)("planted").connection_values()

    assert_masked({**fields, "password": secret(99, form)})
    said = "me at db1 dc1 admin /etc/ca.pem port 9042"
    assert masking.masked(said) == said


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", sorted(STOCK))
def test_each_setting_of_stock_connections_is_masked_in_all_shapes(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {field: secret(number, form) for number, field in enumerate(STOCK[kind])}
    connect(monkeypatch, kind, fields, secret(99, form))
    READ[kind]("planted")
    assert_masked({**fields, "password": secret(99, form)})


@pytest.mark.parametrize(
    ("extra", "value"),
    [
        ({"authMechanismProperties": {"AWS_SESSION_TOKEN": "t0k/en=="}}, "t0k/en=="),
        ({"authMechanismProperties": "AWS_SESSION_TOKEN:t0ken-aa,X:y"}, "t0ken-aa"),
        ({"uri_options": "authMechanismProperties=AWS_SESSION_TOKEN:t0ken-aa&maxPoolSize=20"}, "t0ken-aa"),
        ({"uri_options": "tlsCertificateKeyFilePassword=t0ken-aa"}, "t0ken-aa"),
        ({"secret_uri": "mongodb://me:p%2Fw0rd%40x@h1,h2/?tls=true"}, "p/w0rd@x"),
        ({"secret_uri": "mongodb://h/?authMechanismProperties=AWS_SESSION_TOKEN:t0ken-aa"}, "t0ken-aa"),
        ({"headers": "x-key:t0ken-aa,y:z"}, "t0ken-aa"),
        ({"headers": [["x-key", "t0ken-aa"], "Cookie: sid=c00kie-bb"]}, "c00kie-bb"),
        ({"sasl.oauthbearer.config": "scope=a secret=t0ken-aa"}, "t0ken-aa"),
        ({"sasl.jaas.config": 'x.PlainLoginModule required username="u" password="t0ken-aa";'}, "t0ken-aa"),
        ({"basic.auth.user.info": "me:t0ken-aa"}, "t0ken-aa"),
        ({"proxy": "http://me:t0ken-aa@proxy:3128"}, "t0ken-aa"),
        ({"service_account": '{"private_key": "-----BEGIN-----\\nt0ken-aa\\n", "id": 1}'}, "t0ken-aa"),
        ({"a_new_option": "t0ken-aa"}, "t0ken-aa"),
        ({"a_new_option": {"of": [{"any": ["t0ken-aa"]}]}}, "t0ken-aa"),
        ({"password": 8246801}, "8246801"),
        ({"endpoint_url": "https://t0ken-aa@host/x"}, "t0ken-aa"),
        ({"uri": "jdbc:oracle:thin:me/w0rd-aa@host"}, "w0rd-aa"),
        ({"uri": "https://me:w0rd-aa@host/x?mail=a@b"}, "w0rd-aa"),
    ],
)
def test_a_secret_inside_of_a_setting_is_masked(extra: dict[str, Any], value: str) -> None:
    keep_secret({"host": "db1", "extra": extra})
    assert_masked({"it": value})
    keep_secret({"host": "db1", "extra": json.dumps(extra)})
    assert_masked({"it": value})


ALPHABET = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Z"])
"""Of secrets without white space; keys have lines."""


@settings(max_examples=60, deadline=None)
@given(st.text(ALPHABET, min_size=8, max_size=40))
@example("aaaaaaaaaaaa")
@example("\\\\n\\\\\"'%41%")
def test_any_value_is_masked_in_all_shapes(value: str) -> None:
    masking.forget()
    harmless = {shape: write("\0") for shape, write in SHAPES.items()}
    masking.remember({"password": value})
    for shape, write in SHAPES.items():
        if not leaks(harmless[shape], value):
            text = masking.masked(write(value))
            assert not leaks(text, value) or leaks(text.replace("***", ""), "*"), f"{shape}: {text}"


def test_short_secrets_are_masked_as_words_and_leave_other_text() -> None:
    masking.remember({"password": "abc"})
    assert (
        masking.masked("password=abc, ['abc'] of abcd in abc.x") == "password=***, ['***'] of abcd in ***.x"
    )
    masking.remember({"password": "CONFIGURATION"})
    error = ConfigurationError("CONFIGURATION is wrong")
    assert str(error) == "[CDC-CONFIGURATION] *** is wrong"


def secret_options(cls: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """List the paths of all options that are secret, with their types."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from secret_options(hints[field.name], (*path, field.name))
        elif field.metadata.get("secret"):
            yield (*path, field.name), hints[field.name]


OPTIONS = [
    *(("cassandra", path, hint) for path, hint in secret_options(_Declaration)),
    *(
        (kind, ("source", *path), hint)
        for kind in source_names()
        for path, hint in secret_options(source_plugin(kind).options)
    ),
]
NEEDED: dict[str, Any] = {
    "snapshot": {"mode": "custom", "custom": "tests.security.test_planted_secrets:Nothing"},
    "lake": {"catalog_options": {"type": "rest", "uri": "https://catalog:8181/v1"}},
}


class Nothing:
    """Stands for a custom class."""


def declaring(kind: str, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    source = {"type": kind, **({"keyspace": "shop"} if kind == "vitess" else {})}
    declared: dict[str, Any] = {"name": "shop", "source": source, **json.loads(json.dumps(NEEDED))}
    if path[0] != "snapshot":
        del declared["snapshot"]
    inner = declared
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = {**inner.get(path[-1], {}), **value} if isinstance(value, dict) else value
    return declared


def test_the_options_that_are_secret_are_known() -> None:
    assert {".".join(path) for _, path, _ in OPTIONS} == {
        "lake.catalog_options",
        "snapshot.custom_settings",
        "signals.settings",
        "publish.vitess.masks",
        "publish.vitess.converters",
        "publish.cassandra.converters",
        "source.encryption.keystore_password",
        "source.encryption.key_password",
    }
    assert [field.name for field in dataclasses.fields(HashOptions) if field.metadata.get("secret")] == [
        "salt"
    ]


@pytest.mark.parametrize(("kind", "path", "hint"), OPTIONS)
def test_a_declared_secret_is_in_no_spec_text_or_error(kind: str, path: tuple[str, ...], hint: Any) -> None:
    values = planted(CATALOG) if hint is not str else {"it": secret(1)}
    given: Any = values if hint is not str else values["it"]
    if path[-1] == "masks":
        kind, given = (
            "vitess",
            {f"shop.t.{name}": f"hash-v2:SHA-256:{value}" for name, value in values.items()},
        )
    elif path[-1] == "converters":
        kind, named = path[1], {f"{number}.password": value for number, value in enumerate(values.values())}
        given = {"mine": {"type": "x:y", "columns": "shop.*", **named}}
    declared = declaring(kind, path, given)
    connector = Connector.from_dict(declared)
    plain, taken = connector.split_secrets()

    for text in (repr(connector), str(connector), f"{plain}", json.dumps(plain)):
        assert not leaks(text, *values.values())
    assert Connector.with_secrets(json.loads(json.dumps(plain)), json.loads(json.dumps(taken))) == connector
    assert_masked(values)
    if hint is str:
        return
    with pytest.raises(ConfigurationError) as raised:
        Connector.from_dict({**declared, "nonsense": 1, "name": f"{values}"})
    assert not leaks(str(raised.value), *values.values())


def test_references_stay_in_the_spec_and_what_they_name_is_masked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = planted(["credential", "token", "uri"])
    values["uri"] = "jdbc:sqlserver://host;user=u;password=" + values["uri"]
    references: dict[str, str] = {}
    for name, value in values.items():
        file = tmp_path / name
        file.touch(0o600)
        file.write_text(value)
        monkeypatch.setenv(f"PLANTED_{name.upper()}", value)
        references |= {name: f"${{env:PLANTED_{name.upper()}}}", f"x.{name}": f"${{file:{file}}}"}
    connector = Connector.from_dict(declaring("mongodb", ("lake", "catalog_options"), references))
    plain, taken = connector.split_secrets()
    assert taken == []
    assert {**connector.lake.catalog_options, **references} == connector.lake.catalog_options
    assert "PLANTED_TOKEN" in json.dumps(plain)

    masking.forget()
    for name, reference in references.items():
        assert resolve_secret(reference, name).strip() == values[name.removeprefix("x.")].strip()
    assert_masked(values)
    with pytest.raises(ConfigurationError, match=r"header.X: expected a reference to a secret as the whole"):
        Connector.from_dict(
            declaring("mongodb", ("lake", "catalog_options"), {"header.X": "Bearer ${env:X}"})
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lag_statistics", "t0ken-aa"),
        ("lake.format_version", "t0ken-aa"),
        ("lake.catalog", "t0ken-aa"),
        ("lake.merge.min_pending_ratio", "{t0ken-aa: 1}"),
        ("tables", "[t0ken-aa("),
        ("tables", "['t0ken-aa(']"),
        ("metric_tags", "{a: 't0ken aa'}"),
        ("metric_tags", "{'t0ken aa': a}"),
        ("guardrail", "{t0ken-aa: 1}"),
        ("snapshot.mode", "t0ken-aa" * 40),
        ("signals.channels", "[t0ken-aa]"),
        ("source.type", "t0ken-aa"),
        ("name", "t0ken aa"),
    ],
)
def test_a_variables_value_is_in_no_error(option: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", value)
    declared: dict[str, Any] = {"name": "shop", "source": {"type": "cassandra"}}
    inner = declared
    *path, name = option.split(".")
    for part in path:
        inner = inner.setdefault(part, {})
    inner[name] = "${env:PLANTED}"
    with pytest.raises(ConfigurationError) as raised:
        Connector.from_dict(declared)
    text = "".join(traceback.format_exception(raised.value))
    assert "PLANTED" in text
    assert not re.search("t0ken|[/ -]aa", text), text


def echo(text: str) -> dict[str, Any]:
    """Return a job's result with a text in each of its texts."""
    return {
        "ok": False,
        "offset": {"host": {"v": 1}},
        "error_code": "ERROR",
        "error": text,
        "findings": [text],
        "tables": [{"table": "shop.orders", "error_code": "ERROR", "error": text, "note": text}],
        "snapshot": {"errors": {"shop.orders": text}, "last_event": text},
        "published": {"batch": 1, "findings": [text], "refused": {"t": text}, "errors": {"t": text}},
    }


def test_no_output_of_a_run_has_a_secret(
    spark_submit: FakeSpark,  # noqa: F811  # a fixture
    work_folder: Path,  # noqa: F811  # likewise
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_source = planted([*secret_fields("cdc_cassandra"), "password"])
    of_kafka = planted(STOCK["kafka"], 100)
    of_catalog, of_spark = planted(CATALOG, 200), planted(["spark.hadoop.fs.s3a.secret.key"], 300)
    everything = {**of_source, **of_kafka, **of_catalog, **of_spark}
    extra = {name: value for name, value in of_source.items() if name != "password"}
    values = {"conn_type": "cdc_cassandra", "host": "db1", "password": of_source["password"], "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_CASSANDRA_SHOP", json.dumps(values))
    brokers = {"conn_type": "kafka", "extra": {"bootstrap.servers": "k1:9092", **of_kafka}}
    monkeypatch.setenv("AIRFLOW_CONN_BROKERS", json.dumps(brokers))
    lake = {"catalog_options": {"type": "rest", "uri": "jdbc:sqlserver://h;password=pl4in-999", **of_catalog}}
    declared = {**DECLARATION, "lake": lake, "publish": {"kafka": {"connection": "brokers"}}}
    said = "\n".join(write(value) for value in everything.values() for write in SHAPES.values())
    (spark_submit.folder / "said").write_text(said)
    spark_submit.behaves(
        f"pathlib.Path(spec['result_path']).write_text({json.dumps(echo('TEXT'))!r}.replace('TEXT',"
        " json.dumps((record / 'said').read_text())[1:-1]))\n"
        "print((record / 'said').read_text(), flush=True)\nsys.exit(1)\n"
    )
    sync = CdcSyncOperator(task_id="sync", connector=declared, conf=of_spark, keep_run_folder=True)
    context = TaskContext()
    pushed: list[Any] = []
    context["ti"].xcom_push = lambda *pair, **named: pushed.append((pair, named))

    logged: list[str] = []
    lines = SimpleNamespace(info=lambda text, *given: logged.append(f"{text % given}\n"))
    monkeypatch.setattr(spark_stage, "MaskedLog", lambda _: MaskedLog(lines))

    sync.render_template_fields(context)
    rendered = _serialize_rendered_fields(sync)
    printed = [str(sync.connector), str(sync.conf)]
    with pytest.raises((AirflowFailException, CdcError)) as raised:
        sync.execute(context)

    seen = spark_submit.seen
    submitted = {key: value for key, value in seen.items() if key != "connection"}
    submitted["arguments"] = [one for one in seen["arguments"] if not one.startswith("spark.hadoop")]
    outputs = {
        "command line and spec": submitted,
        "files": [
            file.read_text()
            for file in work_folder.rglob("*")
            if file.name != "result.json" and file.is_file()
        ],
        "XCom": pushed,
        "error": "".join(traceback.format_exception(raised.value)),
        "state": [vars(store) for store in context.assets.found.values()],
        "asset events": [vars(event) for event in context.events.found.values()],
        "rendered templates": rendered,
        "airflow tasks render": printed,
        "lineage": repr(sync._lineage),
        "log": str(redact("".join([*logged, *capsys.readouterr()]))),
    }
    assert pushed, "tables failed"
    assert "Authorization: Bearer ***" in outputs["log"], "Spark's output is in it"
    for output, content in outputs.items():
        text = content if isinstance(content, str) else f"{content}\n{json.dumps(content, default=str)}"
        assert not leaks(text, *everything.values()), output
    carried = {text.strip() for text in strings(seen["connection"])}
    assert {value.strip() for value in everything.values()} - set(of_spark.values()) <= carried


def strings(value: Any) -> Iterator[str]:
    """List all texts in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def test_no_output_of_a_job_has_a_secret(tmp_path: Path) -> None:
    values = planted(CATALOG)
    masking.remember(values)
    said = "\n".join(write(value) for value in values.values() for write in SHAPES.values())
    path = tmp_path / "result.json"
    JobResult(False, error=said, findings=[said], tables=[TableResult("shop.orders", error=said)]).write(
        str(path)
    )
    try:
        raise OSError(said) from ValueError(said)
    except OSError as error:
        record = logging.LogRecord("x", 40, "x", 1, "%s", (said,), (type(error), error, error.__traceback__))
    finding = Finding("error", "x", said, said)
    found = TransientError(said, expected=said, found=said, remedy=said)
    outputs = {
        "result": path.read_text(),
        "log": _Masking("%(message)s").format(record),
        "finding": f"{finding.message} {finding.remedy}",
        "error": f"{found} {found.message} {pickle.loads(pickle.dumps(found))}",
    }
    for output, text in outputs.items():
        assert not leaks(text, *values.values()), output


def test_an_error_of_a_worker_is_masked_before_spark_logs_it() -> None:
    masking.remember({"password": secret(1)})

    def fails(batches: Any) -> Iterator[Any]:
        raise OSError(f"login {secret(1)}") from ValueError(secret(1))
        yield batches

    carried = _Task(fails, [], "").secrets
    masking.forget()
    with pytest.raises(RuntimeError, match=r"OSError: login \*\*\*") as raised:
        list(_Task(fails, [], "", carried)(iter(())))
    assert not leaks("".join(traceback.format_exception(raised.value)), secret(1))


def test_what_a_hook_reads_in_lines_of_spark_is_not_masked() -> None:
    masking.remember(["driver", "0007", "1234"], secret=True)
    hook = CdcSyncOperator(task_id="sync", connector=DECLARATION)._get_hook()
    hook._is_yarn, hook._is_kubernetes, hook._connection["deploy_mode"] = False, True, "cluster"
    hook._process_spark_submit_log(iter(["INFO submission ID spark:shop-0007-driver", "exit code: 1234"]))
    assert (hook._kubernetes_driver_pod, hook._spark_exit_code) == ("shop-0007-driver", 1234)


def hold(places: list[Path], held: Any) -> None:
    """Write the connections of some tasks, the last one of an application that waits in a queue, and wait."""
    for place in places:
        RunFolder(place).write_connection({"password": "x"}, outlives_task=place is places[-1])
    held.send(True)
    time.sleep(60)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_connection_of_a_killed_task_goes_with_any_later_one_and_no_other(tmp_path: Path) -> None:
    places = {
        "killed": tmp_path / "shop" / "dag" / "run" / "sync.-1",
        "of the stream": tmp_path / "shop" / "stream",
        "queued": tmp_path / "shop" / "dag" / "run" / "queued.-1",
        "held": tmp_path / "other" / "dag" / "run" / "sync.-1",
    }
    for place in places.values():
        place.mkdir(parents=True)
    *of_killed, held = places.values()
    forking = multiprocessing.get_context("fork")
    reading, writing = forking.Pipe(duplex=False)
    holder = forking.Process(target=hold, args=(of_killed, writing))
    holder.start()
    RunFolder(held).write_connection({"password": "x"})
    try:
        assert reading.recv()
        holder.kill()
        holder.join()
        link = tmp_path / "shop" / "dag" / "run" / "link.-1"
        link.mkdir()
        (link / "connection.json").symlink_to(places["held"] / "spec.json")
        fresh = link / "connection.json.part"
        fresh.touch()
        RunFolder.open(str(tmp_path), "third", "dag", "run", "task")
        left = {name for name, place in places.items() if (place / "connection.json").exists()}
        assert left == {"queued", "held"}
        assert (link / "connection.json").is_symlink()
        assert fresh.exists(), "it is being written"
        for file, age in ((fresh, 7200), (places["queued"] / "connection.json", 1)):
            os.utime(file, (time.time() - age, time.time() - age))
        RunFolder.open(str(tmp_path), "third", "dag", "run", "task")
        assert not fresh.exists()
        assert not (places["queued"] / "connection.json").exists()
    finally:
        holder.kill()
        RunFolder(held).remove_connection()


PUBLIC_SPARK = {
    "spark.app.name": "cdc shop",
    "spark.master": "local[2]",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    "spark.sql.catalog.lake.warehouse": "s3://bucket/lake",
    "spark.executor.memory": "4g",
    "spark.sql.session.timeZone": "UTC",
}


def test_spark_hides_what_may_be_a_secret_and_shows_the_rest() -> None:
    hidden = {
        **{f"spark.sql.catalog.lake.{name}": "x" for name in (*CATALOG, "uri")},
        "spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net": "x",
        "spark.hadoop.fs.azure.sas.container.account": "x",
        "spark.hadoop.fs.azure.account.oauth2.client.secret": "x",
        "spark.hadoop.fs.s3a.access.key": "x",
        "spark.executorEnv.HADOOP_CREDSTORE_PASSWORD": "x",
        "spark.driver.extraJavaOptions": "-Dhttp.proxy=http://me:w0rd@proxy",
        "spark.mine": "x",
    }
    # Java's syntax of these patterns is Python's, but for flags in the middle.
    pattern = re.compile(with_redaction("mine").replace("(?i)", ""), re.IGNORECASE)
    assert not [
        name for name, value in hidden.items() if not pattern.search(name) and not pattern.search(value)
    ]
    shown = PUBLIC_SPARK.items()
    assert not [name for name, value in shown if pattern.search(name) or pattern.search(value)]
    assert with_redaction(with_redaction("mine")) == with_redaction("mine")
    assert "password" in with_redaction("")


ADDRESSES = [
    ("jdbc:sqlserver://db1:1433;databaseName=x;user=me;password=pw0rd", "sqlserver://db1:1433"),
    ("jdbc:sqlserver://db1\\one;user=me;password={pw0rd;}", "sqlserver://db1"),
    ("jdbc:oracle:thin:me/pw0rd@db1:1521:SID", "oracle://db1:1521/SID"),
    ("jdbc:oracle:thin:me/pw0rd@//db1:1521/shop", "oracle://db1:1521/shop"),
    ('jdbc:oracle:thin:me/"pw@0rd"@db1:1521/shop', ""),
    ("jdbc:oracle:oci:me/pw0rd@tns", "oracle://tns"),
    ("jdbc:oracle:thin:@(DESCRIPTION=(ADDRESS=(HOST=db1))(PASSWORD=pw0rd))", ""),
    ("jdbc:mysql://me:pw0rd@db1:3306/shop?password=pw0rd", "mysql://db1:3306/shop"),
    ("jdbc:mysql://me:pw/0rd@db1/shop", ""),
    ("jdbc:mysql://me:pw?0rd@db1/shop", ""),
    ("jdbc:mysql://me:pw@0rd@db1/shop", ""),
    ("jdbc:mysql://me:pw#0rd@db1/shop", ""),
    ("jdbc:mysql://address=(host=db1)(user=me)(password=pw0rd)/shop", ""),
    ("jdbc:mysql://(host=db1,user=me,password=pw0rd)/shop", ""),
    ("jdbc:mariadb:replication://db1,db2/shop?password=pw0rd", "mariadb://db1"),
    ("jdbc:db2://db1:50000/SHOP:user=me;password=pw0rd;", "db2://db1:50000/SHOP"),
    ("jdbc:informix-sqli://db1:1/shop:user=me;password=pw0rd", "informix-sqli://db1:1/shop"),
    ("jdbc:teradata://db1/USER=me,PASSWORD=pw0rd", "teradata://db1"),
    (
        "jdbc:snowflake://a.snowflakecomputing.com/?user=me&password=pw0rd",
        "snowflake://a.snowflakecomputing.com",
    ),
    ("jdbc:redshift:iam://me:pw0rd@db1:5439/shop", "redshift://db1:5439/shop"),
    ("jdbc:jtds:sqlserver://db1:1/shop;user=me;password=pw0rd", "jtds://db1:1/shop"),
    ("jdbc:h2:mem:shop;USER=me;PASSWORD=pw0rd", ""),
    ("jdbc:sqlite:/data/x.db?password=pw0rd", "sqlite:///data/x.db"),
    ("https://pw0rd@catalog/v1", "https://catalog/v1"),
    ("https://catalog/v1?token=pw0rd@x", ""),
    ("thrift://:pw0rd@meta:9083,thrift://me:pw0rd@meta2:9083", ""),
    ("${env:URI}", ""),
]


@pytest.mark.parametrize(("address", "name"), ADDRESSES)
def test_a_name_in_lineage_has_no_login_of_any_form(address: str, name: str) -> None:
    lake = {"catalog_options": {"type": "jdbc", "uri": address}}
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}, "lake": lake})
    assert catalog_namespace(connector) == (name or "iceberg://lake")
    for connection in ({"host": address}, {"extra": {"secret_uri": address}}):
        found = source_namespace(connector, connection)
        assert not re.search("pw|0rd", found), found
    assert not re.search("pw|0rd", source_namespace(connector, {"extra": {"bootstrap.servers": address}}))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([address for address, _ in ADDRESSES]), st.text("ab1@/?#;:,=&()[]{}\\\"' %.", max_size=8)
)
def test_a_password_of_any_characters_reaches_no_name_in_lineage(address: str, middle: str) -> None:
    password = f"QX{middle}XQ"
    connector = Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}})
    given = address.replace("pw0rd", password)
    found = source_namespace(connector, {"host": given})
    assert not re.search("[QX]", found), (given, found)


@pytest.mark.parametrize("size", [100_000])
def test_masking_takes_time_by_the_length_of_a_text(size: int) -> None:
    masking.remember(planted(CATALOG))
    masking.masked("x\ny")
    with bounded(seconds=2, mebibytes=64):
        for text in ("Q" * size, "Qk\n" * (size // 3), "://" * (size // 3), secret(1)[:-1] * (size // 14)):
            masking.masked(text)
            masking.remember({"uri": text[:20_000], "credential": text[:20_000]})
        masking.remember({"uri": "token=" * 3000, "credential": "a1:" * 6000, "headers": "x=y," * 5000})
