"""Which tables patterns name whose CDC is to be switched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.cdc_flag import matching_tables


class Session:
    """A cluster with some tables and a view."""

    def execute(self, cql: str) -> list[Any]:
        if "views" in cql:
            return [SimpleNamespace(keyspace_name="shop", view_name="by_day", base_table_name="orders")]
        names = ["shop.orders", "shop.customers", "system.local", "system_orders.lines", "systems.hosts"]
        return [
            SimpleNamespace(keyspace_name=keyspace, table_name=table, cdc=None)
            for keyspace, table in (name.split(".") for name in names)
        ]


@pytest.mark.parametrize(
    ("patterns", "exclude", "found"),
    [
        ([r"shop\..*"], [r".*\.customers"], ["shop.orders"]),
        ([r"system.*\..*"], [], ["system_orders.lines", "systems.hosts"]),
        ([r"system_orders\.lines", r"shop\.orders"], [], ["shop.orders", "system_orders.lines"]),
    ],
)
def test_keyspaces_with_a_system_prefix_are_the_users(
    patterns: list[str], exclude: list[str], found: list[str]
) -> None:
    session: Any = Session()
    assert matching_tables(session, patterns, exclude) == found


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"system\.local", "matches system tables"),
        (r"shop\.by_day", "a materialized view"),
        (r"shop\.order", r"no table matches .*Did you mean shop\.orders\?"),
        (r"shop.(", "not a valid regular expression"),
    ],
)
def test_errors_describe_what_a_pattern_matches_instead(pattern: str, message: str) -> None:
    session: Any = Session()
    with pytest.raises(ConfigurationError, match=message):
        matching_tables(session, [r"shop\.orders", pattern])
