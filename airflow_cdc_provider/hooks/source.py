"""Base of all source hooks.

A hook only stores ids. It looks up its connection on first use, never when a DAG is parsed, and passes its
values to a job as plain data (:meth:`CdcHook.connection_values`), so that a job doesn't need Airflow.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_cdc_provider.connections.machine_identity import check_machine_identity
from airflow_cdc_provider.connections.secrets_masker import keep_secret, keep_secret_async
from airflow_cdc_provider.connector.declaration import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.masking import masked
from airflow_cdc_provider.sources.registry import source_plugin

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

    from airflow_cdc_provider.sources.contract import Source


class CdcHook(BaseHook):
    """A connection to a captured database.

    Subclasses define the connection types that they accept, build a client and describe the server.
    """

    accepted_types: ClassVar[tuple[str, ...]] = ()
    default_port: ClassVar[int] = 0
    extra_defaults: Mapping[str, Any] = MappingProxyType({})
    """Defaults of the connection's extra, from the declaration."""

    @property
    @abstractmethod
    def source_conn_id(self) -> str:
        """Id of the connection."""

    def configure(self, connector: Connector) -> None:
        """Take over what a declaration says about the connection. Default: nothing."""

    @abstractmethod
    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Translate the values of any accepted connection type to those of our own type."""

    def _machine_identity(self, values: dict[str, Any]) -> str:
        """Return the setting by which the server gets tokens of this machine's identity. Default: none.

        Args:
            values: Normalized values.
        """
        return ""

    @abstractmethod
    def describe_server(self) -> str:
        """Return a short description of the server, within seconds."""

    def connection_values(self) -> dict[str, Any]:
        """Return host, port, login, password, schema and extra, as in the source's own connection type.

        Their secrets are masked from then on.

        Raises:
            ConfigurationError: The connection doesn't exist, has another type, or isn't allowed.
        """
        try:
            connection = self.get_connection(self.source_conn_id)
        except AirflowNotFoundException as error:
            raise self._missing() from error
        values = self._values(connection, connection.extra_dejson)
        keep_secret(values)
        return values

    async def connection_values_async(self) -> dict[str, Any]:
        """Return the same as :meth:`connection_values`, for triggers."""
        try:
            connection = await get_async_connection(self.source_conn_id, hook=self)
        except AirflowNotFoundException as error:
            raise self._missing() from error
        values = self._values(connection, await get_async_extra_dejson(connection))
        await keep_secret_async(values)
        return values

    def source(self, connector: Connector) -> Source:
        """Build the connector's source, for checks, tables, head and lag. The caller closes it.

        Raises:
            ConfigurationError: The connection or the source's options are invalid.
        """
        return source_plugin(connector.type).source(connector, self.connection_values())

    def session_state(self, probes: int) -> dict[str, Any]:
        """Query the server's description several times, and measure the latency.

        Args:
            probes: The number of queries.

        Returns:
            ``server``, a description; ``requests``, ``mean_seconds`` and ``max_seconds``, including
            connecting.

        Raises:
            CdcError: The server doesn't answer, or refuses the login.
        """
        self.connection_values()  # its secrets are masked
        seconds = []
        server = ""
        for _ in range(probes):
            began = time.perf_counter()
            try:
                server = self.describe_server()
            except CdcError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a driver raises
                raise TransientError(
                    f"the server of connection {self.source_conn_id} doesn't answer",
                    found=f"{type(error).__name__}: {error}",
                ) from None
            seconds.append(time.perf_counter() - began)
        mean = sum(seconds) / len(seconds)
        return {"server": server, "requests": probes, "mean_seconds": mean, "max_seconds": max(seconds)}

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the server answers, and a text without secrets."""
        try:
            self.connection_values()
        except ConfigurationError as error:
            return False, str(error)
        try:
            return True, self.describe_server()
        except Exception as error:  # noqa: BLE001  # whatever a driver raises is the answer
            text = str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}"
            return False, " ".join(masked(text).split())[:300]

    def _values(self, connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
        if connection.conn_type not in self.accepted_types:
            raise ConfigurationError(
                f"connection {self.source_conn_id} has the wrong type",
                expected=" or ".join(self.accepted_types),
                found=str(connection.conn_type),
            )
        values = self.normalize(
            {
                "host": ",".join(host.strip() for host in (connection.host or "").split(",")),
                "port": connection.port or self.default_port,
                "login": connection.login or "",
                "password": connection.password or "",
                "schema": connection.schema or "",
                "extra": {
                    **self.extra_defaults,
                    **{name: value for name, value in extra.items() if value not in (None, "")},
                },
            }
        )
        check_machine_identity(self.source_conn_id, self._machine_identity(values))
        return values

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is no connection {self.source_conn_id}",
            expected=f"one of type {' or '.join(self.accepted_types)}",
            remedy=f"airflow connections add {self.source_conn_id} --conn-type {self.accepted_types[0]} ...",
        )
