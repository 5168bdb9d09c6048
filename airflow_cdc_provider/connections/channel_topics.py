"""Checks the topics of signals and notifications.

A job continues if it can't read signals or send notifications: mirrors and events need neither. But it fails
if the signal topic has several partitions, because signals would then have no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_cdc_provider.connections.kafka import kafka_values
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError

if TYPE_CHECKING:
    from airflow_cdc_provider.kafka.topic_facts import TopicFacts
    from airflow_cdc_provider.sources.contract import Finding

_SIGNALS: Final = "topic of signals"
_NOTIFICATIONS: Final = "topic of notifications"

DescribeTopic = Callable[[Mapping[str, Any], str, int], "TopicFacts"]
"""Describes a topic: takes a connection's settings, the topic, and its partitions if it were created."""


def channel_findings(connector: Connector, describe: DescribeTopic | None = None) -> list[Finding]:
    """Check the topics of signals and notifications that the declaration names.

    Args:
        connector: The declaration.
        describe: Describes a topic; by default a client of the brokers.
    """
    from airflow_cdc_provider.sources.own_topics import signals_topic

    describe = describe or _describe
    findings: list[Finding] = []
    published = connector.publish.kafka.connection
    if "kafka" in connector.signals.channels:
        servers, conn_id = connector.signals.kafka.bootstrap_servers, connector.signals.conn_id(published)
        values = _values(servers, conn_id, "signals.kafka.connection")
        topic = signals_topic(connector)
        findings += _topic_findings(_SIGNALS, values, topic, 1, describe, _signal_findings)
    if connector.notifications.to_topic:
        conn_id = connector.notifications.connection or published
        values = _values("", conn_id, "notifications.connection")
        topic = connector.notifications.topic
        findings += _topic_findings(_NOTIFICATIONS, values, topic, -1, describe, _notification_findings)
    return findings


def _values(servers: str, conn_id: str, option: str) -> Callable[[], Mapping[str, Any]]:
    def values() -> Mapping[str, Any]:
        if servers:
            return {"bootstrap.servers": servers}
        if not conn_id:
            raise ConfigurationError(
                "no connection names the brokers", expected=f"{option} or publish.kafka.connection"
            )
        return kafka_values(conn_id, option)

    return values


def _describe(values: Mapping[str, Any], topic: str, partitions: int) -> TopicFacts:
    from airflow_cdc_provider.kafka.settings import ClientSettings
    from airflow_cdc_provider.kafka.topic_facts import TopicInspector

    return TopicInspector(ClientSettings(values)).facts(topic, partitions)


def _topic_findings(
    subject: str,
    values: Callable[[], Mapping[str, Any]],
    topic: str,
    partitions: int,
    describe: DescribeTopic,
    findings_of: Callable[[TopicFacts], Iterator[Finding]],
) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.contract import Finding

    try:
        facts = describe(values(), topic, partitions)
    except CdcError as error:
        level: Literal["error", "warning"] = "error" if isinstance(error, ConfigurationError) else "warning"
        why = f": {error.found}" if error.found else ""
        yield Finding(level, subject, f"{topic}: {error.message}{why}", error.remedy or "check the brokers")
        return
    found = list(findings_of(facts))
    yield from found or [Finding("ok", subject, f"{topic} exists, with {facts.partitions} partitions")]


def _signal_findings(facts: TopicFacts) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.contract import Finding

    yield from _missing(_SIGNALS, facts, "no signal arrives until it exists", " with one partition")
    if facts.partitions not in (None, 1):
        yield Finding(
            "error",
            _SIGNALS,
            f"{facts.topic} has {facts.partitions} partitions, so signals have no order",
            "create a topic with one partition, and name it in signals.kafka.topic",
        )
    if facts.may("READ") is False:
        yield Finding("error", _SIGNALS, f"no permission to read {facts.topic}", _grant("READ", facts.topic))
    if facts.compacts:
        yield Finding(
            "warning",
            _SIGNALS,
            f"{facts.topic} is compacted: all signals to one connector but the last may be lost",
            f"set cleanup.policy=delete on {facts.topic}",
        )


def _notification_findings(facts: TopicFacts) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.contract import Finding

    yield from _missing(
        _NOTIFICATIONS, facts, "brokers create it only if they create topics automatically", ""
    )
    if facts.may("WRITE") is False:
        yield Finding(
            "error", _NOTIFICATIONS, f"no permission to write to {facts.topic}", _grant("WRITE", facts.topic)
        )
    if facts.compacts:
        yield Finding(
            "warning",
            _NOTIFICATIONS,
            f"{facts.topic} is compacted: all notifications with one key but the last may be lost",
            f"set cleanup.policy=delete on {facts.topic}",
        )


def _missing(subject: str, facts: TopicFacts, then: str, how: str) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.contract import Finding

    if facts.partitions is not None:
        return
    if facts.refusal:
        yield Finding(
            "error",
            subject,
            f"{facts.topic} doesn't exist for this user, who can't create it either: {facts.refusal}",
            f"create the topic{how}, or grant the connection's user the rights to describe and to create it",
        )
    else:
        yield Finding(
            "warning", subject, f"there is no topic {facts.topic}: {then}", f"create the topic{how}"
        )


def _grant(operation: str, topic: str) -> str:
    return f"grant the connection's user the right {operation} on topic {topic}"
