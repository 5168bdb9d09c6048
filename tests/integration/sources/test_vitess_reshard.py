"""A real reshard under a capture: two shards become three, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import PositionLost, ReshardStopped
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.vitess.capture import ChangeStream
from airflow_cdc_provider.sources.vitess.failures import PartialReshard
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessStream
from airflow_cdc_provider.sources.vitess.pending import Feed, look, look_at_shards
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.requests import filter_of
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit.vitess import Keyspace
from server_kit.vitess_cluster import VitessCluster

pytestmark = [pytest.mark.integration, pytest.mark.long]

VSCHEMA = {
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {"item": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[VitessCluster]:
    with VitessCluster([Keyspace("shop", ("-80", "80-"), VSCHEMA)]) as cluster:
        yield cluster


def _started_by_vtctld(cluster: VitessCluster) -> Any:
    """Begin a capture where the cluster's own vtctld says; nothing that is committed after is left out."""
    extra = {"vtctld_host": "127.0.0.1", "vtctld_port": cluster.vtctld_port}
    source = VitessSource(VitessOptions(keyspace="shop"), {**cluster.connection, "extra": extra}, Selection())
    with closing(source):
        offset = source.start()
        with cluster.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO item (id, note) VALUES (9001, 'behind')")
        plan = source.plan(offset, source.head(), ReadLimit())
        rows = list(source.reader().read(plan.partitions, ReadMetrics()))
    payloads = [r["payload"] for b in rows for r in b.to_pylist() if r["kind"] == "change"]
    assert any(b"9001behind" in payload for payload in payloads)
    return offset


def _changes(source: VitessSource, plan: Any) -> int:
    """How many changes a plan holds."""
    batches = source.reader().read(plan.partitions, ReadMetrics())
    return sum(batch.to_pydict()["kind"].count("change") for batch in batches)


def _read_over_a_stop(cluster: VitessCluster, start: Any, head: Any) -> int:
    """Read to the reshard, at which the stream stops, and from there on; return the number of changes."""
    options = VitessOptions(keyspace="shop", stream=VitessStream(stop_on_reshard=True))
    source = VitessSource(options, cluster.connection, Selection())
    plan = source.plan(start, head, ReadLimit())
    read = _changes(source, plan)
    assert not plan.at_head
    assert set(plan.end) == {"shop/-80", "shop/80-"}
    with pytest.raises(ReshardStopped, match="shop/-80 turned into shop/-40, shop/40-80") as reported:
        source.plan(plan.end, head, ReadLimit())
    source.close()

    source = VitessSource(options, cluster.connection, Selection())
    offset = json.loads(reported.value.found)
    assert set(offset) == set(head)
    assert offset["shop/40-80"]["parents"] == ["shop/-80"]
    plan = source.plan(offset, source.head(), ReadLimit())
    assert plan.at_head
    read += _changes(source, plan)
    source.close()
    return read


@pytest.mark.covers("VIT-RSH-01", "VIT-RSH-02", "VIT-RSH-04", "VIT-STR-04")
def test_stopped_capture_resumes_over_a_reshard_until_the_old_shards_are_deleted(
    cluster: VitessCluster,
) -> None:
    def insert(first: int) -> None:
        with cluster.connect("shop") as connection, connection.cursor() as cursor:
            for number in range(first, first + 20):
                cursor.execute(f"INSERT INTO item (id, note) VALUES ({number}, 'x')")

    with cluster.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE item (id bigint PRIMARY KEY, note varchar(20))")
    source = VitessSource(VitessOptions(keyspace="shop"), cluster.connection, Selection())
    start = source.head()
    assert set(start) == {"shop/-80", "shop/80-"}
    insert(1)
    cluster.reshard("shop", ["-80"], ["-40", "40-80"])
    insert(100)

    offset, read = start, 0
    head = source.head()
    assert set(head) == {"shop/-40", "shop/40-80", "shop/80-"}
    while True:
        plan = source.plan(offset, head, ReadLimit())
        for part in plan.partitions:
            read += sum(
                batch.to_pydict()["kind"].count("change")
                for batch in source.reader().read([part], ReadMetrics())
            )
        offset = plan.end
        if plan.at_head:
            break
    assert read == 40
    assert set(offset) == set(head)
    assert offset["shop/-40"]["parents"] == ["shop/-80"]
    assert offset["shop/-40"]["epoch"] > start["shop/-80"]["epoch"]
    source.close()

    with cluster.client() as client:
        seen = look_at_shards(client, Feed("shop"), start)
        assert list(seen.serving) == ["shop/-40", "shop/40-80", "shop/80-"]
        assert list(seen.resharding) == ["shop/-40", "shop/-80", "shop/40-80"]
        assert list(seen.missing) == ["shop/-40", "shop/40-80"]
        assert not look_at_shards(client, Feed("shop"), offset).missing
        assert not look_at_shards(client, Feed("shop"), None).missing
        assert list(look(client, Feed("shop"), offset).resharding or ()) == list(seen.resharding)

    assert _read_over_a_stop(cluster, start, head) == 40
    began = _started_by_vtctld(cluster)
    assert set(began) == set(head)
    assert all(place["gtid"].startswith("MySQL56/") for place in began.values())

    cluster.complete("shop")
    late = VitessSource(VitessOptions(keyspace="shop"), cluster.connection, Selection())
    with pytest.raises(PositionLost, match=r"-80, not found in the shop keyspace.*take a new snapshot"):
        late.plan(start, late.head(), ReadLimit())
    assert late.plan(offset, late.head(), ReadLimit()).at_head
    late.close()


def test_several_streams_follow_shards_that_become_one(cluster: VitessCluster) -> None:
    def insert(first: int) -> None:
        with cluster.connect("shop") as connection, connection.cursor() as cursor:
            for number in range(first, first + 20):
                cursor.execute(f"INSERT INTO item (id, note) VALUES ({number}, 'y')")

    options = VitessOptions(keyspace="shop", streams=3)
    source = VitessSource(options, cluster.connection, Selection())
    start = source.head()
    assert set(start) == {"shop/-40", "shop/40-80", "shop/80-"}
    insert(200)
    cluster.reshard("shop", ["40-80", "80-"], ["40-"])
    insert(300)
    head = source.head()
    assert set(head) == {"shop/-40", "shop/40-"}

    client = cluster.client()
    alone = ChangeStream(
        lambda: client, options, lambda: filter_of(["item"]), str.isascii, lambda table, name: False
    )
    with pytest.raises(PartialReshard, match="not all journaling participants"):
        alone.plan(
            Position.from_offset(start).of_shards(["shop/80-"]),
            Position.from_offset(head).of_shards(["shop/40-"]),
            ReadLimit(),
        )
    alone.close()
    client.close()

    plan = source.plan(start, head, ReadLimit())
    read = _changes(source, plan)
    while not plan.at_head:
        plan = source.plan(plan.end, head, ReadLimit())
        read += _changes(source, plan)
    source.close()
    assert read == 40
    assert set(plan.end) == set(head)
    assert set(plan.end["shop/40-"]["parents"]) == {"shop/40-80", "shop/80-"}
