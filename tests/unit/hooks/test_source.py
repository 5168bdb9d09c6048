"""What a declaration says of its connection reaches every job and session."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.hooks._of_connector import check_connector, hook_for
from airflow_cdc_provider.hooks.source import CdcHook
from airflow_cdc_provider.sources.contract import Finding

SOURCE = {"type": "cassandra", "conn_id": "shop", "driver_config_file": "/declared.conf"}


@pytest.mark.covers("CAS-D3X-03")
@pytest.mark.parametrize(
    ("extra", "file"), [({}, "/declared.conf"), ({"driver_config_file": "/own.conf"}, "/own.conf")]
)
def test_the_declared_file_is_the_connections_unless_it_has_its_own(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], file: str
) -> None:
    values = {"conn_type": "cdc_cassandra", "host": "db1", "extra": {"tls": True, **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(values))
    hook = hook_for(Connector.from_dict({"name": "shop", "source": SOURCE}))
    assert hook.connection_values()["extra"] == {"tls": True, "driver_config_file": file}


class RecordingRegistrar(CdcHook):
    """A hook whose server answers as a test says."""

    accepted_types = ("cdc_cassandra",)
    source_conn_id = "shop"
    answer: Exception | str = "Server 1, cluster shop"

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        return values

    def describe_server(self) -> str:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_session_is_asked_as_often_as_wanted_and_its_errors_show_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"conn_type": "cdc_cassandra", "host": "db1", "password": "s3cr3t-word"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(values))
    hook = RecordingRegistrar()
    state = hook.session_state(3)
    assert (state["server"], state["requests"]) == ("Server 1, cluster shop", 3)
    assert 0 <= state["mean_seconds"] <= state["max_seconds"]
    hook.answer = OSError("db1 refused s3cr3t-word")
    with pytest.raises(TransientError, match=r"shop doesn't answer: found OSError: db1 refused \*\*\*"):
        hook.session_state(1)
    hook.answer = ConfigurationError("the login was rejected")
    with pytest.raises(ConfigurationError, match="the login was rejected"):
        hook.session_state(1)


@pytest.mark.covers("MDB-GRD-01", "MDB-GRD-02")
@pytest.mark.parametrize(
    ("guardrail", "level"), [({}, None), ({"max_tables": 1}, "warning"), ({"max_tables": 2}, None)]
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_check_reports_too_many_tables(guardrail: dict[str, Any], level: str | None, fails: bool) -> None:
    class Source:
        def check(self) -> list[Finding]:
            return [Finding("ok", "connection", "it answers")]

        def tables(self) -> list[str]:
            return ["s.a", "s.b"]

    if fails and guardrail:
        guardrail = {**guardrail, "action": "fail"}
        level = "error" if level else None
    connector = Connector.from_dict({"name": "s", "source": {"type": "mongodb"}, "guardrail": guardrail})
    source: Any = Source()
    found = {f.subject: f.level for f in check_connector(connector, source)}
    assert found == {"connection": "ok", **({"guardrail": level} if level else {})}


def test_a_check_names_tables_whose_mirrors_would_share_a_name() -> None:
    class Source:
        def check(self) -> list[Finding]:
            return []

        def tables(self) -> list[str]:
            return ["a.b_c", "a_b.c", "s.a"]

    source: Any = Source()
    found = check_connector(Connector.from_dict({"name": "s", "source": {"type": "mongodb"}}), source)
    assert [(f.level, f.subject) for f in found] == [("warning", "a.b_c"), ("warning", "a_b.c")]
    assert all("would both be stored in s.a_b_c" in f.message for f in found)


def test_a_check_reports_connections_of_targets_that_fail_or_send_a_login_in_the_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Source:
        def check(self) -> list[Finding]:
            return []

        def tables(self) -> list[str]:
            return []

    def found(catalog: str = "https://c") -> list[tuple[str, str]]:
        kafka, registry = {"connection": "k"}, {"connection": "r"}
        declared = {
            "name": "s",
            "source": {"type": "mongodb"},
            "publish": {"kafka": kafka, "registry": registry, "value": "avro"},
            "lake": {"catalog": "lake", "catalog_options": {"type": "rest", "uri": catalog}},
        }
        source: Any = Source()
        return [(f.level, f.subject) for f in check_connector(Connector.from_dict(declared), source)]

    def stored(kafka: dict[str, Any], registry: dict[str, Any]) -> None:
        extra = {"bootstrap.servers": "b:9092", **kafka}
        monkeypatch.setenv("AIRFLOW_CONN_K", json.dumps({"conn_type": "kafka", "extra": extra}))
        monkeypatch.setenv("AIRFLOW_CONN_R", json.dumps({"conn_type": "http", "host": "r", **registry}))

    both = ("publish.kafka.connection", "publish.registry.connection")
    stored({"security.protocol": "sasl_plaintext"}, {"login": "me", "password": "x"})
    assert found() == [("warning", both[0]), ("warning", both[1])]
    stored({"security.protocol": "sasl_ssl"}, {"login": "me", "password": "x", "schema": "https"})
    assert found() == []
    assert found("http://c:8181") == [("warning", "lake.catalog_options")]
    stored({"plugin.library.paths": "/x.so"}, {"extra": {"ssl.ca.location": "/ca"}, "schema": "http"})
    assert found() == [("error", both[0]), ("error", both[1])]


def test_a_check_names_tables_that_would_share_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "b:9092"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA", json.dumps({"conn_type": "kafka", "extra": extra}))

    class Source:
        def check(self) -> list[Finding]:
            return []

        def tables(self) -> list[str]:
            return ["s.a b", 's.a"b', "s.c", "s.d.e", "s.d_e", "s.x-y", "s.x_y"]

    publish: dict[str, Any] = {"kafka": {"connection": "kafka"}}
    declared = {"name": "s", "source": {"type": "mongodb"}, "publish": publish}
    source: Any = Source()
    found = check_connector(Connector.from_dict(declared), source)
    first = "only the table that is recorded first is published"
    assert [(f.level, f.subject, f.message) for f in found] == [
        ("warning", "topics", f'{first}: s.s.a_b of s.a b, s.s.a_b of s.a"b'),
        ("warning", "topics", "brokers refuse one of the names: s.s.d.e of s.d.e, s.s.d_e of s.d_e"),
    ]
    publish["schema_names"] = "avro"
    assert [f.message for f in check_connector(Connector.from_dict(declared), source)] == [
        f'{first}: s.s.a_b of s.a b, s.s.a_b of s.a"b',
        f"{first}: s.s.x-y of s.x-y, s.s.x_y of s.x_y",
        "brokers refuse one of the names: s.s.d.e of s.d.e, s.s.d_e of s.d_e",
    ]
    publish["topic_pattern"] = "{prefix}"  # meant to be shared
    assert check_connector(Connector.from_dict(declared), source) == []
