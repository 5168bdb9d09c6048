"""Materialized views: counted and passed over, unless they are named; then mirrored like tables."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.jobs.conftest import RunStage
from tests.integration.jobs.equality import MIRROR_COLUMN, same
from tests.integration.view_workload import VIEWS, create, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from server_kit import CassandraServer

pytestmark = pytest.mark.integration


def declaration(keyspace: str, server: CassandraServer, names: Sequence[str], **more: Any) -> dict[str, Any]:
    return {
        "name": f"views_{keyspace}",
        "source": {"type": "cassandra", "cdc_raw": str(server.cdc_raw), "node": server.host_id},
        "tables": [rf"{keyspace}\..*", *(rf"{keyspace}\.{name}" for name in names)],
        "lake": {"catalog": "lake", "namespace": keyspace},
        **more,
    }


def assert_mirrors_equal_views(
    spark: SparkSession, session: Any, keyspace: str, names: Sequence[str] = tuple(VIEWS)
) -> int:
    """Compare each mirror with ``SELECT *`` of its view, value by value; return how many rows they have."""
    count = 0
    for name in names:
        view = session.cluster.metadata.keyspaces[keyspace].views[name]
        keys = [column.name for column in (*view.partition_key, *view.clustering_key)]
        frame = spark.table(f"lake.{keyspace}.{keyspace}_{name}").drop(MIRROR_COLUMN)
        found = {tuple(row[k] for k in keys): row for row in frame.collect()}
        shown = {
            tuple(getattr(row, k) for k in keys): row
            for row in session.execute(f"SELECT * FROM {keyspace}.{name}", timeout=60)
        }
        assert frame.count() == len(found), f"{name} holds a row twice"
        lacks, excess = sorted(shown.keys() - found.keys()), sorted(found.keys() - shown.keys())
        assert not (lacks or excess), f"{name} lacks {lacks} and has {excess} too many"
        for key, row in shown.items():
            for column in row._fields:
                assert same(getattr(row, column), found[key][column]), (name, key, column, row, found[key])
        count += len(shown)
    return count


def settle(server: CassandraServer, session: Any) -> None:
    """Let short TTLs run out, and close the segment so that everything written is readable."""
    time.sleep(4)
    server.roll_segment(session)


def test_mirrors_equal_named_views_after_random_updates_of_their_base_read_from_the_log_alone(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
) -> None:
    create(cassandra_session, keyspace)
    shop = declaration(keyspace, cassandra_server, list(VIEWS), snapshot={"mode": "never"})
    rng = random.Random(1)
    shown = 0
    for _ in range(2):
        write(cassandra_session, keyspace, rng, 200)
        settle(cassandra_server, cassandra_session)
        outcome = run_stage("sync", shop, connection)
        assert not any(t.error or t.undecodable or t.snapshot_rows for t in outcome.tables)
        shown += assert_mirrors_equal_views(spark, cassandra_session, keyspace)
    assert shown > 20
    assert {t.table for t in outcome.tables} == {f"{keyspace}.{name}" for name in ("base", *VIEWS)}
    assert run_stage("verify", shop, connection).ok


def test_mirrors_equal_named_views_that_begin_with_a_snapshot(
    spark: SparkSession,
    run_stage: RunStage,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    connection: dict[str, Any],
    tmp_path: Path,
) -> None:
    create(cassandra_session, keyspace)
    rng = random.Random(2)
    write(cassandra_session, keyspace, rng, 150)
    settle(cassandra_server, cassandra_session)
    # A landing folder that begins empty: nothing is known of what was written so far.
    shop = declaration(keyspace, cassandra_server, list(VIEWS))
    late = tmp_path / "late"
    late.mkdir()
    shop["source"]["cdc_raw"] = str(late)
    # The node makes segments ahead: those without an index hold nothing yet.
    known = {file.name.removesuffix("_cdc.idx") for file in cassandra_server.cdc_raw.glob("*_cdc.idx")}

    def land() -> None:
        for file in sorted(cassandra_server.cdc_raw.iterdir()):
            segment = file.name.removesuffix("_cdc.idx").removesuffix(".log")
            if segment not in known and not (late / file.name).exists():
                (late / file.name).hardlink_to(file)

    settle(cassandra_server, cassandra_session)
    land()
    first = run_stage("sync", shop, connection)
    assert sum(t.snapshot_rows for t in first.tables) > 10
    assert_mirrors_equal_views(spark, cassandra_session, keyspace)
    write(cassandra_session, keyspace, rng, 150)
    settle(cassandra_server, cassandra_session)
    land()
    run_stage("sync", shop, connection)
    assert_mirrors_equal_views(spark, cassandra_session, keyspace)
    run_stage("snapshot", shop, connection)
    run_stage("sync", shop, connection)
    assert_mirrors_equal_views(spark, cassandra_session, keyspace)
    assert run_stage("verify", shop, connection).ok
