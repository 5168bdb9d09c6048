"""Materialized views: counted and skipped, unless they are named; then mirrored like tables."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jobs.equality import MIRROR_COLUMN, same
from tests.integration.jobs.shop import Shop
from tests.integration.view_workload import VIEWS, create, write

pytestmark = pytest.mark.integration


def declare(shop: Shop, **more: Any) -> None:
    """Name all views in addition to the pattern of the keyspace."""
    names = [rf"{shop.keyspace}\.{name}" for name in VIEWS]
    shop.declare(tables=[rf"{shop.keyspace}\..*", *names], **more)


def assert_mirrors_equal_views(shop: Shop) -> int:
    """Compare each mirror with ``SELECT *`` of its view, value by value; return how many rows they have."""
    count = 0
    for name in VIEWS:
        columns = shop.session.execute(
            "SELECT column_name, kind FROM system_schema.columns"
            " WHERE keyspace_name = %s AND table_name = %s",
            (shop.keyspace, name),
        )
        keys = [column for column, kind in columns if kind in ("partition_key", "clustering")]
        assert keys
        frame = shop.mirror(name).drop(MIRROR_COLUMN)
        found = {tuple(row[k] for k in keys): row for row in frame.collect()}
        selected_rows = {
            tuple(getattr(row, k) for k in keys): row
            for row in shop.session.execute(f"SELECT * FROM {shop.table_name(name)}", timeout=60)
        }
        assert frame.count() == len(found), f"{name} holds a row twice"
        lacks, excess = (
            sorted(selected_rows.keys() - found.keys()),
            sorted(found.keys() - selected_rows.keys()),
        )
        assert not (lacks or excess), f"{name} lacks {lacks} and has {excess} too many"
        for key, row in selected_rows.items():
            for column in row._fields:
                assert same(getattr(row, column), found[key][column]), (name, key, column, row, found[key])
        count += len(selected_rows)
    return count


def settle(shop: Shop) -> None:
    """Let short TTLs run out, and close the segment so that everything written is readable."""
    time.sleep(4)
    shop.close_segments()


@pytest.mark.long
def test_mirrors_equal_named_views_after_random_updates_of_their_base_read_from_the_log_alone(
    shop: Shop,
) -> None:
    create(shop.session, shop.keyspace)
    declare(shop, snapshot={"mode": "never"})
    rng = random.Random(1)
    selected_rows = 0
    for _ in range(2):
        write(shop.session, shop.keyspace, rng, 200)
        settle(shop)
        outcome = shop.stage("sync")
        assert not any(t.error or t.undecodable or t.snapshot_rows for t in outcome.tables)
        selected_rows += assert_mirrors_equal_views(shop)
    assert selected_rows > 20
    assert {t.table for t in outcome.tables} == {shop.table_name(name) for name in ("base", *VIEWS)}
    assert shop.stage("verify").ok


@pytest.mark.long
def test_mirrors_equal_named_views_that_begin_with_a_snapshot(shop: Shop, tmp_path: Path) -> None:
    create(shop.session, shop.keyspace)
    rng = random.Random(2)
    write(shop.session, shop.keyspace, rng, 150)
    settle(shop)
    # A landing folder that starts empty: it has none of the earlier writes.
    late = tmp_path / "late"
    late.mkdir()
    declare(shop, source={"cdc_raw": str(late)})
    earlier = [index.name for index in shop.server.cdc_raw.glob("*_cdc.idx")]

    def land() -> None:
        shop.server.ship_segments(late, without=earlier)

    settle(shop)
    land()
    first = shop.stage("sync")
    assert sum(t.snapshot_rows for t in first.tables) > 10
    assert_mirrors_equal_views(shop)
    write(shop.session, shop.keyspace, rng, 150)
    settle(shop)
    land()
    shop.stage("sync")
    assert_mirrors_equal_views(shop)
    shop.stage("snapshot")
    shop.stage("sync")
    assert_mirrors_equal_views(shop)
    assert shop.stage("verify").ok
