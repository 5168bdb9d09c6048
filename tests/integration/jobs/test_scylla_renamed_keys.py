"""A clustering column of ScyllaDB is renamed while changes wait in the log, whose rows lose their values."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.sources.registry import source_plugin
from server_kit.scylla import Column, CqlType, ImitatedScylla, SystemKeyspaces, Table
from server_kit.scylla.statements import (
    DeletePartition,
    DeleteRange,
    DeleteRow,
    Insert,
    Limit,
    SetWhole,
    Update,
)
from tests.integration.jobs.imitated import assert_mirror_equals_model, declare, settled
from tests.integration.jobs.printed_events import number
from tests.integration.jobs.shop import Shop

pytestmark = pytest.mark.integration

INT, TEXT = CqlType("int"), CqlType("text")


def synced(shop: Shop) -> JobResult:
    result = settled(shop)
    assert result.ok, result.error
    return result


@pytest.fixture
def cluster(shop: Shop, names: SystemKeyspaces) -> ImitatedScylla:
    """A table with one clustering column and a static column, and one with two, each with nine rows."""
    cluster = ImitatedScylla(shop.session, shop.keyspace, names=names)
    cluster.create()
    key, value = (Column("pk", INT),), (Column("v", INT),)
    one = Table(shop.keyspace, "one", key, (Column("ck", INT),), (Column("owner", TEXT),), value)
    two = Table(shop.keyspace, "two", key, (Column("a", INT), Column("b", INT)), (), value)
    cluster.create_table(one)
    cluster.create_table(two)
    for n in range(1, 10):
        cluster.execute("one", Insert((number(1),), (number(n),), {"v": number(n)}))
        cluster.execute("two", Insert((number(1),), (number(1), number(n)), {"v": number(n)}))
    return cluster


def write_before_rename(cluster: ImitatedScylla) -> None:
    five, six = Limit(number(5), inclusive=True), Limit(number(6), inclusive=True)
    cluster.execute(
        "one",
        DeleteRange((number(1),), (), five, six),
        DeleteRow((number(1),), (number(1),)),
        Insert((number(2),), (number(1),), {}),
        Insert((number(3),), (number(1),), {"v": number(3), "owner": b"ann"}),
        Update((number(1),), None, (SetWhole("owner", b"bob"),)),
        Insert((number(4),), (number(1),), {"v": number(4)}),
        DeletePartition((number(4),)),
    )
    cluster.execute("two", DeleteRange((number(1),), (number(1),), five, six))


def kept(shop: Shop, table: str) -> int:
    return shop.mirror(table).where("pk = 1").count()


def test_what_the_log_lost_is_quarantined_and_the_tables_are_read_again(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla
) -> None:
    declare(shop, names)
    synced(shop)
    write_before_rename(cluster)
    cluster.rename_key("one", "ck", "ck2")
    cluster.rename_key("two", "b", "b2")
    cluster.add_column("two", Column("b", INT))
    cluster.drop_column("two", "b")  # the log has only this drop of the name, with its flag
    cluster.execute("one", Insert((number(1),), (number(20),), {"v": number(20)}))

    first = synced(shop)

    assert kept(shop, "one") >= 7, "no row leaves the mirror that is in the base"
    assert kept(shop, "two") >= 7
    for table in ("one", "two"):
        assert any(f"{shop.table_name(table)}: " in f and "are quarantined" in f for f in first.findings)
    reasons = {row.reason.partition(":")[0] for row in shop.quarantine().select("reason").collect()}
    assert "renamed-key" in reasons
    assert reasons <= {"renamed-key", "bad-log-row"}

    second = synced(shop)
    assert_mirror_equals_model(shop, "one", cluster.tables["one"])
    assert_mirror_equals_model(shop, "two", cluster.tables["two"])
    assert {t.table for r in (first, second) for t in r.tables if t.snapshot_rows} == {
        shop.table_name("one"), shop.table_name("two")
    }  # fmt: skip

    cluster.execute("two", DeleteRange((number(1),), (number(1),), Limit(number(8), inclusive=True)))
    calm = synced(shop)
    assert not any(t.undecodable or t.snapshot_rows for t in calm.tables)
    assert assert_mirror_equals_model(shop, "two", cluster.tables["two"]) == 5


def test_a_name_that_a_key_column_had_before_is_no_other_rename(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla
) -> None:
    declare(shop, names, snapshot={"mode": "never"})
    synced(shop)
    write_before_rename(cluster)
    for before, after in (("b", "c"), ("c", "b")):  # the log's columns are the same again, without the values
        cluster.rename_key("two", before, after)
    result = synced(shop)
    assert kept(shop, "two") == 9, "the deletes are quarantined, and there is no snapshot"
    (finding,) = (f for f in result.findings if f.startswith(f"{shop.table_name('two')}: "))
    assert "1 changes could not be decoded and are quarantined" in finding
    assert_mirror_equals_model(shop, "one", cluster.tables["one"])


def test_check_says_what_becomes_of_changes_before_a_rename(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla
) -> None:
    declare(shop, names)
    connector = Connector.from_dict(shop.declaration)

    def warned() -> list[str]:
        source: Any = source_plugin("scylla").source(connector, shop.connection)
        try:
            return [one.message for one in source.check() if one.subject == "renamed keys"]
        finally:
            source.close()

    assert warned() == []
    cluster.rename_key("one", "ck", "ck2")
    cluster.rename_key("two", "b", "c")
    (message,) = warned()
    assert message.startswith(
        f"a key column of {shop.table_name('one')}, {shop.table_name('two')} was renamed"
    )


def test_a_log_that_was_disabled_before_the_rename_has_all_values(
    shop: Shop, names: SystemKeyspaces, cluster: ImitatedScylla
) -> None:
    declare(shop, names)
    synced(shop)
    write_before_rename(cluster)
    for table, name in (("one", "ck"), ("two", "b")):
        cluster.alter_cdc(table, enabled=False)
        cluster.rename_key(table, name, f"{name}2")
    result = synced(shop)
    assert all("is disabled" in finding for finding in result.findings)
    for table in ("one", "two"):
        assert_mirror_equals_model(shop, table, cluster.tables[table])
