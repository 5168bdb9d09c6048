"""Passes a connector's Pulsar connection to its jobs; it has Airflow's stock type ``generic``.

The extra has the brokers' address (``service_url``) and the paths of the TLS files; the password is the
token. The values are added to the source's connection, which holds a job's secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.connections.stock import stock_connection
from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.jobs.spec import PULSAR

_OPTION: Final = "publish.pulsar.connection"
_EXAMPLE: Final = '--conn-extra \'{"service_url": "pulsar://host:6650"}\''
_PUBLISHING_STAGES: Final = ("sync", "stream", "publish")
"""Stages that publish. The position of publishing is stored in the lake."""


def pulsar_values(conn_id: str) -> dict[str, Any]:
    """Return the values of a connection.

    Raises:
        ConfigurationError: The connection doesn't exist, or has another type.
    """
    connection = stock_connection(conn_id, "generic", option=_OPTION, example=_EXAMPLE)
    values = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    return {**values, "token": connection.password} if connection.password else values


def with_pulsar(connector: Connector, stage: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's connection values, with those of the brokers if its stage publishes.

    Raises:
        ConfigurationError: As :func:`pulsar_values`.
    """
    conn_id = connector.publish.pulsar.connection
    if not conn_id or stage not in _PUBLISHING_STAGES:
        return dict(values)
    return {**values, PULSAR: pulsar_values(conn_id)}
