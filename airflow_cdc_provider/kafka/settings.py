"""Client settings: those of the Airflow connection, of the declaration, and of this provider.

The brokers, the login and TLS are only set in the connection (type ``kafka`` of Airflow's Kafka provider,
whose extra is librdkafka's ``config_dict``). A declaration contains tuning settings only: names that carry a
secret or that refer to other brokers are rejected there. All names are librdkafka's, from a list of allowed
ones (:mod:`.allowed_settings`). A TLS setting enables TLS; with a protocol without TLS it is rejected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_cdc_provider.connection_settings import check_files, flag
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.allowed_settings import LOGIN, OF_CONSUMERS, OF_GROUPS, TLS, TUNING

Setting = str | int | float | bool

SERVERS: Final = "bootstrap.servers"
_ALLOWED: Final = LOGIN | TLS | TUNING
_OF_CONNECTION: Final = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|security\.protocol|(sasl|ssl|enable\.ssl|https|oauthbearer)[._].*"
    r"|.*(password|secret|token|credential).*"
)
_IN_SHELL: Final[Mapping[str, str]] = {
    "sasl.kerberos.principal": r"[A-Za-z0-9_.][A-Za-z0-9_.@/-]*",
    "sasl.kerberos.keytab": r"(FILE:)?[A-Za-z0-9_./][A-Za-z0-9_./+@=-]*",
}
"""librdkafka inserts these into a shell command, kinit."""
_ISSUER: Final = "sasl.oauthbearer.token.endpoint.url"
_ASSERTION_KEY: Final = "sasl.oauthbearer.assertion.private.key.file"
_METADATA: Final = "sasl.oauthbearer.metadata.authentication.type"
_VERIFICATION: Final = "enable.ssl.certificate.verification"
_FILES: Final = (
    _ASSERTION_KEY,
    *(f"ssl.{name}.location" for name in ("key", "certificate", "crl", "keystore")),
)
_OURS: Final = (
    "transactional.id",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "delivery.report.only.error",
    "isolation.level",
    "enable.auto.commit",
    "enable.partition.eof",
    "group.id",
)
_DEFAULTS: Final[Mapping[str, Setting]] = {
    "compression.type": "lz4",
    "linger.ms": 20,
    "batch.size": 262_144,
    "queue.buffering.max.messages": 500_000,
    "transaction.timeout.ms": 60_000,
}


def belongs_to_connection(name: str) -> bool:
    """Return whether a setting contains a broker address, a login or a secret."""
    return _OF_CONNECTION.fullmatch(name) is not None


def wrong_tuning(values: Mapping[str, Any]) -> str:
    """Return what is expected instead of a declaration's settings; an empty text if they are valid."""
    for name, value in values.items():
        if belongs_to_connection(name):
            return f"settings without secrets: {name} belongs in the connection's extra"
        if name in _OURS:
            return f"settings other than {name}, which the delivery guarantee determines"
        if name not in TUNING:
            return f"tuning settings of librdkafka, not {name!r}{_nearest(name, TUNING)}"
        if not isinstance(value, (str, int, float, bool)):
            return f"a text, number or boolean for {name}"
    return ""


def _nearest(name: str, allowed: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.strip().lower(), sorted(allowed), n=1)
    return f"; the nearest one is {near[0]}" if near else ""


def _checked(connection: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's settings, with TLS if one of them implies it.

    Raises:
        ConfigurationError: A setting is not allowed, or invalid.
    """
    for name, value in connection.items():
        if name not in _ALLOWED:
            raise ConfigurationError(
                f"the Kafka connection has a setting that isn't allowed: {name!r}",
                expected="librdkafka's settings of brokers, login, TLS, network and buffers: none that loads "
                f"code, runs a program, writes a file or is a callback{_nearest(name, _ALLOWED)}",
                remedy="remove it from the connection's extra",
            )
        if not isinstance(value, (str, int, float, bool)):
            raise ConfigurationError(
                f"invalid value for {name} in the Kafka connection", expected="a text, number or boolean"
            )
        if name in _IN_SHELL and not re.fullmatch(_IN_SHELL[name], str(value)):
            raise ConfigurationError(
                f"invalid value for {name} in the Kafka connection",
                expected="letters, digits and . _ - / @ only: kinit gets it by a shell",
            )
    _check_issuer(connection)
    flag(connection, _VERIFICATION)
    check_files(connection, *_FILES)
    check_files(connection, "ssl.ca.location", "https.ca.location", folders=True)
    if keytab := connection.get("sasl.kerberos.keytab"):
        check_files({"sasl.kerberos.keytab": str(keytab).removeprefix("FILE:")}, "sasl.kerberos.keytab")
    found = _with_tls(connection)
    protocol = str(found.get("security.protocol", "plaintext")).strip().lower()
    for server in str(found[SERVERS]).split(","):
        own, separator, _ = server.strip().partition("://")
        if separator and own.lower() != protocol:
            raise ConfigurationError(
                f"the Kafka connection names a broker of protocol {own!r}, which replaces security.protocol",
                expected=f"{protocol}, or host:port alone",
            )
    return found


def _check_issuer(connection: Mapping[str, Any]) -> None:
    issuer = str(connection.get(_ISSUER, ""))
    tls = sorted({"https.ca.location", "https.ca.pem"} & connection.keys())
    schemes = ("https://",) if tls else ("https://", "http://")
    if (issuer or tls) and not issuer.startswith(schemes):
        raise ConfigurationError(
            f"invalid value for {_ISSUER} in the Kafka connection",
            expected=f"https://..., for {' and '.join(tls)}" if tls else "https://...",
        )


def _with_tls(connection: Mapping[str, Any]) -> dict[str, Any]:
    named = sorted(TLS & connection.keys())
    protocol = str(connection.get("security.protocol", "")).strip().lower()
    if not named or protocol in ("ssl", "sasl_ssl"):
        return dict(connection)
    if protocol:
        raise ConfigurationError(
            f"the Kafka connection has TLS settings, but security.protocol {protocol} doesn't use TLS",
            expected=f"{protocol.replace('plaintext', 'ssl')}, or none of {', '.join(named)}",
        )
    login = connection.keys() & {"sasl.mechanism", "sasl.mechanisms", "sasl.username"}
    return {**connection, "security.protocol": "sasl_ssl" if login else "ssl"}


def machine_identity(connection: Mapping[str, Any]) -> str:
    """Return the setting by which servers get tokens of this machine's identity; empty if none does."""
    kind = str(connection.get(_METADATA) or "none").strip().lower()
    return _METADATA if kind != "none" else _ASSERTION_KEY if connection.get(_ASSERTION_KEY) else ""


def wrong_topic(name: str) -> str:
    """Return what is expected instead of a topic's name; an empty text if it is valid or empty."""
    if not name or re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        return ""
    return "letters, digits, . _ and -, at most 249"


@dataclass(frozen=True)
class ClientSettings:
    """Client settings of one connector.

    Args:
        connection: Librdkafka's settings of the Airflow connection; never logged.
        producer: Tuning of producers.
        consumer: Tuning of consumers.
        retry_interval_seconds: Maximum time between attempts to reach a broker.
        retry_timeout_seconds: How long to retry while brokers don't answer.
    """

    connection: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Setting] = field(default_factory=dict)
    consumer: Mapping[str, Setting] = field(default_factory=dict)
    retry_interval_seconds: float = 1.0
    retry_timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Reject a connection without brokers, or with settings that aren't allowed."""
        if not self.connection.get(SERVERS):
            raise ConfigurationError(
                "the Kafka connection has no brokers",
                expected=f"{SERVERS} in its extra",
                remedy='airflow connections add ID --conn-type kafka --conn-extra \'{"bootstrap.servers": '
                '"host:9092"}\'',
            )
        object.__setattr__(self, "connection", _checked(self.connection))
        for values in (self.producer, self.consumer):
            if expected := wrong_tuning(values):
                raise ConfigurationError("invalid settings of Kafka's clients", expected=expected)

    @property
    def servers(self) -> str:
        """The broker addresses, for messages."""
        return str(self.connection[SERVERS])

    @property
    def plain_login(self) -> bool:
        """Whether a login is sent to brokers without TLS."""
        return str(self.connection.get("security.protocol", "")).strip().lower() == "sasl_plaintext"

    @property
    def issuer(self) -> str:
        """The URL of the issuer of tokens; empty for none."""
        return str(self.connection.get(_ISSUER, ""))

    @property
    def unverified(self) -> str:
        """The setting that disables verification of brokers; empty if none does."""
        if not flag(self.connection, _VERIFICATION, default=True):
            return f"{_VERIFICATION}: false"
        name = "ssl.endpoint.identification.algorithm"
        return f"{name}: none" if str(self.connection.get(name, "")).strip().lower() == "none" else ""

    def of_producer(self, transactional_id: str = "") -> dict[str, Any]:
        """Return the settings of a producer: idempotent, and transactional if it has an id."""
        own = {name: value for name, value in self.connection.items() if name not in OF_CONSUMERS | OF_GROUPS}
        values: dict[str, Any] = {**self._pace(), **_DEFAULTS, **own, **self.producer}
        values |= {"enable.idempotence": True, "delivery.report.only.error": True}
        if transactional_id:
            values["transactional.id"] = transactional_id
        else:
            del values["transaction.timeout.ms"]
        return values

    def of_consumer(self, group: str, isolation: str = "read_committed") -> dict[str, Any]:
        """Return the settings of a consumer that is assigned its partitions and commits nothing."""
        values = {**self._pace(), **self.connection, **self.consumer}
        values |= {
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        return values

    def of_admin(self) -> dict[str, Any]:
        """Return the settings of an admin client."""
        own = {name: value for name, value in self.connection.items() if name not in OF_CONSUMERS | OF_GROUPS}
        return {**self._pace(), **own}

    def _pace(self) -> dict[str, Setting]:
        milliseconds = max(1, int(self.retry_interval_seconds * 1000))
        return {
            "reconnect.backoff.ms": min(100, milliseconds),
            "reconnect.backoff.max.ms": milliseconds,
            "retry.backoff.ms": min(100, milliseconds),
            "retry.backoff.max.ms": milliseconds,
        }
