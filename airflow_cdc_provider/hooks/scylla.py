"""Hook of ScyllaDB clusters; accepts our connection type ``cdc_scylla`` and the stock ``cassandra``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.connection_settings import flag
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.cql import CqlHook

if TYPE_CHECKING:
    from cassandra.cluster import Session


class ScyllaCdcHook(CqlHook):
    """A ScyllaDB cluster.

    Args:
        scylla_conn_id: The connection: contact points with commas as host, port (9042), login and password;
            as extra ``local_datacenter``, ``tls``, ``tls_ca_file``, ``tls_certificate_file``,
            ``tls_key_file`` and ``tls_check_hostname``, or Java's keystores by ``keyStore.location``,
            ``trustStore.location`` and so on; the driver's settings (docs/airflow.md); and the properties
            ``scylla.ssl.*`` and ``scylla.local.dc`` of ScyllaDB's source connector, unchanged.

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

    def normalize(self, values: dict[str, Any]) -> dict[str, Any]:
        """Translate the stock type's extra and the source connector's properties; our own names win.

        Raises:
            ConfigurationError: A property has an invalid value.
        """
        values = super().normalize(values)
        extra = dict(values["extra"])
        if flag(extra, _ENABLED):
            self._enable_tls(extra, _ENABLED)
        elif _ENABLED in extra:
            extra.setdefault("tls", False)
        extra.pop(_ENABLED, None)
        properties = {name: str(extra.pop(name)).strip() for name in _PROPERTIES if name in extra}
        provider = properties.get("scylla.ssl.provider", "JDK")
        if provider.upper() not in _TLS_PROVIDERS:
            raise ConfigurationError(
                "invalid value for scylla.ssl.provider",
                expected=f"one of {', '.join(_TLS_PROVIDERS)}",
                found=provider,
            )
        pair = ("scylla.ssl.openssl.keyCertChain", "scylla.ssl.openssl.privateKey")
        if len([name for name in pair if properties.get(name)]) == 1:
            raise ConfigurationError(
                f"{pair[0]} and {pair[1]} must be set together", expected="both or neither"
            )
        for name, value in properties.items():
            if (own := _PROPERTIES[name]) and value:
                extra.setdefault(own, value)
        return {**values, "extra": extra}

    def release(self, session: Session, reported: str) -> str:
        """Return the node's own release; ``system.local`` has that of a compatible Cassandra."""
        from airflow_cdc_provider.sources.scylla.check import release_of

        return release_of(session)


_ENABLED: Final = "scylla.ssl.enabled"
_TLS_PROVIDERS: Final = ("JDK", "OPENSSL", "OPENSSL_REFCNT")
_PROPERTIES: Final = {
    "scylla.local.dc": "local_datacenter",
    "scylla.ssl.provider": "",
    "scylla.ssl.truststore.path": "trustStore.location",
    "scylla.ssl.truststore.password": "trustStore.password",
    "scylla.ssl.keystore.path": "keyStore.location",
    "scylla.ssl.keystore.password": "keyStore.password",
    "scylla.ssl.cipherSuites": "cipherSuites",
    "scylla.ssl.openssl.keyCertChain": "tls_certificate_file",
    "scylla.ssl.openssl.privateKey": "tls_key_file",
}
"""Names of the source connector's properties in a connection's extra; empty for those without one."""
