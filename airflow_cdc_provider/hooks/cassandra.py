"""Hook of Cassandra clusters; accepts our connection type ``cdc_cassandra`` and the stock ``cassandra``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_cdc_provider.hooks.cql import CqlHook
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.plugin import options_of

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.cassandra.cdc_flag import FlagChange


class CassandraCdcHook(CqlHook):
    """A Cassandra cluster.

    Args:
        cassandra_conn_id: The connection: contact points with commas as host, port, login and password; as
            extra ``local_datacenter``, ``tls``, ``tls_ca_file``, ``tls_certificate_file``, ``tls_key_file``
            and ``tls_check_hostname``, or Java's keystores by ``tls_config_file``, ``keyStore.location``,
            ``trustStore.location`` and so on; the driver's settings, ``driver_config_file`` among them
            (docs/airflow.md); ``keystore_password`` and ``key_password`` of encrypted commit logs.

    Example::

        with CassandraCdcHook("cassandra_shop") as session:
            session.execute("SELECT release_version FROM system.local")

    Requests of its sessions are counted: :meth:`request_numbers`.
    """

    conn_name_attr = "cassandra_conn_id"
    default_conn_name = "cdc_cassandra_default"
    conn_type = "cdc_cassandra"
    hook_name = "Cassandra (CDC)"
    accepted_types = ("cdc_cassandra", "cassandra")
    product = "Cassandra"

    def __init__(self, cassandra_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.cassandra_conn_id = cassandra_conn_id

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.cassandra_conn_id

    def configure(self, connector: Connector) -> None:
        """Use the declared settings file of the driver unless the connection names one."""
        if file := options_of(connector, CassandraOptions).driver_config_file:
            self.extra_defaults = {"driver_config_file": file}

    def captured_tables(self) -> list[str]:
        """List the tables that have ``cdc = true``, as ``keyspace.table``, sorted."""
        from airflow_cdc_provider.sources.cassandra.cdc_flag import captured_tables

        return captured_tables(self.get_conn())

    def matching_tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """List the tables that match a declaration's patterns; views and system tables never match.

        Raises:
            ConfigurationError: A pattern matches no table.
        """
        from airflow_cdc_provider.sources.cassandra.cdc_flag import matching_tables

        return matching_tables(self.get_conn(), patterns, exclude)

    def switch_cdc(self, tables: Sequence[str], *, enabled: bool) -> FlagChange:
        """Enable or disable ``cdc`` of tables, and wait until all nodes agree on the schema.

        Args:
            tables: Names from :meth:`matching_tables`.
            enabled: The value to set.

        Returns:
            The tables that were altered, and those that already had the value.

        Raises:
            ConfigurationError: The role may not alter them, or CDC is disabled on the nodes.
            TransientError: Nodes don't agree on the schema. A second call continues.
        """
        from airflow_cdc_provider.sources.cassandra.cdc_flag import switch_cdc

        return switch_cdc(self.get_conn(), tables, enabled=enabled)
