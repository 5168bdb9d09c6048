"""Whole jobs against a sharded cluster, by imitation: a server behind a proxy that greets as mongos does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import bson
import pytest

from tests.integration.jobs.signalled import Signalled
from tests.integration.sources.server_stand_ins import StandIn, as_mongos

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pyspark.sql import SparkSession

    from server_kit import MongoServer

pytestmark = pytest.mark.integration


@pytest.fixture
def store(
    spark: SparkSession, mongo_server: MongoServer, mongo_client: MongoClient, tmp_path: Path
) -> Iterator[Signalled]:
    """A database that jobs reach through the stand-in of mongos, and the test by itself."""
    mongos = StandIn((mongo_server.host, mongo_server.port), as_mongos)
    name = f"m{random.randrange(10**9)}"
    connection = {"host": "127.0.0.1", "port": mongos.port, "extra": {}}
    yield Signalled(spark, mongo_client[name], connection, tmp_path)
    mongo_client.drop_database(name)
    mongos.close()


@pytest.mark.covers("MDB-INC-12")
def test_incremental_snapshot_works_through_mongos_with_its_watermarks_in_the_stream(
    store: Signalled,
) -> None:
    name = store.database.name
    store.database.things.insert_many([{"_id": n, "n": 0} for n in range(60)])
    store.declare("signals", collection=f"{name}.signals", channels=["source"])
    store.declaration["tables"] = [rf"{name}\.things"]
    store.declare(
        "snapshot", incremental={"chunk_size": 10, "chunks_per_commit": 2, "watermarks": "insert_insert"}
    )
    store.run()
    store.database.signals.insert_one(
        {"_id": "one", "type": "execute-snapshot", "data": {"data-collections": [rf"{name}\.things"]}}
    )
    store.database.things.update_many({"_id": {"$lt": 5}}, {"$set": {"n": 1}})
    store.database.things.delete_one({"_id": 59})
    store.run()
    store.run()
    assert len(store.copied("things")) == 59
    assert store.mirror_equals("things") == 59
    events = [bson.decode(row["payload"]) for row in store.records("signals")]
    marks = [e["fullDocument"]["type"] for e in events if e["fullDocument"]["_id"] != "one"]
    assert marks.count("snapshot-window-open") == marks.count("snapshot-window-close") == 6
