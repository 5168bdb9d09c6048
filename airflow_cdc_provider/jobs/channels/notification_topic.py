"""Notifications to a topic, in Debezium's form: channel ``sink``.

They are sent when they are told, which is after the commit in the lake that makes them true, and in no
transaction: not with the events of the rows that they tell of, which the publish stage sends later. So they
come while a snapshot runs, and where events aren't published at all. Their delivery is waited for when a
snapshot ends and at the end of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.notifications import build
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.jobs.topics.settings import encoded, registry_settings
from airflow_cdc_provider.kafka.notices import NoticeProducer
from airflow_cdc_provider.kafka.registry import Registry
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.notifications.notification import Notification


class TopicChannel:
    """Sends notifications to the topic that the declaration names.

    Args:
        connector: The declaration.
        producer: Sends records.
        registrar: Gives schemas their ids; None where no registry takes part.
    """

    name = "sink"

    def __init__(
        self, connector: Connector, producer: NoticeProducer, registrar: Registrar | None = None
    ) -> None:
        self._connector = connector
        self._producer = producer
        self._registrar = registrar

    @property
    def waiting(self) -> int:
        """How many were sent and are not known to be delivered."""
        return self._producer.waiting

    def send(self, notification: Notification) -> None:
        """Send it, without waiting for a broker."""
        told = build(self._connector.notifications.topic, [notification])
        piece = Piece(told, np.zeros(1, np.int64))
        self._producer.hand_over(encoded(self._connector, [piece], self._registrar))

    def flush(self) -> None:
        """Wait until all are delivered, some seconds at most."""
        self._producer.deliver()


def topic_of_notifications(
    connector: Connector, broker: Mapping[str, Any], registry: Mapping[str, Any]
) -> TopicChannel:
    """Return the channel; it connects when there is something to tell.

    Args:
        connector: The declaration.
        broker: Librdkafka's settings of the Airflow connection.
        registry: Values of the registry's connection; empty for none.

    Raises:
        ConfigurationError: A connection is wrong, or says nothing of where to.
    """
    tuning = connector.publish.kafka.producer
    schemas = registry_settings(connector, registry)
    producer = NoticeProducer(ClientSettings(broker, tuning))
    return TopicChannel(connector, producer, Registry(schemas) if schemas else None)
