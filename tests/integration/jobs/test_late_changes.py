"""Changes that land from quarantine after deletions that cover them were to be forgotten."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec, recall_codec
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(shop: Shop) -> Shop:
    shop.declare(snapshot={"mode": "never"}, lake={"tombstone_retention_seconds": 0})
    return shop


@pytest.mark.covers("CAS-GAP-05")
def test_what_could_not_be_decoded_revives_nothing_that_was_deleted_since(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = CassandraSource.codec

    def outdated(self: CassandraSource, name: str, memory: Any = None) -> CassandraCodec:
        schema = codec(self, name, memory).schema
        columns = tuple(column for column in schema.columns if column.name != "n")
        return recall_codec(replace(schema, columns=columns), memory)

    shop.run("CREATE TABLE t (k int PRIMARY KEY, v int, n int) WITH cdc = true")
    shop.run("INSERT INTO t (k, v) VALUES (0, 0)")
    shop.run("INSERT INTO t (k, n) VALUES (1, 1) USING TIMESTAMP 10")
    shop.run("INSERT INTO t (k, n) VALUES (2, 2) USING TIMESTAMP 10")
    shop.run("DELETE FROM t USING TIMESTAMP 20 WHERE k = 1")
    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "codec", outdated)
        shop.sync()  # quarantines them
        shop.run("DELETE FROM t USING TIMESTAMP 20 WHERE k = 2")
        shop.sync()  # while they are

    shop.sync()

    assert shop.quarantine().count() == 0
    assert shop.assert_equal("t") == 1
    remembered = shop.side("t").count()
    # Of other tables that were dropped on this server; they hold deletions back for all.
    shop.spark.sql(f"DELETE FROM lake.{shop.keyspace}.{shop.name}_changes WHERE kind = 'quarantine'")
    shop.run("DELETE FROM t WHERE k = 0")
    time.sleep(1)  # a deletion is forgotten after the second that it has as its time
    shop.sync()
    assert shop.assert_equal("t") == 0
    assert shop.side("t").count() == remembered, "deletions are forgotten again"


@pytest.mark.covers("CAS-GAP-05")
def test_records_quarantined_at_capture_revive_nothing_that_was_deleted_since(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutation that begins with a table that no schema knows hides what it holds of others."""
    shop.run("CREATE TABLE goes (k int PRIMARY KEY, v int) WITH cdc = true")
    last = _an_id_that_comes_last()
    shop.run(f"CREATE TABLE stays (k int PRIMARY KEY, v int) WITH cdc = true AND id = {last}")
    for k in range(2):
        both = " ".join(f"INSERT INTO {table} (k, v) VALUES ({k}, 1);" for table in ("goes", "stays"))
        shop.run(f"BEGIN BATCH USING TIMESTAMP 10 {both} APPLY BATCH")
    shop.run("DROP TABLE goes")
    for k in range(2):
        shop.run(f"DELETE FROM stays USING TIMESTAMP 20 WHERE k = {k}")
    with monkeypatch.context() as patched:
        patched.setattr(CassandraSource, "learn", lambda self, records: None)
        outcome = shop.sync()
    assert any("quarantine" in finding for finding in outcome.findings)

    again = shop.stage("sync")

    assert not again.findings
    (stays,) = again.tables
    assert stays.table == shop.table_name("stays")
    assert stays.changes == 2
    assert shop.assert_equal("stays") == 0


def _an_id_that_comes_last() -> UUID:
    """Return a table's id that a mutation of Cassandra writes behind any other table's.

    A batch collects the updates of a partition in a `HashMap` by table id: the lowest bits of Java's hash
    order them.
    """
    while True:
        drawn = uuid4()
        halves = (drawn.int >> 64) ^ drawn.int
        code = (halves >> 32) ^ halves
        if (code ^ code >> 16) & 0xF == 0xF:
            return drawn
