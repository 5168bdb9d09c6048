"""Columns that come and go while ScyllaDB's changes are captured: in the mirror and in events."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from server_kit.scylla import Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import Insert, Statement
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, settled
from tests.integration.jobs.printed_events import number, printed
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


INT, TEXT = CqlType("int"), CqlType("text")


def insert(sku: int, **values: bytes) -> Insert:
    return Insert((number(sku),), (), values)


@pytest.mark.covers("SCY-CFG-13")
def test_changes_have_the_columns_of_their_time_and_the_mirror_those_of_now(
    shop: Shop, names: SystemKeyspaces, tmp_path: Path
) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    columns = (Column("name", TEXT), Column("qty", INT))
    cluster.create_table(Table(shop.keyspace, "item", (Column("sku", INT),), regular=columns))
    declare(
        shop,
        names,
        snapshot={"mode": "never"},
        publish={"topic_prefix": "my", "headers": False, "scylla": {"format": "advanced"}},
    )

    def written(*requests: Statement) -> set[str]:
        """Execute requests, sync, and return the mirror's columns."""
        cluster.execute("item", *requests)
        time.sleep(2.1)
        result = shop.stage("sync")
        assert result.ok, result.error
        assert_mirror_equals_model(shop, "item", cluster.tables["item"])
        return set(shop.mirror("item").columns) - {"_cdc"}

    assert written(insert(1, name=b"tea", qty=number(1))) == {"sku", "name", "qty"}
    cluster.add_column("item", Column("price", INT))
    cluster.add_column("item", Column("tags", CqlType("set", (TEXT,))))
    tags = b"\0\0\0\1\0\0\0\3new"
    assert written(insert(2, name=b"jam", price=number(5), tags=tags)) == {
        "sku", "name", "qty", "price", "tags"
    }  # fmt: skip
    cluster.drop_column("item", "name")
    assert written(insert(3, qty=number(3), price=number(7))) == {"sku", "qty", "price", "tags"}

    found: list[dict[str, Any]] = [record["value"]["after"] for record in printed(shop, tmp_path)]
    assert found == [
        {"sku": 1, "name": "tea", "qty": 1},
        {"sku": 2, "name": "jam", "qty": None, "price": 5, "tags": ["new"]},
        {"sku": 3, "qty": 3, "price": 7, "tags": None},
    ]
    recorded = [json.loads(row.payload) for row in shop.changes("schema").orderBy("position").collect()]
    assert [set(content["base"]) for content in recorded] == [
        {"sku", "name", "qty"},
        {"sku", "name", "qty", "price", "tags"},
        {"sku", "qty", "price", "tags"},
    ]


def test_columns_and_tables_may_have_any_names(shop: Shop, names: SystemKeyspaces) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    odd = ("a b", 'q"q', "Name", "name", "true", "a.b", "_file", "\U0001f600", "%s", "'", "cdc$x")
    keys, values = tuple(Column(n, INT) for n in odd[:4]), tuple(Column(n, INT) for n in odd[4:])
    cluster.create_table(Table(shop.keyspace, "Odd", keys[:1], keys[1:], values[:2], values[2:]))
    cluster.create_table(Table(shop.keyspace, "plain", (Column("k", INT),)))
    declare(shop, names)

    def synced(first: int) -> None:
        key = tuple(number(first + at) for at in range(4))
        written = {name: number(first + at) for at, name in enumerate(odd[4:], 4)}
        cluster.execute("Odd", Insert(key[:1], key[1:], written))
        cluster.execute("plain", Insert(key[:1], (), {}))
        result = settled(shop)
        assert result.ok, result.error

    synced(0)
    synced(100)
    cluster.rename_key("Odd", 'q"q', '"')
    synced(200)
    assert assert_mirror_equals_model(shop, "plain", cluster.tables["plain"]) == 3
    assert [t.note for t in shop.stage("verify").tables] == ["equal", "equal"]
    found = sorted(sorted(row) for row in shop.mirror("Odd").drop("_cdc").collect())
    assert found == [[first + at for at in range(len(odd))] for first in (0, 100, 200)]
