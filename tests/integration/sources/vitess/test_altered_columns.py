"""Altered tables, changed later or not: rows have the values that a copy shows, or a snapshot is due."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import zip_longest
from typing import Any

import pytest

from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.sources.vitess.codec import VitessCodec
from airflow_cdc_provider.sources.vitess.schema_history import TableHistory
from server_kit import VitessServer
from tests.integration.sources.vitess.projected import projected_rows
from tests.integration.sources.vitess.vitess_sources import captured_with_schema, snapshot, source_of

pytestmark = pytest.mark.integration

COLUMNS = (
    "id bigint primary key, n int, v varchar(9), d decimal(6,3), b2 binary(2), bits bit(8), one bit(1),"
    "w int, long64 varchar(64)"
)
ROW = "(1, 1, 'ä ', 1.256, 'a', 5, 1, 2, repeat('\N{SNOWMAN}', 64))"
KNOWN = (
    ["add b int default 3"],
    ["add b int not null default 3 first, add c varchar(3) default 'x' after id"],
    ["add b int default 3", "drop b", "add b int default 4, add c int"],
    ["drop n"],
    ["rename column n to m"],
    ["rename column N to m", "drop M"],
    ["rename column N to M", "modify m bigint", "rename column M to n"],
    ["modify V varchar(90), change W w bigint", "rename column v to v"],
    ["rename column n to w, rename column w to n"],
    ["modify v varchar(90), modify long64 text", "modify n bigint"],
    ["modify v tinytext character set utf16", "modify v text"],
    ["comment = 'x'"],
)
DUE = (
    ["drop n, add n int default 3"],
    ["drop w, add w int default 3"],
    ["drop w", "add w int default 3"],
    ["drop W, add w int default 3"],
    ["modify d decimal(4,1)"],
    ["modify b2 binary(5)"],
    ["modify bits bit(9)"],
    ["modify one bit(2)"],
    ["modify v char(9)"],
    ["modify v varchar(5)"],
    ["modify long64 tinytext"],
    ["modify v varchar(9) character set ascii"],
)


@pytest.mark.parametrize("changed", [False, True])
def test_rows_of_altered_tables_are_those_of_a_copy_or_a_snapshot_is_due(
    vitess_server: VitessServer, changed: bool
) -> None:
    tables = {
        f"altered{number}{'changed' if changed else 'idle'}": actions
        for number, actions in enumerate([*KNOWN, *DUE])
    }
    create = [f"create table {table} ({COLUMNS})" for table in tables]
    vitess_server.define("shop", *create, shard_by=dict.fromkeys(tables, "id"))
    with ExitStack() as opened:
        sources = {table: opened.enter_context(closing(source_of(vitess_server, table))) for table in tables}
        cursor = opened.enter_context(vitess_server.connect("shop").cursor())
        cursor.execute("set sql_mode = ''")  # MySQL cuts and replaces what it would refuse
        records = {}
        for table, source in sources.items():
            cursor.execute(f"insert into {table} values {ROW}")
            start = source.start()
            source.seek_to(start)
            records[table] = start, snapshot(source, table).to_pylist()
        alter(vitess_server, cursor, tables)
        due = []
        for table, actions in tables.items():
            if changed:
                cursor.execute(f"insert into {table} (id) values (2)")
            source = sources[table]
            start, read = records[table]
            read += captured_with_schema(source, start)
            source.seek_to(source.head())
            copied = _first(table, snapshot(source, table).to_pylist())
            history = TableHistory.of(f"shop.{table}", read)
            row = _first(table, read)
            assert row.keys() == copied.keys(), actions
            assert history.due is not None or row == copied, actions
            due += [actions] if history.due is not None else []
    vitess_server.define("shop", f"drop table {', '.join(tables)}")
    assert due == list(DUE)


def alter(server: VitessServer, cursor: Any, tables: dict[str, list[str]]) -> None:
    """Alter tables by their actions, the next one when the tablets have recorded those before."""
    statements = len(tables)
    for actions in zip_longest(*tables.values()):
        server.wait_for_versions("shop", "|".join(tables), statements)
        for table, action in zip(tables, actions, strict=True):
            if action is not None:
                cursor.execute(f"alter table {table} {action}")
                statements += 1
    server.wait_for_versions("shop", "|".join(tables), statements)


def _first(table: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    name = f"shop.{table}"
    rows = [record for record in records if record["kind"] in (CHANGE, SNAPSHOT)]
    found = projected_rows(VitessCodec(name, TableHistory.of(name, records)), rows)
    return next(row for row in found if row["id"] == 1)
