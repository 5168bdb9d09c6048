"""Queries of system tables that may be missing: in some releases, or if the log is stored elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.cql.connection import driver_errors

if TYPE_CHECKING:
    from cassandra.cluster import Session


def rows_or_none(
    session: Session, query: str, values: Sequence[Any] = (), *, doing: str, level: int | None = None
) -> list[Any] | None:
    """Return a query's rows, None if there is no such table or keyspace.

    Args:
        session: To the cluster.
        query: With ``%s`` for values.
        values: Its values.
        doing: Description of the operation, for error messages.
        level: The driver's number of the consistency level; None for the session's.

    Raises:
        ConfigurationError: The login has no permission to read the table.
        TransientError: No node answers.
    """
    from cassandra import InvalidRequest
    from cassandra.query import SimpleStatement

    statement = SimpleStatement(query, consistency_level=level)
    with driver_errors(doing):
        try:
            return list(session.execute(statement, values))
        except InvalidRequest:
            return None
