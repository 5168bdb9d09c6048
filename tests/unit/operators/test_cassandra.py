"""Which tables the operator that switches cdc asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.operators import cassandra
from tests.unit.airflow_context import TaskContext


class Hook:
    """Stands in for a cluster: notes the patterns that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def matching_tables(self, patterns: tuple[str, ...], exclude: tuple[str, ...]) -> list[str]:
        del exclude
        self.asked.append(patterns)
        return ["shop.orders"]

    def switch_cdc(self, tables: list[str], *, enabled: bool) -> Any:
        del enabled
        return SimpleNamespace(changed=tables, unchanged=[])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("own", "connectors", "asked"),
    [
        ([".*"], None, (".*",)),
        ("", [r"shop\..*"], (r"shop\..*",)),
        (r"shop\.orders", [r"shop\..*"], (r"shop\.orders",)),
        ("", None, None),
        ("", [".*"], None),
    ],
    ids=["all, by the operator", "the connector's", "the operator's", "none", "all, by the connector"],
)
def test_cdc_of_all_tables_is_switched_only_where_the_operator_says_so(
    monkeypatch: pytest.MonkeyPatch, own: Any, connectors: Any, asked: tuple[str, ...] | None
) -> None:
    hook = Hook()
    monkeypatch.setattr(cassandra, "cassandra_hook", lambda connector, conn_id: hook)
    declaration = {"name": "shop", "source": {"type": "cassandra", "conn_id": "c"}}
    if connectors:
        declaration["tables"] = connectors
    operator = cassandra.CassandraTableCdcOperator(task_id="on", connector=declaration, tables=own)
    if asked is None:
        with pytest.raises(AirflowFailException, match="selects all tables"):
            operator.execute(TaskContext())
        assert hook.asked == []
    else:
        assert operator.execute(TaskContext())["changed"] == ["shop.orders"]
        assert hook.asked == [asked]
