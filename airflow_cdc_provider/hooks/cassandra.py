"""Hook of Cassandra clusters: takes our connection type ``cdc_cassandra`` and the stock ``cassandra``."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.hooks.source import CdcHook

if TYPE_CHECKING:
    from cassandra.cluster import Cluster, Session


class CassandraCdcHook(CdcHook):
    """A Cassandra cluster.

    Args:
        cassandra_conn_id: The connection: contact points with commas as host, port, login and password; as
            extra ``local_datacenter``, ``tls``, ``tls_ca_file``, ``tls_certificate_file``, ``tls_key_file``
            and ``tls_check_hostname``.

    Example::

        with CassandraCdcHook("cassandra_shop") as session:
            session.execute("SELECT release_version FROM system.local")
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

    @property
    def source_conn_id(self) -> str:
        """Id of the connection."""
        return self.cassandra_conn_id

    def get_conn(self) -> Session:
        """Return a session, the same one until :meth:`close`."""
        return self._cluster.connect()

    def close(self) -> None:
        """End the session and its threads."""
        if "_cluster" in self.__dict__:
            self._cluster.shutdown()
            del self.__dict__["_cluster"]

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

    def describe_server(self) -> str:
        """Name the cluster and its release."""
        try:
            row = self.get_conn().execute("SELECT cluster_name, release_version FROM system.local").one()
        finally:
            self.close()
        return f"Cassandra {row.release_version}, cluster {row.cluster_name}"

    @cached_property
    def _cluster(self) -> Cluster:
        return cluster(self.connection_values())


_STOCK_TLS = {"ca_certs": "tls_ca_file", "certfile": "tls_certificate_file", "keyfile": "tls_key_file"}


def cluster(values: dict[str, Any], *, connect_timeout_seconds: float = 5.0) -> Cluster:
    """Build the driver's cluster from a connection's values.

    Args:
        values: What :meth:`CassandraCdcHook.connection_values` returned.
        connect_timeout_seconds: How long to wait for one node.
    """
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import DCAwareRoundRobinPolicy, RoundRobinPolicy, TokenAwarePolicy

    extra = values["extra"]
    datacenter = extra.get("local_datacenter")
    nodes = DCAwareRoundRobinPolicy(local_dc=datacenter) if datacenter else RoundRobinPolicy()
    options: dict[str, Any] = {
        "contact_points": [host.strip() for host in values["host"].split(",") if host.strip()]
        or ["127.0.0.1"],
        "port": int(values["port"]),
        "execution_profiles": {EXEC_PROFILE_DEFAULT: ExecutionProfile(TokenAwarePolicy(nodes))},
        "connect_timeout": connect_timeout_seconds,
    }
    if values["login"]:
        options["auth_provider"] = PlainTextAuthProvider(values["login"], values["password"])
    if extra.get("tls"):
        options["ssl_context"] = _tls(extra)
        options["ssl_options"] = {"server_hostname": options["contact_points"][0]}
    return Cluster(**options)


def _tls(extra: dict[str, Any]) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=extra.get("tls_ca_file"))
    context.check_hostname = bool(extra.get("tls_check_hostname", True))
    if extra.get("tls_certificate_file"):
        context.load_cert_chain(
            extra["tls_certificate_file"], extra.get("tls_key_file"), extra.get("tls_key_password")
        )
    return context
