"""What a connection's values become at the driver."""

from __future__ import annotations

import logging
import ssl

import pytest
from cassandra import OperationTimedOut, ReadFailure, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ServerError, SyntaxException

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.cql.connection import (
    contact_points,
    driver_errors,
    open_session,
    translated,
)
from tests.unit.sources.cassandra.driver_options import driver_arguments


@pytest.mark.covers("CAS-CFG-05", "CAS-CFG-06")
def test_contact_points_and_port_are_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = driver_arguments({"host": "db1, db2 ,db3,", "port": "9142"}, monkeypatch)
    assert (arguments["contact_points"], arguments["port"]) == (["db1", "db2", "db3"], 9142)
    arguments = driver_arguments({"host": "db1"}, monkeypatch)
    assert (arguments["contact_points"], arguments["port"]) == (["db1"], 9042)
    assert contact_points({}) == ["127.0.0.1"]


@pytest.mark.covers("CAS-CFG-07")
def test_login_and_password_are_the_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = {"host": "db1", "login": "the-reader", "password": "s3cret"}
    with caplog.at_level(logging.DEBUG):
        arguments = driver_arguments(connection, monkeypatch)
    provider = arguments["auth_provider"]
    assert (provider.username, provider.password) == ("the-reader", "s3cret")
    assert "the-reader" not in caplog.text
    assert "auth_provider" not in driver_arguments({"host": "db1"}, monkeypatch)


@pytest.mark.covers("CAS-CFG-09")
@pytest.mark.parametrize("check", [True, False])
def test_tls_is_on_if_enabled(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    extra = {"tls": True, "tls_check_hostname": check}
    context = driver_arguments({"host": "db1", "extra": extra}, monkeypatch)["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, check)
    for off in ({}, {"tls": False}):
        assert "ssl_context" not in driver_arguments({"host": "db1", "extra": off}, monkeypatch)


def test_unreadable_tls_files_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"tls": True, "tls_ca_file": "/nowhere.pem"}
    with pytest.raises(ConfigurationError, match="TLS files can't be used"):
        open_session({"host": "db1", "extra": extra}, timeout_seconds=3)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            Unavailable("no", consistency=5, required_replicas=2, alive_replicas=1),
            "more replicas than are up",
        ),
        (ReadTimeout("late", consistency=5, required_responses=2), "no response from the replicas in time"),
        (ReadFailure("tombstones", consistency=5), "failed on replicas that responded"),
        (OperationTimedOut(), "got no response"),
    ],
)
def test_failures_of_replicas_are_reported_with_a_remedy(error: Exception, message: str) -> None:
    found = translated(NoHostAvailable("none", {"db1": error}), "reading shop.orders")
    assert isinstance(found, TransientError)
    assert "reading shop.orders " in str(found)
    assert message in str(found)
    assert found.remedy


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SyntaxException(0x2000, "line 1:9 mismatched input 'Connection refused'", None), ConfigurationError),
        (ServerError(0, "java.lang.StackOverflowError", None), TransientError),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), ConfigurationError),
    ],
)
@pytest.mark.parametrize("by_host", [False, True])
def test_what_a_server_or_the_driver_says_of_a_wrong_filter_has_a_class(
    error: Exception, kind: type[Exception], *, by_host: bool
) -> None:
    raised = NoHostAvailable("none", {"db1": error}) if by_host else error
    with pytest.raises(kind, match="reading shop"), driver_errors("reading shop.orders"):
        raise raised


def test_hosts_without_an_address_are_named() -> None:
    with pytest.raises(
        TransientError, match=r"no address was found for the nodes db1\.invalid, db2\.invalid"
    ) as none:
        open_session({"host": "db1.invalid, db2.invalid"}, timeout_seconds=3)
    assert "correct the host of the Airflow connection" in none.value.remedy
