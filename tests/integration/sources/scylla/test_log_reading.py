"""The ScyllaDB source on the imitation's log tables: every log row once, in order, over switches of streams."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_cdc_provider.sources.scylla.log_schema import OWN_COLUMNS
from server_kit import CassandraServer
from server_kit.scylla import (
    PAIR,
    CdcOptions,
    Column,
    CqlType,
    ImitatedScylla,
    SystemKeyspaces,
    Table,
    Turmoil,
    draw_table,
)
from server_kit.scylla.statements import Insert
from tests.integration.sources.scylla.captured import Captured, scylla_source
from tests.oracles.raw_rows import raw_rows

pytestmark = pytest.mark.integration

NUMBER = CqlType("int")
SECOND_US = 1_000_000


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"k{random.randrange(10**9)}"
    yield name
    for suffix in ("", "_distributed", "_system", "_schema"):
        cassandra_session.execute(f"DROP KEYSPACE IF EXISTS {name}{suffix}")


def imitated(session: Any, keyspace: str, **settings: Any) -> ImitatedScylla:
    names = SystemKeyspaces(*(f"{keyspace}_{part}" for part in ("distributed", "system", "schema")))
    cluster = ImitatedScylla(session, keyspace, names=names, **settings)
    cluster.create(first_generation=False)
    cluster.create_type(PAIR)
    return cluster


def item(keyspace: str, name: str = "item", **cdc: Any) -> Table:
    columns = (Column("sku", NUMBER),)
    return Table(keyspace, name, columns, regular=(Column("qty", NUMBER),), cdc=CdcOptions(**cdc))


def insert(sku: int, qty: int) -> Insert:
    return Insert((struct.pack(">i", sku),), (), {"qty": struct.pack(">i", qty)})


def logged_rows(session: Any, cluster: ImitatedScylla) -> Counter[tuple[str, bytes]]:
    """Read all log rows there are, as the capture must give them but for the rest of their TTL."""
    found: Counter[tuple[str, bytes]] = Counter()
    for base in cluster.tables.values():
        for row in raw_rows(session, f"SELECT * FROM {cluster.keyspace}.{base.table.log_name}"):
            others = sorted(set(row) - set(OWN_COLUMNS))
            values = [row[name] for name in (*OWN_COLUMNS, *others)]
            found[base.table.full_name, b"".join(map(packed, values))] += 1
    return found


def packed(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def without_row_ttl(rows: Counter[tuple[str, bytes]]) -> Counter[tuple[str, bytes]]:
    """Leave out the seventh column."""
    found: Counter[tuple[str, bytes]] = Counter()
    for (table, row), count in rows.items():
        at = 0
        for number in range(len(OWN_COLUMNS) + 1):
            begin, length = at, struct.unpack_from(">i", row, at)[0]
            at += 4 + max(length, 0)
            if number == len(OWN_COLUMNS):
                found[table, row[:begin] + row[at:]] += count
    return found


def in_stream_order(captured: Captured) -> bool:
    """Tell whether changes of each stream came in the order of their positions."""
    last: dict[tuple[str, bytes], bytes] = {}
    for record in captured.records:
        stream = (record["source_table"], record["position"][24:])
        if last.setdefault(stream, record["position"]) > record["position"]:
            return False
        last[stream] = record["position"]
    return True


@pytest.mark.covers("SCY-STM-01", "SCY-STM-02", "SCY-LOG-03", "SCY-LOG-08", "SCY-GEN-01", "SCY-GEN-05")
@pytest.mark.parametrize(("seed", "tablets"), [(31, 0), (32, 4)])
def test_every_log_row_is_read_once_over_all_switches_of_streams(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str, seed: int, tablets: int
) -> None:
    cluster = imitated(cassandra_session, keyspace, seed=seed, tablets=tablets, nodes=2)
    if not tablets:
        cluster.new_generation()
    turmoil = Turmoil(cluster, random.Random(seed), late=0, events=0.08)
    for number in range(3):
        turmoil.add(draw_table(turmoil.chance, keyspace, f"t{number}"))
    source = scylla_source(cluster, cassandra_server, query_window_seconds=0.5, fetch_size=7)
    captured = Captured(source)
    for _ in range(3):
        turmoil.run(60)
        captured.run()
    turmoil.settle()
    time.sleep(1.1)  # clocks are told in milliseconds, and writes may get later microseconds
    captured.run()
    assert turmoil.done["streams"] >= 2
    assert without_row_ttl(captured.log_rows) == logged_rows(cassandra_session, cluster)
    assert in_stream_order(captured)
    assert len({r["position"] for r in captured.records}) == len(captured.records)
    source.close()
