"""Cassandra: a snapshot that replaces, thousands of unresolved keys, and counters equal the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from airflow_cdc_provider.changes.contribution import UNRESOLVED
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.cql.snapshot import SnapshotReader
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.declare(source={"consistency": "ALL"})
    return shop


def create(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE orders (k int, c int, a int, b text, m map<text, int>, l list<int>, s text STATIC, "
        "PRIMARY KEY (k, c)) WITH cdc = true"
    )


def fill(shop: Shop, keys: range) -> None:
    insert = shop.prepare("INSERT INTO orders (k, c, a, b, m, l, s) VALUES (?, ?, ?, ?, ?, ?, ?)")
    update = shop.prepare("UPDATE orders SET a = ? WHERE k = ? AND c = ?")
    for k in keys:
        for c in range(4):
            shop.session.execute(insert, (k, c, c, f"b{c}", {"x": c, "y": k}, [c, k], f"s{k}"))
        shop.session.execute(update, (9, k, 7))  # a row that only an update made


def delete_unseen(shop: Shop) -> None:
    for k in range(0, 60, 3):
        shop.run(f"DELETE FROM orders WHERE k = {k}")
    for k in range(1, 60, 3):
        shop.run(f"DELETE FROM orders WHERE k = {k} AND c = 1")
        shop.run(f"DELETE a FROM orders WHERE k = {k} AND c = 7")
        shop.run(f"DELETE s FROM orders WHERE k = {k}")
        shop.run(f"DELETE b, m['x'], l FROM orders WHERE k = {k} AND c = 2")
    for k in range(2, 60, 3):
        shop.run(f"DELETE FROM orders WHERE k = {k} AND c > 1 AND c <= 3")
        shop.run(f"INSERT INTO orders (k, c, b) VALUES ({k}, 3, 'again')")
    # Of these nothing but cells.
    for k in range(60, 65):
        shop.run(f"DELETE b, m['x'] FROM orders WHERE k = {k} AND c = 2")
    for k in range(65, 70):
        shop.run(f"DELETE s FROM orders WHERE k = {k}")
    for k in range(70, 75):
        shop.run(f"DELETE l[0] FROM orders WHERE k = {k} AND c = 3")


def test_rows_deleted_while_nobody_looked_are_gone_after_the_next_snapshot(shop: Shop) -> None:
    create(shop)
    fill(shop, range(75))
    shop.sync()
    assert shop.assert_equal("orders") == 375
    shop.run("ALTER TABLE orders WITH cdc = false")
    shop.close_segments()
    shop.stage("capture")
    delete_unseen(shop)
    shop.close_segments()
    shop.run("ALTER TABLE orders WITH cdc = true")
    shop.run("INSERT INTO orders (k, c, a) VALUES (1000, 0, 1)")

    outcome = shop.sync()

    assert shop.assert_equal("orders") == 216
    (table,) = outcome.tables
    assert (table.changes, table.snapshot_rows > 0, table.unresolved_keys) == (1, True, 0)
    assert not outcome.findings
    # What is asked for again finds nothing more to settle, and nothing is read twice.
    again = shop.stage("snapshot", tables=[shop.table_name("orders")])
    assert shop.assert_equal("orders") == 216
    assert [t.unresolved_keys for t in again.tables] == [0]


def test_a_snapshot_that_may_miss_rows_only_adds(shop: Shop) -> None:
    shop.declare(source={"consistency": "LOCAL_ONE"})
    create(shop)
    fill(shop, range(2))
    shop.sync()
    shop.run("ALTER TABLE orders WITH cdc = false")
    shop.close_segments()
    shop.stage("capture")
    shop.run("DELETE FROM orders WHERE k = 0")
    shop.close_segments()
    shop.run("ALTER TABLE orders WITH cdc = true")
    shop.stage("sync")
    assert shop.mirror("orders").count() == 10


@pytest.mark.long
def test_no_unresolved_key_is_lost_however_many_there_are(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that a SELECT showed loses its last cell: only the source knows whether it lives."""
    shop.run("CREATE TABLE many (k int, c int, a int, PRIMARY KEY (k, c)) WITH cdc = true")
    write = shop.prepare("UPDATE many SET a = 1 WHERE k = ? AND c = ?")
    remove = shop.prepare("DELETE a FROM many WHERE k = ? AND c = 0")
    for k in range(3000):
        shop.session.execute(write, (k, 0))
        if k % 2:
            shop.session.execute(write, (k, 1))
    shop.sync()
    for k in range(3000):
        shop.session.execute(remove, (k,))
    shop.close_segments()
    # The changes are merged while the cluster can't be asked; what they leave open waits for it.
    shop.stage("capture")
    outcome = shop.stage("merge", connection={**shop.connection, "port": 1})
    assert [t.unresolved_keys for t in outcome.tables] == [3000]
    assert shop.mirror("many").count() == 4500

    # One can't be read: those before it are settled, it and the others wait.
    with monkeypatch.context() as patch:
        read = SnapshotReader.read_keys

        def read_some(self: SnapshotReader, table: str, keys: Sequence[bytes], *others: Any) -> Iterator[Any]:
            yield from islice(read(self, table, keys, *others), len(keys) // 4)
            raise TransientError("no answer")

        patch.setattr(SnapshotReader, "read_keys", read_some)
        (table,) = shop.stage("sync").tables
    assert 0 < table.unresolved_keys < 3000

    (table,) = shop.stage("sync").tables

    assert table.unresolved_keys == 0
    assert shop.assert_equal("many") == 1500


def test_counters_are_read_again_where_the_log_says_that_they_changed(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE clicks (k int, c int, n counter, m counter, t counter STATIC, PRIMARY KEY (k, c)) "
        "WITH cdc = true"
    )

    def count(key: int, clustering: int, by: int) -> None:
        shop.run(f"UPDATE clicks SET n = n + {by}, m = m - 1, t = t + 1 WHERE k = {key} AND c = {clustering}")

    for k in range(20):
        for c in range(3):
            count(k, c, k - 5)
    shop.sync()
    assert shop.assert_equal("clicks") == 60
    for k in range(5):
        count(k, 0, 2**40)
        count(100 + k, 0, -1)
    shop.run("DELETE FROM clicks WHERE k = 6 AND c = 1")
    shop.run("DELETE FROM clicks WHERE k = 7")
    shop.run("DELETE n FROM clicks WHERE k = 8 AND c = 0")
    shop.run("DELETE t FROM clicks WHERE k = 9")

    (table,) = shop.sync().tables

    assert (table.changes > 0, table.snapshot_rows, table.unresolved_keys) == (True, 0, 0)
    assert shop.assert_equal("clicks") == 61
    shop.run("TRUNCATE clicks")
    count(1, 1, 1)
    shop.sync()
    assert shop.assert_equal("clicks") == 1
    # What was settled is not asked for ever again, and maintenance forgets it.
    assert shop.side("clicks").where(f"scope = {UNRESOLVED}").count() > 0
    shop.stage("maintain")
    assert shop.side("clicks").where(f"scope = {UNRESOLVED}").count() == 0
