"""Metrics of snapshots and of each node's log: on a real server, and on a recording."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.jobs.spec import SegmentNumbers
from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

RECORDING = Path(__file__).parents[2] / "fixtures" / "cassandra" / "A" / "v7-plain"
NOT_CAPTURED = ("cnt", "plain_nocdc", "twin_by_w")


@pytest.fixture
def landed(tmp_path: Path) -> Path:
    """Return a landing folder with the recording's segments, unpacked."""
    folder = tmp_path / "cdc_raw"
    folder.mkdir()
    for file in (RECORDING / "cdc_raw").iterdir():
        if file.suffix == ".gz":
            (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        else:
            shutil.copy(file, folder)
    return folder


def declaration(name: str, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "source": {
            "type": "cassandra",
            "cdc_raw": str(folder),
            "node": "node-1",
            "schema_file": str(RECORDING / "schema.cql"),
        },
        "snapshot": {"mode": "never"},
        "lake": {"catalog": "lake", "namespace": name},
    }


def updates_of_known_tables() -> int:
    """Count, by Cassandra's own reader, the updates of captured tables that still exist."""
    with gzip.open(RECORDING / "updates.jsonl.gz", "rt") as lines:
        updates = [json.loads(line) for line in lines]
    return sum(update["cdc"] and update["table"] not in NOT_CAPTURED for update in updates)


@pytest.mark.covers("CAS-METRIC-08", "CAS-METRIC-09", "CAS-METRIC-10", "CAS-METRIC-11", "DSX-AGT-05")
def test_a_capture_reports_file_position_and_counts_per_node(run_stage: RunStage, landed: Path) -> None:
    outcome = run_stage("capture", declaration("metrics_sound", landed), {})

    (node,) = outcome.origins
    newest = max(landed.glob("*_cdc.idx"))
    assert (node.origin, node.file) == ("node-1", newest.name.replace("_cdc.idx", ".log"))
    assert node.position == int(newest.read_text().split()[0])
    # Five more are of a table that was dropped, which the recording's schema doesn't name.
    assert (node.mutations, node.errors) == (updates_of_known_tables(), 5)
    count = len(list(landed.glob("*_cdc.idx")))
    finished = sum("COMPLETED" in index.read_text() for index in landed.glob("*_cdc.idx"))
    assert node.segments == SegmentNumbers(count, count, count, 0, count, finished, finished)
    assert (node.skipped["view"], node.skipped["counter"]) == (19, 10)

    broken = sorted(landed.glob("*.log"))[2]
    data = bytearray(broken.read_bytes())
    data[len(data) // 3] ^= 0xFF
    broken.write_bytes(data)
    (node,) = run_stage("capture", declaration("metrics_broken", landed), {}).origins
    assert node.errors == 6
    assert node.position == int(newest.read_text().split()[0])


def test_a_run_that_reads_nothing_still_reports_its_position(run_stage: RunStage, landed: Path) -> None:
    first = run_stage("capture", declaration("metrics_idle", landed), {}).origins[0]
    again = run_stage("capture", declaration("metrics_idle", landed), {}).origins[0]
    assert (again.file, again.position, again.mutations) == (first.file, first.position, 0)


@pytest.mark.covers("CAS-METRIC-01", "CAS-METRIC-02", "CAS-METRIC-05", "CAS-METRIC-06")
def test_a_snapshot_reports_tables_rows_and_time(shop: Shop) -> None:
    for table, rows in (("a", 7), ("b", 0), ("c", 3)):
        shop.run(f"CREATE TABLE {table} (k int PRIMARY KEY, v int) WITH cdc = true")
        for k in range(rows):
            shop.run(f"INSERT INTO {table} (k, v) VALUES ({k}, 1)")
    shot = shop.stage("sync").snapshot
    assert shot is not None
    assert (shot.tables, shot.remaining, shot.rows) == (3, 0, 10)
    assert (shot.completed, shot.running, shot.aborted) == (True, False, False)
    assert shot.rows_by_table == {
        shop.table_name("a"): 7,
        shop.table_name("b"): 0,
        shop.table_name("c"): 3,
    }
    assert shot.seconds > 0
    assert shop.stage("sync").snapshot is None


@pytest.mark.covers("CAS-LIM-01")
def test_latency_is_measured_per_change_from_its_write_time(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "never"})
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int) WITH cdc = true")
    old_us = (int(time.time()) - 3600) * 1_000_000
    for k in range(200):
        written = f" USING TIMESTAMP {old_us}" if k < 8 else ""
        shop.run(f"INSERT INTO t (k, v) VALUES ({k}, 1){written}")
    shop.close_segments()

    (node,) = shop.stage("capture").origins

    assert node.mutations == 200
    assert node.latency_p50_seconds is not None
    assert node.latency_p99_seconds is not None
    assert node.latency_seconds is not None
    assert 0 < node.latency_p50_seconds < 600
    assert 3600 <= node.latency_p99_seconds <= node.latency_seconds < 3600 + 600

    captured = shop.changes().selectExpr(
        "key", "unix_micros(committed_at) AS us", "captured_at >= committed_at AS later"
    )
    found = {int.from_bytes(bytes(row["key"]), "big"): row["us"] for row in captured.collect()}
    rows = shop.run("SELECT k, WRITETIME(v) AS us FROM t")
    assert found == {row.k: row.us for row in rows}
    assert captured.where("NOT later").count() == 0
