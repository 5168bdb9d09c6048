"""Events from the lake: with the rows that stood before, and in one order over several nodes."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

OTHER_NODE = "0d3a1c5e-0000-4000-8000-00000000000b"


def declaration(keyspace: str, cdc_raw: Path | str, node: str = "", **publish: Any) -> dict[str, Any]:
    return {
        "name": f"order_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(cdc_raw), "node": node},
        "tables": [rf"{keyspace}\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": keyspace, "retention_seconds": 0},
        "publish": {"tombstones": False, "cassandra": publish},
    }


def printed(
    run_stage: RunStage, shop: dict[str, Any], connection: dict[str, Any], folder: Path, **options: Any
) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    run_stage("events", shop, connection, path=str(path), **options)
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown(cells: dict[str, Any] | None) -> dict[str, Any] | None:
    return cells and {name: cell["value"] for name, cell in cells.items() if cell}


@pytest.mark.covers("CAS-EVT-10")
def test_rows_before_come_from_the_mirror_where_the_changes_are_gone(
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    tmp_path: Path,
) -> None:
    run = cassandra_session.execute
    shop = declaration(keyspace, cassandra_server.cdc_raw, cassandra_server.host_id, before=True)
    columns = "p int, c int, s text static, v int, w text, PRIMARY KEY (p, c)"
    run(f"CREATE TABLE {keyspace}.t ({columns}) WITH cdc = true")
    run(f"INSERT INTO {keyspace}.t (p, c, s, v, w) VALUES (1, 1, 's', 10, 'a')")
    run(f"INSERT INTO {keyspace}.t (p, c, v) VALUES (2, 2, 20)")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("sync", shop, connection)
    run(f"INSERT INTO {keyspace}.t (p, c) VALUES (9, 9)")
    cassandra_server.roll_segment(cassandra_session)
    merged = run_stage("sync", shop, connection).tables[0].merged_through
    run_stage("maintain", shop, connection)  # lets all batches go but the newest
    run(f"UPDATE {keyspace}.t SET v = 11 WHERE p = 1 AND c = 1")
    run(f"UPDATE {keyspace}.t SET v = 12 WHERE p = 1 AND c = 1")
    run(f"DELETE FROM {keyspace}.t WHERE p = 2 AND c = 2")
    run(f"INSERT INTO {keyspace}.t (p, c, v) VALUES (3, 3, 30)")
    cassandra_server.roll_segment(cassandra_session)
    run_stage("capture", shop, connection)

    told = [
        json.loads(e["value"]) for e in printed(run_stage, shop, connection, tmp_path, after_batch=merged)
    ]

    first = {"p": 1, "c": 1, "s": "s", "v": 10, "w": "a"}
    assert [(value["op"], shown(value["before"])) for value in told] == [
        ("u", first),
        ("u", {**first, "v": 11}),
        ("d", {"p": 2, "c": 2, "v": 20}),
        ("i", None),
    ]
    native = printed(
        run_stage,
        declaration(keyspace, cassandra_server.cdc_raw, cassandra_server.host_id),
        connection,
        tmp_path,
        after_batch=merged,
    )
    assert [list(json.loads(event["value"])) for event in native] == [["ts_ms", "op", "source", "after"]] * 4
    # Once the mirror has merged what is asked for, it can't tell what was before: only the log's rest can.
    run_stage("merge", shop, connection)
    told = [
        json.loads(e["value"]) for e in printed(run_stage, shop, connection, tmp_path, after_batch=merged)
    ]
    assert [shown(value["before"]) for value in told] == [None, {"p": 1, "c": 1, "v": 11}, None, None]


def test_events_of_two_nodes_come_in_the_order_of_their_write_times(
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    tmp_path: Path,
) -> None:
    run = cassandra_session.execute
    nodes = [tmp_path / "cdc_raw" / name for name in (cassandra_server.host_id, OTHER_NODE)]
    for node in nodes:
        node.mkdir(parents=True)
    run(f"CREATE TABLE {keyspace}.t (p int PRIMARY KEY, v int) WITH cdc = true")
    shop = declaration(keyspace, tmp_path / "cdc_raw")
    for turn in range(2):
        for number in range(20):
            run(f"INSERT INTO {keyspace}.t (p, v) VALUES ({number % 4}, {turn * 100 + number})")
        cassandra_server.roll_segment(cassandra_session)
        for node in nodes:
            for file in cassandra_server.cdc_raw.iterdir():
                if not (node / file.name).exists():
                    (node / file.name).hardlink_to(file)
        run_stage("capture", shop, connection)

    ordered = {**shop, "publish": {"tombstones": False, "cassandra": {"order": "write_time"}}}
    by_time = printed(run_stage, ordered, connection, tmp_path)
    by_log = printed(run_stage, shop, connection, tmp_path)

    assert len(by_time) == len(by_log) == 80
    times: dict[str, list[int]] = defaultdict(list)
    for event in by_time:
        times[event["key"]].append(json.loads(event["value"])["source"]["ts_us"])
    assert len(times) == 4
    assert all(one == sorted(one) for one in times.values())
    of_log = [json.loads(event["value"])["source"]["ts_us"] for event in by_log]
    assert of_log != sorted(of_log)
