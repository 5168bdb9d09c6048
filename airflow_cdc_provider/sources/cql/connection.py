"""Connections to a cluster, and translation of the driver's errors.

No error contains a password: errors name only the contact points.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.connection_settings import flag
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, TransientError
from airflow_cdc_provider.sources.cql.driver.driver_settings import cluster_options, resolved
from airflow_cdc_provider.sources.cql.driver.tls import tls_context, wants_tls
from airflow_cdc_provider.sources.findings import login_findings, verification_findings

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from airflow_cdc_provider.sources.contract import Finding

DEFAULT_PORT = 9042


def open_session(
    connection: Mapping[str, Any], *, timeout_seconds: float, raw_results: bool = False, schema: bool = False
) -> Session:
    """Connect to a cluster and return the session; ``session.cluster.shutdown()`` closes it.

    Args:
        connection: An Airflow connection's values: ``host`` (contact points with commas), ``port``,
            ``login``, ``password``; in ``extra``: ``local_datacenter``, ``tls``, ``tls_ca_file``,
            ``tls_certificate_file``, ``tls_key_file``, ``tls_key_password``, ``tls_check_hostname``,
            keystores (:mod:`.driver.tls`), and the driver's settings (:mod:`.driver.driver_settings`).
        timeout_seconds: Timeout of one request, unless a setting overrides it.
        raw_results: Results are pages of bytes (:mod:`.driver.raw_results`).
        schema: The driver loads the definitions of all tables of the cluster, and again what changes.

    Raises:
        ConfigurationError: The login is rejected, a name doesn't exist, TLS fails, or a setting is unknown or
            invalid.
        TransientError: No node responds.
    """
    from cassandra import UnresolvableContactPoints
    from cassandra.cluster import Cluster

    connection = resolved(connection)
    extra = connection["extra"]
    options = _options(connection, timeout_seconds)
    options |= {"schema_metadata_enabled": schema, "token_metadata_enabled": schema}
    if raw_results:
        from airflow_cdc_provider.sources.cql.driver.raw_results import (
            RawProtocolHandler,
            prepare,
            raw_pages,
        )

        (profile,) = options["execution_profiles"].values()
        profile.row_factory = raw_pages
    named = ", ".join(options["contact_points"])
    try:
        cluster = Cluster(**options)
    except UnresolvableContactPoints as error:
        raise TransientError(
            f"no address was found for the nodes {named}",
            expected="names that DNS resolves, or addresses",
            remedy="correct the host of the Airflow connection, or DNS where the task and Spark run",
        ) from error
    try:
        with driver_errors(f"connecting to {named}"):
            session = cluster.connect()
        if raw_results:
            session.client_protocol_handler = RawProtocolHandler
            session.prepare = partial(prepare, session)
        session.default_fetch_size = extra.get("page_size", session.default_fetch_size)
        return session
    except TransientError:
        datacenter = extra.get("local_datacenter")
        datacenters = sorted({host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter})
        cluster.shutdown()
        if datacenter and datacenters and datacenter not in datacenters:
            raise ConfigurationError(
                "no node is in the local datacenter",
                expected=f"one of {', '.join(datacenters)}",
                found=datacenter,
                remedy="correct local_datacenter in the connection's extra, or omit it",
            ) from None
        raise
    except BaseException:
        cluster.shutdown()
        raise


def _options(connection: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Return the arguments of the driver's ``Cluster``."""
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile
    from cassandra.policies import DCAwareRoundRobinPolicy, RoundRobinPolicy, TokenAwarePolicy

    extra = connection["extra"]
    datacenter = extra.get("local_datacenter")
    nodes = DCAwareRoundRobinPolicy(local_dc=datacenter) if datacenter else RoundRobinPolicy()
    profile = ExecutionProfile(
        TokenAwarePolicy(nodes), request_timeout=extra.get("request_timeout_seconds", timeout_seconds)
    )
    if "consistency" in extra:
        profile.consistency_level = consistency_level(extra["consistency"])
    options: dict[str, Any] = {
        "contact_points": contact_points(connection),
        "port": int(connection.get("port") or DEFAULT_PORT),
        "execution_profiles": {EXEC_PROFILE_DEFAULT: profile},
        **cluster_options(extra, timeout_seconds),
    }
    if connection.get("login"):
        password = connection.get("password") or ""
        options["auth_provider"] = PlainTextAuthProvider(connection["login"], password)
    if wants_tls(extra):
        options["ssl_context"] = tls_context(extra)
    return options


def connection_findings(connection: Mapping[str, Any]) -> list[Finding]:
    """Report a login that is sent in the clear, and nodes that aren't verified.

    Raises:
        ConfigurationError: A setting is unknown or invalid.
    """
    values = resolved(connection)
    extra, encrypted = values["extra"], wants_tls(values["extra"])
    unverified = encrypted and not flag(extra, "tls_check_hostname", default=True)
    return [
        *login_findings(contact_points(values), login=bool(values.get("login")), encrypted=encrypted),
        *verification_findings("tls_check_hostname: false" if unverified else ""),
    ]


def contact_points(connection: Mapping[str, Any]) -> list[str]:
    """Return the hosts of a connection."""
    hosts = [host.strip() for host in str(connection.get("host") or "").split(",")]
    return [host for host in hosts if host] or ["127.0.0.1"]


NODE_LOCAL: Final = 12
"""A level of Cassandra 4.0 and later that the driver lacks: reads only the contacted node's data."""


def consistency_level(name: str) -> int:
    """Return the protocol's number of a consistency level for reads.

    Raises:
        ConfigurationError: The name is not a consistency level for reads.
    """
    from cassandra import ConsistencyLevel

    known = {n: v for n, v in ConsistencyLevel.name_to_value.items() if n not in _NOT_FOR_READS}
    known["NODE_LOCAL"] = NODE_LOCAL
    if name.upper() not in known:
        raise ConfigurationError(
            f"{name} is not a consistency level for reads", expected=f"one of {', '.join(sorted(known))}"
        )
    return known[name.upper()]


_NOT_FOR_READS: Final = frozenset({"ANY", "EACH_QUORUM", "SERIAL", "LOCAL_SERIAL"})


@contextmanager
def driver_errors(doing: str) -> Iterator[None]:
    """Translate the driver's errors to the package's exceptions.

    Args:
        doing: The operation, for the message.
    """
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable
    from cassandra.protocol import ErrorMessage

    try:
        yield
    except CdcError:
        raise
    except (DriverException, ErrorMessage, NoHostAvailable, OSError, UnicodeError) as error:
        raise translated(error, doing) from error


def translated(error: BaseException, doing: str) -> CdcError:
    """Return the package's exception for an error of the driver."""
    import cassandra as driver
    from cassandra.cluster import NoHostAvailable
    from cassandra.protocol import SyntaxException

    causes = [error]
    if isinstance(error, NoHostAvailable):
        causes = list(error.errors.values() if isinstance(error.errors, Mapping) else error.errors) or causes
    for cause in causes:
        if isinstance(cause, driver.AuthenticationFailed):
            return ConfigurationError(
                f"{doing} failed: the login was rejected",
                expected="login and password of a role that may log in",
                remedy="correct the Airflow connection, or the role in Cassandra",
            )
        if isinstance(cause, driver.Unauthorized):
            return ConfigurationError(
                f"{doing} is not permitted",
                found=_first_line(cause),
                remedy="grant the role SELECT on the keyspace: GRANT SELECT ON KEYSPACE ... TO ...",
            )
        # The driver converts an SSLError to an OSError with its number, 1: as if not permitted to connect.
        if isinstance(cause, (ssl.SSLError, PermissionError)):
            return ConfigurationError(
                f"{doing} failed: TLS error",
                found=_first_line(cause),
                remedy="check the connection's extra: tls_ca_file, trustStore.location, tls_check_hostname",
            )
        if isinstance(
            cause, (driver.InvalidRequest, driver.UnsupportedOperation, SyntaxException, UnicodeError)
        ):
            return ConfigurationError(f"{doing} was rejected by the cluster", found=_first_line(cause))
    cause = causes[0]
    problem, remedy = next(
        (_KNOWN_FAILURES[kind.__name__] for kind in type(cause).__mro__ if kind.__name__ in _KNOWN_FAILURES),
        ("got no response", "check host, port, TLS and that the nodes are up and reachable"),
    )
    return TransientError(
        f"{doing} {problem}", found=f"{type(cause).__name__}: {_first_line(cause)}", remedy=remedy
    )


_KNOWN_FAILURES: Final = {
    "Unavailable": (
        "requires more replicas than are up",
        "start the nodes that are down, or set a lower consistency level",
    ),
    "ReadTimeout": (
        "got no response from the replicas in time",
        "check their load; raise read_request_timeout, or lower advanced.fetch_size",
    ),
    "ReadFailure": (
        "failed on replicas that responded",
        "see their logs: too many tombstones (tombstone_failure_threshold), a corrupt SSTable",
    ),
    "ServerError": ("failed in the server", "see the node's log"),
}
"""Problem and remedy by class of the driver's errors."""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
