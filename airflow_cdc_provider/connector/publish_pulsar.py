"""Options of publishing to Pulsar in the format of DataStax's source connector, and their validation.

Broker and token are in the Airflow connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.options import option

if TYPE_CHECKING:
    from airflow_cdc_provider.connector.publish import PublishOptions


def _namespace(value: str) -> str:
    part = r"[A-Za-z0-9_=:.-]+"
    return "" if re.fullmatch(f"{part}/{part}", value) else "tenant/namespace"


def _prefix(value: str) -> str:
    return "" if re.fullmatch(r"[A-Za-z0-9._-]{0,200}", value) else "letters, digits, . _ and -"


@dataclass(frozen=True)
class PulsarOptions:
    """Options of publishing to Pulsar."""

    connection: str = option(
        "Airflow connection of type generic; its extra has service_url and TLS files, its password is the "
        "token. Empty: publishing to Pulsar is disabled",
        "",
    )
    namespace: str = option("Tenant and namespace of the topics", "public/default", check=_namespace)
    topic_prefix: str = option("Prefix of topic names, before <keyspace>.<table>", "data-", check=_prefix)
    delivery: Literal["exactly_once", "at_least_once"] = option(
        "exactly_once: broker deduplication drops records that a killed run had sent, and runs fail if it is "
        "disabled; at_least_once: such records are duplicated if deduplication is disabled",
        "exactly_once",
    )
    start: Literal["earliest", "latest"] = option(
        "Start of the first run. earliest: all batches of the changes table; latest: only later batches",
        "earliest",
    )
    records_per_commit: int = option(
        "Number of records after which the position is stored", 50_000, minimum=1
    )
    retry_interval_seconds: float = option(
        "Interval between attempts to connect to brokers", 1.0, minimum=0.01
    )
    retry_timeout_seconds: float = option(
        "How long a run retries unavailable brokers before it fails; no data is lost",
        300.0,
        minimum=0,
    )

    @property
    def enabled(self) -> bool:
        """Whether events are published."""
        return bool(self.connection)


def validate_pulsar_options(publish: PublishOptions) -> None:
    """Reject options that Pulsar consumers don't support, or that have no effect.

    Raises:
        ConfigurationError: Names the first problem.
    """
    if not publish.pulsar.enabled:
        return
    for name, expected, reason in _clashes(publish):
        raise ConfigurationError(
            f"option {name} can't be combined with publish.pulsar: {reason}",
            expected=expected,
            remedy="or publish to Kafka (publish.kafka)",
        )


def _clashes(publish: PublishOptions) -> Iterator[tuple[str, str, str]]:
    """Yield conflicting options, the expected value, and the reason."""
    if publish.kafka.enabled:
        yield "publish.kafka.connection", "one of the two", "a connector publishes to one target"
    elif publish.kafka != type(publish.kafka)():
        yield "publish.kafka", "its defaults", "they have no effect"
    if publish.envelope != "datastax":
        yield "publish.envelope", "datastax", "consumers of DataStax's topics expect this format"
    if (publish.key, publish.value) != ("avro", "avro"):
        yield "publish.key and publish.value", "avro", "topics have KeyValue schemas in Avro"
    if not publish.cassandra.reread:
        reason = "complete rows require the full history of changes, but merged batches are deleted"
        yield "publish.cassandra.reread", "true", reason
    if publish.cassandra.key_in_value:
        yield "publish.cassandra.key_in_value", "false", "the key is part of the message"
    if publish.registry.enabled:
        yield "publish.registry", "none", "Pulsar has its own schema registry"
    if publish.topic_pattern or publish.topic_naming:
        name = "publish.topic_pattern" if publish.topic_pattern else "publish.topic_naming"
        yield name, "publish.pulsar.topic_prefix", "topics are named <prefix><keyspace>.<table>"
    if publish.topics != type(publish.topics)():
        yield (
            "publish.topics",
            "its default",
            "they apply to Kafka; Pulsar uses namespace policies",
        )
    if publish.heartbeat_interval_seconds:
        yield "publish.heartbeat_interval_seconds", "0", "consumers don't expect heartbeats"
