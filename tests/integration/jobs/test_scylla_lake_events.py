"""Events of ScyllaDB from the lake: what two runs captured, in the order of the log."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from server_kit.scylla import CdcOptions, Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import DeletePartition, Insert, SetWhole, Statement, Update
from tests.integration.jobs.shop import Shop
from tests.integration.jobs.test_scylla_mirror import declare, names

pytestmark = pytest.mark.integration

__all__ = ["names"]


def number(value: int) -> bytes:
    return struct.pack(">i", value)


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
    path = tmp_path / "events.jsonl"
    result = shop.stage("events", path=str(path))
    assert result.findings == ()
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    values = [record["value"] and json.loads(record["value"]) for record in found]
    assert {record["topic"] for record in found} == {f"my.{shop.keyspace}.item"}
    assert [value and (value["op"], value["after"]) for value in values] == [
        ("c", {"qty": 5, "sku": 1}),
        ("u", {"qty": 6, "sku": 1}),
        ("d", None),
        None,
        ("c", {"qty": 7, "sku": 1}),
    ]
