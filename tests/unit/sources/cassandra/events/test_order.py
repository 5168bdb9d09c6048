"""The order of events over the logs of several nodes."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.migration.settings_file import load_connector_file
from tests.unit.sources.cassandra.events.cassandra_recordings import FIXTURES, printed

NODES = ("0d3a1c5e-0000-4000-8000-00000000000a", "0d3a1c5e-0000-4000-8000-00000000000b")
RECORDING = FIXTURES / "A" / "v7-plain"


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of two replicas: one has all writes, the other lacks the first segments, as if it was down."""
    recorded = [file for file in (RECORDING / "cdc_raw").iterdir() if file.is_file()]
    first = min(file.name.split(".")[0].removesuffix("_cdc") for file in recorded)
    made = tmp_path_factory.mktemp("two-nodes")
    for node in NODES:
        folder = made / "cdc_raw" / node
        folder.mkdir(parents=True)
        for file in recorded:
            if node == NODES[0] or not file.name.startswith(first):
                shutil.copy(file, folder)
    shutil.copy(RECORDING / "schema.cql", made)
    return made


def times_by_partition(events: list[dict[str, Any]]) -> dict[Any, list[int]]:
    """Return the write times of each partition's events in their order."""
    found: dict[Any, list[int]] = defaultdict(list)
    for event in events:
        source = json.loads(event["value"])["source"]
        found[event["topic"], event["key"]].append(source["ts_us"])
    return found


def test_events_of_a_partition_come_in_the_order_of_their_write_times_over_all_nodes(two_nodes: Path) -> None:
    by_log = printed(folder=two_nodes)
    by_time = printed(folder=two_nodes, cassandra={"order": "write_time"})
    assert Counter(map(json.dumps, by_log)) == Counter(map(json.dumps, by_time))
    assert len(by_time) > 500
    assert all(times == sorted(times) for times in times_by_partition(by_time).values())
    assert any(times != sorted(times) for times in times_by_partition(by_log).values())


def test_events_of_each_node_come_in_the_order_of_its_log_otherwise(two_nodes: Path) -> None:
    places = [
        (source["file"], source["pos"])
        for source in (json.loads(event["value"])["source"] for event in printed(folder=two_nodes))
    ]
    turns = [n for n in range(1, len(places)) if places[n] < places[n - 1]]
    assert len(turns) == 1, "one node after the other"


def test_rows_before_are_those_of_the_order_in_which_events_come(two_nodes: Path) -> None:
    events = printed(folder=two_nodes, cassandra={"order": "write_time", "before": True})
    plain = printed(folder=two_nodes, cassandra={"order": "write_time"})
    seen = set()
    known = 0
    for event, one in zip(events, plain, strict=True):
        value = json.loads(event["value"])
        assert event["key"] == one["key"]
        # While its cdc was off, changes of the one table gave no events.
        if value["before"] and not event["topic"].endswith("late_cdc"):
            known += 1
            assert (event["topic"], event["key"]) in seen or value["op"] != "i"
        seen.add((event["topic"], event["key"]))
    assert known > 100


@pytest.mark.parametrize(
    "publish",
    [
        {},
        pytest.param({"tombstones": True, "event_index": True}, marks=pytest.mark.long),
        pytest.param({"cassandra": {"order": "write_time", "before": True}}, marks=pytest.mark.long),
        pytest.param({"envelope": "datastax-cells"}, marks=pytest.mark.long),
        {"envelope": "datastax"},
        pytest.param({"envelope": "datastax", "key": "avro", "value": "avro"}, marks=pytest.mark.long),
    ],
    ids=json.dumps,
)
def test_each_event_names_the_node_that_logged_it_where_readers_of_keys_and_values_see_nothing(
    two_nodes: Path, publish: dict[str, Any]
) -> None:
    events = printed(folder=two_nodes, **publish)
    choices = {**publish.get("cassandra", {}), "node_header": False}
    bare = printed(folder=two_nodes, **{**publish, "cassandra": choices})

    nodes = Counter(json.loads(dict(event["headers"])["cdc.node"]) for event in events)
    if publish.get("envelope") == "datastax":  # a replica duplicate is sent once, as the first node had it
        assert nodes == {NODES[0]: len(events)}
    else:
        assert set(nodes) == set(NODES)
        assert 0 < nodes[NODES[1]] < nodes[NODES[0]], "one lacks segments"
    for event in events:
        event["headers"] = [header for header in event["headers"] if header[0] != "cdc.node"]
    assert events == bare


def test_the_node_of_an_event_is_that_of_its_place_in_the_log(two_nodes: Path) -> None:
    first = min(file.name for file in (two_nodes / "cdc_raw" / NODES[0]).iterdir()).split(".")[0]
    for event in printed(folder=two_nodes):
        if json.loads(event["value"])["source"]["file"].startswith(first):
            assert json.loads(dict(event["headers"])["cdc.node"]) == NODES[0], "the other was down then"


@pytest.mark.parametrize(("mode", "order"), [("COMMITLOG_FILE", "log"), ("PARTITION_VALUES", "write_time")])
def test_debeziums_mode_becomes_the_order(tmp_path: Path, mode: str, order: str) -> None:
    file = tmp_path / "d.properties"
    file.write_text(
        "connector.class=io.debezium.connector.cassandra.Cassandra4Connector\ntopic.prefix=p\n"
        f"event.order.guarantee.mode={mode}\n"
    )
    assert load_connector_file(file).connector.publish.cassandra.order == order
