"""ScyllaDB: TRUNCATE and re-created tables, which logs don't contain, and their mirrors."""

from __future__ import annotations

import random
import time

import pytest

from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT, TRUNCATE
from server_kit.scylla import SystemKeyspaces, Turmoil, draw_table
from server_kit.scylla.cluster import ImitatedScylla
from server_kit.scylla.tables import CdcOptions
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, imitated
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


def write(cluster: ImitatedScylla, seed: int, *names: str, enabled: bool = True) -> Turmoil:
    """Begin tables, and random requests on them; no timestamp of theirs lies before its request."""
    turmoil = Turmoil(cluster, random.Random(seed), events=0, short_ttls=False)
    for name in names:
        turmoil.add(draw_table(turmoil.chance, cluster.keyspace, name, cdc=CdcOptions(enabled=enabled)))
    return turmoil


def sync(shop: Shop, *turmoils: Turmoil) -> None:
    for turmoil in turmoils:
        turmoil.settle()
    time.sleep(2.1)
    result = shop.stage("sync")
    assert result.ok, result.error
    assert not shop.changes("quarantine").count()


def assert_equal(shop: Shop, cluster: ImitatedScylla) -> dict[str, int]:
    return {name: assert_mirror_equals_model(shop, name, base) for name, base in cluster.tables.items()}


def truncate(cluster: ImitatedScylla, turmoil: Turmoil, table: str) -> None:
    """Truncate a table, with enough time between it and the writes before and after it."""
    turmoil.settle()
    time.sleep(0.01)
    cluster.truncate(table)
    time.sleep(0.01)


@pytest.mark.parametrize(
    ("mode", "tablets"), [("never", 0), pytest.param("initial", 4, marks=pytest.mark.long)]
)
def test_a_truncated_table_has_what_was_written_after_it(
    shop: Shop, names: SystemKeyspaces, mode: str, tablets: int
) -> None:
    cluster = imitated(shop, names, tablets=tablets, seed=51)
    turmoil = write(cluster, 51, "kept", "truncated")
    declare(shop, names, snapshot={"mode": mode})
    turmoil.run(80)
    sync(shop, turmoil)
    assert all(assert_equal(shop, cluster).values())
    turmoil.run(40)  # not read when it is truncated
    truncate(cluster, turmoil, "truncated")
    sync(shop, turmoil)
    assert assert_equal(shop, cluster)["truncated"] == 0
    assert shop.changes(TRUNCATE).count() == 1, "it is emitted once"
    fence = shop.changes(TRUNCATE).collect()[0]
    assert fence["source_table"] == shop.table_name("truncated")
    turmoil.run(60)
    truncate(cluster, turmoil, "truncated")
    turmoil.run(60)  # what was written before and after it is read together
    sync(shop, turmoil)
    assert all(assert_equal(shop, cluster).values())
    assert shop.changes(TRUNCATE).count() == 2
    assert bool(shop.changes(SNAPSHOT).count()) == (mode != "never")
    verified = shop.stage("verify")
    assert verified.ok, verified.error


def test_writes_that_a_truncates_time_cant_place_are_found_by_the_snapshot_after_it(
    shop: Shop, names: SystemKeyspaces
) -> None:
    clock = [0]
    cluster = imitated(shop, names, seed=52, clock_us=lambda: time.time_ns() // 1000 + clock[0])
    turmoil = write(cluster, 52, "truncated")
    declare(shop, names, snapshot={"mode": "initial"})
    turmoil.run(30)
    sync(shop, turmoil)
    clock[0] = 400_000  # writers whose clocks are ahead of the node's that truncates
    turmoil.run(30)
    turmoil.settle()
    clock[0] = 0
    cluster.truncate("truncated")
    time.sleep(0.5)
    turmoil.run(2)
    sync(shop, turmoil)
    assert_equal(shop, cluster)


@pytest.mark.parametrize("mode", [pytest.param("never", marks=pytest.mark.long), "initial"])
def test_a_recreated_table_has_only_its_own_rows(shop: Shop, names: SystemKeyspaces, mode: str) -> None:
    cluster = imitated(shop, names, seed=53)
    kept = write(cluster, 53, "kept")
    former = write(cluster, 54, "recreated")
    declare(shop, names, snapshot={"mode": mode})
    for turmoil in (kept, former):
        turmoil.run(40)
    sync(shop, kept, former)
    assert all(assert_equal(shop, cluster).values())
    former.run(20)
    former.settle()
    cluster.drop_table("recreated")
    later = write(cluster, 55, "recreated")
    for turmoil in (kept, later):
        turmoil.run(40)
    sync(shop, kept, later)
    assert all(assert_equal(shop, cluster).values())
    later.run(40)
    sync(shop, kept, later)
    assert_equal(shop, cluster)
    schemas = shop.changes(CHANGE).where(f"source_table = '{shop.table_name('recreated')}'")
    assert schemas.select("schema_id").distinct().count() == 2


@pytest.mark.long
def test_a_recreated_table_without_a_log_is_read_when_it_has_one(shop: Shop, names: SystemKeyspaces) -> None:
    cluster = imitated(shop, names, seed=56)
    former = write(cluster, 56, "recreated")
    declare(shop, names)
    former.run(40)
    sync(shop, former)
    cluster.drop_table("recreated")
    later = write(cluster, 57, "recreated", enabled=False)
    later.run(40)
    time.sleep(1.1)
    result = shop.stage("sync")
    assert any("the log of" in text and "was dropped" in text for text in result.findings)
    cluster.alter_cdc("recreated", enabled=True)
    later.run(40)
    sync(shop, later)
    assert assert_equal(shop, cluster)["recreated"]
