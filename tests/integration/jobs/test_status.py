"""The status of each table, reported without changing anything."""

from __future__ import annotations

import pytest

from airflow_cdc_provider.jobs.spec import TableStatus
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def status(shop: Shop) -> dict[str, TableStatus]:
    reported = shop.stage("offsets", action="status").status
    return {one.table.removeprefix(f"{shop.keyspace}."): one for one in reported}


@pytest.mark.covers("CAS-LIFE-04")
def test_a_table_stands_where_its_mirrors_last_commit_has_brought_it(shop: Shop) -> None:
    for table in ("orders", "customers"):
        shop.run(f"CREATE TABLE {table} (id int PRIMARY KEY) WITH cdc = true")
        shop.run(f"INSERT INTO {table} (id) VALUES (1)")
    assert {(one.snapshot, one.offset, one.rows) for one in status(shop).values()} == {("none", None, None)}

    first = shop.sync()
    assert first.offset is not None
    assert set(first.offset[shop.server.host_id]) >= {"floor", "open"}, "segments and positions, by node"
    for one in status(shop).values():
        assert (one.snapshot, one.offset, one.pending, one.rows) == ("done", first.offset, 0, 1)

    shop.run("INSERT INTO orders (id) VALUES (2)")
    shop.close_segments()
    captured = shop.stage("capture")
    assert captured.offset != first.offset
    now = status(shop)
    assert now["orders"].offset == first.offset, "what is captured is not in the mirror yet"
    assert (now["orders"].pending, now["orders"].rows) == (1, 1)
    assert now["orders"].pending_seconds > 0
    assert (now["customers"].offset, now["customers"].pending) == (captured.offset, 0)

    shop.stage("merge")
    now = status(shop)
    assert (now["orders"].offset, now["orders"].pending, now["orders"].rows) == (captured.offset, 0, 2)
