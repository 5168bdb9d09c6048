"""The imitation of ScyllaDB against a real Cassandra: the model's tables, and its log rows as tables."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from server_kit.scylla import (
    PAIR,
    CdcOptions,
    ImitatedScylla,
    Preimage,
    Turmoil,
    Workload,
    draw_table,
)
from server_kit.scylla.base_table import Shown
from server_kit.scylla.generations import Timeline
from server_kit.scylla.timeuuids import time_us
from tests.integration.imitated_keyspace import imitated_keyspace
from tests.oracles.raw_rows import raw_rows
from tests.oracles.scylla_log import Replay

pytestmark = pytest.mark.integration

HOUR_US = 3_600_000_000


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    yield from imitated_keyspace(cassandra_session)


def imitated(session: Any, keyspace: str, **settings: Any) -> ImitatedScylla:
    cluster = ImitatedScylla(session, keyspace, **settings)
    cluster.create(first_generation=False)
    cluster.create_type(PAIR)
    return cluster


def seconds() -> int:
    return int(time.time())


def in_any_order(rows: list[Shown]) -> Counter[tuple[tuple[str, bytes | None], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def write_at_random(
    cluster: ImitatedScylla, chance: random.Random, tables: int, count: int, options: CdcOptions
) -> int:
    """Write to random tables of the last hour: with lists in the order of timestamps, else with ties.

    Returns:
        How many changes were logged.
    """
    hour_ago_us = time.time_ns() // 1000 - HOUR_US
    cluster.clock_us = lambda: hour_ago_us
    if not cluster.tablets:
        cluster.new_generation()
    drawn = [
        cluster.create_table(draw_table(chance, cluster.keyspace, f"t{n}", lists=n % 2 == 1, cdc=options))
        for n in range(tables)
    ]
    cluster.clock_us = lambda: time.time_ns() // 1000
    begin_us = hour_ago_us + HOUR_US // 2
    in_order = itertools.count(begin_us, 10)
    changes = 0
    for number, base in enumerate(drawn):
        lists = number % 2 == 1
        timestamps = (lambda: next(in_order)) if lists else (lambda: begin_us + chance.randrange(100))
        workload = Workload(chance, base, timestamps, short_ttls=not lists)
        for request in workload.requests(count, seconds):
            changes += len(cluster.execute(base.table, request))
    time.sleep(2.1)  # TTLs of a second are over
    return changes


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_model_shows_what_cassandra_shows_after_the_same_statements(
    cassandra_session: Any, keyspace: str, seed: int
) -> None:
    cluster = imitated(cassandra_session, keyspace, seed=seed)
    assert write_at_random(cluster, random.Random(seed), tables=6, count=120, options=CdcOptions()) > 300
    rows = 0
    for base in cluster.tables.values():
        shown = in_any_order(raw_rows(cassandra_session, f"SELECT * FROM {base.table.full_name}"))
        assert in_any_order(base.select(seconds())) == shown, base.table
        rows += shown.total()
    assert rows > 20


@pytest.mark.parametrize(
    ("seed", "tablets", "options"),
    [
        pytest.param(11, 0, CdcOptions(), marks=pytest.mark.long),
        (12, 4, CdcOptions()),
        pytest.param(13, 0, CdcOptions(preimage=Preimage.FULL, postimage=True), marks=pytest.mark.long),
        pytest.param(14, 0, CdcOptions(preimage=Preimage.ON), marks=pytest.mark.long),
    ],
)
def test_the_log_tables_alone_give_the_base_tables(
    cassandra_session: Any, keyspace: str, seed: int, tablets: int, options: CdcOptions
) -> None:
    cluster = imitated(cassandra_session, keyspace, seed=seed, tablets=tablets)
    assert write_at_random(cluster, random.Random(seed), tables=4, count=100, options=options) > 150
    for base in cluster.tables.values():
        replay = Replay(base.table)
        for row in raw_rows(cassandra_session, f"SELECT * FROM {keyspace}.{base.table.log_name}"):
            replay.add(row)
        now = seconds()
        assert in_any_order(replay.finish().select(now)) == in_any_order(base.select(now)), base.table


@pytest.mark.long
@pytest.mark.parametrize(("seed", "tablets"), [(21, 0), (22, 2)])
def test_generations_splits_and_late_rows_lose_nothing(
    cassandra_session: Any, keyspace: str, seed: int, tablets: int
) -> None:
    cluster = imitated(cassandra_session, keyspace, seed=seed, tablets=tablets)
    if not tablets:
        cluster.new_generation()
    turmoil = Turmoil(cluster, random.Random(seed), events=0.08)
    for number in range(3):
        turmoil.add(draw_table(turmoil.chance, keyspace, f"t{number}"))
    turmoil.run(300)
    assert all(turmoil.done[kind] for kind in ("streams", "images", "column", "late"))
    turmoil.settle()
    time.sleep(2.1)
    switched = 0
    for base in cluster.tables.values():
        replay = Replay(base.table)
        used = set()
        for row in raw_rows(cassandra_session, f"SELECT * FROM {keyspace}.{base.table.log_name}"):
            replay.add(row)
            stream, moment = row["cdc$stream_id"] or b"", time_us(row["cdc$time"] or b"")
            timeline: Timeline[Any] = cluster.stream_sets[base.table.name] if tablets else cluster.generations
            working = timeline.at(moment)
            assert stream in working.streams
            used.add(working.time_ms)
        switched += len(used) > 1
        now = seconds()
        model = in_any_order(base.select(now))
        assert in_any_order(replay.finish().select(now)) == model
        shown = raw_rows(cassandra_session, f"SELECT * FROM {base.table.full_name}")
        assert in_any_order(shown) == model
    assert switched
