"""Connections to a real node that demands TLS and a client's certificate, by Java's keystores and by PEM."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.keystores import read_keystore
from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook
from tests.integration.airflow.cassandra_shop import Shop
from tests.integration.airflow.keystores import WORD, demanding_certificates, make_stores, pem_files

pytestmark = pytest.mark.integration

AES_256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


@dataclass
class Secured:
    """A node that takes no client without a certificate and doesn't capture, and the client's stores."""

    host: str
    port: int
    folder: Path

    def store(self, name: str) -> str:
        return str(self.folder / name)

    def java(self, kind: str = "jks", **more: str) -> dict[str, str]:
        """Return settings in Debezium's names."""
        return {
            "keyStore.location": self.store(f"client.{kind}"),
            "keyStore.password": WORD,
            "trustStore.location": self.store(f"nodes.{kind}"),
            "trustStore.password": WORD,
            **more,
        }

    def check_connection(self, monkeypatch: pytest.MonkeyPatch, extra: Mapping[str, Any]) -> tuple[bool, str]:
        """Test the connection by the hook, as the button of Airflow's form does."""
        values = {"conn_type": "cdc_cassandra", "host": self.host, "port": self.port, "extra": dict(extra)}
        monkeypatch.setenv("AIRFLOW_CONN_SECURED", json.dumps(values))
        return CassandraCdcHook("secured").test_connection()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    from server_kit import CassandraServer

    folder = tmp_path_factory.mktemp("stores")
    make_stores(folder)
    options = demanding_certificates(folder)
    with CassandraServer(settings={"client_encryption_options": options, "cdc_enabled": False}) as server:
        yield Secured(server.host, server.port, folder)


@pytest.mark.covers("CAS-DEPLOY-06", "CAS-CFG-10")
def test_debeziums_settings_file_opens_a_connection(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ssl.properties"
    more = {
        "keyStore.type": "JKS",
        "trustStore.type": "JKS",
        "keyManager.algorithm": "SunX509",
        "trustManager.algorithm": "SunX509",
        "cipherSuites": AES_256,
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in secured.java(**more).items()))
    good, text = secured.check_connection(monkeypatch, {"tls": True, "tls_config_file": str(file)})
    assert good, text
    with CassandraCdcHook("secured") as session:
        pool = next(iter(session._pools.values()))
        (connection, *_) = pool.get_connections()
        assert connection._socket.cipher()[0] == "ECDHE-RSA-AES256-GCM-SHA384", "the only suite it names"
        assert connection._socket.version() == "TLSv1.2"


@pytest.mark.covers("CAS-DEPLOY-06")
@pytest.mark.parametrize("kind", ["jks", "p12"])
def test_the_same_names_do_in_a_connections_extra_with_javas_defaults(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    good, text = secured.check_connection(monkeypatch, secured.java(kind))
    assert good, text
    good, text = secured.check_connection(
        monkeypatch, {**secured.java(kind), "trustStore.location": secured.store("nodes.jceks")}
    )
    assert good, text


@pytest.mark.covers("CAS-DEPLOY-06")
def test_pem_files_do_as_well(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, own, nodes = pem_files(secured.folder, tmp_path)
    pem = {"tls_ca_file": nodes, "tls_certificate_file": own, "tls_key_file": key}
    good, text = secured.check_connection(monkeypatch, {**pem, "cipherSuites": "ECDHE-RSA-AES128-GCM-SHA256"})
    assert good, text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keyStore.location": "", "keyStore.password": ""}, "failed: TLS error|got no response"),
        ({"trustStore.location": "clients.jks"}, "failed: TLS error"),
        (
            {"keyStore.password": "s3cr3t-other"},
            r"keyStore .* can't be opened: expected its password, as keyStore\.password",
        ),
        ({"trustStore.location": "nowhere.jks"}, "trustStore .* can't be read: .*found No such file"),
        ({"cipherSuites": "TLS_NO_SUCH_WITH_SUITE"}, "unknown to OpenSSL: NO-SUCH-SUITE"),
        ({"cipherSuites": "TLS_AES_256_GCM_SHA384"}, "Python can't restrict them"),
        ({"keyStore.type": "BKS"}, "invalid value for keyStore.type: expected one of JKS, PKCS12, JCEKS"),
    ],
)
@pytest.mark.covers("CAS-DEPLOY-06")
def test_tls_errors_are_reported_without_a_secret(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], message: str
) -> None:
    changed = {n: secured.store(v) if v and n.endswith("location") else v for n, v in change.items()}
    good, text = secured.check_connection(monkeypatch, {**secured.java(), **changed})
    assert not good
    assert re.search(message, text), text
    assert WORD not in text
    assert "s3cr3t" not in text


def test_any_changed_bit_of_a_keystore_is_detected(secured: Secured, tmp_path: Path) -> None:
    data = (secured.folder / "client.jks").read_bytes()
    for place in range(0, len(data), 97):
        damaged = tmp_path / "damaged.jks"
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(ConfigurationError):
            read_keystore(str(damaged), WORD, "keyStore")


@pytest.mark.covers("CAS-DEPLOY-06")
def test_a_settings_file_may_be_as_lax_as_java_allows(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trust store without its password, types in small letters, Latin-1, and Java's suite that is none."""
    folder = tmp_path / "schlüssel"
    shutil.copytree(secured.folder, folder)
    settings = {
        "keyStore.location": str(folder / "client.jks"),
        "keyStore.password": WORD,
        "keyStore.type": "jks",
        "trustStore.location": str(folder / "nodes.jks"),
        "trustStore.type": "jks",
        "cipherSuites": f"{AES_256},TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
    }
    file = tmp_path / "ssl.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "latin-1")
    good, text = secured.check_connection(monkeypatch, {"tls_config_file": str(file)})
    assert good, text


@pytest.mark.covers("CAS-SETUP-05")
def test_a_cluster_that_does_not_capture_takes_the_alter_and_that_is_reported(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from server_kit import create_keyspace

    values = {"conn_type": "cassandra", "host": secured.host, "port": secured.port, "extra": secured.java()}
    monkeypatch.setenv("AIRFLOW_CONN_CASSANDRA_SHOP", json.dumps(values))
    with CassandraCdcHook("cassandra_shop") as session:
        create_keyspace(session, "deaf")
        session.execute("CREATE TABLE deaf.orders (id int PRIMARY KEY, region int)")
        with pytest.raises(AirflowFailException, match=r"cdc_enabled: true in cassandra\.yaml of every node"):
            Shop(session, "deaf").switch("orders")
