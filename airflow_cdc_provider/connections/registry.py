"""Passes the schema registry's connection to a connector's jobs; it has Airflow's stock type ``http``.

Host, port, schema, login and password are the form's fields; the registry client's other settings are in the
extra (:mod:`airflow_cdc_provider.kafka.registry`). The values are added to the source's connection, which
holds a job's secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_cdc_provider.connections.machine_identity import check_machine_identity
from airflow_cdc_provider.connections.stock import stock_connection
from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.jobs.spec import KAFKA, NOTIFICATIONS_KAFKA, REGISTRY
from airflow_cdc_provider.kafka.registry import machine_identity


def registry_values(conn_id: str, option: str = "publish.registry.connection") -> dict[str, Any]:
    """Return the values of a connection.

    Args:
        conn_id: Its id.
        option: The declaration's option that names it.

    Raises:
        ConfigurationError: The connection doesn't exist, has another type, or isn't allowed.
    """
    connection = stock_connection(
        conn_id,
        "http",
        option=option,
        example="--conn-host registry --conn-port 8081",
    )
    values = {
        "host": connection.host,
        "port": connection.port,
        "schema": connection.schema,
        "login": connection.login,
        "password": connection.password,
        "extra": connection.extra_dejson,
    }
    check_machine_identity(conn_id, machine_identity(values))
    return {name: value for name, value in values.items() if value}


def with_registry(connector: Connector, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's connection values, with those of the registry if the job sends to brokers."""
    conn_id = connector.publish.registry.connection
    if not conn_id or not {KAFKA, NOTIFICATIONS_KAFKA} & values.keys():
        return dict(values)
    return {**values, REGISTRY: registry_values(conn_id)}
