"""Cassandra: static columns in the rows of a mirror, or in a table of their own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.lake.iceberg import IcebergTable
from airflow_cdc_provider.lake.table import Head
from tests.integration.jobs.shop import Shop
from tests.integration.jobs.workloads import CASSANDRA_TABLES, write_cassandra

pytestmark = pytest.mark.integration

ROWS = 40


class Killed(BaseException):
    """Ends a job as a kill does: nothing after it runs."""


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.declare(lake={"static_columns": "table"})
    return shop


def sync_killed_between_static_columns_and_mirror(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = IcebergTable.commit

    def commit_and_die(self: IcebergTable, base: Head, **changes: Any) -> Head:
        head = commit(self, base, **changes)
        if self.name.endswith("__static_columns") and changes.get("append") is not None:
            raise Killed
        return head

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(IcebergTable, "commit", commit_and_die)
        shop.sync()


@pytest.mark.covers("CAS-UNSUP-03", "CAS-GAP-09")
@pytest.mark.long
def test_static_columns_equal_the_source_in_a_separate_table_and_in_all_rows(
    shop: Shop, tmp_path: Path
) -> None:
    shop.run(CASSANDRA_TABLES["wide"].format(ks=shop.keyspace))
    insert = shop.prepare("INSERT INTO wide (p, c1, c2) VALUES ('many', ?, '')")
    for number in range(ROWS):
        shop.session.execute(insert, (number,))
    shop.run("UPDATE wide USING TTL 1000 SET s = 1, t = 'a' WHERE p = 'many'")
    for seed in (50, 51):
        write_cassandra(shop.session, shop.keyspace, seed, 150, ["wide"])
        shop.run("UPDATE wide SET s = %s WHERE p = 'static columns alone'", (seed,))
        time.sleep(3)  # for short TTLs
        shop.sync()  # the first with a snapshot
        assert shop.assert_equal("wide") > ROWS

    shop.run("UPDATE wide SET t = 'b' WHERE p = 'many'")
    (changed,) = shop.sync().tables
    (expired,) = shop.stage("merge", now_seconds=int(time.time()) + 2000).tables

    assert (changed.rows_written, changed.rows_removed) == (1, 1), "no row of the partition"
    assert (expired.rows_written, expired.rows_removed) == (1, 1)
    shop.stage("events", path=str(tmp_path / "events"))
    last = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert json.loads(last["key"]) == {"p": "many", "c1": None, "c2": None}
    assert json.loads(last["value"])["after"]["t"]["value"] == "b"

    shop.run("UPDATE wide SET s = 2, t = 'c' WHERE p = 'many'")
    shop.sync()
    shop.stage("maintain")
    shop.assert_equal("wide")
    assert shop.stage("verify").ok

    shop.declare(lake={"static_columns": "rows"})
    shop.drop_mirror("wide")
    shop.stage("snapshot", [shop.table_name("wide")])
    assert not shop.spark.catalog.tableExists(f"lake.{shop.mirror_name('wide')}__static_columns")
    assert shop.assert_equal("wide") > ROWS
    assert shop.mirror("wide").where("s = 2 AND t = 'c'").count() == ROWS


def test_static_columns_table_follows_the_source_table_through_truncate_drop_and_rename(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assert_equal(rows: int, static_rows: int) -> None:
        assert shop.assert_equal("t") == rows
        assert shop.static_columns("t").count() == static_rows

    shop.run(
        "CREATE TABLE t (k int, c int, v int, s int static, z int static, PRIMARY KEY (k, c)) WITH cdc = true"
    )
    shop.run("INSERT INTO t (k, c, v, s, z) VALUES (1, 1, 1, 1, 1)")
    shop.run("INSERT INTO t (k, c, v) VALUES (2, 1, 1)")
    shop.run("UPDATE t SET z = 1 WHERE k = 3")
    sync_killed_between_static_columns_and_mirror(shop, monkeypatch)
    shop.run("TRUNCATE t")
    for k in (1, 2):
        shop.run(f"INSERT INTO t (k, c, v, s) VALUES ({k}, 1, 1, {k})")
    for k in (3, 4):
        shop.run(f"UPDATE t SET z = {k} WHERE k = {k}")
    shop.sync()
    assert_equal(rows=4, static_rows=4)

    shop.run("ALTER TABLE t DROP z")
    shop.run("ALTER TABLE t ADD y text static")
    shop.run("ALTER TABLE t RENAME k TO id")
    shop.run("UPDATE t SET y = 'y' WHERE id = 4")
    sync_killed_between_static_columns_and_mirror(shop, monkeypatch)
    shop.run("UPDATE t SET y = 'y' WHERE id = 5")
    shop.sync()
    assert_equal(rows=4, static_rows=4)

    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = false")
    shop.run("DELETE FROM t WHERE id = 5")
    shop.run("DELETE s FROM t WHERE id = 1")
    shop.run(f"ALTER KEYSPACE {shop.keyspace} WITH durable_writes = true")
    assert [t.differences for t in shop.stage("verify").tables] == [2]
    shop.stage("snapshot", [shop.table_name("t")])
    assert_equal(rows=3, static_rows=2)

    shop.run("DROP TABLE t")
    shop.run("CREATE TABLE t (k text, c int, s text static, PRIMARY KEY (k, c)) WITH cdc = true")
    shop.run("INSERT INTO t (k, c, s) VALUES ('a', 1, 's')")
    shop.sync()
    assert_equal(rows=1, static_rows=1)

    shop.spark.sql(f"DROP TABLE lake.{shop.mirror_name('t')}__static_columns")
    shop.run("INSERT INTO t (k, c) VALUES ('b', 1)")
    shop.sync()
    assert_equal(rows=2, static_rows=1)

    shop.run("ALTER TABLE t DROP s")
    shop.sync()
    assert_equal(rows=2, static_rows=0)


def test_a_snapshot_counts_rows_and_not_the_static_columns_that_each_page_repeats(shop: Shop) -> None:
    shop.run("CREATE TABLE t (k int, c int, s int static, PRIMARY KEY (k, c)) WITH cdc = true")
    for number in range(7):
        shop.run(f"INSERT INTO t (k, c, s) VALUES (1, {number}, 1)")
    shop.run("UPDATE t SET s = 2 WHERE k = 2")
    shop.declare(source={"advanced": {"fetch_size": 2}})
    outcome = shop.sync()
    assert outcome.snapshot is not None
    assert (outcome.tables[0].snapshot_rows, outcome.snapshot.rows) == (7, 7)
    assert outcome.snapshot.rows_by_table == {shop.table_name("t"): 7}
    assert shop.assert_equal("t") == 8
