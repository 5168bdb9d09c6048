"""Runs random statements against tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cassandra.cluster import NoHostAvailable

from tests.integration.sources.cassandra.random_tables import Statement

if TYPE_CHECKING:
    pass


def write(session: Any, batches: Iterator[list[Statement]]) -> tuple[int, int]:
    """Execute statements with their values as bytes; return how many, and how many the server rejected."""
    from cassandra import InvalidRequest
    from cassandra.query import BatchStatement, BoundStatement

    prepared: dict[str, Any] = {}
    done = refused = 0

    def bound(statement: Statement) -> Any:
        text, values = statement
        if text not in prepared:
            prepared[text] = session.prepare(text)
        ready = BoundStatement(prepared[text])
        ready.values = values
        return ready

    for batch in batches:
        try:
            if len(batch) == 1:
                session.execute(bound(batch[0]))
            else:
                unlogged_batch = BatchStatement()
                for statement in batch:
                    unlogged_batch.add(bound(statement))
                session.execute(unlogged_batch)
            done += len(batch)
        except (InvalidRequest, NoHostAvailable):  # no legal value, or one that the server itself fails on
            refused += len(batch)
    return done, refused
