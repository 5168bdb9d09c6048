"""Whose topics are whose, if several captured tables claim one: the table's that was recorded first.

Whoever creates a table chooses its name, and so may choose one whose topic, or the name of its schemas, is
that of another table: characters that topics can't have are all ``_``. The owner is decided on the driver,
once for all tables of a run, and stored with the position: what a table was first recorded by may expire, or
be replaced by a later snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.encoding import topic_claim

MOST_STORED: Final = 100
"""Maximum number of owners in a position, which each transaction stores."""


def topic_owners(
    connector: Connector, changes: ChangesTable, known: Collection[str], tables: Iterable[str]
) -> dict[str, str]:
    """Return by adjusted name of a topic, the table that has it, of topics that several tables claim.

    Args:
        connector: The connector.
        changes: Its changes table.
        known: Tables that are known to have their topics.
        tables: All tables that may have events.
    """
    claims: dict[str, dict[str, str]] = {}
    for table in tables:
        name, owner = topic_claim(connector, table)
        claims.setdefault(name, {})[table] = owner
    claims = {name: some for name, some in claims.items() if len(set(some.values())) > 1}
    owners = set(known)
    clear = all(len(some.keys() & owners) == 1 for some in claims.values())
    first = {} if clear else _first_recorded(changes)

    def order(table: str) -> tuple[bool, float, str]:
        return table not in owners, first.get(table, float("inf")), table

    return {name: min(some, key=order) for name, some in claims.items()}


def _first_recorded(changes: ChangesTable) -> dict[str, int]:
    """Return when each table was first recorded, or its snapshot began, us since 1970, as far as is known."""
    from pyspark.sql import functions as f

    state = changes.state()
    rows = changes.pending(0, state.batch).where("captured_at IS NOT NULL").groupBy("source_table")
    found = rows.agg(f.unix_micros(f.min("captured_at")).alias("us")).collect()
    first = {row["source_table"]: row["us"] for row in found}
    for table, snapshot in Progress.from_offset(state.offset).snapshots.items():
        if snapshot.started_us:
            first[table] = min(snapshot.started_us, first.get(table, snapshot.started_us))
    return first
