"""Client settings: those of the Airflow connection, of the declaration, and of this provider.

The brokers, the login and TLS are only set in the connection (type ``kafka`` of Airflow's Kafka provider,
whose extra is librdkafka's ``config_dict``). A declaration contains tuning settings only: names that carry a
secret or that refer to other brokers are rejected there. All names are librdkafka's.
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
"""Settings that refer to code; they are not allowed in a connection."""
_OF_CONSUMERS: Final = re.compile(
    r"group\..*|auto\.offset\.reset|enable\.auto\..*|auto\.commit\..*|session\.timeout\.ms|heartbeat\..*"
    r"|max\.poll\..*|partition\.assignment\..*|isolation\.level|fetch\..*|enable\.partition\.eof|queued\..*"
)
"""Consumer settings, which a connection may have for other DAGs; producers don't accept them."""
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
        if _CODE.fullmatch(name):
            return f"settings that don't refer to code ({name})"
        if not isinstance(value, (str, int, float, bool)):
            return f"a text, number or boolean for {name}"
    return ""


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
        """Reject a connection without brokers, or with settings that refer to code."""
        if not self.connection.get(SERVERS):
            raise ConfigurationError(
                "the Kafka connection has no brokers",
                expected=f"{SERVERS} in its extra",
                remedy='airflow connections add ID --conn-type kafka --conn-extra \'{"bootstrap.servers": '
                '"host:9092"}\'',
            )
        for name in self.connection:
            if _CODE.fullmatch(name):
                raise ConfigurationError(
                    f"the Kafka connection refers to code: {name}",
                    expected="settings of librdkafka without callbacks and plugins",
                )

    @property
    def servers(self) -> str:
        """The broker addresses, for messages."""
        return str(self.connection[SERVERS])

    def of_producer(self, transactional_id: str = "") -> dict[str, Any]:
        """Return the settings of a producer: idempotent, and transactional if it has an id."""
        own = {name: value for name, value in self.connection.items() if not _OF_CONSUMERS.fullmatch(name)}
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
