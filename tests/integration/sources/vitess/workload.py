"""Random transactions over both shards, and what a reader of records makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE, SNAPSHOT
from airflow_cdc_provider.sources.vitess.protocol import Row, RowChange
from server_kit import VitessServer


def create(server: VitessServer, table: str) -> None:
    """Make a table of both shards."""
    server.define(
        "shop",
        f"create table {table} (id bigint primary key, name varchar(200), amount int)",
        shard_by={table: "id"},
    )


def run(server: VitessServer, table: str, seed: int, transactions: int, keys: int = 60) -> None:
    """Insert, update, delete and change keys, several rows in each transaction."""
    chance = random.Random(seed)
    connection = server.connect("shop", autocommit=False)
    with connection.cursor() as cursor:
        for number in range(transactions):
            for _ in range(chance.randint(1, 5)):
                key = chance.randrange(keys)
                kind = chance.random()
                if kind < 0.5:
                    cursor.execute(
                        f"insert into {table} (id, name, amount) values (%s, %s, %s) "
                        "on duplicate key update name = values(name), amount = amount + 1",
                        (key, f"{seed}-{number}", number),
                    )
                elif kind < 0.75:
                    cursor.execute(f"update {table} set amount = %s where id = %s", (number, key))
                elif kind < 0.9:
                    cursor.execute(f"delete from {table} where id = %s", (key,))
                else:  # a key can't be updated in a sharded keyspace: it moves as users move it
                    cursor.execute(f"delete from {table} where id = %s", (key,))
                    cursor.execute(
                        f"insert into {table} (id, name, amount) values (%s, 'moved', %s) "
                        "on duplicate key update name = 'moved'",
                        (key + 1000, number),
                    )
            if chance.random() < 0.1:
                connection.rollback()
            else:
                connection.commit()
    connection.close()


def selected(server: VitessServer, table: str) -> dict[str, tuple[str | None, ...]]:
    """Return the table's rows by their key."""
    with server.connect("shop").cursor() as cursor:
        cursor.execute(f"select id, name, amount from {table} order by id limit 100000")
        return {str(r[0]): tuple(None if v is None else str(v) for v in r) for r in cursor.fetchall()}


def applied(batches: Iterable[pa.Table], table: str) -> dict[str, tuple[str | None, ...]]:
    """Apply records by shard and key, the greatest version last; the rows that are left."""
    states: dict[tuple[str, str], tuple[bytes, tuple[str | None, ...] | None]] = {}
    for records in batches:
        for record in records.to_pylist():
            if record["source_table"] != table or record["kind"] not in (CHANGE, SNAPSHOT):
                continue
            change = RowChange.FromString(record["payload"])
            before = values(change.before) if change.HasField("before") else None
            after = values(change.after) if change.HasField("after") else None
            written: list[tuple[str, tuple[str | None, ...] | None]] = []
            if before is not None and (after is None or before[0] != after[0]):
                written.append((str(before[0]), None))
            if after is not None:
                written.append((str(after[0]), after))
            for key, state in written:
                place = (record["origin"], key)
                if place not in states or states[place][0] <= record["version"]:
                    states[place] = (record["version"], state)
    left = [(key, state) for (_, key), (_, state) in states.items() if state is not None]
    assert len(left) == len(dict(left))
    return dict(left)


def values(row: Row) -> tuple[str | None, ...]:
    """Parse a row."""
    found: list[str | None] = []
    at = 0
    for length in row.lengths:
        found.append(None if length < 0 else row.values[at : at + length].decode())
        at += max(length, 0)
    return tuple(found)


def read(reader: Any, parts: Iterable[Any]) -> pa.Table:
    """Read all partitions."""
    from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
    from airflow_cdc_provider.sources.contract import ReadMetrics

    return pa.Table.from_batches(reader.read(parts, ReadMetrics()), schema=CHANGE_SCHEMA)
