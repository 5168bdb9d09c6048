"""A setting of TLS never leaves a login in the clear, and each server has to prove its own name."""

from __future__ import annotations

import dataclasses
import socket
import ssl
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
from pymongo.synchronous.srv_resolver import _SrvResolver

from airflow_cdc_provider.connections.plain_logins import CHECKS, plain_logins
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.get_provider_info import get_provider_info
from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook
from airflow_cdc_provider.hooks.scylla import ScyllaCdcHook
from airflow_cdc_provider.kafka.registry import Registry, RegistrySettings, client_settings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.pulsar import settings as pulsar
from airflow_cdc_provider.pulsar.connection import Brokers
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.cql.connection import connection_findings, open_session
from airflow_cdc_provider.sources.cql.driver.driver_settings import read_driver_file
from airflow_cdc_provider.sources.cql.driver.tls import SETTINGS, tls_context, wants_tls
from airflow_cdc_provider.sources.findings import kafka_findings, login_findings, registry_findings
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
    for name in ("tls", "tls_check_hostname"):
        for value in NO_FLAGS:
            with pytest.raises(ConfigurationError, match=f"invalid value of setting {name}"):
                open_session({"host": "db", "extra": {name: value}}, timeout_seconds=1)
    for value in NO_FLAGS:
        with pytest.raises(ConfigurationError, match="invalid value for tls"):
            vitess.ConnectionValues.read({"host": "v", "extra": {"tls": value}})
    assert vitess.ConnectionValues.read({"host": "v", "extra": {"tls": "true"}}).tls
    assert not vitess.ConnectionValues.read({"host": "v", "extra": {"tls": "false"}}).tls


def test_no_form_has_a_default_for_a_flag() -> None:
    for kind in get_provider_info()["connection-types"]:
        flags = [one["schema"] for one in kind["conn-fields"].values() if "boolean" in one["schema"]["type"]]
        assert flags
        assert all(one["default"] is None for one in flags)


def scylla(extra: dict[str, Any]) -> bool:
    return wants_tls(ScyllaCdcHook("s").normalize({"extra": extra})["extra"])


def test_the_source_connectors_properties_enable_tls_or_are_refused() -> None:
    for name in ("truststore.path", "keystore.path", "truststore.password", "cipherSuites"):
        assert scylla({f"scylla.ssl.{name}": "x"})
        assert scylla({f"scylla.ssl.{name}": "x", "scylla.ssl.enabled": "true"})
        with pytest.raises(ConfigurationError, match="disables TLS"):
            scylla({f"scylla.ssl.{name}": "x", "scylla.ssl.enabled": "false"})
        with pytest.raises(ConfigurationError, match="disables TLS"):
            scylla({f"scylla.ssl.{name}": "x", "tls": False})
    assert not scylla({"scylla.ssl.enabled": "false"})
    for on in (True, "true"):
        assert scylla({"scylla.ssl.enabled": on})
        with pytest.raises(ConfigurationError, match="disables TLS"):
            scylla({"scylla.ssl.enabled": on, "tls": False})
    for value in NO_FLAGS:
        with pytest.raises(ConfigurationError, match=r"invalid value for scylla\.ssl\.enabled"):
            scylla({"scylla.ssl.enabled": value})


def test_a_connection_does_not_disable_tls_of_its_drivers_file(tmp_path: Path) -> None:
    file = tmp_path / "application.conf"
    for text in ("class = DefaultSslEngineFactory", 'cipher-suites = ["A"]', "truststore-path = /ca"):
        file.write_text(f"datastax-java-driver.advanced.ssl-engine-factory {{ {text} }}")
        extra = {"driver_config_file": str(file)}
        with pytest.raises(ConfigurationError, match="disables TLS"):
            connection_findings({"host": "db", "extra": {**extra, "tls": "false"}})
        connection = {"host": "db", "login": "me", "extra": extra}
        assert not connection_findings(connection), "encrypted"


def test_the_stock_types_options_of_tls_are_not_lost() -> None:
    hook = CassandraCdcHook("c")
    assert wants_tls(hook.normalize({"extra": {"ssl_options": {"ca_certs": "/ca"}}})["extra"])
    for value in ("true", True, ["/ca"]):
        with pytest.raises(ConfigurationError, match="invalid value for ssl_options"):
            hook.normalize({"extra": {"ssl_options": value}})
    for options in ({"ca_certs": "/ca"}, {"cert_reqs": "CERT_REQUIRED"}, {"check_hostname": True}):
        for off in (False, "false"):
            with pytest.raises(ConfigurationError, match="disables TLS"):
                hook.normalize({"extra": {"ssl_options": options, "tls": off}})
        assert wants_tls(hook.normalize({"extra": {"ssl_options": options, "tls": "true"}})["extra"])


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


def tls(values: mongodb.ConnectionValues) -> bool:
    """Return whether PyMongo uses TLS; none of its threads is started."""
    with values.client(connect=False) as client:
        return client.options.pool_options._ssl_context is not None


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Path:
    file = authority.file.with_name("identity.pem")
    file.write_bytes(b"".join(authority.issue("me")))
    return file


@pytest.mark.parametrize("name", OF_MONGODB)
def test_any_option_of_mongodbs_tls_enables_it_or_is_refused(
    name: str, authority: Authority, identity: Path
) -> None:
    value: Any = str(identity if "key" in name.lower() else authority.file)
    if name.startswith(("tlsAllow", "tlsDisable", "tlsInsecure")):
        value = True
    given = {name: value}
    assert tls(of(**given))
    assert tls(of("mongodb://h/?tls=true", **given, tls=False))
    for off in ({"tls": False}, {"ssl": "false"}, {"TLS": False}):
        with pytest.raises(ConfigurationError, match="disables TLS, but has options of TLS"):
            of(**{**given, **off})
    for query in ("tls=false", "ssl=false", "w=1;tls=false", "TLS=false"):
        with pytest.raises(ConfigurationError, match="disables TLS, but has options of TLS"):
            of(f"mongodb://h/?{query}", **given)
    if name in OF_MONGODB[:-2]:
        assert tls(of(**{name.upper(): value}))
        assert tls(of(f"mongodb://h/?{name.upper()}={str(value).replace('True', 'true')}"))


def test_tls_of_mongodb_is_not_disabled_by_another_place() -> None:
    for extra in ({"tls": True, "ssl": False}, {"ssl": True, "tls": False}):
        with pytest.raises(ConfigurationError, match="disables TLS"):
            of(**extra)
    for query in ("tls=false", "ssl=false"):
        with pytest.raises(ConfigurationError, match="disables TLS"):
            of(f"mongodb://h/?{query}", tls=True)
    assert not tls(of("h", tls=False))
    assert "tls" not in of("mongodb+srv://h", tls="", ssl=None).options
    assert not tls(of("h"))
    assert tls(of("mongodb://h/?tls=true", tls=False))


WORDS = ("True", "TRUE", "true ", " true", "yes", "1", "0", "on", "t", "False", "required", "tru\u0435")
NO_FLAGS = (*WORDS, 1, 0, 1.0, 2, [True], {"a": 1})


@pytest.mark.parametrize("name", ["tls", "ssl", "TLS", "tlsInsecure", "allow_insecure", "srv", "retryReads"])
def test_a_flag_of_mongodb_is_true_or_false(name: str) -> None:
    for value in NO_FLAGS:
        with pytest.raises(ConfigurationError, match=r"invalid value for|twice"):
            of(**{name: value})
    for word in ("true", "false"):
        assert of(**{name: word}) == of(**{name: word == "true"})


@pytest.mark.parametrize(
    "query",
    [
        *(f"{name}={word}" for name in ("tls", "SSL", "tlsInsecure") for word in WORDS if word != "true "),
        *("tls=true&tls=false", "tls=true&ssl=false", "tls=", "tls", "tlss=true", "%74ls=true", "w=1&tls=1"),
        *(
            "tls=true;w=1&w=2",
            "authMechanism=scram",
            "connect=false",
            "authOIDCAllowedHosts=x",
            "tls=true=1",
            "tls=true tls=false",
        ),
    ],
)
def test_what_pymongo_would_drop_from_a_connection_string_is_refused(query: str) -> None:
    for host in (f"mongodb://h/?{query}", f"mongodb+srv://h/?{query}", f"mongodb://u:p@h?{query}"):
        for connection in ({"host": host}, {"host": "h", "extra": {"secret_uri": host}}):
            with pytest.raises(ConfigurationError):
                mongodb.ConnectionValues.read(connection, 1)
    with pytest.raises(ConfigurationError):
        mongodb.ConnectionValues.read({"host": f"h/?{query}", "port": 27017}, 1)


def test_allow_insecure_means_what_it_says() -> None:
    with of(ssl="true", allow_insecure="false").client(connect=False) as client:
        context: Any = client.options.pool_options._ssl_context
        assert context.verify_mode == ssl.CERT_REQUIRED
    assert of(ssl=True, allow_insecure=True).unverified == "tlsInsecure"
    for other in ({"tlsInsecure": False}, {"TLSINSECURE": False}):
        with pytest.raises(ConfigurationError, match="twice"):
            of(allow_insecure=True, **other)


def seed_list(query: str = "", **extra: Any) -> None:
    host = f"mongodb+srv://seeds.example.com/?{query}" if query else "seeds.example.com"
    values = of(host, srv=True, **extra)
    with values.client(serverSelectionTimeoutMS=300) as client, suppress(PyMongoError):
        client.admin.command("ping")


def test_a_seed_list_uses_tls_unless_its_string_disables_it(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_SrvResolver, "get_hosts", lambda _: [("127.0.0.1", listener.port)])
    monkeypatch.setattr(_SrvResolver, "get_options", lambda _: None)
    with pytest.raises(ConfigurationError, match="names servers"):
        of("mongodb://h", srv="true")
    for off in ({"tls": False}, {"tls": "false"}, {"ssl": False}, {"SSL": "false"}):
        with pytest.raises(ConfigurationError, match="which a DNS seed list"):
            seed_list(**off)
        with pytest.raises(ConfigurationError, match="which a DNS seed list"):
            seed_list("w=1", **off)
    assert not listener.received
    seed_list()
    assert listener.received
    assert all(sent[:2] == b"\x16\x03" for sent in listener.received)
    plain = Listener()
    monkeypatch.setattr(_SrvResolver, "get_hosts", lambda _: [("127.0.0.1", plain.port)])
    seed_list("tls=false", tls=False)
    plain.close()
    assert plain.received
    assert all(sent[:2] != b"\x16\x03" for sent in plain.received)


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
    for host in (
        "localhost",
        "LOCALHOST:1",
        "127.0.0.2:1",
        "[::1]:1",
        "::1",
        "/tmp/socket",
        "SSL://127.0.0.1:1",
    ):
        assert not login_findings([host], login=True, encrypted=False), host
    for host in (
        *("localhost.example.com", "1270.example.com", "127.evil.example:9092", "127.0.0.1.evil.example"),
        *("127.0.0.1@evil.example:1", "[::2]:1", "0.0.0.0:1", "db1", "x://db1:1"),
    ):
        assert login_findings([host], login=True, encrypted=False), host
    connection = {"host": "db1,db2", "login": "me", "password": PASSWORD, "extra": {}}
    assert connection_findings(connection)
    assert not connection_findings({**connection, "extra": {"tls": True}})


def findings(settings: Mapping[str, Any], check: Callable[[Any], list[Finding]]) -> list[str]:
    found = check(settings)
    assert all(one.level == "warning" for one in found)
    return [one.message for one in found]


def test_each_way_of_a_login_to_brokers_and_issuers_is_reported() -> None:
    def kafka(**extra: Any) -> list[str]:
        local = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "sasl_ssl"}
        return findings({**local, **extra}, lambda one: kafka_findings(ClientSettings(one)))

    assert not kafka()
    assert not kafka(**{"security.protocol": "SASL_PLAINTEXT"})
    assert (
        "b:1" in kafka(**{"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": "127.0.0.1:1,b:1"})[0]
    )
    issuer = "sasl.oauthbearer.token.endpoint.url"
    assert "issuer:8080" in kafka(**{issuer: "http://issuer:8080/token"})[0]
    assert not kafka(**{issuer: "https://issuer/token"})
    for name, value in (
        ("enable.ssl.certificate.verification", False),
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.endpoint.identification.algorithm", "None"),
    ):
        assert "identity is not verified" in kafka(**{name: value})[0]


def test_each_way_of_a_login_to_registries_is_reported() -> None:
    def registry(url: str = "", **connection: Any) -> list[str]:
        return findings(client_settings(connection, url), lambda one: registry_findings(one, "option"))

    login = {"login": "me", "password": PASSWORD}
    issuer = {"bearer.auth.issuer.endpoint.url": "http://issuer/token", "bearer.auth.client.secret": "x"}
    assert not registry("https://r", **login)
    assert not registry("http://r")
    assert "r2" in registry("https://r, http://r2", **login)[0]
    assert "r:1" in registry(host="r", port=1, **login)[0]
    assert "issuer" in registry("https://r", extra=issuer)[0]
    assert "proxy" in registry("https://r", extra={"proxy": "http://u:p@proxy:3128"})[0]
    assert "not verified" in registry("https://r", extra={"ssl.ca.location": False})[0]
    for value in (0, 1, True, 0.0):
        with pytest.raises(ConfigurationError, match=r"invalid value for ssl\.ca"):
            registry("https://r", extra={"ssl.ca.location": value})


def test_nodes_that_are_not_verified_are_reported() -> None:
    for value in (False, "false"):
        (found,) = connection_findings({"host": "db", "extra": {"tls": True, "tls_check_hostname": value}})
        assert "identity is not verified" in found.message


def options_of_connections(kind: Any, path: str = "") -> Iterator[str]:
    for one in dataclasses.fields(kind):
        value = getattr(kind, one.name)
        if dataclasses.is_dataclass(value):
            yield from options_of_connections(value, f"{path}{one.name}.")
        elif "Airflow connection" in str(one.metadata):
            yield f"{path}{one.name}"


def test_the_connection_of_each_option_is_checked() -> None:
    declared = {"name": "s", "source": {"type": "debezium", "topics": ["a"]}}
    named = set(options_of_connections(Connector.from_dict(declared)))
    assert named == {*CHECKS, "source.conn_id", "source.registry.connection"}, "the source checks its own"


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"uri": "http://c:8181", "credential": "id:secret"}, "c:8181"),
        ({"uri": "https://c", "oauth2-server-uri": "HTTP://issuer/token", "credential": "x"}, "issuer"),
        ({"uri": "https://c", "s3.endpoint": "http://minio:9000", "s3.secret-access-key": "x"}, "minio:9000"),
        ({"uri": "http://me:a/b@c:8181/v1"}, "c:8181"),
        ({"uri": "jdbc:postgresql://db:5432/x?a=b", "jdbc.password": "x"}, "db:5432"),
        ({"uri": "jdbc:mysql://a,db/x?useSSL=false", "jdbc.password": "x"}, "a, db"),
        ({"uri": "jdbc:postgresql://db/x", "jdbc.sslmode": "prefer", "jdbc.password": "x"}, "db"),
        ({"uri": "jdbc:postgresql://db/x", "jdbc.sslmode": "allow", "jdbc.sslpassword": "x1"}, "db"),
        ({"uri": "jdbc:postgresql://db/x?sslrootcert=/ca.pem", "jdbc.password": "x"}, "db"),
        ({"uri": "${env:CATALOG}", "credential": "x"}, "c:8181"),
        ({"uri": "https://c", "s3.endpoint": "https://s3", "credential": "x"}, ""),
        ({"uri": "jdbc:mysql://db/x?sslMode=VERIFY_CA", "jdbc.password": "x"}, ""),
        ({"uri": "jdbc:mysql://db/x?useSSL=true", "jdbc.password": "x"}, ""),
        ({"uri": "http://localhost:8181", "s3.endpoint": "http://127.0.0.1:9000"}, ""),
        ({"uri": "jdbc:postgresql://db/x?sslmode=verify-full", "jdbc.password": "x"}, ""),
        ({"uri": "jdbc:sqlite:/tmp/x", "warehouse": "s3://b/http"}, ""),
    ],
)
def test_each_address_of_a_catalog_without_tls_is_reported(
    settings: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG", "http://me:S3cretPw@c:8181/v1")
    lake = {"catalog_options": {"type": "rest", **settings}}
    found = plain_logins(Connector.from_dict({"name": "s", "source": {"type": "mongodb"}, "lake": lake}))
    texts = [one.message for one in found if one.subject == "lake.catalog_options"]
    assert [f"sent to {host} without TLS" in text for text in texts] == ([True] if host else [])
    assert "me:" not in "".join(texts)
