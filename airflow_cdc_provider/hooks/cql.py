"""Base of the hooks of CQL clusters: a session whose requests are counted."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_cdc_provider.connection_settings import flag
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.source import CdcHook

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.cql.driver.request_metrics import RequestMetrics, RequestNumbers


class CqlHook(CdcHook):
    """A CQL cluster. Requests of its sessions are counted: :meth:`request_numbers`."""

    product: ClassVar[str] = ""
    """Name of the database, in front of its release."""
    default_port = 9042

    def request_numbers(self) -> RequestNumbers:
        """Return the number and the latencies of the CQL requests of this hook's sessions.

        They cover all sessions since the hook was created; :meth:`close` keeps them.
        """
        return self._request_metrics.numbers()

    def get_conn(self) -> Session:
        """Return a session, the same one until :meth:`close`."""
        return self._session

    def close(self) -> None:
        """Close the session and its threads."""
        if "_session" in self.__dict__:
            self._session.cluster.shutdown()
            del self.__dict__["_session"]

    def __enter__(self) -> Session:
        return self.get_conn()

    def __exit__(self, *_: object) -> None:
        self.close()

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Translate the stock type's extra too: ``ssl_options`` and ``load_balancing_policy_args``."""
        extra = dict(values["extra"])
        if stock_tls := extra.pop("ssl_options", None):
            if not isinstance(stock_tls, dict):
                raise ConfigurationError(
                    "invalid value for ssl_options in the connection's extra",
                    expected=f"a JSON object with some of {', '.join(_STOCK_TLS)}",
                )
            self._enable_tls(extra, "ssl_options")
            for stock, ours in _STOCK_TLS.items():
                if stock_tls.get(stock):
                    extra.setdefault(ours, stock_tls[stock])
        policy = extra.pop("load_balancing_policy_args", None)
        extra.pop("load_balancing_policy", None)
        if isinstance(policy, dict) and policy.get("local_dc"):
            extra.setdefault("local_datacenter", policy["local_dc"])
        return {**values, "extra": extra}

    def describe_server(self) -> str:
        """Return the cluster's name and release."""
        try:
            return self._described(self.get_conn())
        finally:
            self.close()

    def release(self, session: Session, reported: str) -> str:
        """Return the release of the connected node.

        Args:
            session: A session with it.
            reported: The release in ``system.local``.
        """
        return reported

    def _described(self, session: Session) -> str:
        row = session.execute("SELECT cluster_name, release_version FROM system.local").one()
        return f"{self.product} {self.release(session, row.release_version)}, cluster {row.cluster_name}"

    def session_state(self, probes: int) -> dict[str, Any]:
        """Query a node's name and release several times over one session.

        Args:
            probes: The number of queries.

        Returns:
            ``server``, a description; the cluster's ``nodes`` and ``nodes_down``, as the driver sees them;
            and the numbers of :meth:`request_numbers`.

        Raises:
            ConfigurationError: The login is refused, or the TLS settings don't match.
            TransientError: No node answers.
        """
        from airflow_cdc_provider.sources.cql.connection import driver_errors

        try:
            session = self.get_conn()
            with driver_errors("querying a node's name and release"):
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

    @staticmethod
    def _enable_tls(extra: dict[str, Any], setting: str) -> None:
        """Set ``tls``, which another setting of a connection's extra implies.

        Raises:
            ConfigurationError: ``tls`` is false.
        """
        if not flag(extra, "tls", default=True):
            raise ConfigurationError(
                f"the connection disables TLS, but has settings of TLS: {setting}",
                expected=f"tls: true, or no {setting}",
                remedy="correct the extra of the Airflow connection",
            )
        extra["tls"] = True

    @cached_property
    def _session(self) -> Session:
        from airflow_cdc_provider.sources.cql.connection import open_session

        session = open_session(self.connection_values(), timeout_seconds=_TIMEOUT_SECONDS, schema=True)
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
