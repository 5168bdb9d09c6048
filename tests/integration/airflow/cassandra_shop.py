"""A keyspace on a real node of Cassandra, whose tables operators alter."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

from typing import Any

from airflow_cdc_provider.hooks.cassandra import CassandraCdcHook
from airflow_cdc_provider.operators.cassandra import CassandraTableCdcOperator
from tests.unit.airflow_context import TaskContext


class Shop:
    """A keyspace of one's own on a real node, and the operator on it."""

    def __init__(self, session: Any, keyspace: str) -> None:
        self.session = session
        self.keyspace = keyspace

    def switch(self, *tables: str, enabled: bool = True, exclude: tuple[str, ...] = ()) -> dict[str, Any]:
        """Run the operator; names of tables without their keyspace."""
        declaration = {
            "name": "shop",
            "source": {"type": "cassandra", "conn_id": "cassandra_shop"},
            "tables": [self.pattern(".*")],
            "exclude_tables": [self.pattern(one) for one in exclude],
        }
        operator = CassandraTableCdcOperator(
            task_id="switch",
            connector=declaration,
            tables=[self.pattern(one) if one == ".*" or "." not in one else one for one in tables],
            enabled=enabled,
        )
        found: dict[str, Any] = operator.execute(TaskContext())
        prefix = f"{self.keyspace}."
        return {
            name: [one.removeprefix(prefix) for one in value] if isinstance(value, list) else value
            for name, value in found.items()
        }

    def pattern(self, table: str) -> str:
        return rf"{self.keyspace}\.{table}" if table != ".*" else rf"{self.keyspace}\..*"

    def versions(self) -> set[Any]:
        """Return the versions of the schema that nodes have: an ALTER makes a new one."""
        return {row.schema_version for row in self.session.execute("SELECT schema_version FROM system.local")}

    def captured(self) -> list[str]:
        with_keyspace = CassandraCdcHook("cassandra_shop")
        try:
            found = with_keyspace.captured_tables()
        finally:
            with_keyspace.close()
        prefix = f"{self.keyspace}."
        return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
