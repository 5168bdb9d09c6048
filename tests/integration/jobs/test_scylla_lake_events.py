"""Events of ScyllaDB from the lake: what two runs captured, in the order of the log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from server_kit.scylla import CdcOptions, Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import DeletePartition, DeleteRow, Insert, SetWhole, Statement, Update
from tests.integration.jobs.imitated import declare
from tests.integration.jobs.printed_events import number, printed
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def test_events_of_all_batches_come_in_the_order_of_their_changes(
    shop: Shop, names: SystemKeyspaces, tmp_path: Path
) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    columns = (Column("sku", CqlType("int")),)
    options = CdcOptions(postimage=True)
    table = Table(shop.keyspace, "item", columns, regular=(Column("qty", CqlType("int")),), cdc=options)
    cluster.create_table(table)
    declare(
        shop,
        names,
        snapshot={"mode": "never"},
        publish={"topic_prefix": "my", "headers": False, "scylla": {"format": "advanced", "after": "full"}},
    )
    key = (number(1),)
    rounds: list[list[Statement]] = [
        [Insert(key, (), {"qty": number(5)}), Update(key, (), (SetWhole("qty", number(6)),))],
        [DeletePartition(key), Insert(key, (), {"qty": number(7)})],
    ]
    for requests in rounds:
        cluster.execute("item", *requests)
        time.sleep(2.1)
        result = shop.stage("sync")
        assert result.ok, result.error
    found = printed(shop, tmp_path)
    values = [record["value"] for record in found]
    assert {record["topic"] for record in found} == {f"my.{shop.keyspace}.item"}
    assert [value and (value["op"], value["after"]) for value in values] == [
        ("c", {"qty": 5, "sku": 1}),
        ("u", {"qty": 6, "sku": 1}),
        ("d", None),
        None,
        ("c", {"qty": 7, "sku": 1}),
    ]


TEXT = CqlType("text")
ADDRESS = CqlType("udt", (TEXT, TEXT), fields=("street", "city"), udt_name="address")


@pytest.mark.covers("SCY-EVT-01")
def test_rows_of_a_snapshot_are_reads_and_what_follows_are_changes(
    shop: Shop, names: SystemKeyspaces, tmp_path: Path
) -> None:
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    cluster.create_type(ADDRESS)
    table = Table(
        shop.keyspace,
        "item",
        (Column("shop", CqlType("int")),),
        (Column("sku", CqlType("int")),),
        (Column("owner", TEXT),),
        (
            Column("qty", CqlType("int")),
            Column("tags", CqlType("set", (TEXT,))),
            Column("attr", CqlType("map", (TEXT, CqlType("int")))),
            Column("log", CqlType("list", (CqlType("int"),))),
            Column("addr", ADDRESS),
        ),
        cdc=CdcOptions(enabled=False),
    )
    cluster.create_table(table)
    shop.run(
        "INSERT INTO item (shop, sku, owner, qty, tags, attr, log, addr) VALUES "
        "(7, 1, 'ann', 5, {'b', 'a'}, {'x': 1}, [3, 1], {city: 'Oslo'}) USING TIMESTAMP 1700000000000000"
    )
    shop.run("INSERT INTO item (shop, sku) VALUES (7, 2)")
    cluster.alter_cdc("item", enabled=True)
    declare(
        shop,
        names,
        snapshot={"mode": "initial"},
        publish={"topic_prefix": "my", "headers": False, "scylla": {"all_types": True}},
    )
    result = shop.stage("sync")
    assert result.ok, result.error
    key, row = (number(7),), (number(1),)
    cluster.execute("item", Insert(key, (number(3),), {"qty": number(9)}))
    cluster.execute("item", Update(key, row, (SetWhole("qty", number(6)),)), DeleteRow(key, row))
    time.sleep(2.1)
    result = shop.stage("sync")
    assert result.ok, result.error

    found = printed(shop, tmp_path)
    for record in found:
        if record["value"]:
            assert {"op", "before", "after", "source", "ts_ms"} <= set(record["value"])
    nothing = dict.fromkeys(("owner", "qty", "tags", "attr", "log", "addr"))
    null = {"value": None}
    first, second = sorted((r for r in found[:3] if "sku" in r["key"]), key=lambda r: int(r["key"]["sku"]))
    (static_row,) = (r for r in found[:3] if "sku" not in r["key"])
    assert first["value"]["after"] == {
        "shop": 7,
        "sku": 1,
        "owner": None,
        "qty": {"value": 5},
        "tags": {"value": ["a", "b"]},
        "attr": {"value": [{"key": "x", "value": 1}]},
        "log": {"value": [3, 1]},
        "addr": {"value": {"street": None, "city": "Oslo"}},
    }
    assert first["value"]["source"]["ts_us"] == 1_700_000_000_000_000
    assert second["value"]["after"] == {
        **dict.fromkeys(nothing, null),
        "shop": 7,
        "sku": 2,
        "owner": None,
    }
    assert static_row["value"]["after"] == {**nothing, "shop": 7, "sku": None, "owner": {"value": "ann"}}
    assert {r["value"]["source"]["snapshot"] for r in found[:3]} == {"true"}
    operations = [(r["value"]["op"], r["value"]["source"]["snapshot"]) for r in found if r["value"]]
    assert operations == [("r", "true")] * 3 + [("c", "false"), ("u", "false"), ("d", "false")]
    assert all(r["value"]["before"] is None for r in found[:5])
