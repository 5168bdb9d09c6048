"""A driver's session on a server's own tables that are kept in memory; it keeps a record of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cassandra import ConsistencyLevel, InvalidRequest


@dataclass
class ServerSession:
    """See the module.

    Args:
        tables: By ``keyspace.table`` its rows; any other is refused. Conditions aren't looked at.
        nodes: How many nodes there are.
        requests: The requests: the table, and the level of the statement, empty for none.
    """

    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    nodes: int = 1
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def cluster(self) -> Any:
        """The cluster: its nodes."""
        hosts = [SimpleNamespace(address=f"10.0.0.{n}", is_up=True) for n in range(1, self.nodes + 1)]
        return SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: hosts))

    def execute(self, query: Any, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Answer a query."""
        del values
        text = getattr(query, "query_string", query)
        level = getattr(query, "consistency_level", None)
        table = text.split(" FROM ")[1].split()[0]
        self.requests.append((table, "" if level is None else ConsistencyLevel.value_to_name[level]))
        if table not in self.tables:
            raise InvalidRequest(f"table {table} does not exist")
        return iter([SimpleNamespace(**row) for row in self.tables[table]])

    def execute_async(self, query: str, host: Any) -> Any:
        """Query one node."""
        del host
        return SimpleNamespace(result=lambda: self.execute(query))
