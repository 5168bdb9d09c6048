"""Tables that a server may or may not have, by its release or because the log is kept elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.cql.driver.connect import driver_errors

if TYPE_CHECKING:
    from cassandra.cluster import Session


def rows_if_there(
    session: Session, query: str, values: Sequence[Any] = (), *, doing: str, level: int | None = None
) -> list[Any] | None:
    """Return a query's rows, None if there is no such table or keyspace.

    Args:
        session: To the cluster.
        query: With ``%s`` for values.
        values: Its values.
        doing: What is being done, for errors.
        level: The driver's number of a consistency level; None for the session's.

    Raises:
        ConfigurationError: The login may not read it.
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
