"""Deletes of ranges and partitions of ScyllaDB: each is one predicate on the mirror."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_cdc_provider.changes.contribution import PARTITION_DELETION, RANGE_DELETION
from server_kit.scylla import Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import DeletePartition, DeleteRange, Insert, Limit
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare
from tests.integration.jobs.printed_events import number
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def synced(shop: Shop) -> int:
    """Sync; return how many changes were captured so far."""
    time.sleep(2.1)
    result = shop.stage("sync")
    assert result.ok, result.error
    return shop.changes().count()


def rows(shop: Shop) -> list[tuple[Any, ...]]:
    return sorted((row.shop, row.sku) for row in shop.mirror("item").select("shop", "sku").collect())


@pytest.mark.covers("SCY-EVT-06")
def test_a_delete_of_a_range_or_partition_is_one_change_and_takes_all_rows_it_covers(
    shop: Shop, names: SystemKeyspaces
) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    number_type = CqlType("int")
    table = Table(
        shop.keyspace,
        "item",
        (Column("shop", number_type),),
        (Column("sku", number_type),),
        regular=(Column("qty", number_type),),
    )
    cluster.create_table(table)
    declare(shop, names, snapshot={"mode": "never"})
    inserts = [Insert((number(s),), (number(k),), {"qty": number(k)}) for s in (7, 8) for k in range(1, 9)]
    cluster.execute("item", *inserts)
    assert synced(shop) == 16
    assert len(rows(shop)) == 16

    # Their timestamps lie ahead: they cover what is written after them, too.
    ahead_us = cluster.clock_us() + 2_000_000
    low, high = Limit(number(2), inclusive=False), Limit(number(6), inclusive=True)
    cluster.execute(
        "item",
        DeleteRange((number(7),), low=low, high=high, timestamp=ahead_us),
        DeletePartition((number(8),), timestamp=ahead_us),
        Insert((number(7),), (number(4),), {"qty": number(44)}),
        Insert((number(8),), (number(9),), {"qty": number(99)}),
    )
    time.sleep(2)
    assert synced(shop) == 16 + 2 + 2
    assert rows(shop) == [(7, sku) for sku in (1, 2, 7, 8)]
    assert_mirror_equals_model(shop, "item", cluster.tables["item"])
    scopes = [row.scope for row in shop.side("item").select("scope").collect()]
    assert sorted(scopes) == sorted([RANGE_DELETION, PARTITION_DELETION])
