"""Looks up the connections of Airflow's stock types that a declaration names, and checks their type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_cdc_provider.connections.secrets_masker import keep_secret, keep_secret_async
from airflow_cdc_provider.exceptions import ConfigurationError


def stock_connection(conn_id: str, conn_type: str, *, option: str, example: str) -> Any:
    """Return a connection.

    Args:
        conn_id: Its id.
        conn_type: The required type.
        option: The declaration's option that names it.
        example: Arguments of ``airflow connections add`` after the type.

    Raises:
        ConfigurationError: The connection doesn't exist, or has another type.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _missing(conn_id, conn_type, option, example) from error
    keep_secret(_values(connection, connection.extra_dejson))
    return _of_type(connection, conn_id, conn_type)


async def stock_connection_async(conn_id: str, conn_type: str, *, option: str, example: str) -> Any:
    """Return the same as :func:`stock_connection`, for triggers."""
    try:
        connection = await get_async_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _missing(conn_id, conn_type, option, example) from error
    await keep_secret_async(_values(connection, await get_async_extra_dejson(connection)))
    return _of_type(connection, conn_id, conn_type)


def _values(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "host": connection.host,
        "login": connection.login,
        "password": connection.password,
        "extra": extra,
    }


def _missing(conn_id: str, conn_type: str, option: str, example: str) -> ConfigurationError:
    return ConfigurationError(
        f"there is no connection {conn_id}",
        expected=f"one of type {conn_type}, as {option}",
        remedy=f"airflow connections add {conn_id} --conn-type {conn_type} {example}",
    )


def _of_type(connection: Any, conn_id: str, conn_type: str) -> Any:
    if connection.conn_type != conn_type:
        raise ConfigurationError(
            f"connection {conn_id} has the wrong type", expected=conn_type, found=str(connection.conn_type)
        )
    return connection
