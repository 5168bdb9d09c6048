"""Queries that are sent to every node of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.sources.cql.connection import driver_errors

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from cassandra.pool import Host

_RETRY_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.2
_CLOCK: Final = "SELECT toUnixTimestamp(now()) AS now_ms FROM system.local"


def query_nodes(session: Session, query: str) -> Iterator[tuple[Host, Any]]:
    """Query all nodes that are up concurrently; yield each with its result, or with a translated error.

    With ``local_datacenter`` in the connection, only the nodes of that data center can be queried.
    """
    hosts = [host for host in session.cluster.metadata.all_hosts() if host.is_up is not False]
    last_try = time.monotonic() + _RETRY_SECONDS
    while hosts:
        to_retry = []
        responses = [(host, session.execute_async(query, host=host)) for host in hosts]
        for host, response in responses:
            try:
                with driver_errors(f"querying {host.address}"):
                    found: Any = response.result()
            except CdcError as error:
                transient = isinstance(error, TransientError)
                if transient and time.monotonic() < last_try and not _is_ignored(session, host):
                    to_retry.append(host)
                    continue
                found = error
            yield host, found
        if to_retry:
            # Just after connecting, the driver may still be replacing its connections.
            time.sleep(_PAUSE_SECONDS)
        hosts = to_retry


def slowest_clock_us(session: Session) -> int:
    """Return the time of the slowest clock among all nodes, us since 1970.

    Raises:
        TransientError: No node responds.
    """
    answers = [answer for _, answer in query_nodes(session, _CLOCK)]
    clocks = [int(answer.one().now_ms) for answer in answers if not isinstance(answer, CdcError)]
    if not clocks:
        raise TransientError("no node returned its clock", remedy="check that the nodes are up and reachable")
    return min(clocks) * 1000


def _is_ignored(session: Session, host: Host) -> bool:
    """Return whether the driver has no connections to a node, because it is in another data center."""
    from cassandra.policies import HostDistance

    return bool(session.cluster.profile_manager.distance(host) == HostDistance.IGNORED)
