"""Topics of a connector other than those of tables: heartbeats, transactions, schema changes, signals."""

from __future__ import annotations

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.heartbeats import heartbeat_topic
from airflow_cdc_provider.events.topics import topic_name
from airflow_cdc_provider.signals.names import KAFKA
from airflow_cdc_provider.sources.registry import source_plugin


def heartbeats_topic(connector: Connector) -> str:
    """Return the topic of a connector's heartbeats."""
    publish = connector.publish
    return heartbeat_topic(
        connector.topic_prefix, publish.topic_delimiter, publish.heartbeat_prefix, publish.heartbeat_topic
    )


def transactions_topic(connector: Connector) -> str:
    """Return the topic of records at the beginning and end of transactions."""
    publish = connector.publish
    return topic_name(connector.topic_prefix, publish.transaction_topic, delimiter=publish.topic_delimiter)


def schema_changes_topic(connector: Connector) -> str:
    """Return the topic of schema changes."""
    return source_plugin(connector.type).schema_changes_topic(connector)


def signals_topic(connector: Connector) -> str:
    """Return the topic of signals."""
    return connector.signals.kafka.topic or f"{connector.topic_prefix}-signal"


def positions_topic(connector: Connector) -> str:
    """Return the topic of publishing positions."""
    return connector.publish.kafka.positions_topic or f"{connector.topic_prefix}.cdc-positions"


def own_topics(connector: Connector) -> dict[str, str]:
    """Return what a connector's own topics have, by topic, of those that are in use."""
    publish = connector.publish
    topics = [
        (positions_topic(connector), "positions", publish.kafka.enabled),
        (heartbeats_topic(connector), "heartbeats", True),
        (transactions_topic(connector), "transactions", publish.transactions),
        (schema_changes_topic(connector), "schema changes", publish.schema_changes),
        (signals_topic(connector), "signals", KAFKA in connector.signals.channels),
        (connector.notifications.topic, "notifications", connector.notifications.to_topic),
    ]
    return {topic: content for topic, content, used in topics if used}
