"""Passes a connector's Kafka connections to its jobs; they have Airflow's stock type ``kafka``.

The extra is librdkafka's ``config_dict``, as in apache-airflow-providers-apache-kafka, which need not be
installed. The values are added to the source's connection, which holds a job's secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.providers.common.compat.connection import get_async_extra_dejson

from airflow_cdc_provider.connections.machine_identity import check_machine_identity
from airflow_cdc_provider.connections.pulsar import with_pulsar
from airflow_cdc_provider.connections.registry import with_registry
from airflow_cdc_provider.connections.stock import stock_connection, stock_connection_async
from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.spec import (
    FOLLOWING,
    KAFKA,
    NOTIFICATIONS_KAFKA,
    NOTIFYING,
    PUBLISHING,
    SIGNALS_KAFKA,
)
from airflow_cdc_provider.kafka.settings import machine_identity

_OPTION: Final = "publish.kafka.connection"
_EXAMPLE: Final = '--conn-extra \'{"bootstrap.servers": "host:9092"}\''


def kafka_values(conn_id: str, option: str = _OPTION) -> dict[str, Any]:
    """Return librdkafka's settings of a connection.

    Args:
        conn_id: Its id.
        option: The declaration's option that names it.

    Raises:
        ConfigurationError: The connection doesn't exist, has another type, or isn't allowed.
    """
    connection = stock_connection(conn_id, "kafka", option=option, example=_EXAMPLE)
    return _config(conn_id, connection.extra_dejson)


async def kafka_values_async(conn_id: str) -> dict[str, Any]:
    """Return the same as :func:`kafka_values`, for triggers."""
    connection = await stock_connection_async(conn_id, "kafka", option=_OPTION, example=_EXAMPLE)
    return _config(conn_id, await get_async_extra_dejson(connection))


def _config(conn_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    check_machine_identity(conn_id, machine_identity(extra))
    return {name: value for name, value in extra.items() if value not in (None, "")}


def with_kafka(connector: Connector, stage: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's connection values with those of the brokers and the registry that its stage needs.

    Raises:
        ConfigurationError: A connection doesn't exist or has another type, or none is named for the
            notification topic.
    """
    found = dict(values)
    published = connector.publish.kafka.connection
    if published and stage in PUBLISHING:
        found[KAFKA] = kafka_values(published)
    if stage in FOLLOWING and (conn_id := connector.signals.conn_id(published)):
        found[SIGNALS_KAFKA] = kafka_values(conn_id, "signals.kafka.connection")
    if stage in NOTIFYING and connector.notifications.to_topic:
        conn_id = connector.notifications.connection or published
        if not conn_id:
            raise ConfigurationError(
                f"no connection is named for the notification topic {connector.notifications.topic}",
                expected="notifications.connection or publish.kafka.connection with the id of an Airflow "
                "connection of type kafka",
            )
        found[NOTIFICATIONS_KAFKA] = kafka_values(conn_id, "notifications.connection")
    return with_registry(connector, with_pulsar(connector, stage, found))
