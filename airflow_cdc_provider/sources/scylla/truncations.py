"""TRUNCATE, of which logs tell nothing: what each node writes down of it, as fences and as lost changes.

A node that truncates a table writes the time into its own ``system.truncated`` (scylla source,
``db/system_keyspace.cc``, ``save_truncation_record``; ``replica/database.cc`` takes the time right after what
the table had is flushed), once per table: a later TRUNCATE takes the place of the one before. Each node has a
time of its own, and a node that is replaced takes its record with it.

What was written before that time is gone, and what was written after it counts. The log has the timestamps of
writes alone, so which is which can be told as exactly as clocks agree, and not for writes with a timestamp
that their client chose. So a TRUNCATE is a fence at the time of the first node that did it, which lets the
mirror's rows go at once, and makes a new snapshot due, which finds what is in doubt.

A *log* that is truncated is known the same way: what it had and nobody has read is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.changes.fence import EVENT_US
from airflow_cdc_provider.changes.record import TRUNCATE
from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.sources.cql.driver.every_node import ask_nodes
from airflow_cdc_provider.sources.scylla.stream_ids import STREAM_ID_BYTES, first_time, sortable_time

if TYPE_CHECKING:
    from cassandra.cluster import Session

log = logging.getLogger(__name__)

_GENERATION_BYTES: Final = 8


@dataclass(frozen=True)
class Truncation:
    """One TRUNCATE of a table.

    Args:
        first_us: When the first node did it, by its clock.
        last_us: When the last one did it that tells so.
    """

    first_us: int
    last_us: int


def told_by_nodes(session: Session, keyspace: str = "system") -> list[dict[str, int]]:
    """Ask every node for its records; those that don't answer, or have no such table, are passed over.

    Args:
        session: To the cluster.
        keyspace: Keyspace of the table ``truncated``.

    Returns:
        Per node, by table id (32 hex digits), when it truncated the table, in us.
    """
    from cassandra import InvalidRequest

    query = f"SELECT DISTINCT table_uuid, truncated_at FROM {keyspace}.truncated"
    found = []
    for host, answer in ask_nodes(session, query):
        if isinstance(answer, CdcError) and isinstance(answer.__cause__, InvalidRequest):
            log.info("node %s has no table %s.truncated: it tells of no TRUNCATE", host.address, keyspace)
            continue
        if isinstance(answer, CdcError):
            log.warning("node %s doesn't say which tables it truncated: %s", host.address, answer)
            continue
        rows = [row for row in answer if row.truncated_at is not None]
        found.append({row.table_uuid.hex: _us(row.truncated_at) for row in rows})
    return found


def last_truncations(nodes: Sequence[Mapping[str, int]]) -> dict[str, Truncation]:
    """Put together what nodes tell of one TRUNCATE: times a minute before the newest are of another one."""
    times: dict[str, list[int]] = {}
    for node in nodes:
        for table_id, at_us in node.items():
            times.setdefault(table_id, []).append(at_us)
    found = {}
    for table_id, told in times.items():
        newest = max(told)
        found[table_id] = Truncation(min(at for at in told if newest - at <= EVENT_US), newest)
    return found


def place_of(generation_ms: int, moment_us: int) -> bytes:
    """Return the position before all changes of a moment, in whatever stream they are.

    Args:
        generation_ms: The stream set that works then; 0 for none.
        moment_us: The moment.
    """
    generation = generation_ms.to_bytes(_GENERATION_BYTES, "big")
    return generation + sortable_time(first_time(moment_us)) + bytes(STREAM_ID_BYTES)


def fence_record(table: str, truncation: Truncation, generation_ms: int) -> dict[str, Any]:
    """Make the record of kind ``truncate``: what stands at or before its position is gone."""
    return {
        "source_table": table,
        "kind": TRUNCATE,
        "origin": "",
        "position": place_of(generation_ms, truncation.first_us),
        "generation": 0,
        "committed_at": truncation.first_us,
        "captured_at": datetime.now(UTC),
        "payload": b"",
    }


def _us(moment: datetime) -> int:
    return round(moment.replace(tzinfo=UTC).timestamp() * 1_000_000)
