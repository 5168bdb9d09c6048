"""Files that a connection names end, and no connection gives away the identity of the machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from airflow_cdc_provider.connection_settings import check_files, flag, read_file
from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connections.registry import registry_values
from airflow_cdc_provider.connections.stores import SftpStore
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.keystores import read_keystore
from airflow_cdc_provider.hooks.debezium import DebeziumCdcHook
from airflow_cdc_provider.hooks.mongodb import MongodbCdcHook
from airflow_cdc_provider.kafka.registry import client_settings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.pulsar.connection import Brokers
from airflow_cdc_provider.pulsar.settings import ClientSettings as PulsarSettings
from airflow_cdc_provider.sources.cql.driver.driver_settings import read_driver_file
from airflow_cdc_provider.sources.cql.driver.tls import tls_context
from airflow_cdc_provider.sources.mongodb import connection
from airflow_cdc_provider.sources.mongodb.connection import ConnectionValues as MongodbValues
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues as VitessValues
from tests.bounded import bounded

Use = Callable[[str], object]
PEM = "-----BEGIN "
"""Makes this file one, for Vitess."""


def cql(name: str) -> Use:
    own = {"tls_certificate_file": "/none"} if name == "tls_key_file" else {}
    return lambda path: tls_context({**own, name: path})


def mongodb(name: str) -> Use:
    return lambda path: MongodbValues.read({"host": "h", "extra": {name: path}}, 1).client(connect=False)


def of_string(name: str) -> Use:
    return lambda path: MongodbValues.read({"host": f"mongodb://h/?{name}={path}"}, 1).client(connect=False)


def vitess(name: str) -> Use:
    files = {} if name == "tls_ca_file" else {"tls_cert_file": __file__, "tls_key_file": __file__}
    return lambda path: VitessValues.read({"host": "h", "extra": {**files, name: path}}).channel()


def kafka(name: str) -> Use:
    issuer = {"sasl.oauthbearer.token.endpoint.url": "https://h"} if name.startswith("https") else {}
    return lambda path: ClientSettings({"bootstrap.servers": "b", **issuer, name: path})


def registry(name: str) -> Use:
    return lambda path: client_settings({"host": "r", "extra": {name: path}})


def pulsar(name: str) -> Use:
    def use(path: str) -> object:
        settings = PulsarSettings.of_connection({"service_url": "pulsar+ssl://127.0.0.1:1", name: path})
        return Brokers(settings).partitions("t")

    return use


def ssh(path: str) -> None:
    os.environ["AIRFLOW_CONN_NODE"] = json.dumps(
        {"conn_type": "ssh", "host": "127.0.0.1", "port": 1, "extra": {"key_file": path}}
    )
    try:
        SftpStore("node", "/x").items()
    finally:
        del os.environ["AIRFLOW_CONN_NODE"]


USES: Mapping[str, Use] = {
    "keystore": lambda path: read_keystore(path, "", "keyStore"),
    "driver_config_file": read_driver_file,
    "ssh key_file": ssh,
    **{
        f"cql {name}": cql(name)
        for name in (
            *("tls_config_file", "tls_ca_file", "tls_certificate_file", "tls_key_file"),
            *("trustStore.location", "keyStore.location"),
        )
    },
    **{
        f"mongodb {name}": mongodb(name)
        for name in ("tlsCAFile", "TLSCRLFILE", "tlsCertificateKeyFile", "ssl.truststore", "ssl.keystore")
    },
    **{f"uri {name}": of_string(name) for name in ("tlsCAFile", "tlscrlfile", "tlsCertificateKeyFile")},
    **{f"vitess {name}": vitess(name) for name in ("tls_ca_file", "tls_cert_file", "tls_key_file")},
    **{
        f"kafka {name}": kafka(name)
        for name in (
            *(f"ssl.{kind}.location" for kind in ("ca", "key", "certificate", "crl", "keystore")),
            *("https.ca.location", "sasl.kerberos.keytab"),
            "sasl.oauthbearer.assertion.private.key.file",
        )
    },
    **{f"registry {name}": registry(f"ssl.{name}.location") for name in ("ca", "certificate", "key")},
    **{f"pulsar {name}": pulsar(name) for name in ("tls_ca_file", "tls_certificate_file", "tls_key_file")},
}


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("files")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    with (folder / "large").open("wb") as large:
        large.truncate(1 << 40)
    # A regular file of no size, for the kernel; it never ends.
    yield ["/dev/zero", "/proc/self/pagemap", *(str(folder / name) for name in ("pipe", "link", "large"))]


@pytest.mark.parametrize("name", USES)
def test_a_file_that_a_connection_names_is_small_and_regular(name: str, endless: list[str]) -> None:
    paths = [path for path in endless if name != "kafka sasl.kerberos.keytab" or "_" not in path]
    with bounded(seconds=2, mebibytes=128):
        for path in paths:
            with pytest.raises(ConfigurationError, match="can't be read") as refused:
                USES[name](path)
            assert path in str(refused.value)
    if name == "kafka sasl.kerberos.keytab":
        with pytest.raises(ConfigurationError, match="can't be read"):
            USES[name]("FILE:/dev/zero")


def test_a_path_has_no_end_before_its_end() -> None:
    for path in ("/dev/zero\0.pem", "\udfff", "/dev", f"{'a' * 300}"):
        with pytest.raises(ConfigurationError, match="can't be read"):
            read_file(path, "setting")
    for path in ("/dev/zero\0.pem", "/dev\0"):
        for folders in (False, True):
            with pytest.raises(ConfigurationError, match="can't be read"):
                check_files({"setting": path}, "setting", folders=folders)


def test_files_are_links_and_folders_of_authorities_as_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "ca.pem").write_bytes(b"x" * (1 << 20))
    (tmp_path / "ca.pem").symlink_to("..data/ca.pem")
    assert len(read_file(tmp_path / "ca.pem", "setting")) == 1 << 20
    for path in (str(tmp_path), "/none", str(tmp_path / "ca.pem"), "probe", ""):
        ClientSettings({"bootstrap.servers": "b", "ssl.ca.location": path})
        client_settings({"host": "r", "extra": {"ssl.ca.location": path}})


def test_a_file_that_waits_for_data_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg does for root: it is a regular file, and a library would wait in its read."""
    pipe, _ = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr("airflow_cdc_provider.regular_files.open_regular", lambda path, links: pipe)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="can't be read"):
        check_files({"setting": str(tmp_path / "file")}, "setting")
    os.close(_)


@pytest.mark.parametrize(
    "host",
    [
        "x:22 -F /dev/null -oProxyCommand='touch x' y.corp",
        *("-oProxyCommand=x", ".x", "a b", "a\tb", "a\n", "a;b", "$(x)", "`x`", "a|b", "a'b", 'a"b', "a\\b"),
        *("a&b", "a/b", "u@h", "a,b", "%", "\u00e4", "a\0", "", " "),
    ],
)
def test_a_host_of_ssh_is_no_part_of_a_command(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's SSH configuration puts it into commands: ``ProxyCommand ssh -W %h:%p bastion``."""
    reached: list[str] = []
    monkeypatch.setattr(
        "airflow.providers.ssh.hooks.ssh.SSHHook.get_conn", lambda hook: reached.append(hook.remote_host)
    )
    monkeypatch.setenv("AIRFLOW_CONN_NODE", json.dumps({"conn_type": "ssh", "host": host}))
    with pytest.raises(ConfigurationError, match="no valid host") as caught:
        SftpStore("node", "/x").items()
    assert reached == []
    assert len(host) < 3 or host not in str(caught.value), "it may have a login"


@pytest.mark.parametrize("host", ["node-1.corp", "10.0.0.1", "::1", "fe80::1%eth0", "cassandra_1"])
def test_hosts_of_ssh_are_names_and_addresses(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reached(Exception):
        """With the host."""

    def connect(hook: Any) -> None:
        raise Reached(hook.remote_host)

    monkeypatch.setattr("airflow.providers.ssh.hooks.ssh.SSHHook.get_conn", connect)
    monkeypatch.setenv("AIRFLOW_CONN_NODE", json.dumps({"conn_type": "ssh", "host": host}))
    with pytest.raises(Reached, match=f"^{host}$"):
        SftpStore("node", "/x").items()


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just([])))
def test_a_flag_is_true_or_false(value: object) -> None:
    if value is None or value == "":
        assert flag({"x": value}, "x", default=True)
    elif isinstance(value, bool) or value in ("true", "false"):
        assert flag({"x": value}, "x") is (value is True or value == "true")
    else:
        with pytest.raises(ConfigurationError, match="expected true or false"):
            flag({"x": value}, "x")


AZURE = "ENVIRONMENT:azure,TOKEN_RESOURCE:https://management.azure.com"
OF_MONGODB: tuple[dict[str, Any], ...] = (
    {"extra": {"authMechanism": "MONGODB-OIDC", "authMechanismProperties": AZURE}},
    {"extra": {"AUTHMECHANISM": "MONGODB-OIDC", "authMechanismProperties": {"ENVIRONMENT": "k8s"}}},
    {
        "extra": {"authMechanism": "MONGODB-OIDC", "authMechanismProperties": {"ENVIRONMENT": "gcp"}},
        "login": "x",
    },
    {"extra": {"uri_options": f"authMechanism=MONGODB-OIDC&authMechanismProperties={AZURE}"}},
    {"extra": {"secret_uri": f"mongodb://me@h/?authMechanism=MONGODB-OIDC&authMechanismProperties={AZURE}"}},
    {"host": "mongodb://h/?authmechanism=MONGODB%2DOIDC"},
    {"host": "h/?authMechanism=MONGODB-OIDC&w=1", "port": None},
    {"extra": {"authMechanism": "MONGODB-AWS"}},
)
METADATA = "sasl.oauthbearer.metadata.authentication.type"
OF_KAFKA: tuple[dict[str, Any], ...] = (
    {METADATA: "azure_imds", "sasl.oauthbearer.config": "query=resource=https://management.azure.com/"},
    {METADATA: "AZURE_IMDS"},
    {METADATA: "another"},
    {"sasl.oauthbearer.assertion.private.key.file": "/key.pem"},
)


def stored(monkeypatch: pytest.MonkeyPatch, conn_type: str, **connection: Any) -> None:
    connection = {"conn_type": conn_type, "host": "h", **connection}
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps(connection))


def refused_unless_allowed(monkeypatch: pytest.MonkeyPatch, *lookups: Callable[[], object]) -> None:
    for lookup in lookups:
        for off in (None, "False"):
            if off:
                monkeypatch.setenv("AIRFLOW__CDC__WORKLOAD_IDENTITY_TOKENS", off)
            with pytest.raises(ConfigurationError, match="identity") as refused:
                lookup()
            assert "workload_identity_tokens" in refused.value.remedy
        monkeypatch.setenv("AIRFLOW__CDC__WORKLOAD_IDENTITY_TOKENS", "True")
        lookup()
        monkeypatch.delenv("AIRFLOW__CDC__WORKLOAD_IDENTITY_TOKENS")


@pytest.mark.parametrize("connection", OF_MONGODB)
def test_mongodb_gets_no_token_of_the_machine(
    connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(monkeypatch, "cdc_mongodb", **connection)
    refused_unless_allowed(monkeypatch, MongodbCdcHook("c").connection_values)


OPTIONS = "authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:gcp,TOKEN_RESOURCE:a&tls=false"


@pytest.mark.parametrize(
    "address",
    [
        *(f"h:1/?{OPTIONS}", f"h:1/x?{OPTIONS}", f"h?{OPTIONS}", f"u@h:1/?{OPTIONS}", "h:1/?tls=false"),
        *("h:1/?authMechanism=PLAIN", "u:p@h:1", "h:1/x", "h:1,i:1", "h:1#", "h:1 ", "h:1\n", "h;tls=false"),
        *("%2Fx.sock", "[::1]:1/?tls=false", "[x]:1", "", None, 1, ["h:1"], {"a": "b"}),
    ],
)
@pytest.mark.parametrize("message", ["", "isdbgrid"])
def test_a_servers_word_is_no_connection_string(
    address: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_hello", lambda client: {"me": address, "msg": message})
    monkeypatch.setattr(connection, "_any_node", lambda client: address)
    values = MongodbValues.read({"host": "h", "extra": {"readPreference": "nearest", "tls": True}}, 1)
    with pytest.raises(ConfigurationError, match="invalid address"):
        connection.pinned_client(values)


@given(st.text("h1.:-_%[]/?@=&#;, \n\u00e4", min_size=1, max_size=12))
def test_an_address_of_a_server_has_no_options_login_or_second_server(address: str) -> None:
    if connection._SERVER.fullmatch(address):
        with suppress(ValueError, PyMongoError):
            found = parse_uri(f"mongodb://{address}/")
            assert (len(found["nodelist"]), found["username"], found["database"]) == (1, None, None)
            assert not found["options"]


@pytest.mark.parametrize("address", ["db-1.corp:27017", "127.0.0.1:27018", "[::1]:27017", "db_1"])
def test_a_client_of_one_server_has_the_login_and_options_of_the_connection(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_hello", lambda client: {"me": address})
    for host in ("h", "mongodb://me:p%40ss@h/users?readPreference=nearest&tls=true"):
        login = {"login": "me", "password": "p@ss", "schema": "users"} if host == "h" else {}
        extra = {"readPreference": "nearest", "tls": True} if host == "h" else {}
        values = MongodbValues.read({"host": host, "extra": extra, **login}, 1)
        with connection.pinned_client(values) as client:
            pool: Any = client.options.pool_options
            assert pool._credentials[1:4] == ("users", "me", "p@ss")
            assert pool._ssl_context.verify_mode
            assert client.options.direct_connection


@pytest.mark.parametrize("of_seed_list", [{}, {"srvmaxhosts": 2}, {"srvservicename": "db"}])
def test_a_client_of_one_server_has_no_options_that_exclude_each_other(
    of_seed_list: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "mongodb://h/?readPreference=nearest&tls=true&tlsInsecure=true"
    parsed = parse_uri(host)
    parsed["options"].update(of_seed_list)
    monkeypatch.setattr(connection, "_hello", lambda client: {"me": "h:1"})
    monkeypatch.setattr(connection, "parse_uri", lambda host, validate: parsed)
    with connection.pinned_client(MongodbValues.read({"host": host}, 1)) as client:
        pool: Any = client.options.pool_options
        assert client.options.direct_connection
        assert not pool._ssl_context.verify_mode


def test_each_client_of_mongodb_has_options_that_a_connection_may_have() -> None:
    values = MongodbValues.read({"host": "h"}, 1)
    for changed in ({"host": "mongodb://h/?proxyHost=x"}, {"options": {"eventListeners": "x"}}):
        with pytest.raises(ConfigurationError):
            replace(values, **changed)


@pytest.mark.parametrize("extra", OF_KAFKA)
def test_brokers_get_no_token_of_the_machine(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    stored(monkeypatch, "kafka", extra={"bootstrap.servers": "b", **extra})
    refused_unless_allowed(monkeypatch, DebeziumCdcHook("c").connection_values, lambda: kafka_values("c"))


def test_registries_get_no_token_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for source in ("OAUTHBEARER_AZURE_IMDS", "another"):
        stored(monkeypatch, "http", extra={"bearer.auth.credentials.source": source})
        refused_unless_allowed(monkeypatch, lambda: registry_values("c"))


def test_logins_of_a_connection_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stored(monkeypatch, "cdc_mongodb", login="id", password="key", extra={"authMechanism": "MONGODB-AWS"})
    assert MongodbCdcHook("c").connection_values()
    for extra in ({METADATA: "none"}, {"sasl.oauthbearer.assertion.private.key.pem": "key"}):
        stored(monkeypatch, "kafka", extra={"bootstrap.servers": "b", **extra})
        assert kafka_values("c")
    for source in ("OAUTHBEARER", "STATIC_TOKEN"):
        stored(monkeypatch, "http", extra={"bearer.auth.credentials.source": source})
        assert registry_values("c")
