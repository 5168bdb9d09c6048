"""Settings of the driver from the extra and from a file; rejected settings."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cql.connection import open_session
from airflow_cdc_provider.sources.cql.driver.driver_settings import read_driver_file, resolved
from airflow_cdc_provider.sources.cql.driver.hocon import parse_hocon
from tests.unit.sources.cassandra.driver_options import driver_arguments

WORD = "s3cr3t-word"
FILE = f"""
# as Debezium's page has it
datastax-java-driver {{
  basic {{
    contact-points = ["db1:9142", "db2:9142"]  // both
    load-balancing-policy {{ local-datacenter = dc1, class = DefaultLoadBalancingPolicy }}
    request {{
      timeout = 7 seconds
      consistency : LOCAL_QUORUM
      page-size = 2000
    }}
  }}
  advanced.auth-provider {{
    class = com.datastax.oss.driver.internal.core.auth.PlainTextAuthProvider
    username = capture
    password = "{WORD}"
  }}
  advanced.heartbeat {{ interval = 20 seconds, timeout = 500 milliseconds }}
  advanced.connection.connect-timeout = 1500
  advanced.control-connection.timeout = 1 minute
  advanced.protocol {{ version = V4, compression = none }}
  advanced.socket.keep-alive = true
  advanced.socket.tcp-no-delay = false
}}
"""


def written(folder: Path, text: str) -> str:
    file = folder / "application.conf"
    file.write_text(text)
    return str(file)


def assert_arguments_of_the_file(arguments: Mapping[str, Any]) -> None:
    profile = arguments["execution_profiles"][EXEC_PROFILE_DEFAULT]
    assert profile.request_timeout == 7
    assert profile.consistency_level == ConsistencyLevel.LOCAL_QUORUM
    assert profile.load_balancing_policy._child_policy.local_dc == "dc1"
    assert (arguments["auth_provider"].username, arguments["auth_provider"].password) == ("capture", WORD)
    assert (arguments["idle_heartbeat_interval"], arguments["idle_heartbeat_timeout"]) == (20, 0.5)
    assert (arguments["connect_timeout"], arguments["control_connection_timeout"]) == (1.5, 60)
    assert (arguments["protocol_version"], arguments["compression"]) == (4, False)
    assert set(arguments["sockopts"]) == {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 0),
    }


@pytest.mark.covers("CAS-D3X-03")
def test_a_file_of_the_java_driver_sets_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"host": "", "port": 9042, "extra": {"driver_config_file": written(tmp_path, FILE)}}
    arguments = driver_arguments(connection, monkeypatch)
    assert (arguments["contact_points"], arguments["port"]) == (["db1", "db2"], 9142)
    assert_arguments_of_the_file(arguments)
    assert read_driver_file(written(tmp_path, FILE))["extra"]["page_size"] == 2000


@pytest.mark.covers("CAS-D3X-03")
def test_extras_set_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "local_datacenter": "dc1",
        "request_timeout_seconds": 7,
        "consistency": "local_quorum",
        "heartbeat_interval_seconds": "20",
        "heartbeat_timeout_seconds": 0.5,
        "connect_timeout_seconds": 1.5,
        "control_timeout_seconds": 60,
        "protocol_version": 4,
        "compression": "none",
        "tcp_keepalive": True,
        "tcp_nodelay": "false",
        "page_size": 2000,
    }
    connection = {"host": "db1", "login": "capture", "password": WORD, "extra": extra}
    assert_arguments_of_the_file(driver_arguments(connection, monkeypatch))


@pytest.mark.covers("CAS-D3X-03")
def test_the_connection_takes_precedence_over_the_file(tmp_path: Path) -> None:
    extra = {"driver_config_file": written(tmp_path, FILE), "request_timeout_seconds": 9}
    found = resolved({"host": "mine", "port": 9042, "login": "me", "password": "own", "extra": extra})
    assert (found["host"], found["port"], found["login"], found["password"]) == ("mine", 9042, "me", "own")
    assert (found["extra"]["request_timeout_seconds"], found["extra"]["local_datacenter"]) == (9, "dc1")


def test_without_settings_the_driver_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = driver_arguments({"host": "db1"}, monkeypatch)
    assert (arguments["connect_timeout"], arguments["control_connection_timeout"]) == (3, 3)
    assert not {"compression", "protocol_version", "sockopts", "idle_heartbeat_interval"} & set(arguments)


def test_tls_of_the_file_is_that_of_debeziums_settings(tmp_path: Path) -> None:
    text = """datastax-java-driver.advanced.ssl-engine-factory {
      class = DefaultSslEngineFactory
      truststore-path = /trust.jks, truststore-password = w1
      keystore-path = /key.jks, keystore-password = w2
      hostname-validation = false
      cipher-suites = [ "TLS_A", "TLS_B" ]
    }"""
    assert read_driver_file(written(tmp_path, text))["extra"] == {
        "tls": True,
        "trustStore.location": "/trust.jks",
        "trustStore.password": "w1",
        "keyStore.location": "/key.jks",
        "keyStore.password": "w2",
        "tls_check_hostname": False,
        "cipherSuites": "TLS_A,TLS_B",
    }


@pytest.mark.covers("CAS-D3X-03")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "advanced.metrics.session.enabled = [ bytes-sent ]",
            r"CassandraCdcHook.request_numbers\(\) counts",
        ),
        ("profiles { slow { basic.request.timeout = 9 s } }", "only one profile is supported"),
        ("advanced.netty.io-group.size = 4", "no counterpart in the Python driver"),
        ("basic.request.timout = 9 s", r"unsupported setting basic\.request\.timout in "),
        (
            "basic.request.timeout = soon",
            r"invalid value of .*timeout in .*: expected a duration .*found 'soon'",
        ),
        ("basic.request.timeout = 0", "invalid value of .*: expected .*seconds above 0"),
        ("advanced.protocol.version = DSE_V1", "expected one of 3, 4, 5, found 'DSE_V1'"),
        ("advanced.protocol.compression = zip", "expected one of none, lz4, snappy"),
        ("basic.contact-points = [ db1 ]", 'expected a list of "host:port"'),
        ('basic.contact-points = ["a:1", "b:2"]', "all with the same port"),
        ("advanced.auth-provider.class = DseGssApiAuthProvider", "PlainTextAuthProvider have counterparts"),
    ],
)
def test_unsupported_settings_are_rejected_by_name(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_driver_file(written(tmp_path, f"datastax-java-driver {{ {line} }}"))


@pytest.mark.covers("CAS-D3X-03")
@pytest.mark.parametrize(
    "line",
    [
        f"advanced.auth-provider.password = [{WORD}]",
        f"advanced.auth-provider {{ password = {WORD} + }}",
        f'advanced.auth-provider {{ password = "{WORD}',
        f'advanced.auth-provider {{ password = "\\q{WORD}" }}',
        f"advanced.auth-provider {{ password = ${{{WORD}}} }}",
        f'advanced.auth-provider {{ password = "a"{WORD} }}',
        f"advanced.auth-provider {{ secret = {WORD} }}",
        f"{WORD}",
    ],
)
def test_no_error_contains_a_secret(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_driver_file(written(tmp_path, line))
    error: BaseException | None = refused.value
    while error is not None:
        assert WORD not in str(error)
        error = error.__cause__


@pytest.mark.covers("CAS-D3X-03")
def test_unknown_and_invalid_extras_are_rejected_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown setting request_timeout\b.*timeout_seconds\?"):
        resolved({"extra": {"request_timeout": 3}})
    with pytest.raises(
        ConfigurationError, match=r"invalid value of setting page_size .*: expected a positive integer"
    ):
        resolved({"extra": {"page_size": 0}})
    with pytest.raises(ConfigurationError, match=r"heartbeat_interval_seconds .*expected seconds"):
        resolved({"extra": {"heartbeat_interval_seconds": float("nan")}})


def test_a_compression_without_its_library_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cassandra.connection.locally_supported_compressions", {})
    with pytest.raises(ConfigurationError, match=r"requires a library .*lz4.*pip install lz4"):
        open_session({"host": "db1", "extra": {"compression": "lz4"}}, timeout_seconds=3)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"driver_config_file .*nowhere.conf can't be read: .*found No"
    ):
        read_driver_file(str(tmp_path / "nowhere.conf"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("{}", {}),
        ("a = 1", {"a": "1"}),
        ("a.b = 1.50, a.c = 007", {"a.b": "1.50", "a.c": "007"}),
        ("a { b = x }\na.b = y", {"a.b": "y"}),
        ('"a b" : "c # \\u00e9"', {"a b": "c # é"}),
        ("a = b  c # e", {"a": "b c"}),
        ("a = [ 1, x y\n true ] // z", {"a": ["1", "x y", "true"]}),
        ("a = null\nb =\n  c", {"a": None, "b": "c"}),
        ("a = ${CDC_WORD}", {"a": "from outside"}),
        ("a = 1\na = ${?CDC_NOT_SET}", {"a": "1"}),
        ("{ a { b { c = 1 } } }", {"a.b.c": "1"}),
    ],
)
def test_the_subset_of_hocon_is_read(
    monkeypatch: pytest.MonkeyPatch, text: str, values: dict[str, Any]
) -> None:
    monkeypatch.setenv("CDC_WORD", "from outside")
    assert parse_hocon(text, "f") == values


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a = 1\ninclude "other.conf"', 2),
        ("a += 1", 1),
        ('a = """b"""', 1),
        ("a = ${b.c}", 1),
        ("a = ${CDC_NOT_SET}", 1),
        ("\n\na { b = 1", 3),
        ("a = [1,\n2", 2),
        ("a = 1 }", 1),
        ("{ a = 1 }\nb = 2", 2),
        ("a", 1),
        ('a = "b" "c"', 1),
        ("a = {b = 1} c", 1),
        ("a = http://h/x", 1),
        ("b = 1\na = p@ss", 2),
    ],
)
def test_the_rest_of_hocon_is_rejected_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigurationError, match=f"invalid syntax in line {line} of f"):
        parse_hocon(text, "f")
