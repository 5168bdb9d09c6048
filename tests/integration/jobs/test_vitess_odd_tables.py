"""Vitess: tables whose changes VTGate's stream can't send, sends broken, or sends once per shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from airflow_cdc_provider.exceptions import PositionLost
from server_kit import VitessServer
from tests.integration.jobs.conftest import RunStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


class Tables:
    """Tables of keyspace ``shop``, each with column ``id`` as its key, and their mirrors."""

    def __init__(self, server: VitessServer, spark: SparkSession, run_stage: RunStage) -> None:
        self.server, self._spark, self._run_stage = server, spark, run_stage
        self.names: list[str] = []

    def define(self, **columns: str) -> None:
        """Create tables, each with some columns."""
        shard_by = {name: "id" for name in columns if name != "reference1"}
        creates = [f"create table {name} (id bigint primary key, {more})" for name, more in columns.items()]
        self.server.define("shop", *creates, shard_by=shard_by)
        self.names += columns

    def write(self, *statements: str, shard: str = "") -> None:
        with self.server.connect(f"shop:{shard}" if shard else "shop").cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def run(self, stage: str = "sync", **snapshot: Any) -> Any:
        name = f"odd_{self.names[0]}"
        declared = {
            "name": name,
            "source": {
                "type": "vitess",
                "keyspace": "shop",
                "advanced": {"connect_attempts": 0},
            },
            "tables": [rf"shop\.{table}" for table in [*self.names, "never"]],
            "snapshot": snapshot,
            "lake": {"catalog": "lake", "namespace": name},
        }
        return self._run_stage(stage, declared, self.server.connection)

    def mirror(self, name: str) -> list[tuple[Any, ...]]:
        rows = self._spark.table(f"lake.odd_{self.names[0]}.shop_{name}").drop("_cdc").collect()
        return sorted((tuple(row) for row in rows), key=lambda row: row[0])

    def selected(self, name: str) -> list[tuple[Any, ...]]:
        """Return the table's rows, with nothing in ``_rest``."""
        with self.server.connect("shop").cursor() as cursor:
            cursor.execute(f"select * from {name} order by id")
            return [(*row, None) for row in cursor.fetchall()]


@pytest.fixture
def tables(vitess_server: VitessServer, spark: SparkSession, run_stage: RunStage) -> Iterator[Tables]:
    found = Tables(vitess_server, spark, run_stage)
    yield found
    for name in found.names:
        found.write(f"drop table if exists {name}")


def read_rows(outcome: Any) -> dict[str, int]:
    return {table.table: table.snapshot_rows for table in outcome.tables if table.snapshot_rows}


LAGGING = {
    "lag_enum": ("e enum('a','b') not null", "alter table lag_enum drop column e"),
    # A tablet that knows the altered columns finds too few of them here, and can read those that follow.
    "lag_more": ("n int, e enum('a','b')", "alter table lag_more drop column e"),
    "lag_set": ("e set('a','b'), n int", "alter table lag_set rename column e to f"),
    "lag_less": ("e enum('a','b') default 'a'", "alter table lag_less modify e enum('x','a')"),
    "lag_gone": ("e enum('a','b')", "drop table lag_gone"),
}


def test_tables_altered_after_changes_that_only_their_old_enums_explain_are_read_again(
    tables: Tables,
) -> None:
    tables.define(lag_plain="n int", **{name: columns for name, (columns, _) in LAGGING.items()})
    for name in LAGGING:
        tables.write(f"insert into {name} (id, e) values (1, 'a'), (2, 'b')")
    tables.run()
    for name, (_, statement) in LAGGING.items():
        tables.write(
            f"insert into {name} (id, e) values (3, 'b')",
            f"update {name} set e = 'a' where id = 2",
            f"delete from {name} where id = 3",
            statement,
        )
    tables.write("insert into lag_plain (id, n) values (7, 7)")

    failed = tables.run()

    assert (failed.ok, failed.error_code) == (False, PositionLost.code)
    assert tables.mirror("lag_plain") == tables.selected("lag_plain") != [], "the others are merged"
    named = failed.error
    assert "shop.lag_enum" in named
    # Which one the tablet says depends on whether it knows the altered columns already.
    assert any(cause in named for cause in ("ENUM", "cannot determine table columns"))
    assert "the next sync or stream takes new snapshots" in named
    outcome = tables.run()
    assert outcome.ok
    assert not any("incomplete" in text for text in outcome.findings)
    lost = {f"shop.{name}" for name in LAGGING if f"shop.{name}" in named}
    assert set(read_rows(outcome)) >= lost > {"shop.lag_enum"}
    assert "shop.lag_plain" not in read_rows(outcome)
    for name in [*LAGGING, "lag_plain"]:
        if name != "lag_gone":
            assert tables.mirror(name) == tables.selected(name), name
    tables.write("insert into lag_enum (id) values (9)")
    assert read_rows(tables.run()) == {}
    assert tables.mirror("lag_enum") == tables.selected("lag_enum")


def test_with_that_choice_the_same_sync_reads_the_table_again(tables: Tables) -> None:
    tables.define(lag_once="e enum('a','b')", lag_other="n int")
    tables.run(on_lost_position="snapshot")
    tables.write(
        "insert into lag_once (id, e) values (3, 'b')",
        "alter table lag_once drop column e",
        "insert into lag_other (id, n) values (7, 7)",
    )

    outcome = tables.run(on_lost_position="snapshot")

    assert outcome.ok
    assert any(r"matches shop\.never in tables" in finding for finding in outcome.findings)
    assert read_rows(outcome) == {"shop.lag_once": 1}
    for name in tables.names:
        assert tables.mirror(name) == tables.selected(name) != []


def test_a_reference_table_arrives_once(tables: Tables) -> None:
    tables.define(reference1="n int")
    for shard in ("-80", "80-"):
        tables.write("insert into reference1 (id, n) values (1, 1), (2, 2)", shard=shard)
    first = tables.run()
    for shard in ("-80", "80-"):
        tables.write(
            "insert into reference1 (id, n) values (3, 3)", "delete from reference1 where id = 1", shard=shard
        )

    later = tables.run()

    assert read_rows(first) == {"shop.reference1": 2}
    assert later.changes == 4, "two rows and their transactions"
    assert tables.mirror("reference1") == tables.selected("reference1") != []
    assert tables.run("verify").ok


def test_a_table_whose_rows_are_exchanged_with_a_partition_is_read_again(tables: Tables) -> None:
    ranges = "(partition p0 values less than (100), partition p1 values less than maxvalue"
    tables.define(part1=f"n int) partition by range (id) {ranges}", swap1="n int")
    tables.write("insert into part1 (id, n) values (1, 1), (2, 1), (150, 2)")
    tables.write("insert into swap1 (id, n) values (3, 3), (4, 4)")
    tables.run()
    tables.write("alter table part1 exchange partition p0 with table swap1")
    tables.write("insert into swap1 (id, n) values (5, 5)")

    tables.run()

    assert [row[0] for row in tables.mirror("swap1")] == [1, 2, 5]
    for name in tables.names:
        assert tables.mirror(name) == tables.selected(name)
