"""TRUNCATE, which logs don't contain: converts the truncation records of nodes to fences and lost changes.

A node that truncates a table writes the time into its own ``system.truncated`` (scylla source,
``db/system_keyspace.cc``, ``save_truncation_record``; ``replica/database.cc`` takes the time right after
flushing the table). There is one record per table: a later TRUNCATE overwrites the earlier one. Each node has
its own time, and the record of a replaced node is lost.

Rows written before that time are deleted, rows written after it are not. The log only has write timestamps,
so the two can be distinguished no better than clocks agree, and not at all for timestamps set by clients.
Therefore a TRUNCATE is a fence at the time of the first node, which deletes the mirror's rows at once, and
triggers a new snapshot, which restores the rows that were written around it.

The TRUNCATE of a *log* is detected the same way: its unread changes are lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.changes.fence import EVENT_US
from airflow_cdc_provider.changes.record import TRUNCATE
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cql.driver.node_queries import query_nodes
from airflow_cdc_provider.sources.scylla.stream_ids import STREAM_ID_BYTES, first_time, sortable_time

if TYPE_CHECKING:
    from cassandra.cluster import Session

log = logger(__name__)

_GENERATION_BYTES: Final = 8


@dataclass(frozen=True)
class Truncation:
    """One TRUNCATE of a table.

    Args:
        first_us: Time of the first node, by its clock.
        last_us: Time of the last node that reports it.
    """

    first_us: int
    last_us: int


def read_truncations(session: Session, keyspace: str = "system") -> list[dict[str, int]]:
    """Read the records of every node; nodes that don't answer, or have no such table, are skipped.

    Args:
        session: To the cluster.
        keyspace: Keyspace of the table ``truncated``.

    Returns:
        Per node, the time of the truncation in us by table id (32 hex digits).
    """
    from cassandra import InvalidRequest

    query = f"SELECT DISTINCT table_uuid, truncated_at FROM {keyspace}.truncated"
    found = []
    for host, answer in query_nodes(session, query):
        if isinstance(answer, CdcError) and isinstance(answer.__cause__, InvalidRequest):
            log.info(
                "node %s has no table %s.truncated: its TRUNCATEs are not detected", host.address, keyspace
            )
            continue
        if isinstance(answer, CdcError):
            log.warning("can't read the truncated tables of node %s: %s", host.address, answer)
            continue
        rows = [row for row in answer if row.truncated_at is not None]
        found.append({row.table_uuid.hex: _us(row.truncated_at) for row in rows})
    return found


def last_truncations(nodes: Sequence[Mapping[str, int]]) -> dict[str, Truncation]:
    """Combine the records of a TRUNCATE: times a minute before the newest belong to an earlier one."""
    times: dict[str, list[int]] = {}
    for node in nodes:
        for table_id, at_us in node.items():
            times.setdefault(table_id, []).append(at_us)
    found = {}
    for table_id, reported in times.items():
        newest = max(reported)
        found[table_id] = Truncation(min(at for at in reported if newest - at <= EVENT_US), newest)
    return found


def position_at(generation_ms: int, moment_us: int) -> bytes:
    """Return the position before all changes of a time, in any stream.

    Args:
        generation_ms: The stream set that is active at the time; 0 for none.
        moment_us: The time.
    """
    generation = generation_ms.to_bytes(_GENERATION_BYTES, "big")
    return generation + sortable_time(first_time(moment_us)) + bytes(STREAM_ID_BYTES)


def fence_record(table: str, truncation: Truncation, generation_ms: int) -> dict[str, Any]:
    """Build the record of kind ``truncate``: rows at or before its position are deleted."""
    return {
        "source_table": table,
        "kind": TRUNCATE,
        "origin": "",
        "position": position_at(generation_ms, truncation.first_us),
        "generation": 0,
        "committed_at": truncation.first_us,
        "captured_at": datetime.now(UTC),
        "payload": b"",
    }


def _us(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1_000_000)
