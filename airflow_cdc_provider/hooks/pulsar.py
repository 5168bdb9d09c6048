"""How the Pulsar connection of a connector reaches its jobs: Airflow's stock type ``generic``.

Its extra says where brokers are (``service_url``) and where files of TLS lie, its password is the token. It
travels with the source's connection, where a job's secrets are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.hooks.stock_connection import stock_connection
from airflow_cdc_provider.jobs.spec import PULSAR

_OPTION: Final = "publish.pulsar.connection"
_EXAMPLE: Final = '--conn-extra \'{"service_url": "pulsar://host:6650"}\''
_ASKING: Final = ("sync", "stream", "publish")
"""Stages that send; where publishing stands is in the lake."""


def pulsar_values(conn_id: str) -> dict[str, Any]:
    """Return the values of a connection.

    Raises:
        ConfigurationError: There is no such connection, or it has another type.
    """
    connection = stock_connection(conn_id, "generic", option=_OPTION, example=_EXAMPLE)
    values = {name: value for name, value in connection.extra_dejson.items() if value not in (None, "")}
    return {**values, "token": connection.password} if connection.password else values


def with_pulsar(connector: Connector, stage: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's connection values with those of brokers, if its stage asks them.

    Raises:
        ConfigurationError: As :func:`pulsar_values`.
    """
    conn_id = connector.publish.pulsar.connection
    if not conn_id or stage not in _ASKING:
        return dict(values)
    return {**values, PULSAR: pulsar_values(conn_id)}
