"""A real node whose cdc_raw is full: writes fail, a transfer and a sync free it, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import PositionLost
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments
from tests.integration.full_node import CAP_MIB, FullNode, full_node
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import assert_mirror_equals_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(params=[True, False], ids=["blocks", "drops"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullNode]:
    with full_node(tmp_path / "landing", blocks=request.param) as made:
        yield made


def declaration(folder: Path, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"type": "cassandra", "cdc_raw": str(folder)},
        "tables": [r"quota\..*"],
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": name},
    }


@pytest.mark.covers("CAS-SETUP-03", "CAS-LIFE-01")
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


@pytest.mark.parametrize("node", [False], ids=["drops"], indirect=True)
def test_segments_that_a_node_drops_to_make_room_are_reported_by_capture_and_by_the_transfer(
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

    with pytest.raises(PositionLost, match="was deleted before it was read completely"):
        run_stage("sync", direct, connection)
    assert node.transfer(landing).lost == 1
    assert list((landing / "errors" / node.server.host_id).glob("*.reason.json"))


@pytest.mark.covers("CAS-C41-01")
@pytest.mark.parametrize(
    "seen",
    [pytest.param(True, id="started"), pytest.param(False, id="unseen", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("node", [False], ids=["drops"], indirect=True)
def test_tables_whose_changes_a_node_dropped_get_a_new_snapshot(
    spark: SparkSession, run_stage: RunStage, node: FullNode, seen: bool
) -> None:
    name = f"dropped_{'started' if seen else 'unseen'}"
    shop = declaration(node.server.cdc_raw, name)
    shop["source"]["node"] = node.server.host_id
    shop["snapshot"]["mode"] = "initial"
    connection = {"host": node.server.host, "port": node.server.port}
    node.write(3)
    if not seen:
        node.server.roll_segment(node.session)
    time.sleep(0.5)  # a sync period
    first = run_stage("sync", shop, connection)
    assert first.offset is not None
    assert bool(first.offset[node.server.host_id]["open"]) is seen

    node.write(2 * (CAP_MIB << 20) // 40_000)

    with pytest.raises(PositionLost, match=r"deleted .*next sync or stream takes new snapshots"):
        run_stage("sync", shop, connection)
    marked = run_stage("offsets", shop, connection, action="show")
    assert any("quota.orders is incomplete until its next snapshot" in finding for finding in marked.findings)

    healed = run_stage("sync", shop, connection)
    assert healed.snapshot is not None
    assert healed.snapshot.rows == node.written
    assert not any("lost" in finding for finding in healed.findings)
    rows = assert_mirror_equals_table(spark, node.session, f"{name}.quota_orders", "quota.orders")
    assert rows == node.written
