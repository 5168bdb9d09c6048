"""Topics of a connector other than those of tables: heartbeats, transactions, schema changes, signals."""

from __future__ import annotations

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.heartbeats import heartbeat_topic
from airflow_cdc_provider.events.topics import topic_name
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
