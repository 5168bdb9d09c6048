"""Events from the lake: with the rows that stood before, and in one order over several nodes."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

OTHER_NODE = "0d3a1c5e-0000-4000-8000-00000000000b"


def publish(shop: Shop, **choices: Any) -> None:
    """Declare how events are made, of a log alone that is let go as soon as it is merged."""
    shop.declare(
        snapshot={"mode": "never"},
        lake={"retention_seconds": 0},
        publish={"tombstones": False, "cassandra": choices},
    )


def printed(shop: Shop, folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    shop.stage("events", path=str(path), **options)
    return [json.loads(line) for line in path.read_text().splitlines()]


def values(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(event["value"]) for event in events]


def shown(cells: dict[str, Any] | None) -> dict[str, Any] | None:
    return cells and {name: cell["value"] for name, cell in cells.items() if cell}


@pytest.mark.covers("CAS-EVT-10")
@pytest.mark.long
def test_rows_before_come_from_the_mirror_where_the_changes_are_gone(shop: Shop, tmp_path: Path) -> None:
    publish(shop, before=True)
    columns = "p int, c int, s text static, v int, w text, PRIMARY KEY (p, c)"
    shop.run(f"CREATE TABLE t ({columns}) WITH cdc = true")
    shop.run("INSERT INTO t (p, c, s, v, w) VALUES (1, 1, 's', 10, 'a')")
    shop.run("INSERT INTO t (p, c, v) VALUES (2, 2, 20)")
    shop.sync()
    shop.run("INSERT INTO t (p, c) VALUES (9, 9)")
    merged = shop.sync().tables[0].merged_through
    shop.stage("maintain")  # lets all batches go but the newest
    shop.run("UPDATE t SET v = 11 WHERE p = 1 AND c = 1")
    shop.run("UPDATE t SET v = 12 WHERE p = 1 AND c = 1")
    shop.run("DELETE FROM t WHERE p = 2 AND c = 2")
    shop.run("INSERT INTO t (p, c, v) VALUES (3, 3, 30)")
    shop.close_segments()
    shop.stage("capture")

    published = values(printed(shop, tmp_path, after_batch=merged))

    first = {"p": 1, "c": 1, "s": "s", "v": 10, "w": "a"}
    assert [(value["op"], shown(value["before"])) for value in published] == [
        ("u", first),
        ("u", {**first, "v": 11}),
        ("d", {"p": 2, "c": 2, "v": 20}),
        ("i", None),
    ]
    publish(shop)
    native = values(printed(shop, tmp_path, after_batch=merged))
    assert [list(value) for value in native] == [["ts_ms", "op", "source", "after"]] * 4
    # Once the mirror has merged the selected batches, it has no before image: only the log's rest has.
    publish(shop, before=True)
    shop.stage("merge")
    published = values(printed(shop, tmp_path, after_batch=merged))
    assert [shown(value["before"]) for value in published] == [None, {"p": 1, "c": 1, "v": 11}, None, None]


def test_events_of_two_nodes_come_in_the_order_of_their_write_times(shop: Shop, tmp_path: Path) -> None:
    nodes = [tmp_path / "cdc_raw" / name for name in (shop.server.host_id, OTHER_NODE)]
    for node in nodes:
        node.mkdir(parents=True)
    shop.run("CREATE TABLE t (p int PRIMARY KEY, v int) WITH cdc = true")
    shop.declare(source={"cdc_raw": str(tmp_path / "cdc_raw"), "node": ""})
    publish(shop)
    for turn in range(2):
        for number in range(20):
            shop.run(f"INSERT INTO t (p, v) VALUES ({number % 4}, {turn * 100 + number})")
        shop.close_segments()
        for node in nodes:
            shop.server.ship_segments(node)
        shop.stage("capture")

    by_log = printed(shop, tmp_path)
    publish(shop, order="write_time")
    by_time = printed(shop, tmp_path)

    assert len(by_time) == len(by_log) == 80
    times: dict[str, list[int]] = defaultdict(list)
    for event, value in zip(by_time, values(by_time), strict=True):
        times[event["key"]].append(value["source"]["ts_us"])
    assert len(times) == 4
    assert all(one == sorted(one) for one in times.values())
    of_log = [value["source"]["ts_us"] for value in values(by_log)]
    assert of_log != sorted(of_log)
