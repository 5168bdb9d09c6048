"""What the hooks of clusters that speak CQL have in common: a session whose requests are counted."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_cdc_provider.hooks.source import CdcHook

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.cql.driver.request_metrics import RequestMetrics, RequestNumbers


class CqlHook(CdcHook):
    """A cluster that is asked over CQL. Requests of its sessions are counted: :meth:`request_numbers`."""

    product: ClassVar[str] = ""
    """What the cluster is, in front of its release."""
    default_port = 9042

    def request_numbers(self) -> RequestNumbers:
        """Tell how many CQL requests this hook's sessions made, and how long they took.

        The numbers are of all its sessions since the hook was made; :meth:`close` keeps them.
        """
        return self._request_metrics.numbers()

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

    def describe_server(self) -> str:
        """Name the cluster and its release."""
        try:
            return self._described(self.get_conn())
        finally:
            self.close()

    def release(self, session: Session) -> str:
        """Return the release of the node that is asked."""
        return str(session.execute("SELECT release_version FROM system.local").one().release_version)

    def _described(self, session: Session) -> str:
        row = session.execute("SELECT cluster_name FROM system.local").one()
        return f"{self.product} {self.release(session)}, cluster {row.cluster_name}"

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
                    server = self._described(session)
            hosts = session.cluster.metadata.all_hosts()
        finally:
            self.close()
        return {
            "server": server,
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
