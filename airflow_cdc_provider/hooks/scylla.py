"""Hook of ScyllaDB clusters: takes our connection type ``cdc_scylla`` and the stock ``cassandra``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_cdc_provider.hooks.cql import CqlHook

if TYPE_CHECKING:
    from cassandra.cluster import Session


class ScyllaCdcHook(CqlHook):
    """A ScyllaDB cluster.

    Args:
        scylla_conn_id: The connection: contact points with commas as host, port (9042), login and password;
            as extra ``local_datacenter``, ``tls``, ``tls_ca_file``, ``tls_certificate_file``,
            ``tls_key_file`` and ``tls_check_hostname``, or Java's keystores by ``keyStore.location``,
            ``trustStore.location`` and so on; and the driver's settings (docs/airflow.md).

    Example::

        with ScyllaCdcHook("scylla_shop") as session:
            session.execute("SELECT cluster_name FROM system.local")
    """

    conn_name_attr = "scylla_conn_id"
    default_conn_name = "cdc_scylla_default"
    conn_type = "cdc_scylla"
    hook_name = "ScyllaDB (CDC)"
    accepted_types = ("cdc_scylla", "cassandra")
    product = "ScyllaDB"

    def __init__(self, scylla_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.scylla_conn_id = scylla_conn_id

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.scylla_conn_id

    def release(self, session: Session) -> str:
        """Return the release of the node that is asked: Cassandra's, which it says it is, isn't it."""
        from airflow_cdc_provider.sources.scylla.check import release_of

        return release_of(session)
