"""How the Kafka connection of a connector reaches its jobs: Airflow's stock type ``kafka``.

Its extra is librdkafka's ``config_dict``, as the provider apache-airflow-providers-apache-kafka has it, which
need not be installed. It travels with the source's connection, where a job's secrets are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow.providers.common.compat.connection import get_async_extra_dejson

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.pulsar import with_pulsar
from airflow_cdc_provider.hooks.registry import with_registry
from airflow_cdc_provider.hooks.stock_connection import stock_connection, stock_connection_async
from airflow_cdc_provider.jobs.spec import (
    FOLLOWING,
    KAFKA,
    NOTIFICATIONS_KAFKA,
    NOTIFYING,
    PUBLISHING,
    SIGNALS_KAFKA,
)

_OPTION: Final = "publish.kafka.connection"
_EXAMPLE: Final = '--conn-extra \'{"bootstrap.servers": "host:9092"}\''


def kafka_values(conn_id: str, option: str = _OPTION) -> dict[str, Any]:
    """Return librdkafka's settings of a connection.

    Args:
        conn_id: Its id.
        option: Option of the declaration that names it.

    Raises:
        ConfigurationError: There is no such connection, or it has another type.
    """
    connection = stock_connection(conn_id, "kafka", option=option, example=_EXAMPLE)
    return _config(connection.extra_dejson)


async def kafka_values_async(conn_id: str) -> dict[str, Any]:
    """Do as :func:`kafka_values`, for triggers."""
    connection = await stock_connection_async(conn_id, "kafka", option=_OPTION, example=_EXAMPLE)
    return _config(await get_async_extra_dejson(connection))


def _config(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in extra.items() if value not in (None, "")}


def with_kafka(connector: Connector, stage: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's connection values with those of brokers and registry, as far as its stage asks.

    Raises:
        ConfigurationError: There is no such connection, or it has another type; or notifications are to go
            to a topic and nothing names one.
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
                f"nothing tells where the topic {connector.notifications.topic} of notifications is",
                expected="notifications.connection or publish.kafka.connection with the id of an Airflow "
                "connection of type kafka",
            )
        found[NOTIFICATIONS_KAFKA] = kafka_values(conn_id, "notifications.connection")
    return with_registry(connector, with_pulsar(connector, stage, found))
