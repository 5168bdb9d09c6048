"""A Kafka connection or a declaration can't run code, or read and write files, by librdkafka's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.allowed_settings import LOGIN, TLS, TUNING
from airflow_cdc_provider.kafka.settings import ClientSettings

BROKER = {"bootstrap.servers": "localhost:1"}
ALLOWED = LOGIN | TLS | TUNING
HOSTILE = (
    "plugin.library.paths",
    "ssl.providers",
    "ssl.engine.location",
    "ssl.engine.id",
    "ssl_engine_callback_data",
    "ssl.certificate.verify_cb",
    "sasl.kerberos.kinit.cmd",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "offset.store.path",
    "offset.store.method",
    "debug",
    "interceptors",
    "default.topic.config",
    "default_topic_conf",
    "error_cb",
    "stats_cb",
    "oauth_cb",
    "logger",
    "on_delivery",
    "on_commit",
    "partitioner_cb",
    "open_cb",
    "opaque",
    "enabled_events",
    "test.mock.num.brokers",
    "internal.termination.signal",
    "metadata.broker.list",
)


def refused_anywhere(name: str, value: Any = "/x.so") -> None:
    with pytest.raises(ConfigurationError) as refused:
        ClientSettings({**BROKER, name: value})
    assert "/x.so" not in str(refused.value)
    for side in ("producer", "consumer"):
        tuning: dict[str, Any] = {side: {name: value}}
        with pytest.raises(ConfigurationError):
            ClientSettings(BROKER, **tuning)
        with pytest.raises(ConfigurationError):
            declared(publish={"kafka": {"connection": "k", side: {name: value}}})
    with pytest.raises(ConfigurationError):
        declared(source={"type": "debezium", "topics": ["a"], "advanced": {"consumer": {name: value}}})
    with pytest.raises(ConfigurationError):
        kafka = {"connection": "k", "consumer": {name: value}}
        declared(signals={"channels": ["kafka"], "kafka": kafka})


def declared(**sections: Any) -> Connector:
    return Connector.from_dict({"name": "shop", "source": {"type": "mongodb"}, **sections})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_setting_with_effects_beyond_the_connection_is_refused(name: str) -> None:
    refused_anywhere(name)
    for variant in (f" {name}", f"{name}\n", name.upper(), name.replace(".", "_"), f"topic.{name}"):
        refused_anywhere(variant)


@given(st.text(max_size=40).filter(lambda name: name not in ALLOWED))
def test_any_other_name_is_refused(name: str) -> None:
    refused_anywhere(name)


@given(
    st.sampled_from(sorted(ALLOWED - {"bootstrap.servers"})),
    st.sampled_from([{"error_cb": "x"}, ["x"], print]),
)
def test_a_value_is_no_structure(name: str, value: Any) -> None:
    refused_anywhere(name, value)


def test_librdkafka_knows_each_allowed_setting() -> None:
    for name in sorted(ALLOWED):
        try:
            AdminClient({name: "x", "log_level": 0})
        except KafkaException as error:
            assert "No such configuration property" not in str(error), name


@pytest.mark.parametrize("name", ["sasl.kerberos.principal", "sasl.kerberos.keytab"])
def test_values_of_kinit_have_nothing_that_a_shell_interprets(name: str) -> None:
    for value in (
        *(
            "a;b",
            "a b",
            "$(touch /tmp/x)",
            "`id`",
            'a"b',
            "a'b",
            "a|b",
            "a&b",
            "a\nb",
            "a\\b",
            "-c",
            "a>b",
            "~a",
        ),
        *("%{sasl.password}", "a*", "", "é", "a#b", "{a,b}", "!x"),
    ):
        with pytest.raises(ConfigurationError, match=f"invalid value for {name}"):
            ClientSettings({**BROKER, name: value})


def test_a_login_with_a_keytab_needs_no_command() -> None:
    login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": "cdc/worker-1.example.com@EXAMPLE.COM",
        "sasl.kerberos.keytab": "/etc/security/keytabs/cdc.service.keytab",
    }
    assert login.items() <= ClientSettings({**BROKER, **login}).of_admin().items()


def test_a_tokens_address_is_no_file() -> None:
    for url in ("file:///etc/passwd", "ftp://h/x", "/etc/passwd", "HTTPX://h"):
        with pytest.raises(ConfigurationError, match="invalid value for sasl"):
            ClientSettings({**BROKER, "sasl.oauthbearer.token.endpoint.url": url})


@pytest.mark.parametrize("name", ["https.ca.location", "https.ca.pem"])
def test_an_authority_of_an_issuer_needs_https(name: str) -> None:
    issuer = "sasl.oauthbearer.token.endpoint.url"
    assert ClientSettings({**BROKER, name: "x", issuer: "https://h"})
    for other in ({issuer: "http://h"}, {issuer: "HTTP://h"}, {}):
        with pytest.raises(ConfigurationError, match=name):
            ClientSettings({**BROKER, name: "x", **other})


def test_verification_is_on_or_off() -> None:
    for value in ("0", "f", "False", "no", 0, 1):
        with pytest.raises(ConfigurationError, match="expected true or false"):
            ClientSettings({**BROKER, "enable.ssl.certificate.verification": value})


@pytest.mark.parametrize(
    "server", ["plaintext://b:1", "SASL_PLAINTEXT://b:1", "a:1, plaintext://b:1", "://b:1"]
)
def test_a_broker_has_no_other_protocol_of_its_own(server: str) -> None:
    with pytest.raises(ConfigurationError, match="which replaces security"):
        ClientSettings({"bootstrap.servers": server, "ssl.ca.location": "/ca"})
    assert ClientSettings({"bootstrap.servers": "SSL://b:1,c:1", "ssl.ca.location": "/ca"})


def protocol(**settings: Any) -> Any:
    extra: Mapping[str, Any] = {
        **BROKER,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    of = ClientSettings(extra)
    found = {one.get("security.protocol") for one in (of.of_producer(), of.of_consumer("g"), of.of_admin())}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("name", sorted(TLS))
def test_a_tls_setting_enables_tls_or_is_refused(name: str) -> None:
    value = "true" if name.startswith("enable.") else "x"
    assert protocol(**{name: value}) == "ssl"
    assert protocol(**{name: False}) == "ssl"
    assert protocol(**{name: value, "sasl.mechanism": "PLAIN"}) == "sasl_ssl"
    assert protocol(**{name: value, "security.protocol": "SASL_SSL"}) == "SASL_SSL"
    for plain in ("plaintext", "PLAINTEXT", "sasl_plaintext", " Sasl_Plaintext "):
        with pytest.raises(ConfigurationError, match="doesn't use TLS"):
            protocol(**{name: value, "security.protocol": plain})
    assert protocol() is None
