"""What a check says of the topics that signals come by and notifications go to.

A job doesn't end when signals don't come or notifications don't go: mirrors and events need neither. But a
topic of signals with several partitions ends it, since nobody would know their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.hooks.kafka import kafka_values

if TYPE_CHECKING:
    from airflow_cdc_provider.kafka.topic_facts import TopicFacts
    from airflow_cdc_provider.sources.base import Finding

_SIGNALS: Final = "topic of signals"
_NOTIFICATIONS: Final = "topic of notifications"

Ask = Callable[[Mapping[str, Any], str, int], "TopicFacts"]
"""Asks brokers, given settings of a connection, for a topic that would have so many partitions."""


def channel_findings(connector: Connector, ask: Ask | None = None) -> list[Finding]:
    """Look at the topics of signals and notifications, as far as the declaration has some.

    Args:
        connector: The declaration.
        ask: Asks brokers; by default the real ones.
    """
    from airflow_cdc_provider.jobs.topics.own import signals_topic

    ask = ask or _ask
    findings: list[Finding] = []
    published = connector.publish.kafka.connection
    if "kafka" in connector.signals.channels:
        servers, conn_id = connector.signals.kafka.bootstrap_servers, connector.signals.conn_id(published)
        values = _values(servers, conn_id, "signals.kafka.connection")
        topic = signals_topic(connector)
        findings += _looked_at(_SIGNALS, values, topic, 1, ask, _of_signals)
    if connector.notifications.to_topic:
        conn_id = connector.notifications.connection or published
        values = _values("", conn_id, "notifications.connection")
        topic = connector.notifications.topic
        findings += _looked_at(_NOTIFICATIONS, values, topic, -1, ask, _of_notifications)
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


def _ask(values: Mapping[str, Any], topic: str, partitions: int) -> TopicFacts:
    from airflow_cdc_provider.kafka.settings import ClientSettings
    from airflow_cdc_provider.kafka.topic_facts import TopicInspector

    return TopicInspector(ClientSettings(values)).facts(topic, partitions)


def _looked_at(
    subject: str,
    values: Callable[[], Mapping[str, Any]],
    topic: str,
    partitions: int,
    ask: Ask,
    judge: Callable[[TopicFacts], Iterator[Finding]],
) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.base import Finding

    try:
        facts = ask(values(), topic, partitions)
    except CdcError as error:
        level: Literal["error", "warning"] = "error" if isinstance(error, ConfigurationError) else "warning"
        why = f": {error.found}" if error.found else ""
        yield Finding(level, subject, f"{topic}: {error.message}{why}", error.remedy or "check the brokers")
        return
    found = list(judge(facts))
    yield from found or [Finding("ok", subject, f"{topic} is there, with {facts.partitions} partitions")]


def _of_signals(facts: TopicFacts) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.base import Finding

    yield from _missing(_SIGNALS, facts, "no signal comes until it is there", " with one partition")
    if facts.partitions not in (None, 1):
        yield Finding(
            "error",
            _SIGNALS,
            f"{facts.topic} has {facts.partitions} partitions, in which signals have no order",
            "make a topic with one partition, and name it in signals.kafka.topic",
        )
    if facts.may("READ") is False:
        yield Finding("error", _SIGNALS, f"{facts.topic} may not be read", _right("READ", facts.topic))
    if facts.compacts:
        yield Finding(
            "warning",
            _SIGNALS,
            f"{facts.topic} is compacted: of signals to one connector all but the last may go unread",
            f"set cleanup.policy=delete on {facts.topic}",
        )


def _of_notifications(facts: TopicFacts) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.base import Finding

    yield from _missing(_NOTIFICATIONS, facts, "brokers make it only if they make topics by themselves", "")
    if facts.may("WRITE") is False:
        yield Finding(
            "error", _NOTIFICATIONS, f"{facts.topic} may not be written to", _right("WRITE", facts.topic)
        )
    if facts.compacts:
        yield Finding(
            "warning",
            _NOTIFICATIONS,
            f"{facts.topic} is compacted: of notifications with one key all but the last may go",
            f"set cleanup.policy=delete on {facts.topic}",
        )


def _missing(subject: str, facts: TopicFacts, then: str, how: str) -> Iterator[Finding]:
    from airflow_cdc_provider.sources.base import Finding

    if facts.partitions is not None:
        return
    if facts.refusal:
        yield Finding(
            "error",
            subject,
            f"{facts.topic} isn't there for this user, who can't make it either: {facts.refusal}",
            f"make the topic{how}, or give the connection's user the rights to describe and to create it",
        )
    else:
        yield Finding("warning", subject, f"there is no topic {facts.topic}: {then}", f"make the topic{how}")


def _right(operation: str, topic: str) -> str:
    return f"give the connection's user the right {operation} on topic {topic}"
