"""Servers that can't be had here, by imitation: a cluster behind mongos, Amazon DocumentDB."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import bson
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.driver.shards import shard_names
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
from airflow_cdc_provider.sources.mongodb.position import StreamPosition
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from airflow_cdc_provider.sources.recordings import Recording
from tests.integration.sources.server_stand_ins import StandIn, as_documentdb, as_mongos
from tests.recorded_lines import event_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pymongo import MongoClient

    from server_kit import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture
def mongos(mongo_server: MongoServer) -> Iterator[StandIn]:
    stand_in = StandIn((mongo_server.host, mongo_server.port), as_mongos)
    yield stand_in
    stand_in.close()


@pytest.mark.covers("MDB-TOP-02")
def test_a_cluster_is_captured_through_mongos_by_one_stream(
    mongos: StandIn, mongo_client: MongoClient, tmp_path: Path
) -> None:
    name = f"s{random.randrange(10**9)}"
    database = mongo_client[name]
    database.orders.insert_many([{"_id": n, "region": n % 2} for n in range(3_000)])
    advanced = MongodbAdvanced(backlog_threshold_seconds=0.0, backlog_streams=2, connect_attempts=0)
    connection = {"host": "127.0.0.1", "port": mongos.port, "extra": {}}
    source = MongodbSource(MongodbOptions(advanced=advanced), connection, Selection((rf"{name}\..*",)))
    try:
        levels = {finding.subject: (finding.level, finding.message) for finding in source.check()}
        assert levels["topology"] == ("ok", "sharded cluster")
        assert not [reported for reported in levels.values() if reported[0] == "error"]
        assert source.tables() == [f"{name}.orders"]

        start = source.start()
        plan = source.plan_snapshot(f"{name}.orders")
        assert len(plan.ranges) > 1
        read = sum(b.num_rows for b in source.snapshot_reader().read(plan.ranges, ReadMetrics()))
        assert read == 3_000

        database.orders.insert_many([{"_id": 10_000 + n, "region": n % 2} for n in range(200)])
        offset, head = start, source.head()
        events = []
        while True:
            batch_plan = source.plan(offset, head, ReadLimit())
            batches = list(source.reader().read(batch_plan.partitions, ReadMetrics()))
            events += [row["payload"] for batch in batches for row in batch.to_pylist()]
            offset = batch_plan.end
            if batch_plan.at_head:
                break
        assert len(events) == 200
        assert source.lag(offset).seconds == 0
    finally:
        source.close()
        mongo_client.drop_database(name)

    # One destination, and nothing of a shard or a set in its name.
    (tmp_path / "stream.bson").write_bytes(b"".join(events))
    declared = {"name": "shop", "source": {"type": "mongodb"}, "tables": [rf"{name}\..*"]}
    lines = event_lines(
        Connector.from_dict(declared), Recording(tmp_path, "", 0), SkippedRecords(strict=True)
    )
    topics = {line.partition(b'"partition"')[0] for chunk in lines for line in text_of(chunk).splitlines()}
    assert topics == {f'{{"topic":"shop.{name}.orders",'.encode()}


PASSWORD = "pa55word"


@pytest.mark.covers("MDB-PERM-03")
def test_shards_are_read_where_the_user_may_and_else_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from server_kit import MongoServer

    with MongoServer(auth=True) as server, server.client() as admin:
        admin.admin.command("createUser", "plain", pwd=PASSWORD, roles=[{"role": "read", "db": "shop"}])
        may: dict[str, Any] = {"resource": {"db": "config", "collection": "shards"}, "actions": ["find"]}
        admin.admin.command("createRole", "shards", privileges=[may], roles=[])
        admin.admin.command("createUser", "reads", pwd=PASSWORD, roles=["shards"])
        with server.client(username="reads", password=PASSWORD) as client:
            assert shard_names(client) == [], "a replica set has none"
            assert not caplog.records
        with server.client(username="plain", password=PASSWORD) as client:
            assert shard_names(client) is None
        assert "may not read config.shards" in caplog.text


@pytest.mark.covers("MDB-XD-36")
def test_streams_without_tokens_on_empty_batches_resume_by_the_servers_time(
    mongo_server: MongoServer, mongo_client: MongoClient
) -> None:
    name = f"d{random.randrange(10**9)}"
    stand_in = StandIn((mongo_server.host, mongo_server.port), as_documentdb)
    host = f"mongodb://127.0.0.1:{stand_in.port}/?directConnection=true&replicaSet=rs0"
    source = MongodbSource(MongodbOptions(), {"host": host}, Selection((rf"{name}\..*",)))
    try:
        mongo_client[name].a.insert_one({"_id": 0})
        offset = source.start()
        seen: list[int] = []
        for turn in range(1, 6):
            if turn % 2:  # in the others nothing comes
                mongo_client[name].a.insert_many([{"_id": 10 * turn + n} for n in range(3)])
            head = source.head()
            while True:
                batch_plan = source.plan(offset, head, ReadLimit())
                batches = list(source.reader().read(batch_plan.partitions, ReadMetrics()))
                rows = [row["payload"] for batch in batches for row in batch.to_pylist()]
                seen += [bson.decode(payload)["documentKey"]["_id"] for payload in rows]
                offset = batch_plan.end
                if batch_plan.at_head:
                    break
        assert seen == [10 * turn + n for turn in (1, 3, 5) for n in range(3)]
        assert StreamPosition.from_offset(offset).time >= StreamPosition.from_offset(head).time
        pipeline = next(f.message for f in source.check() if f.subject == "change stream")
        assert "$addFields" not in pipeline
    finally:
        source.close()
        stand_in.close()
        mongo_client.drop_database(name)
