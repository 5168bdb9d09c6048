"""Options of publishing to Pulsar, as DataStax's source connector does, and what doesn't go with them.

The broker and its token stand in an Airflow connection.
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
    """Where and how events are published to Pulsar."""

    connection: str = option(
        "Airflow connection of type generic, whose extra has service_url and the paths of TLS, and whose "
        "password is the token. Empty: nothing is published to Pulsar",
        "",
    )
    namespace: str = option("Tenant and namespace of the topics", "public/default", check=_namespace)
    topic_prefix: str = option("Leads <keyspace>.<table> in names of topics", "data-", check=_prefix)
    delivery: Literal["exactly_once", "at_least_once"] = option(
        "exactly_once: the broker's deduplication drops what a killed run had sent, and a run fails if it is "
        "off; at_least_once: where it is off, such records come twice",
        "exactly_once",
    )
    start: Literal["earliest", "latest"] = option(
        "What the first run publishes: earliest: all batches that the changes table has; latest: those "
        "that are captured from now on",
        "earliest",
    )
    records_at_once: int = option("Records after which the position is stored", 50_000, minimum=1)
    retry_interval_seconds: float = option(
        "Time from one try to reach brokers to the next", 1.0, minimum=0.01
    )
    retry_seconds: float = option(
        "How long a run waits for brokers that don't answer before it fails, to be run again; nothing is "
        "lost",
        300.0,
        minimum=0,
    )

    @property
    def enabled(self) -> bool:
        """Whether events are published."""
        return bool(self.connection)


def refuse_clashing_pulsar(publish: PublishOptions) -> None:
    """Refuse what Pulsar's readers don't expect, or has no meaning there.

    Raises:
        ConfigurationError: Names the first one.
    """
    if not publish.pulsar.enabled:
        return
    for found, expected, why in _clashes(publish):
        raise ConfigurationError(
            f"option {found} doesn't go with publish.pulsar: {why}",
            expected=expected,
            remedy="or publish to Kafka (publish.kafka)",
        )


def _clashes(publish: PublishOptions) -> Iterator[tuple[str, str, str]]:
    """Yield options that clash, what is expected, and why."""
    if publish.kafka.enabled:
        yield "publish.kafka.connection", "one of the two", "a connector publishes to one place"
    elif publish.kafka != type(publish.kafka)():
        yield "publish.kafka", "its defaults", "nothing of it is followed"
    if publish.envelope != "datastax":
        yield "publish.envelope", "datastax", "that is the form that readers of DataStax's topics know"
    if (publish.key, publish.value) != ("avro", "avro"):
        yield "publish.key and publish.value", "avro", "topics have KeyValue schemas of Avro"
    if not publish.cassandra.reread:
        why = "whole rows need all changes that there ever were, and batches are let go"
        yield "publish.cassandra.reread", "true", why
    if publish.cassandra.key_in_value:
        yield "publish.cassandra.key_in_value", "false", "the key is the message's"
    if publish.registry.enabled:
        yield "publish.registry", "none", "Pulsar has its own"
    if publish.topic_pattern or publish.topic_naming:
        name = "publish.topic_pattern" if publish.topic_pattern else "publish.topic_naming"
        yield name, "publish.pulsar.topic_prefix", "topics are called <prefix><keyspace>.<table>"
    if publish.topics != type(publish.topics)():
        yield (
            "publish.topics",
            "its default",
            "they are topics of Kafka; the namespace's policies are Pulsar's",
        )
    if publish.heartbeat_interval_seconds:
        yield "publish.heartbeat_interval_seconds", "0", "readers know no heartbeats"
