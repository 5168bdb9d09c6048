"""A real node whose cdc_raw is full: writes fail, a transfer and a sync free it, and nothing is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.hooks.commit_log_offset import is_passed
from airflow_cdc_provider.transfer.space import Space, measure
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.transfer import Transfer, TransferCounts
from airflow_cdc_provider.transfer.whole import WholeSegments
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

CAP_MIB = 5
SEGMENT_MIB = 1


class FullNode:
    """A node with little room in cdc_raw, and a landing area.

    Args:
        server: The node.
        landing: The landing area.
    """

    def __init__(self, server: CassandraServer, landing: Path) -> None:
        self.server = server
        self.landing = landing
        self.session = server.connect()
        self.written = 0

    @property
    def space(self) -> Space:
        return measure(self.server.cdc_raw, CAP_MIB << 20, self.server.host_id)

    def write(self, rows: int) -> None:
        for _ in range(rows):
            self.session.execute(
                "INSERT INTO quota.orders (id, data) VALUES (%s, %s)", (self.written, os.urandom(40_000))
            )
            self.written += 1

    def write_until_refused(self) -> None:
        """Write until the node says no."""
        from cassandra import WriteFailure

        with pytest.raises(WriteFailure):
            self.write(2 * (CAP_MIB << 20) // 40_000)

    def write_again(self, rows: int, timeout_seconds: float = 20) -> None:
        """Write once the node has looked again how much room there is."""
        from cassandra import WriteFailure

        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                return self.write(rows)
            except WriteFailure:
                assert time.monotonic() < deadline, "the node still refuses writes"
                time.sleep(0.05)

    def transfer(self, folder: Path, offset: Mapping[str, Any] | None = None) -> TransferCounts:
        host = self.server.host_id
        landing, errors = folder / host, folder / "errors" / host
        return Transfer(
            WholeSegments(FolderStore(self.server.cdc_raw), host),
            WholeSegments(FolderStore(landing), host),
            after_transfer="delete",
            after_commit="delete",
            passed=lambda segment: is_passed(segment, offset),
            errors=WholeSegments(FolderStore(errors), host),
            parallel=2,
        ).run()


@pytest.fixture(params=[True, False], ids=["blocks", "drops"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullNode]:
    from server_kit import CassandraServer, create_keyspace

    with CassandraServer(
        commitlog_segment_size_mib=SEGMENT_MIB,
        cdc_total_space_mib=CAP_MIB,
        settings={"cdc_block_writes": request.param},
    ) as server:
        made = FullNode(server, tmp_path / "landing")
        create_keyspace(made.session, "quota")
        made.session.execute("CREATE TABLE quota.orders (id int PRIMARY KEY, data blob)")
        made.session.execute("ALTER TABLE quota.orders WITH cdc = true")
        yield made


def declaration(folder: Path, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"type": "cassandra", "cdc_raw": str(folder)},
        "tables": [r"quota\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": name},
    }


@pytest.mark.covers("CAS-FAULT-07", "CAS-SETUP-05", "CAS-SETUP-03", "CAS-LIFE-01")
@pytest.mark.parametrize("node", [True], ids=["blocks"], indirect=True)
def test_writes_that_a_full_cdc_raw_refuses_go_on_after_a_transfer_and_nothing_is_lost(
    spark: SparkSession, run_stage: RunStage, node: FullNode
) -> None:
    shop = declaration(node.landing, "full_blocks")
    connection = {"host": node.server.host, "port": node.server.port}
    node.write_until_refused()
    assert node.space.full, "what we call full is what the node calls full"
    assert node.space.seconds_to_full == 0
    assert node.transfer(node.landing).deleted > CAP_MIB // 2
    assert not node.space.full
    node.write_again(5)
    first = run_stage("sync", shop, connection)
    assert first.changes > 50

    node.write_until_refused()
    node.transfer(node.landing, first.offset)
    node.write_again(5)
    node.server.roll_segment(node.session)
    node.transfer(node.landing, first.offset)
    last = run_stage("sync", shop, connection)
    node.transfer(node.landing, last.offset)

    stored = assert_mirror_equals_table(spark, node.session, "full_blocks.quota_orders", "quota.orders")
    assert stored == node.written, "each write that the node took is there"
    landed = WholeSegments(FolderStore(node.landing / node.server.host_id), "").segments()
    assert not any(segment.complete for segment in landed), "what was captured left the landing area"


@pytest.mark.covers("CAS-C41-01")
@pytest.mark.parametrize("node", [False], ids=["drops"], indirect=True)
def test_segments_that_a_node_drops_to_make_room_are_told_by_capture_and_by_the_transfer(
    run_stage: RunStage, node: FullNode, tmp_path: Path
) -> None:
    direct = declaration(node.server.cdc_raw, "full_drops")
    direct["source"]["node"] = node.server.host_id
    connection = {"host": node.server.host, "port": node.server.port}
    node.write(3)
    time.sleep(0.5)  # a sync period
    (orders,) = run_stage("sync", direct, connection).tables
    assert orders.rows_written == 3
    landing = tmp_path / "other"
    assert node.transfer(landing).copied == 1

    node.write(2 * (CAP_MIB << 20) // 40_000)

    with pytest.raises(PositionLost, match="is gone before it was read to its end"):
        run_stage("sync", direct, connection)
    assert node.transfer(landing).lost == 1
    assert list((landing / "errors" / node.server.host_id).glob("*.reason.json"))
