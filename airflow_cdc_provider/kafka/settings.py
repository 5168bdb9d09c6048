"""Settings of clients: those of the Airflow connection, those of the declaration, and ours.

The broker, its login and its TLS stand in the connection alone (stock type ``kafka``, whose extra is
librdkafka's ``config_dict``). What a declaration passes through are tuning settings: a name that carries a
secret, or that leads somewhere else, is refused there. All names are librdkafka's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

Setting = str | int | float | bool

SERVERS: Final = "bootstrap.servers"
_OF_CONNECTION: Final = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|security\.protocol|(sasl|ssl|enable\.ssl|https|oauthbearer)[._].*"
    r"|.*(password|secret|token|credential).*"
)
_CODE: Final = re.compile(r".*_cb|on_.*|plugin\..*|.*\.(engine|provider)s?[._].*")
"""Settings that name code to be run; a connection must not."""
_OF_CONSUMERS: Final = re.compile(
    r"group\..*|auto\.offset\.reset|enable\.auto\..*|auto\.commit\..*|session\.timeout\.ms|heartbeat\..*"
    r"|max\.poll\..*|partition\.assignment\..*|isolation\.level|fetch\..*|enable\.partition\.eof|queued\..*"
)
"""Settings that a connection may have for other DAGs' consumers, and producers don't know."""
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
    """Tell whether a setting says where the broker is or how to log in, or carries a secret."""
    return _OF_CONNECTION.fullmatch(name) is not None


def wrong_tuning(values: Mapping[str, Any]) -> str:
    """Tell what was expected instead of a declaration's settings; an empty text if they are fine."""
    for name, value in values.items():
        if belongs_to_connection(name):
            return f"settings without secrets: {name} belongs into the connection's extra"
        if name in _OURS:
            return f"settings but {name}, which delivery decides"
        if _CODE.fullmatch(name):
            return f"settings that name no code ({name})"
        if not isinstance(value, (str, int, float, bool)):
            return f"a text, number or flag for {name}"
    return ""


def wrong_topic(name: str) -> str:
    """Tell what was expected instead of a topic's name; an empty text for a fine one, or none."""
    if not name or re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        return ""
    return "letters, digits, . _ and -, at most 249"


@dataclass(frozen=True)
class ClientSettings:
    """What clients of one connector are built with.

    Args:
        connection: Librdkafka's settings of the Airflow connection; shown nowhere.
        producer: Tuning of producers.
        consumer: Tuning of consumers.
        retry_interval_seconds: The longest time from one try to reach a broker to the next.
        retry_seconds: How long brokers that don't answer are waited for.
    """

    connection: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Setting] = field(default_factory=dict)
    consumer: Mapping[str, Setting] = field(default_factory=dict)
    retry_interval_seconds: float = 1.0
    retry_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Refuse a connection that leads nowhere, or that names code."""
        if not self.connection.get(SERVERS):
            raise ConfigurationError(
                "the Kafka connection names no broker",
                expected=f"{SERVERS} in its extra",
                remedy='airflow connections add ID --conn-type kafka --conn-extra \'{"bootstrap.servers": '
                '"host:9092"}\'',
            )
        for name in self.connection:
            if _CODE.fullmatch(name):
                raise ConfigurationError(
                    f"the Kafka connection names code: {name}",
                    expected="settings of librdkafka without call-backs and plug-ins",
                )

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return str(self.connection[SERVERS])

    def of_producer(self, transactional_id: str = "") -> dict[str, Any]:
        """Return what a producer is built with: idempotent, and transactional if it has an id."""
        own = {name: value for name, value in self.connection.items() if not _OF_CONSUMERS.fullmatch(name)}
        values: dict[str, Any] = {**self._pace(), **_DEFAULTS, **own, **self.producer}
        values |= {"enable.idempotence": True, "delivery.report.only.error": True}
        if transactional_id:
            values["transactional.id"] = transactional_id
        else:
            del values["transaction.timeout.ms"]
        return values

    def of_consumer(self, group: str, isolation: str = "read_committed") -> dict[str, Any]:
        """Return what a consumer is built with that is given its partitions and commits nothing."""
        values = {**self._pace(), **self.connection, **self.consumer}
        values |= {
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        return values

    def of_admin(self) -> dict[str, Any]:
        """Return what an administrator's client is built with."""
        own = {name: value for name, value in self.connection.items() if not _OF_CONSUMERS.fullmatch(name)}
        return {**self._pace(), **own}

    def _pace(self) -> dict[str, Setting]:
        milliseconds = max(1, int(self.retry_interval_seconds * 1000))
        return {
            "reconnect.backoff.ms": min(100, milliseconds),
            "reconnect.backoff.max.ms": milliseconds,
            "retry.backoff.ms": min(100, milliseconds),
            "retry.backoff.max.ms": milliseconds,
        }
