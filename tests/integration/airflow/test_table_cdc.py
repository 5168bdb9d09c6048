"""Switching cdc of tables on a real node: idempotent, reported, and refused with the reason."""

from __future__ import annotations

import tests.unit.airflow_home  # noqa: F401  # isort: skip  # before Airflow

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_cdc_provider.operators.cassandra import CassandraTableCdcOperator
from tests.integration.airflow.cassandra_shop import Shop
from tests.unit.airflow_context import TaskContext

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(
    cassandra_server: CassandraServer, cassandra_session: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    values = {"conn_type": "cassandra", "host": cassandra_server.host, "port": cassandra_server.port}
    monkeypatch.setenv("AIRFLOW_CONN_CASSANDRA_SHOP", json.dumps(values))
    name = f"k{random.randrange(10**9)}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra_session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
    for table in ("orders", "customers", '"MixedCase"'):
        cassandra_session.execute(f"CREATE TABLE {name}.{table} (id int PRIMARY KEY, region int)")
    cassandra_session.execute(
        f"CREATE MATERIALIZED VIEW {name}.by_region AS SELECT * FROM {name}.orders "
        "WHERE region IS NOT NULL AND id IS NOT NULL PRIMARY KEY (region, id)"
    )
    yield Shop(cassandra_session, name)
    cassandra_session.execute(f"DROP KEYSPACE {name}")


@pytest.mark.covers("CAS-SETUP-05")
def test_cdc_is_switched_where_it_is_not_so_yet_and_nothing_else_is_altered(shop: Shop) -> None:
    assert shop.captured() == []
    assert shop.switch("orders") == {"cdc": True, "changed": ["orders"], "unchanged": []}
    assert shop.captured() == ["orders"]

    assert shop.switch()["changed"] == ["MixedCase", "customers"], "the connector's tables, but for the view"
    assert shop.captured() == ["MixedCase", "customers", "orders"]

    before = shop.versions()
    again = shop.switch("orders", "customers")
    assert again == {"cdc": True, "changed": [], "unchanged": ["customers", "orders"]}
    assert shop.versions() == before, "no ALTER for tables that are so already"

    off = shop.switch(".*", enabled=False, exclude=("customers",))
    assert off == {"cdc": False, "changed": ["MixedCase", "orders"], "unchanged": []}
    assert shop.captured() == ["customers"]


@pytest.mark.covers("CAS-SETUP-05")
@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("by_region", "is a materialized view: its cdc can't be switched.*capture its base table"),
        ("system.local", "matches system tables"),
        (r"system_auth\.roles", "matches system tables"),
        ("order", r"no table matches .*Did you mean k\d+\.orders\?"),
    ],
)
def test_what_is_no_table_of_ones_own_is_refused_with_the_reason(shop: Shop, table: str, text: str) -> None:
    before = shop.versions()
    with pytest.raises(AirflowFailException, match=text):
        shop.switch("orders", table)
    assert shop.captured() == [], "nothing is altered before all patterns are understood"
    assert shop.versions() == before


def test_a_connector_that_names_no_tables_switches_none(shop: Shop) -> None:
    before = shop.versions()
    declaration = {"name": "shop", "source": {"type": "cassandra", "conn_id": "cassandra_shop"}}
    operator = CassandraTableCdcOperator(task_id="switch", connector=declaration)
    with pytest.raises(AirflowFailException, match="selects all tables, and cdc of all would be altered"):
        operator.execute(TaskContext())
    assert shop.versions() == before
