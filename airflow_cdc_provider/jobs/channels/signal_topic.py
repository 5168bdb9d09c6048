"""The reader of a connector's signals topic: channel ``kafka``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.kafka.settings import SERVERS, ClientSettings
from airflow_cdc_provider.kafka.signal_topic import SignalTopic, TopicChannel
from airflow_cdc_provider.sources.own_topics import signals_topic


def topic_of_signals(connector: Connector, broker: Mapping[str, Any]) -> TopicChannel:
    """Return the channel; it connects with the first poll.

    Args:
        connector: The declaration.
        broker: librdkafka settings of the Airflow connection; empty if the declaration has the address.

    Raises:
        ConfigurationError: The settings name no broker, or name code to load.
    """
    options = connector.signals.kafka
    if options.bootstrap_servers:
        broker = {SERVERS: options.bootstrap_servers}
    client = ClientSettings(broker, consumer=options.consumer)
    topic = SignalTopic(
        client,
        signals_topic(connector),
        connector.topic_prefix,
        options.group_id,
        options.poll_timeout_seconds,
    )
    return TopicChannel(topic)
