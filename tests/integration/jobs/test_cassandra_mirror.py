"""Cassandra: the mirror equals the table, whatever happens."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs import sync as sync_stage
from airflow_cdc_provider.jobs.snapshots import snapshot
from airflow_cdc_provider.lake.changes_table import ChangesTable
from tests.integration.jobs.conftest import Application, merge_and_capture
from tests.integration.jobs.shop import Shop
from tests.integration.jobs.workloads import (
    CASSANDRA_TABLES,
    SHORT_TTL_SECONDS,
    create_cassandra,
    write_cassandra,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"k{random.randrange(10**9)}"
    create_cassandra(cassandra_session, name)
    yield name
    cassandra_session.execute(f"DROP KEYSPACE {name}")


def assert_mirrors_equal(shop: Shop) -> int:
    return sum(map(shop.assert_equal, CASSANDRA_TABLES))


def write(shop: Shop, seed: int, count: int) -> None:
    write_cassandra(shop.session, shop.keyspace, seed, count)


def settle(shop: Shop) -> None:
    """Let short TTLs run out, and close the segment so that everything written is readable."""
    time.sleep(SHORT_TTL_SECONDS + 0.1)
    shop.close_segments()


@pytest.mark.covers(
    "CAS-LIM-06", "CAS-UNSUP-01", "CAS-UNSUP-02", "CAS-GAP-02", "CAS-GAP-03", "DSX-CON-08", "CAS-SNAP-03"
)
def test_mirrors_equal_tables_after_random_statements_read_from_the_log_alone(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "never"})
    for seed in range(2):
        write(shop, seed, count=400)
        settle(shop)
        outcome = shop.stage("sync")
        assert outcome.changes > 300
        assert not any(t.undecodable or t.snapshot_rows or t.unresolved_keys for t in outcome.tables)
        assert not any("read again" in t.note for t in outcome.tables), "no table is queried"
        assert assert_mirrors_equal(shop) > 10
    assert shop.stage("verify").ok


def test_growing_segment_is_read_up_to_its_durable_position(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "never"}, tables=[rf"{shop.keyspace}\.wide"])
    for seed in range(10, 13):
        write_cassandra(shop.session, shop.keyspace, seed, 30, ["wide"])
        time.sleep(SHORT_TTL_SECONDS + 0.1)  # more than a sync period of the commit log, too
        shop.stage("sync")
        assert shop.assert_equal("wide")


@pytest.mark.covers("CAS-C50-01")
def test_rows_that_never_were_in_the_log_are_found_by_verify_and_brought_by_a_snapshot(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "never"}, tables=[rf"{shop.keyspace}\.plain"])
    insert = "INSERT INTO plain (id, a) VALUES (%s, 'x')"
    shop.run(insert, (1,))
    # As what a repair brings with cdc_on_repair_enabled: false.
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = false")
    shop.run(insert, (2,))
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = true")
    shop.run(insert, (3,))
    shop.sync()
    assert shop.mirror("plain").count() == 2

    verified = shop.stage("verify")
    assert not verified.ok
    plain = shop.table_name("plain")
    assert {t.table: t.differences for t in verified.tables if t.differences} == {plain: 1}
    shop.stage("snapshot", (plain,))
    shop.stage("merge")

    assert shop.stage("verify").ok
    assert shop.assert_equal("plain") == 3


@pytest.mark.covers("CAS-GAP-09")
def test_rows_that_expire_leave_the_mirror_with_the_next_run(shop: Shop) -> None:
    shop.declare(snapshot={"mode": "never"}, tables=[rf"{shop.keyspace}\.plain"])
    shop.run("INSERT INTO plain (id, a) VALUES (1, 'stays')")
    shop.run("INSERT INTO plain (id, a) VALUES (2, 'goes') USING TTL 12")
    expires_at = time.time() + 12
    shop.close_segments()
    shop.stage("sync")
    assert shop.mirror("plain").count() == 2
    time.sleep(max(0.0, expires_at - time.time()))

    shop.stage("sync")

    assert shop.assert_equal("plain") == 1


@pytest.mark.covers("CAS-SNAP-01", "DSX-CON-08", "DSX-CON-09", "CAS-SNAP-02", "CAS-SNAP-09", "CAS-FAULT-09")
def test_snapshot_and_log_together_equal_the_table(shop: Shop) -> None:
    write(shop, 20, count=300)
    shop.run("CREATE TABLE late (id int PRIMARY KEY, v int)")
    for number in range(10):
        shop.run(f"INSERT INTO late (id, v) VALUES ({number}, 0)")
    settle(shop)
    first = shop.stage("sync")
    assert {t.table: bool(t.snapshot_rows) for t in first.tables} == {
        shop.table_name(table): True for table in CASSANDRA_TABLES
    }
    assert_mirrors_equal(shop)

    write(shop, 21, count=200)
    shop.run("ALTER TABLE late WITH cdc = true")
    shop.run("INSERT INTO late (id, v) VALUES (1, 1)")
    settle(shop)
    second = shop.stage("sync")

    read = {t.table: t.snapshot_rows for t in second.tables if t.snapshot_rows}
    assert read == {shop.table_name("late"): 10}, "what was read once is not read again"
    assert_mirrors_equal(shop)
    assert shop.assert_equal("late") == 10

    at = shop.stage("offsets", action="show").offset
    assert shop.stage("offsets", (shop.table_name("late"),), action="reset").offset == at
    third = shop.stage("sync")
    read_again = {t.table: t.snapshot_rows for t in third.tables if t.snapshot_rows}
    assert read_again == read, "the table that was reset, and no other"
    assert shop.assert_equal("late") == 10


@pytest.mark.covers("CAS-FAULT-05", "CAS-SNAP-08")
@pytest.mark.long
def test_a_sync_that_ends_at_any_boundary_is_completed_by_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_RANGES_PER_CORE", "_MAX_RANGES_PER_CORE"):
        monkeypatch.setattr(snapshot, limit, 4)

    def ended(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def ends_at(target: Any, name: str, value: Any = ended) -> None:
        with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
            interrupted.setattr(target, name, value)
            shop.stage("sync")

    write(shop, 30, count=300)
    settle(shop)
    append = ChangesTable.append_batch
    commits: list[int] = []

    def append_four(*arguments: Any, **options: Any) -> Any:
        if len(commits) == 4:
            raise KeyboardInterrupt
        commits.append(1)
        return append(*arguments, **options)

    ends_at(ChangesTable, "append_batch", append_four)  # in the middle of the tables' snapshots
    ends_at(sync_stage, "capture")
    ends_at(sync_stage, "merge_tables")
    shop.stage("sync")
    assert_mirrors_equal(shop)
    seen = shop.changes("snapshot")
    assert seen.count() == seen.select("source_table", "origin", "position").distinct().count()

    write(shop, 31, count=200)
    settle(shop)
    ends_at(sync_stage, "merge_tables")
    ends_at(sync_stage, "build_result")
    write(shop, 32, count=50)
    settle(shop)
    shop.stage("sync")
    assert_mirrors_equal(shop)


@pytest.mark.covers("CAS-FAULT-01")
def test_a_wrong_address_is_reported_and_the_next_run_resumes(shop: Shop) -> None:
    shop.declare(tables=[rf"{shop.keyspace}\.plain"])
    shop.run("INSERT INTO plain (id, a) VALUES (1, 'before')")
    shop.close_segments()

    with pytest.raises(TransientError, match=rf"{shop.connection['host']}', 1\)"):
        shop.stage("sync", connection={**shop.connection, "port": 1})
    shop.stage("sync")
    shop.run("INSERT INTO plain (id, a) VALUES (2, 'after')")
    shop.close_segments()
    (outcome,) = shop.stage("sync").tables

    assert (outcome.snapshot_rows, outcome.rows_written) == (0, 1)
    assert shop.assert_equal("plain") == 2


def _kill_and_recover(shop: Shop, application: Application, kills: int) -> None:
    shop.declare_catalog()
    warehouse = Path(shop.declaration["lake"]["catalog_options"]["warehouse"].removeprefix("file:"))
    write(shop, 99, count=100)
    shop.close_segments()
    assert shop.stage("sync").ok

    def captured() -> list[tuple[str, str, bytes]]:
        shop.spark.catalog.refreshTable(f"lake.{shop.keyspace}.{shop.name}_changes")
        rows = shop.changes().select("source_table", "origin", "position").collect()
        return [(row[0], row[1], bytes(row[2])) for row in rows]

    before = captured()

    def begin(number: int) -> subprocess.Popen[bytes]:
        write(shop, 100 + number, count=100)
        return application.start("sync", shop.declaration, shop.connection, batch_bytes=20_000)

    application.kill_often(kills, begin, merge_and_capture(warehouse / shop.keyspace))
    committed = captured()
    assert set(before) < set(committed), "a killed sync had committed changes"
    settle(shop)
    assert shop.stage("sync").ok
    assert_mirrors_equal(shop)
    positions = captured()
    assert set(committed) < set(positions)
    assert len(set(positions)) == len(positions) > 100, "what was committed is not captured again"


@pytest.mark.covers("CAS-FAULT-03", "CAS-FAULT-04", "CAS-FAULT-05", "DSX-AGT-01", "CAS-SNAP-08")
def test_killed_sync_is_completed_by_the_next_run(shop: Shop, application: Application) -> None:
    _kill_and_recover(shop, application, kills=2)


@pytest.mark.covers("CAS-FAULT-05")
@pytest.mark.long
def test_sync_killed_twenty_times_loses_and_doubles_nothing(shop: Shop, application: Application) -> None:
    _kill_and_recover(shop, application, kills=20)
