"""ScyllaDB's log expired, or was truncated, before it was read: a run does what the declaration says."""

from __future__ import annotations

import re
import struct
import time

import pytest

from airflow_cdc_provider.exceptions import PositionLost, error_from_text
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.sources.cql.driver.node_queries import slowest_clock_us
from airflow_cdc_provider.sources.scylla import cluster as cluster_module
from server_kit.scylla import CdcOptions, Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import DeletePartition, Insert
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, settled
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

NUMBER = CqlType("int")
LOG_TTL_SECONDS = 600


def insert(sku: int) -> Insert:
    return Insert((struct.pack(">i", sku),), (), {"qty": struct.pack(">i", sku)})


def delete(sku: int) -> DeletePartition:
    return DeletePartition((struct.pack(">i", sku),))


def snapshot_rows(outcome: JobResult) -> dict[str, int]:
    return {table.table: table.snapshot_rows for table in outcome.tables if table.snapshot_rows}


def assert_lost(outcome: JobResult, table: str, what: str = "keeps changes for") -> None:
    """Assert that a run failed because of one table, which the next one reads again."""
    error = error_from_text(outcome.error)
    assert isinstance(error, PositionLost)
    assert re.search(f"the log of {table} {what}.* the next sync or stream takes new snapshots", str(error))
    assert [t.table for t in outcome.tables if t.error] == [table]


@pytest.fixture
def cluster(shop: Shop, names: SystemKeyspaces) -> ImitatedScylla:
    """A cluster that is two hours old, with one table, whose log lives for ten minutes."""
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create(first_generation=False)
    cluster.new_generation(time.time_ns() // 1_000_000 - 7_200_000)
    cdc = CdcOptions(ttl=LOG_TTL_SECONDS)
    columns = (Column("sku", NUMBER),)
    cluster.create_table(Table(shop.keyspace, "item", columns, regular=(Column("qty", NUMBER),), cdc=cdc))
    cluster.execute("item", *map(insert, range(20)))
    return cluster


def lose(shop: Shop, cluster: ImitatedScylla, sku: int) -> None:
    """Delete a row, let its log row expire, and reset the connector to its position an hour ago."""
    cluster.alter_cdc("item", ttl=1)
    cluster.execute("item", delete(sku))
    cluster.alter_cdc("item", ttl=LOG_TTL_SECONDS)
    time.sleep(2.5)
    offset = shop.stage("offsets", action="show").offset
    assert offset is not None
    place = offset[shop.table_name("item")]
    earlier = {**place, "read_to": place["read_to"] - 3_600_000_000}
    shop.stage("offsets", action="set", offset={shop.table_name("item"): earlier})


@pytest.mark.covers("SCY-LOG-09")
@pytest.mark.long
def test_an_expired_position_fails_or_is_made_good_as_the_declaration_says(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla
) -> None:
    base = cluster.tables["item"]
    table = shop.table_name("item")
    declare(shop, names)
    assert snapshot_rows(settled(shop)) == {table: 20}

    lose(shop, cluster, 0)
    declare(shop, names, snapshot={"on_lost_position": "fail"})
    for _ in range(2):  # nothing changes by itself
        with pytest.raises(PositionLost, match=f"the log of {table} keeps changes for {LOG_TTL_SECONDS} s"):
            shop.stage("sync")
    assert shop.mirror("item").count() == 20

    declare(shop, names, snapshot={"on_lost_position": "auto"})
    assert_lost(shop.stage("sync"), table)
    assert snapshot_rows(settled(shop)) == {table: 19}
    assert assert_mirror_equals_model(shop, "item", base) == 19

    lose(shop, cluster, 1)
    declare(shop, names, snapshot={"on_lost_position": "snapshot"})
    assert snapshot_rows(settled(shop)) == {table: 18}
    assert assert_mirror_equals_model(shop, "item", base) == 18
    cluster.execute("item", insert(100))
    again = settled(shop)
    assert snapshot_rows(again) == {}, "it is captured again"
    assert assert_mirror_equals_model(shop, "item", base) == 19

    lose(shop, cluster, 2)
    declare(shop, names, snapshot={"on_lost_position": "continue"})
    outcome = settled(shop)
    assert snapshot_rows(outcome) == {}
    assert any(f"{table} is incomplete until its next snapshot" in text for text in outcome.findings)
    assert shop.mirror("item").count() == 19, "the deletion is lost"
    verified = shop.stage("verify")
    assert not verified.ok
    assert "1 rows differ between source and mirror" in (verified.error or "")
    shop.stage("snapshot", tables=[table])
    assert settled(shop).ok
    assert assert_mirror_equals_model(shop, "item", base) == 18


@pytest.mark.parametrize("choice", ["auto", "snapshot"])
def test_a_table_that_lost_changes_is_read_again_and_the_others_go_on(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla, choice: str
) -> None:
    columns = (Column("sku", NUMBER),)
    cluster.create_table(Table(shop.keyspace, "other", columns, regular=(Column("qty", NUMBER),)))
    cluster.execute("other", *map(insert, range(5)))
    table = shop.table_name("item")
    declare(shop, names, snapshot={"on_lost_position": choice})
    settled(shop)

    offset = shop.stage("offsets", action="show").offset
    assert offset is not None
    cluster.alter_cdc("item", enabled=False)
    cluster.execute("item", delete(0))  # as if its log row had expired
    cluster.alter_cdc("item", enabled=True)
    earlier = {**offset[table], "read_to": offset[table]["read_to"] - 3_600_000_000}
    shop.stage("offsets", action="set", offset={**offset, table: earlier})
    cluster.execute("item", insert(20))
    cluster.execute("other", delete(0))

    outcome = settled(shop)
    assert assert_mirror_equals_model(shop, "other", cluster.tables["other"]) == 4
    if choice == "auto":
        assert_lost(outcome, table)
        assert snapshot_rows(outcome) == {}
        outcome = settled(shop)
    assert snapshot_rows(outcome) == {table: 20}
    assert outcome.ok
    assert assert_mirror_equals_model(shop, "item", cluster.tables["item"]) == 20
    cluster.execute("item", insert(21))
    assert snapshot_rows(settled(shop)) == {}
    assert assert_mirror_equals_model(shop, "item", cluster.tables["item"]) == 21


def test_a_truncated_log_is_a_lost_position_too(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla
) -> None:
    table = shop.table_name("item")
    declare(shop, names)
    settled(shop)
    cluster.alter_cdc("item", ttl=0)
    cluster.execute("item", delete(0))
    time.sleep(0.01)
    cluster.truncate_log("item")
    assert_lost(settled(shop), table, "was truncated at .* unread changes are lost")
    assert snapshot_rows(settled(shop)) == {table: 19}
    assert assert_mirror_equals_model(shop, "item", cluster.tables["item"]) == 19
    assert snapshot_rows(settled(shop)) == {}


def test_a_clock_that_was_set_back_is_reported_with_the_tables_to_verify(
    shop: Shop, names: SystemKeyspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_us = 0
    # No clock of this machine can be set back.
    monkeypatch.setattr(
        cluster_module, "slowest_clock_us", lambda session: slowest_clock_us(session) - behind_us
    )
    cluster = ImitatedScylla(
        shop.session, shop.keyspace, names=names, clock_us=lambda: time.time_ns() // 1000 - behind_us
    )
    cluster.create(first_generation=False)
    cluster.new_generation(time.time_ns() // 1_000_000 - 7_200_000)
    columns = (Column("sku", NUMBER),)
    cluster.create_table(Table(shop.keyspace, "item", columns, regular=(Column("qty", NUMBER),)))
    declare(shop, names)
    cluster.execute("item", insert(1))
    assert not settled(shop).findings

    behind_us = 120_000_000
    cluster.execute("item", insert(2))
    outcome = settled(shop)
    (finding,) = outcome.findings
    assert "was set back" in finding
    assert f"verify {shop.table_name('item')}" in finding
    assert outcome.lag_seconds == 0

    behind_us = 0
    cluster.execute("item", insert(3))
    after = settled(shop)
    assert not after.findings
    assert after.lag_seconds is not None
    assert 0 <= after.lag_seconds < 60
    verified = shop.stage("verify")
    assert not verified.ok, "the row that the older clock timed is found by a verification"
