"""Query each node's own state: its host id, its clock, and its last truncation of each table.

``system.local`` is local to each node, so every node is queried. Its map ``truncated_at`` has the last
truncation of every table. The node also writes it to its log, where it is lost if it is in a segment without
changes of captured tables. Nodes that don't respond are skipped: a TRUNCATE requires all nodes, so the record
of a node that is down can be read when it is up again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.changes.fence import EVENT_US
from airflow_cdc_provider.changes.record import TRUNCATE
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cassandra.commit_log.truncation import read_truncation
from airflow_cdc_provider.sources.cassandra.payload import Truncation
from airflow_cdc_provider.sources.cql.driver.node_queries import query_nodes

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from cassandra.pool import Host

log = logger(__name__)

NO_FEED: Final = ""
"""Origin of snapshot rows that follow no truncation: they have no position in any feed."""

SETTLED_MS: Final = 600_000
"""A node that lacks a truncation this long after another node's record didn't take part in it."""

_EVENT_MS: Final = EVENT_US // 1000
_QUERY: Final = "SELECT host_id, toUnixTimestamp(now()) AS now_ms, truncated_at FROM system.local"
_NEVER: Final = Truncation(0, 0, 0)
_NO_POSITION: Final = bytes(24)


@dataclass(frozen=True)
class NodeState:
    """The state of one node.

    Args:
        host_id: Its id, which is also the origin of its changes.
        now_ms: Its clock, ms since 1970.
        truncated: By table id (32 hex digits), its last truncation.
    """

    host_id: str
    now_ms: int
    truncated: Mapping[str, Truncation] = field(default_factory=dict)


def node_states(session: Session) -> list[NodeState]:
    """Query every node; nodes that don't respond are skipped, and logged."""
    found = []
    for host, answer in query_nodes(session, _QUERY):
        if isinstance(answer, CdcError):
            log.warning("skipped node %s, whose truncations can't be read: %s", host.address, answer)
            continue
        row = answer.one()
        records = {table.hex: read_truncation(value) for table, value in (row.truncated_at or {}).items()}
        known = {table: record for table, record in records.items() if record is not None}
        found.append(NodeState(str(row.host_id), int(row.now_ms), known))
    return sorted(found, key=lambda node: node.host_id)


def snapshot_position(nodes: Sequence[NodeState], table_id: str) -> tuple[str, bytes]:
    """Return the feed and position of rows that are read from a table now.

    They follow the last truncation, unless it is in progress: then the read may still return rows that are
    being removed, and they follow the truncation before. Later writes are in the log anyway.

    Args:
        nodes: States of the nodes.
        table_id: The table's id.

    Returns:
        The node with the earliest truncation, and its position; no node before the first truncation.
    """
    newest = _newest(nodes, table_id)
    records = {node.host_id: node.truncated.get(table_id, _NEVER) for node in nodes}
    under_way = [n.host_id for n in nodes if _lacks(records[n.host_id], newest) and not _settled(n, newest)]
    participants = under_way or [name for name, record in records.items() if not _lacks(record, newest)]
    origin, position = NO_FEED, _NO_POSITION
    if newest:
        least = min(participants, key=lambda name: (records[name].truncated_at_ms, name))
        if records[least] != _NEVER:
            origin, position = least, records[least].fence
    return origin, position + (time.time_ns() // 1000).to_bytes(8, "big")


def truncation_rows(
    nodes: Sequence[NodeState], tables: Mapping[str, str], recorded: Mapping[tuple[str, str], int]
) -> Iterator[dict[str, Any]]:
    """Build change records of kind ``truncate`` from the states of nodes.

    A node that joined after a truncation, or missed it, removed no data: its log continues at its previous
    position. That is recorded too, with the same time, once the node can't be merely late.

    Args:
        nodes: States of the nodes.
        tables: Names by id.
        recorded: Time (ms) of the last record by host id and table name; truncations that aren't later are
            not recorded again.

    Yields:
        Records as mappings.
    """
    for table_id, name in sorted(tables.items(), key=lambda item: item[1]):
        newest = _newest(nodes, table_id)
        for node in nodes:
            record = node.truncated.get(table_id, _NEVER)
            known_ms = recorded.get((node.host_id, name), 0)
            if _lacks(record, newest) and _settled(node, newest):
                if newest > known_ms + _EVENT_MS:
                    yield _row(name, node.host_id, record._replace(truncated_at_ms=newest))
            elif record.truncated_at_ms > known_ms:
                yield _row(name, node.host_id, record)


def _newest(nodes: Sequence[NodeState], table_id: str) -> int:
    return max((node.truncated.get(table_id, _NEVER).truncated_at_ms for node in nodes), default=0)


def _lacks(record: Truncation, newest_ms: int) -> bool:
    return newest_ms - record.truncated_at_ms > _EVENT_MS


def _settled(node: NodeState, newest_ms: int) -> bool:
    return node.now_ms - newest_ms > SETTLED_MS


def _row(table: str, origin: str, truncation: Truncation) -> dict[str, Any]:
    return {
        "source_table": table,
        "kind": TRUNCATE,
        "origin": origin,
        "position": truncation.fence,
        "generation": 0,
        "committed_at": truncation.truncated_at_ms * 1000,
        "captured_at": datetime.now(UTC),
        "payload": truncation.pack(),
    }


def host_ids(session: Session) -> dict[str, str]:
    """Return the addresses of all nodes of the cluster, up or down, by host id."""
    hosts: Iterable[Host] = session.cluster.metadata.all_hosts()
    return {str(host.host_id): str(host.address) for host in hosts if host.host_id}
