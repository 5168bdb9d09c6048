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


def test_write_times_at_the_edges_of_64_bits_are_captured_merged_and_published(
    shop: Shop, tmp_path: Path
) -> None:
    """In nanoseconds they wrap as Debezium's, or are null; merges know which is the latest."""
    latest = 2**63 - 1
    times = {1: -latest, 2: -1_000_000, 3: 0, 4: 9_223_372_036_854_775, 5: 9_223_372_036_854_776}
    times |= {6: 1_700_000_000_000_000_000, 7: latest}
    shop.run("CREATE TABLE t (p int PRIMARY KEY, v int) WITH cdc = true")
    publish(shop)
    for key, time in times.items():
        shop.run(f"INSERT INTO t (p, v) VALUES ({key}, {key}) USING TIMESTAMP {time}")
        shop.run(f"UPDATE t USING TIMESTAMP {time - 1 if key > 1 else time} SET v = 0 WHERE p = {key}")
    (table,) = shop.sync().tables
    assert table.undecodable == 0
    assert shop.assert_equal("t") == len(times)
    assert all(row["v"] == row["p"] for row in shop.mirror("t").collect())

    def sources() -> dict[int, dict[str, Any]]:
        created = [value for value in values(printed(shop, tmp_path)) if value["op"] == "i"]
        return {value["after"]["p"]["value"]: value["source"] for value in created}

    for key, source in sources().items():
        assert (source["ts_us"], source["ts_ms"]) == (times[key], times[key] // 1000)
        assert source["ts_ns"] == (times[key] * 1000 + 2**63) % 2**64 - 2**63
    assert sources()[6]["ts_ns"] == 2_899_545_218_721_251_328
    shop.declare(publish={"tombstones": False, "times_beyond_64_bits": "null"})
    exact = {key: time * 1000 if abs(time * 1000) < 2**63 else None for key, time in times.items()}
    assert {key: source["ts_ns"] for key, source in sources().items()} == exact
    shop.declare(publish={"tombstones": False, "envelope": "cloudevents"})
    found = [value["time"] for value in values(printed(shop, tmp_path))]
    assert "55840-" in " ".join(found)
