"""Hook of Cassandra clusters: takes our connection type ``cdc_cassandra`` and the stock ``cassandra``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.hooks.source import CdcHook

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.cassandra.cdc_flag import FlagChange
    from airflow_cdc_provider.sources.cql.driver.request_metrics import RequestMetrics, RequestNumbers


class CassandraCdcHook(CdcHook):
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
    default_port = 9042

    def __init__(self, cassandra_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.cassandra_conn_id = cassandra_conn_id

    def request_numbers(self) -> RequestNumbers:
        """Tell how many CQL requests this hook's sessions made, and how long they took.

        The numbers are of all its sessions since the hook was made; :meth:`close` keeps them.
        """
        return self._request_metrics.numbers()

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.cassandra_conn_id

    def get_conn(self) -> Session:
        """Return a session, the same one until :meth:`close`."""
        return self._session

    def close(self) -> None:
        """End the session and its threads."""
        if "_session" in self.__dict__:
            self._session.cluster.shutdown()
            del self.__dict__["_session"]

    def __enter__(self) -> Session:
        return self.get_conn()

    def __exit__(self, *_: object) -> None:
        self.close()

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Read the stock type's extra too: ``ssl_options`` and ``load_balancing_policy_args``."""
        extra = dict(values["extra"])
        stock_tls = extra.pop("ssl_options", None)
        if isinstance(stock_tls, dict):
            extra.setdefault("tls", True)
            for stock, ours in _STOCK_TLS.items():
                if stock_tls.get(stock):
                    extra.setdefault(ours, stock_tls[stock])
        policy = extra.pop("load_balancing_policy_args", None)
        extra.pop("load_balancing_policy", None)
        if isinstance(policy, dict) and policy.get("local_dc"):
            extra.setdefault("local_datacenter", policy["local_dc"])
        return {**values, "extra": extra}

    def captured_tables(self) -> list[str]:
        """List the tables that have ``cdc = true``, as ``keyspace.table``, sorted."""
        from airflow_cdc_provider.sources.cassandra.cdc_flag import captured_tables

        return captured_tables(self.get_conn())

    def matching_tables(self, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
        """List the tables that patterns name, as in a declaration; none is a view or Cassandra's own.

        Raises:
            ConfigurationError: A pattern names no table.
        """
        from airflow_cdc_provider.sources.cassandra.cdc_flag import matching_tables

        return matching_tables(self.get_conn(), patterns, exclude)

    def switch_cdc(self, tables: Sequence[str], *, enabled: bool) -> FlagChange:
        """Switch ``cdc`` of tables on or off where it is not so yet, and wait until all nodes know it.

        Args:
            tables: Names from :meth:`matching_tables`.
            enabled: Whether it is to be on.

        Returns:
            Which tables were altered, and which were so already.

        Raises:
            ConfigurationError: The role may not alter them, or nodes don't capture at all.
            TransientError: Nodes don't agree on the schema; calling again goes on.
        """
        from airflow_cdc_provider.sources.cassandra.cdc_flag import switch_cdc

        return switch_cdc(self.get_conn(), tables, enabled=enabled)

    def describe_server(self) -> str:
        """Name the cluster and its release."""
        try:
            row = self.get_conn().execute("SELECT cluster_name, release_version FROM system.local").one()
        finally:
            self.close()
        return f"Cassandra {row.release_version}, cluster {row.cluster_name}"

    def session_state(self, probes: int) -> dict[str, Any]:
        """Ask a node a few times who it is, over one session.

        Args:
            probes: How many times.

        Returns:
            ``server`` in words; ``nodes`` of the cluster and ``nodes_down``, by what the driver knows; and
            the numbers of :meth:`request_numbers`.

        Raises:
            ConfigurationError: The login is refused, or TLS doesn't fit.
            TransientError: Nobody answers.
        """
        from airflow_cdc_provider.sources.cql.driver.connect import driver_errors

        try:
            session = self.get_conn()
            with driver_errors("asking a node who it is"):
                for _ in range(probes):
                    row = session.execute("SELECT cluster_name, release_version FROM system.local").one()
            hosts = session.cluster.metadata.all_hosts()
        finally:
            self.close()
        return {
            "server": f"Cassandra {row.release_version}, cluster {row.cluster_name}",
            "nodes": len(hosts),
            "nodes_down": sum(host.is_up is False for host in hosts),
            **self.request_numbers().to_dict(),
        }

    @cached_property
    def _session(self) -> Session:
        from airflow_cdc_provider.sources.cql.driver.connect import open_session

        session = open_session(self.connection_values(), timeout_seconds=_TIMEOUT_SECONDS)
        self._request_metrics.watch(session)
        return session

    @cached_property
    def _request_metrics(self) -> RequestMetrics:
        from airflow_cdc_provider.sources.cql.driver.request_metrics import RequestMetrics

        return RequestMetrics()


_TIMEOUT_SECONDS: Final = 5.0
_STOCK_TLS: Final = {
    "ca_certs": "tls_ca_file",
    "certfile": "tls_certificate_file",
    "keyfile": "tls_key_file",
}
