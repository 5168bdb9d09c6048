"""Notifications to a topic, in Debezium's form: channel ``sink``.

They are sent after the commit in the lake that they report, outside of any transaction and before the events
of the rows concerned, which the publish stage sends later. So they arrive while a snapshot runs, and also if
events aren't published. The job waits for their delivery when a snapshot ends and at its own end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.notifications import build
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.kafka.notification_producer import NotificationProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.notifications.notification import Notification
from airflow_cdc_provider.sources.encoding import converters_of, encoded, registry_settings


class TopicChannel:
    """Sends notifications to the declared topic.

    Args:
        connector: The declaration.
        producer: Sends records.
        registrar: Assigns ids to schemas; None without a registry.
    """

    name = "sink"

    def __init__(
        self, connector: Connector, producer: NotificationProducer, registrar: Registrar | None = None
    ) -> None:
        self._connector = connector
        self._producer = producer
        self._converters = converters_of(connector, registrar)

    @property
    def waiting(self) -> int:
        """How many notifications were sent and are not confirmed as delivered."""
        return self._producer.waiting

    def send(self, notification: Notification) -> None:
        """Send a notification without waiting for a broker."""
        envelope = build(self._connector.notifications.topic, [notification])
        piece = Piece(envelope, np.zeros(1, np.int64))
        self._producer.enqueue(encoded(self._connector, [piece], self._converters))

    def flush(self) -> None:
        """Wait until all are delivered, for some seconds at most."""
        self._producer.flush()


def topic_of_notifications(
    connector: Connector, broker: Mapping[str, Any], registry: Mapping[str, Any]
) -> TopicChannel:
    """Return the channel; it connects with the first notification.

    Args:
        connector: The declaration.
        broker: librdkafka settings of the Airflow connection.
        registry: Values of the registry's connection; empty for none.

    Raises:
        ConfigurationError: A connection is invalid or has no address.
    """
    tuning = connector.publish.kafka.producer
    schemas = registry_settings(connector, registry)
    producer = NotificationProducer(ClientSettings(broker, tuning))
    return TopicChannel(connector, producer, Registry(schemas) if schemas else None)
