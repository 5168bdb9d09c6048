"""What each node of a cluster answers for itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.sources.cql.driver.connect import driver_errors

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from cassandra.pool import Host

_RETRY_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.2
_CLOCK: Final = "SELECT toUnixTimestamp(now()) AS now_ms FROM system.local"


def ask_nodes(session: Session, query: str) -> Iterator[tuple[Host, Any]]:
    """Ask every node that is up, all at the same time; yield each with its answer, or with the error as ours.

    With ``local_datacenter`` in the connection only that data centre's nodes can be asked.
    """
    hosts = [host for host in session.cluster.metadata.all_hosts() if host.is_up is not False]
    last_try = time.monotonic() + _RETRY_SECONDS
    while hosts:
        again = []
        asked = [(host, session.execute_async(query, host=host)) for host in hosts]
        for host, answer in asked:
            try:
                with driver_errors(f"asking {host.address}"):
                    found: Any = answer.result()
            except CdcError as error:
                lost = isinstance(error, TransientError)
                if lost and time.monotonic() < last_try and not _is_ignored(session, host):
                    again.append(host)
                    continue
                found = error
            yield host, found
        if again:
            # Just after connecting, the driver may still be about to replace its connections.
            time.sleep(_PAUSE_SECONDS)
        hosts = again


def slowest_clock_us(session: Session) -> int:
    """Ask all nodes for their clocks, and return the time of the slowest, us since 1970.

    Raises:
        TransientError: No node answers.
    """
    answers = [answer for _, answer in ask_nodes(session, _CLOCK)]
    clocks = [int(answer.one().now_ms) for answer in answers if not isinstance(answer, CdcError)]
    if not clocks:
        raise TransientError("no node tells its clock", remedy="check that the nodes run and can be reached")
    return min(clocks) * 1000


def _is_ignored(session: Session, host: Host) -> bool:
    """Tell whether the driver keeps no connections to a node, being of another data centre."""
    from cassandra.policies import HostDistance

    return bool(session.cluster.profile_manager.distance(host) == HostDistance.IGNORED)
