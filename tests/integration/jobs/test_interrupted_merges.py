"""Merges that end between their steps: what a reader sees then, and what the next run makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.jobs.merging import merge as merge_stage
from airflow_cdc_provider.lake.iceberg import IcebergTable
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


class Killed(BaseException):
    """Ends a job as a kill does: nothing after it runs."""


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.declare(snapshot={"mode": "never"})
    return shop


def kill_before_the_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """End merges after their mirrors' columns were fitted."""

    def killed(*arguments: Any) -> None:
        raise Killed

    monkeypatch.setattr(merge_stage, "_merge_all", killed)


def test_static_columns_written_by_a_killed_merge_never_show_as_another_column(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a first merge, and in one that brings a new column; ``aa`` sorts before ``zz``."""
    append = IcebergTable.append
    killed: list[str] = []

    def append_and_die(self: IcebergTable, rows: Any) -> None:
        append(self, rows)
        killed.append(self.name)
        raise Killed

    shop.run("CREATE TABLE old (k int, c int, v int, PRIMARY KEY (k, c)) WITH cdc = true")
    shop.run("INSERT INTO old (k, c, v) VALUES (1, 1, 1)")
    shop.sync()
    shop.run("ALTER TABLE old ADD zz text static")
    shop.run("CREATE TABLE new (k int, c int, zz text static, PRIMARY KEY (k, c)) WITH cdc = true")
    for table in ("old", "new"):
        shop.run(f"INSERT INTO {table} (k, c, zz) VALUES (1, 1, 'zz')")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(IcebergTable, "append", append_and_die)
        shop.sync()
    assert sorted(killed) == [f"{shop.mirror_name(table)}__tombstones" for table in ("new", "old")]
    for table in ("old", "new"):
        shop.run(f"ALTER TABLE {table} ADD aa text static")
    for c in (2, 3):
        for table in ("old", "new"):
            shop.run(f"INSERT INTO {table} (k, c) VALUES (1, {c})")
        shop.sync()
        for table in ("old", "new"):
            assert shop.assert_equal(table) == c


def test_a_column_re_created_after_a_killed_merge_is_followed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed merge has made the column already, with a type that the new one doesn't fit."""
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int) WITH cdc = true")
    shop.run("INSERT INTO t (k, v) VALUES (1, 1)")
    shop.sync()
    shop.run("ALTER TABLE t ADD n timestamp")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kill_before_the_merge(patched)
        shop.stage("sync")
    assert "n" in shop.mirror("t").columns
    shop.run("ALTER TABLE t DROP n")
    shop.run("ALTER TABLE t ADD n bigint")
    shop.run("INSERT INTO t (k, n) VALUES (1, 7)")
    shop.sync()
    assert shop.assert_equal("t") == 1


@pytest.mark.covers("CAS-GAP-08")
def test_rows_of_a_dropped_table_never_show_under_the_columns_of_its_successor(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fitted to the new columns, each of them would show nothing but nulls, also in its key."""
    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int) WITH cdc = true")
    for k in range(3):
        shop.run(f"INSERT INTO t (k, v) VALUES ({k}, 1)")
    shop.sync()
    for kind, value in (("text", "'x'"), ("double", "0.5")):
        shop.run("DROP TABLE t")
        shop.run(f"CREATE TABLE t (k {kind} PRIMARY KEY, v {kind}) WITH cdc = true")
        shop.run(f"INSERT INTO t (k, v) VALUES ({value}, {value})")
        shop.close_segments()
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_before_the_merge(patched)
            shop.stage("sync")
        assert shop.mirror("t").count() == 0
    shop.stage("sync")
    assert shop.assert_equal("t") == 1
    assert shop.stage("verify").ok


def test_a_dropped_mirror_is_re_created_without_its_old_tombstones(shop: Shop) -> None:
    """Tombstones name columns by ids that were dropped with the mirror; ``aa`` sorts before ``zz``."""
    shop.run("CREATE TABLE t (k int, c int, zz text static, PRIMARY KEY (k, c)) WITH cdc = true")
    shop.run("INSERT INTO t (k, c, zz) VALUES (1, 1, 'zz')")
    shop.sync()
    shop.drop_mirror("t")
    shop.run("ALTER TABLE t ADD aa text static")
    for c in (2, 3):
        shop.run(f"INSERT INTO t (k, c) VALUES (1, {c})")
        shop.sync()
        assert shop.assert_equal("t") == c
