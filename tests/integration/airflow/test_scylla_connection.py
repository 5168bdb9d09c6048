"""Nodes in two datacenters that demand TLS, a client's certificate and a login, as ScyllaDB's may."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
from airflow_cdc_provider.sources.cql.connection import open_session
from airflow_cdc_provider.sources.scylla.source import ScyllaSource
from server_kit import CassandraServer
from server_kit.scylla import ImitatedScylla
from tests.integration.airflow.keystores import WORD, demanding_certificates, make_stores, pem_files
from tests.integration.sources.scylla.captured import Captured
from tests.integration.sources.scylla.logged_tables import imitated, insert, item, logged_rows

pytestmark = pytest.mark.integration

AES_256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
SECRET = "s3cr3t-word"
FAR = "127.1.0.1"
"""The node in datacenter ``1``; the other one is in ``0``: the addresses' second bytes."""


@dataclass
class Secured:
    """The nodes, the client's stores, and a keyspace with a logged table."""

    port: int
    stores: Path
    folder: Path
    cluster: ImitatedScylla | None = None

    def keystores(self, **more: Any) -> dict[str, Any]:
        """Return the source connector's properties for Java's stores."""
        return {
            "scylla.ssl.enabled": "true",
            "scylla.ssl.truststore.path": str(self.stores / "nodes.jks"),
            "scylla.ssl.truststore.password": WORD,
            "scylla.ssl.keystore.path": str(self.stores / "client.jks"),
            "scylla.ssl.keystore.password": WORD,
            "consistency": "ONE",  # a row has one replica, in either datacenter
            **more,
        }

    def hook(self, monkeypatch: pytest.MonkeyPatch, extra: Mapping[str, Any], **values: Any) -> ScyllaCdcHook:
        connection = {"conn_type": "cdc_scylla", "host": "127.0.0.1", "port": self.port, "extra": dict(extra)}
        connection = {**connection, "login": "capture", "password": SECRET, **values}
        monkeypatch.setenv("AIRFLOW_CONN_SECURED", json.dumps(connection))
        return ScyllaCdcHook("secured")

    def check(
        self, monkeypatch: pytest.MonkeyPatch, extra: Mapping[str, Any], **values: Any
    ) -> tuple[bool, str]:
        """Test the connection by the hook, as the button of Airflow's form does."""
        try:
            return self.hook(monkeypatch, extra, **values).test_connection()
        except ConfigurationError as error:
            return False, str(error)


def replicated(**datacenters: str) -> str:
    """Return the option of a keyspace of which each datacenter has a copy."""
    return str({"class": "NetworkTopologyStrategy", **dict.fromkeys(datacenters.values(), 1)})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    stores, folder = (tmp_path_factory.mktemp(name) for name in ("stores", "pem"))
    make_stores(stores, FAR)
    settings = {
        "client_encryption_options": demanding_certificates(stores),
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "endpoint_snitch": "RackInferringSnitch",
    }
    at_once = {"cassandra.superuser_setup_delay_ms": "0"}
    login = {"login": "cassandra", "password": "cassandra"}
    with (
        CassandraServer(settings=settings, properties=at_once) as near,
        pytest.MonkeyPatch.context() as monkeypatch,
        ExitStack() as stack,  # the owner's session is closed before its nodes stop
    ):
        made = Secured(near.port, stores, folder)
        with closing(made.hook(monkeypatch, made.keystores(), **login)) as first:
            session = _patiently(first)
            # Logins are looked up in a node's own datacenter: the last created ones are known in both.
            session.execute(f"ALTER KEYSPACE system_auth WITH replication = {replicated(near='0')}")
            far = CassandraServer(
                address=FAR, seed=near, native_port=near.port, settings=settings, properties=at_once
            )
            stack.enter_context(far)
            _once_joined(
                session, f"ALTER KEYSPACE system_auth WITH replication = {replicated(near='0', far='1')}"
            )
            session.execute(
                f"CREATE ROLE owner WITH SUPERUSER = true AND LOGIN = true AND PASSWORD = '{SECRET}'"
            )
        owner = made.hook(monkeypatch, made.keystores(), login="owner")
        stack.callback(owner.close)
        session = _patiently(owner)
        made.cluster = imitated(session, "secured")
        made.cluster.new_generation()
        made.cluster.create_table(item("secured"))
        session.execute(f"CREATE ROLE capture WITH LOGIN = true AND PASSWORD = '{SECRET}'")
        names = made.cluster.names
        for keyspace in ("secured", names.distributed, names.system, names.schema):
            session.execute(f"GRANT SELECT ON KEYSPACE {keyspace} TO capture")
        yield made


def _once_joined(session: Any, statement: str) -> None:
    """Execute a statement that is rejected until the first node knows that the second one has joined."""
    from cassandra.protocol import ConfigurationException

    last = time.monotonic() + 60
    while True:
        try:
            session.execute(statement)
        except ConfigurationException as error:
            if "not in normal state" not in str(error) or time.monotonic() > last:
                raise
            time.sleep(0.5)
        else:
            return


def _patiently(hook: ScyllaCdcHook) -> Any:
    """Return a session once the first login is there, which a new cluster makes by and by."""
    last = time.monotonic() + 60
    while True:
        try:
            return hook.get_conn()
        except CdcError:
            if time.monotonic() > last:
                raise
            time.sleep(0.5)


def source_of(secured: Secured, hook: ScyllaCdcHook, **options: Any) -> ScyllaSource:
    assert secured.cluster is not None
    names = secured.cluster.names
    advanced = {
        "distributed_keyspace": names.distributed,
        "system_keyspace": names.system,
        "schema_keyspace": names.schema,
    }
    connector = Connector.from_dict(
        {
            "name": "shop",
            "source": {
                "type": "scylla",
                "conn_id": "secured",
                "consistency": "ONE",
                "confidence_window_seconds": 0,
                "advanced": advanced,
                **options,
            },
            "tables": [r"secured\.item"],
        }
    )
    source = hook.source(connector)
    assert isinstance(source, ScyllaSource)
    return source


@pytest.mark.covers("SCY-CFG-06", "SCY-CFG-09")
def test_logs_are_read_over_tls_with_a_clients_certificate_and_a_login(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = secured.cluster
    assert cluster is not None
    for number in range(20):
        cluster.execute(cluster.tables["item"].table, insert(number, number))
    source = source_of(secured, secured.hook(monkeypatch, secured.keystores()))
    try:
        assert [f for f in source.check() if f.level == "error"] == []
        captured = Captured(source).run()
        assert captured.log_rows == logged_rows(cluster.session, cluster)
        assert sum(captured.log_rows.values()) >= 20
    finally:
        source.close()


@pytest.mark.covers("SCY-CFG-09")
def test_each_of_the_connectors_properties_of_tls_has_its_effect(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = secured.hook(
        monkeypatch,
        secured.keystores(**{"scylla.ssl.provider": "JDK", "scylla.ssl.cipherSuites": AES_256}),
    )
    with hook as session:
        (connection, *_) = next(iter(session._pools.values())).get_connections()
        assert connection._socket.cipher()[0] == "ECDHE-RSA-AES256-GCM-SHA384", "the only suite it names"
    key, own, _ = pem_files(secured.stores, secured.folder)
    openssl = {
        "scylla.ssl.enabled": True,
        "scylla.ssl.provider": "openssl",
        "scylla.ssl.truststore.path": str(secured.stores / "nodes.p12"),
        "scylla.ssl.truststore.password": WORD,
        "scylla.ssl.openssl.keyCertChain": own,
        "scylla.ssl.openssl.privateKey": key,
    }
    good, text = secured.check(monkeypatch, openssl)
    assert good, text
    good, text = secured.check(monkeypatch, {**openssl, "scylla.ssl.openssl.privateKey": ""})
    assert not good
    assert "must be set together" in text
    good, text = secured.check(monkeypatch, {**openssl, "scylla.ssl.provider": "BORING"})
    assert not good
    assert "expected one of JDK, OPENSSL, OPENSSL_REFCNT" in text


@pytest.mark.covers("SCY-CFG-09")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"scylla.ssl.enabled": "false"}, "disables TLS, but has settings of TLS"),
        ({"scylla.ssl.enabled": "yes"}, "expected true or false"),
        ({"scylla.ssl.keystore.path": "", "scylla.ssl.keystore.password": ""}, "failed: TLS|got no response"),
        ({"scylla.ssl.truststore.path": "clients.jks"}, "failed: TLS error"),
        ({"scylla.ssl.keystore.password": "s3cr3t-other"}, "can't be opened"),
    ],
)
def test_tls_errors_are_reported_without_a_secret(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], expected: str
) -> None:
    places = {n: str(secured.stores / v) if v and n.endswith("path") else v for n, v in change.items()}
    good, text = secured.check(monkeypatch, secured.keystores(**places))
    assert not good
    assert re.search(expected, text), text
    assert WORD not in text
    assert "s3cr3t" not in text


@pytest.mark.covers("SCY-CFG-06")
@pytest.mark.parametrize("values", [{"password": "s3cr3t-other"}, {"login": "nobody"}])
def test_a_rejected_login_is_reported_without_the_password(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, values: dict[str, str]
) -> None:
    good, text = secured.check(monkeypatch, secured.keystores(), **values)
    assert not good
    assert "the login was rejected" in text
    assert "s3cr3t" not in text
    source = source_of(secured, secured.hook(monkeypatch, secured.keystores(), **values))
    assert [f.level for f in source.check()] == ["error"]
    with pytest.raises(ConfigurationError, match="the login was rejected"):
        source.head()


def asked_nodes(values: Mapping[str, Any], count: int, *, raw: bool) -> set[str]:
    """Return the addresses of the nodes that coordinate requests, of which there should be so many.

    A driver connects to some nodes later than to the first: it is polled until there are enough.
    """
    session = open_session(values, timeout_seconds=10, raw_results=raw)
    last = time.monotonic() + 30
    seen: set[str] = set()
    try:
        while True:
            futures = [session.execute_async("SELECT key FROM system.local") for _ in range(40)]
            for future in futures:
                future.result()
            seen |= {future.coordinator_host.address for future in futures}
            if len(seen) >= count or time.monotonic() > last:
                return seen
            time.sleep(0.2)
    finally:
        session.cluster.shutdown()


@pytest.mark.covers("SCY-CFG-08")
@pytest.mark.parametrize("raw", [False, True], ids=["questions", "logs"])
@pytest.mark.parametrize(
    ("extra", "nodes"),
    [
        ({}, {"127.0.0.1", FAR}),
        ({"local_datacenter": "0"}, {"127.0.0.1"}),
        ({"scylla.local.dc": "1"}, {FAR}),
    ],
    ids=["any", "0", "1"],
)
def test_the_local_datacenter_coordinates_if_one_is_named_else_any(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], nodes: set[str], raw: bool
) -> None:
    hook = secured.hook(monkeypatch, {**secured.keystores(), **extra})
    assert asked_nodes(hook.connection_values(), len(nodes), raw=raw) == nodes


@pytest.mark.covers("SCY-CFG-08")
def test_logs_are_read_by_way_of_another_datacenter_without_delay(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert secured.cluster is not None
    source = source_of(secured, secured.hook(monkeypatch, secured.keystores(**{"scylla.local.dc": "1"})))
    try:
        source.head()
        began = time.monotonic()
        source.head()
        assert time.monotonic() - began < 1.5, "nodes of other datacenters aren't waited for"
        assert Captured(source).run().log_rows == logged_rows(secured.cluster.session, secured.cluster)
    finally:
        source.close()


def test_a_missing_datacenter_is_reported(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    good, text = secured.check(monkeypatch, {**secured.keystores(), "local_datacenter": "elsewhere"})
    assert not good
    assert "no node is in the local datacenter: expected one of 0, 1, found elsewhere" in text
