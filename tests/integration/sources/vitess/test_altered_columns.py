"""Altered tables, changed later or not: rows have the values that a copy shows, or a snapshot is due."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.exceptions import PositionLost
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
    due = {}
    for number, actions in enumerate([*KNOWN, *DUE]):
        table = f"altered{number}{'c' if changed else ''}"
        for attempt in range(5):
            try:
                history, rows, copied = altered(vitess_server, f"{table}_{attempt}", actions, changed=changed)
            except PositionLost:  # a tablet has missed a version of the table
                assert changed or len(actions) > 1, "no change and no statement came after it"
                assert attempt < 4
                continue
            if history.due is None or actions in DUE or len(actions) == 1:
                break  # else perhaps a version was missed, and a snapshot makes up for it
        due[tuple(actions)] = history.due is not None
        assert rows.keys() == copied.keys(), actions
        assert history.due is not None or rows == copied, actions
    assert [list(actions) for actions, is_due in due.items() if is_due] == list(DUE)


def altered(
    server: VitessServer, table: str, actions: list[str], *, changed: bool
) -> tuple[TableHistory, dict[str, Any], dict[str, Any]]:
    """Alter a table with a row; return its history, the row as it is known, and as a copy shows it."""
    name = f"shop.{table}"
    server.define("shop", f"create table {table} ({COLUMNS})", shard_by={table: "id"})
    with closing(source_of(server, table)) as source, server.connect("shop").cursor() as cursor:
        cursor.execute("set sql_mode = ''")  # MySQL cuts and replaces what it would refuse
        cursor.execute(
            f"insert into {table} values (1, 1, 'ä ', 1.256, 'a', 5, 1, 2, repeat('\N{SNOWMAN}', 64))"
        )
        start = source.start()
        source.seek_to(start)
        records = snapshot(source, table).to_pylist()
        for action in actions:
            cursor.execute(f"alter table {table} {action}")
        if changed:
            cursor.execute(f"insert into {table} (id) values (2)")
        records += captured_with_schema(source, start)
        source.seek_to(source.head())
        copied = snapshot(source, table).to_pylist()
    server.define("shop", f"drop table {table}")
    history = TableHistory.of(name, records)
    return history, _first(name, records), _first(name, copied)


def _first(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [record for record in records if record["kind"] in (CHANGE, SNAPSHOT)]
    found = projected_rows(VitessCodec(name, TableHistory.of(name, records)), rows)
    return next(row for row in found if row["id"] == 1)
