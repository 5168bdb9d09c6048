"""A setting of TLS never leaves a login in the clear, and each server has to prove its own name."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pymongo.errors import PyMongoError

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook
from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
from airflow_cdc_provider.kafka.registry import Registry, RegistrySettings, client_settings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.pulsar import settings as pulsar
from airflow_cdc_provider.pulsar.connection import Brokers
from airflow_cdc_provider.sources.cql.connection import connection_findings, open_session
from airflow_cdc_provider.sources.cql.driver.driver_settings import read_driver_file
from airflow_cdc_provider.sources.cql.driver.tls import SETTINGS, tls_context, wants_tls
from airflow_cdc_provider.sources.findings import login_findings
from airflow_cdc_provider.sources.mongodb import connection as mongodb
from airflow_cdc_provider.sources.vitess import connection as vitess
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from tests.certificates import Authority
from tests.unit.sources.vitess.recording_vtgate import RecordingVtgate

PASSWORD = "s3cret-word"


class Listener:
    """Accepts connections and keeps what clients send first."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with client, suppress(OSError):
                    client.settimeout(1)
                    self.received.append(client.recv(4096))


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener()
    yield one
    one.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def cql(address: Mapping[str, Any], ca: str) -> None:
    open_session({**address, "extra": {"tls_ca_file": ca}}, timeout_seconds=2)


def of_mongodb(address: Mapping[str, Any], ca: str) -> None:
    extra = {"tlsCAFile": ca, "serverSelectionTimeoutMS": 300}
    with mongodb.ConnectionValues.read({**address, "extra": extra}, 1).client() as client:
        client.admin.command("ping")


def kafka(address: Mapping[str, Any], ca: str) -> None:
    extra = {
        "bootstrap.servers": f"{address['host']}:{address['port']}",
        "sasl.mechanism": "PLAIN",
        "sasl.username": address["login"],
        "sasl.password": address["password"],
        "ssl.ca.location": ca,
    }
    AdminClient({**ClientSettings(extra).of_admin(), "log_level": 0}).list_topics(timeout=1)


def registry(address: Mapping[str, Any], ca: str) -> None:
    found = client_settings({**address, "extra": {"ssl.ca.location": ca, "max.retries": 0}})
    Registry(RegistrySettings(found)).schema_of(1)


def of_vitess(address: Mapping[str, Any], ca: str) -> None:
    with VtgateClient(vitess.ConnectionValues.read({**address, "extra": {"tls_ca_file": ca}})) as client:
        client.execute("SELECT 1", timeout_seconds=1)


@pytest.mark.parametrize("connect", [cql, of_mongodb, kafka, registry, of_vitess])
def test_an_authority_alone_enables_tls(
    listener: Listener, authority: Authority, connect: Callable[[Mapping[str, Any], str], None]
) -> None:
    address = {"host": "127.0.0.1", "port": listener.port, "login": "me", "password": PASSWORD}
    with pytest.raises((CdcError, PyMongoError, KafkaException)):
        connect(address, str(authority.file))
    assert listener.received
    for sent in filter(None, listener.received):
        assert sent[:2] == b"\x16\x03", "a handshake of TLS"
        assert PASSWORD.encode() not in sent


OF_CQL = tuple(name for name in SETTINGS if name not in ("tls", "tls_check_hostname"))


@pytest.mark.parametrize("name", [*OF_CQL, "tls_check_hostname"])
def test_any_setting_of_cqls_tls_enables_it_or_is_refused(name: str) -> None:
    value: Any = False if name == "tls_check_hostname" else "x"
    assert wants_tls({name: value})
    assert wants_tls({name: value, "tls": True})
    with pytest.raises(ConfigurationError, match="disables TLS, but has settings of TLS"):
        wants_tls({name: value, "tls": False})
    with pytest.raises(ConfigurationError):
        open_session({"host": "db", "extra": {name: value, "tls": "false"}}, timeout_seconds=1)
    # As the form of a connection stores it:
    assert not wants_tls({"tls": False, "tls_check_hostname": True})
    assert not wants_tls({})


def test_flags_of_tls_are_no_other_texts() -> None:
    values: tuple[Any, ...] = ("yes", "0", "on", 2, [])
    for value in values:
        with pytest.raises(ConfigurationError, match="invalid value of setting tls"):
            open_session({"host": "db", "extra": {"tls": value}}, timeout_seconds=1)


def scylla(extra: dict[str, Any]) -> bool:
    return wants_tls(ScyllaCdcHook("s").normalize({"extra": extra})["extra"])


def test_the_source_connectors_properties_enable_tls_or_are_refused() -> None:
    for name in ("truststore.path", "keystore.path", "truststore.password", "cipherSuites"):
        assert scylla({f"scylla.ssl.{name}": "x"})
        assert scylla({f"scylla.ssl.{name}": "x", "scylla.ssl.enabled": "true"})
        with pytest.raises(ConfigurationError, match="disables TLS"):
            scylla({f"scylla.ssl.{name}": "x", "scylla.ssl.enabled": "FALSE"})
        with pytest.raises(ConfigurationError, match="disables TLS"):
            scylla({f"scylla.ssl.{name}": "x", "tls": False})
    assert not scylla({"scylla.ssl.enabled": "false"})


def test_the_stock_types_options_of_tls_are_not_lost() -> None:
    hook = CassandraCdcHook("c")
    assert wants_tls(hook.normalize({"extra": {"ssl_options": {"ca_certs": "/ca"}}})["extra"])
    for value in ("true", True, ["/ca"]):
        with pytest.raises(ConfigurationError, match="invalid value for ssl_options"):
            hook.normalize({"extra": {"ssl_options": value}})
    with pytest.raises(ConfigurationError, match="disables TLS"):
        wants_tls(hook.normalize({"extra": {"ssl_options": {"ca_certs": "/ca"}, "tls": False}})["extra"])


def test_a_file_of_settings_that_is_another_file_is_not_in_an_error(tmp_path: Path) -> None:
    other = tmp_path / "credentials"
    for text in (
        "hunter2secret\n",
        "token=\n  hunter2secret\n",
        "hunter2secret: x\n",
        "{hunter2secret = y}\n",
    ):
        other.write_text(text)
        with pytest.raises(ConfigurationError) as of_tls:
            tls_context({"tls_config_file": str(other)})
        with pytest.raises(ConfigurationError) as of_driver:
            read_driver_file(str(other))
        assert "hunter2secret" not in str(of_tls.value) + str(of_driver.value)


OF_MONGODB = (
    *("tlsCAFile", "tlsCertificateKeyFile", "tlsCertificateKeyFilePassword", "tlsCRLFile", "tlsInsecure"),
    *("tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames", "tlsDisableOCSPEndpointCheck"),
    *("ssl.truststore", "ssl.keystore"),
)


def of(host: str = "h", /, **extra: Any) -> mongodb.ConnectionValues:
    return mongodb.ConnectionValues.read({"host": host, "extra": extra}, 1)


@pytest.mark.parametrize("name", OF_MONGODB)
def test_any_option_of_mongodbs_tls_enables_it_or_is_refused(name: str) -> None:
    assert of(**{name: "x"}).encrypted
    assert of("mongodb://h/?tls=true", **{name: "x", "tls": False}).encrypted
    for off in ({"tls": False}, {"ssl": "false"}, {"TLS": False}):
        with pytest.raises(ConfigurationError, match="disables TLS, but has options of TLS"):
            of(**{name: "x", **off})
    for query in ("tls=false", "ssl=false", "w=1;tls=false", "TLS=False", "w=1&ssl=FALSE"):
        with pytest.raises(ConfigurationError, match="disables TLS, but has options of TLS"):
            of(f"mongodb://h/?{query}", **{name: "x"})
    if name in OF_MONGODB[:-2]:
        upper = name.upper()
        assert of(**{upper: "x"}).encrypted
        assert of(f"mongodb://h/?{upper}=x").encrypted


def test_tls_of_mongodb_is_not_disabled_by_another_place() -> None:
    for extra in ({"tls": True, "ssl": False}, {"ssl": True, "tls": False}):
        with pytest.raises(ConfigurationError, match="disables TLS"):
            of(**extra)
    for query in ("tls=false", "ssl=false"):
        with pytest.raises(ConfigurationError, match="disables TLS"):
            of(f"mongodb://h/?{query}", tls=True)
    assert of("mongodb://h/?%74ls=false", tls=True).options["tls"] is True, "no option of PyMongo"
    assert of("mongodb+srv://h").encrypted
    assert not of("h", tls=False).encrypted


@pytest.mark.parametrize(
    "name",
    [
        *(
            "event_listeners",
            "driver",
            "server_api",
            "auto_encryption_opts",
            "document_class",
            "type_registry",
        ),
        *(
            "server_selector",
            "unicode_decode_error_handler",
            "_pool_class",
            "authOIDCAllowedHosts",
            "connect\n",
        ),
    ],
)
def test_an_option_that_is_no_text_number_or_flag_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown option"):
        of(**{name: "x"})


def test_values_of_options_are_no_structures() -> None:
    for extra in ({"appName": {"a": 1}}, {"authMechanismProperties": {"OIDC_CALLBACK": {"a": 1}}}):
        with pytest.raises(ConfigurationError, match="invalid value for"):
            mongodb.ConnectionValues.read({"host": "h", "extra": extra}, 1)
    named = {"authMechanismProperties": {"AWS_SESSION_TOKEN": "t"}, "compressors": ["zlib"]}
    assert mongodb.ConnectionValues.read({"host": "h", "extra": named}, 1).options["compressors"] == ["zlib"]


def test_a_registrys_tls_needs_https() -> None:
    tls = {"extra": {"ssl.ca.location": "/ca"}}
    assert client_settings({"host": "r", "port": 1, **tls})["url"] == "https://r:1"
    for connection, url in (
        ({"host": "r", "schema": "http", **tls}, ""),
        ({"host": "http://r", **tls}, ""),
        ({"host": "https://r,http://s", **tls}, ""),
        ({"host": "r", **tls}, "http://r"),
        ({"host": "r", **tls}, "HTTP://r"),
    ):
        with pytest.raises(ConfigurationError, match="address doesn't use TLS"):
            client_settings(connection, url)
    for url in ("mock://r", "file:///etc/passwd", "r"):
        with pytest.raises(ConfigurationError, match="invalid address"):
            client_settings({}, url)


@pytest.mark.parametrize(
    "extra",
    [
        {"bearer.auth.custom.provider.function": "os.system"},
        {"bearer.auth.custom.provider.config": {}},
        {"basic.auth.user.info": "a:b"},
        {"no.such.setting": 1},
        {"ssl.ca.location": {"a": 1}},
        {"url": "http://elsewhere"},
    ],
)
def test_a_registrys_setting_names_no_function(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="unknown or invalid settings"):
        client_settings({"host": "r", "extra": extra})


def test_pulsars_tls_needs_its_address() -> None:
    for name in ("tls_ca_file", "tls_certificate_file", "tls_key_file"):
        with pytest.raises(ConfigurationError, match="doesn't use TLS"):
            pulsar.ClientSettings.of_connection({"service_url": "pulsar://h", name: "/f"})
        assert pulsar.ClientSettings.of_connection({"service_url": "pulsar+ssl://h", name: "/f"})


class Answers:
    """A connection to a broker that names another one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def request(self, *_: object) -> dict[int, int | bytes]:
        return {2: self._url.encode(), 3: 1}


def test_a_broker_of_pulsar_with_tls_does_not_lead_to_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(pulsar.ClientSettings("pulsar+ssl://h", PASSWORD))
    monkeypatch.setattr(brokers, "_to", lambda *_: Answers("pulsar://elsewhere"))
    with pytest.raises(ConfigurationError, match="expected an address with TLS"):
        brokers.of_topic("t")


def secured(authority: Authority, name: str) -> RecordingVtgate:
    return RecordingVtgate(tls=grpc.ssl_server_credentials([authority.issue(name)]))


def asked(authority: Authority, host: str, **extra: Any) -> None:
    values = vitess.ConnectionValues.read(
        {
            "host": host,
            "login": "me",
            "password": PASSWORD,
            "extra": {"tls_ca_file": str(authority.file), **extra},
        }
    )
    with VtgateClient(values) as client:
        for _ in range(2):
            client.execute("SELECT 1", timeout_seconds=5)


@pytest.mark.parametrize("policy", ["pick_first", "round_robin"])
def test_each_vtgate_has_to_prove_its_own_name(authority: Authority, policy: str) -> None:
    with secured(authority, "localhost") as first, secured(authority, "127.0.0.1") as second:
        hosts = f"localhost:{first.port},127.0.0.1:{second.port}"
        asked(authority, hosts, load_balancing=policy)
        assert len(first.statements) == (2 if policy == "pick_first" else 1)
        asked(authority, f"localhost:1,127.0.0.1:{second.port}", load_balancing=policy)
        second.statements.clear()
        # The first one's name doesn't help the second one, nor the second one's the first one.
        for wrong in (f"localhost:1,127.0.0.1:{first.port}", f"localhost:{second.port},127.0.0.1:1"):
            with pytest.raises((ConfigurationError, TransientError)):
                asked(authority, wrong, load_balancing=policy)
        assert not second.statements


def test_a_login_without_tls_is_reported() -> None:
    (found,) = login_findings(["db1:9042", "127.0.0.1:9042"], login=True, encrypted=False)
    assert (found.level, found.message.split(" without")[0]) == (
        "warning",
        "login and data are sent to db1:9042",
    )
    for hosts in (["localhost"], ["127.0.0.2:1"], ["[::1]:1"], ["/tmp/socket"]):
        assert not login_findings(hosts, login=True, encrypted=False)
    assert login_findings(["localhost.example.com", "1270.example.com"], login=True, encrypted=False)
    connection = {"host": "db1,db2", "login": "me", "password": PASSWORD, "extra": {}}
    assert connection_findings(connection)
    assert not connection_findings({**connection, "extra": {"tls": True}})
    assert ClientSettings({"bootstrap.servers": "b", "security.protocol": "SASL_PLAINTEXT"}).has_plain_login
