"""A custom snapshotter on a real server: snapshots, capture, skipped tables, and its notifications."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.snapshotter import Snapshotter
from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost
from airflow_cdc_provider.jobs.snapshots.custom import snapshotter_of
from airflow_cdc_provider.jobs.spark.session import build_lake
from airflow_cdc_provider.lake.changes_table import ChangesTable
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.oplog_rollover import roll_over

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import MongoServer

pytestmark = pytest.mark.integration

HERE = __name__


class Dated(Snapshotter):
    """Takes snapshots as configured by the test in :attr:`answers`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.answers: dict[str, Any] = {}
        self.calls: list[str] = []

    def snapshot_data(self, offset_exists: bool, snapshot_in_progress: bool) -> bool:
        answer = self.answers.get("data")
        return super().snapshot_data(offset_exists, snapshot_in_progress) if answer is None else answer

    def stream_from_snapshot_start(self) -> bool:
        return bool(self.answers.get("from_start"))

    def snapshot_on_data_error(self) -> bool:
        return bool(self.answers.get("on_data_error"))

    def stream(self) -> bool:
        return bool(self.answers.get("stream", True))

    def query(self, table: str) -> str | None:
        name = table.partition(".")[2]
        at_first = {"some": '{"n": {"$gte": 3}}', "none": None}
        queries: dict[str, str | None] = self.answers.get("queries", at_first)
        return queries.get(name, "")

    def snapshot_completed(self) -> None:
        self.calls.append("completed")

    def snapshot_aborted(self) -> None:
        self.calls.append("aborted")


@pytest.fixture
def server() -> Iterator[MongoServer]:
    from server_kit import MongoServer

    with MongoServer(oplog_size_mib=1, options=("--syncdelay", "1")) as started:
        yield started


@pytest.mark.covers("MDB-SNAP-10", "MDB-SNAP-11", "MDB-SNAP-12")
@pytest.mark.long
def test_a_class_of_ones_own_decides_on_snapshots(
    spark: SparkSession, run_stage: RunStage, server: MongoServer
) -> None:
    connection = {"host": server.uri}
    database = server.client()[f"c{random.randrange(10**9)}"]
    shop = {
        "name": f"custom_{database.name}",
        "source": {"type": "mongodb"},
        "tables": [rf"{database.name}\..*"],
        "lake": {"catalog": "lake", "namespace": database.name},
        "snapshot": {"mode": "custom", "custom": f"{HERE}:Dated", "custom_settings": {"of": database.name}},
    }
    own = snapshotter_of(Connector.from_dict(shop))
    assert isinstance(own, Dated)
    connector = Connector.from_dict(shop)
    changes = ChangesTable(build_lake(spark, connector), connector)

    def sync() -> Any:
        return run_stage("sync", shop, connection)

    def mirrored(name: str) -> int:
        return spark.table(f"lake.{database.name}.{database.name}_{name}").count()

    def kinds(kind: str) -> int:
        rows = changes.pending(0, changes.state().batch, kinds=[kind])
        return int(rows.count())

    for name in ("all", "some", "none"):
        database[name].insert_many([{"_id": n, "n": n} for n in range(10)])
    # At first: all of one, what a query selects of another, nothing of the third, which is captured.
    first = sync()
    assert own.calls == ["completed"]
    assert (mirrored("all"), mirrored("some")) == (10, 7)
    assert first.snapshot is not None
    assert first.snapshot.tables == 2
    database.none.insert_one({"_id": "new"})
    assert sync().snapshot is None
    assert own.calls == ["completed"]
    assert mirrored("none") == 1

    # A new snapshot on demand; changes in between are captured, unless capture starts with the snapshot.
    database.all.insert_one({"_id": "between"})
    own.answers["data"] = True
    captured = kinds("change")
    sync()
    assert own.calls == ["completed"] * 2
    assert kinds("change") == captured + 1
    own.answers |= {"from_start": True}
    database.all.insert_one({"_id": "not all are read"})
    sync()
    assert kinds("change") == captured + 2, "a table is left out: nothing is skipped"
    own.answers |= {"queries": {}}
    database.all.insert_one({"_id": "skipped"})
    sync()
    assert kinds("change") == captured + 2
    assert (mirrored("all"), mirrored("some"), mirrored("none")) == (13, 10, 11)
    database.all.insert_one({"_id": "later"})
    own.answers |= {"data": False}
    sync()
    assert kinds("change") == captured + 3

    # A failed snapshot is reported, and nothing is captured if so configured.
    own.answers |= {"data": True, "queries": {"some": "{no query"}}
    earlier = len(own.calls)
    failed = sync()
    assert not failed.ok
    assert "Extended JSON" in failed.error
    assert own.calls[earlier:] == ["aborted"]
    own.answers |= {"data": False, "stream": False}
    database.all.insert_one({"_id": "uncaptured"})
    sync()
    assert kinds("change") == captured + 3
    with pytest.raises(ConfigurationError, match="nothing is captured"):
        run_stage("capture", shop, connection)

    # A lost position: an error or a snapshot, as configured.
    own.answers |= {"stream": True, "queries": {}}
    stored = changes.state().offset
    assert stored is not None
    roll_over(server.client(), stored["source"])
    with pytest.raises(PositionLost):
        sync()
    own.answers |= {"on_data_error": True}
    earlier = len(own.calls)
    sync()
    assert own.calls[earlier:] == ["completed"]
    assert mirrored("all") == 15
