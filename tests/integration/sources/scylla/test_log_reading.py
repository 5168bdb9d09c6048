"""The ScyllaDB source on the imitation's log tables: every log row once, in order."""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.scylla.options import ScyllaAdvanced, ScyllaOptions
from server_kit import CassandraServer
from server_kit.scylla import ImitatedScylla, Turmoil, draw_table
from server_kit.scylla.statements import Insert
from tests.integration.imitated_keyspace import imitated_keyspace
from tests.integration.sources.scylla.captured import Captured, scylla_source
from tests.integration.sources.scylla.logged_tables import imitated, insert, item, log_row, logged_rows

pytestmark = pytest.mark.integration

SECOND_US = 1_000_000


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    yield from imitated_keyspace(cassandra_session)


def in_stream_order(captured: Captured) -> bool:
    """Return whether changes of each stream came in the order of their positions."""
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
    time.sleep(1.1)  # clocks are read in milliseconds, and writes may get later microseconds
    captured.run()
    assert turmoil.done["streams"] >= 2
    assert captured.log_rows == logged_rows(cassandra_session, cluster)
    assert in_stream_order(captured)
    assert len({r["position"] for r in captured.records}) == len(captured.records)
    source.close()


@pytest.mark.covers("SCY-GEN-02", "SCY-STM-05", "SCY-STM-06", "SCY-OFF-01")
def test_an_old_generation_is_read_to_its_end_before_the_next_one(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace, nodes=2, vnodes=3, shards=2)
    first = cluster.new_generation()
    cluster.create_table(item(keyspace))
    cluster.execute("item", *(insert(sku, 1) for sku in range(20)))
    time.sleep(0.02)
    second = cluster.new_generation(nodes=3)
    cluster.execute("item", *(insert(sku, 2) for sku in range(20)))
    time.sleep(0.02)

    captured = Captured(scylla_source(cluster, cassandra_server)).run()

    generations = [int.from_bytes(r["position"][:8], "big") for r in captured.records]
    assert generations == sorted(generations)
    assert Counter(generations) == {first.time_ms: 20, second.time_ms: 20}
    groups = {r["origin"] for r in captured.records if r["position"][:8] == first.time_ms.to_bytes(8, "big")}
    assert groups <= {f"{keyspace}.item/{index}" for index in range(6)}
    reads = [read for plan in captured.plans for part in plan.partitions for read in part.reads]
    assert {len(r.streams) for r in reads} == {2}
    assert len({r.group for r in reads if r.generation_ms == first.time_ms}) == 6
    assert list(captured.offset or {}) == [f"{keyspace}.item"]

    # A restarted process resumes from the offset, and reads nothing twice.
    cluster.execute("item", insert(7, 3))
    time.sleep(0.02)
    again = Captured(scylla_source(cluster, cassandra_server), captured.offset).run()
    assert len(again.records) == 1


@pytest.mark.covers("SCY-WIN-01")
def test_an_empty_day_takes_fifty_times_fewer_requests_than_fixed_windows(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace, nodes=1, vnodes=1, shards=1)
    now_us = time.time_ns() // 1000
    cluster.new_generation(now_us // 1000 - 2 * 86_400_000)
    cluster.create_table(item(keyspace))

    adaptive = Captured(scylla_source(cluster, cassandra_server)).run()

    fixed = scylla_source(cluster, cassandra_server, max_query_window_seconds=30)
    fixed.head()
    begin = fixed.start()
    windows = 0
    head = fixed.head()
    while begin is not None:
        plan = fixed.plan(begin, head, ReadLimit())
        fixed.on_batch_read(ReadMetrics())
        begin, windows = None if plan.at_head else plan.end, windows + 1
    assert windows in (2880, 2881)
    requests = adaptive.counts["requests"]
    assert 50 * requests <= windows, (requests, windows)
    assert not adaptive.records


@pytest.mark.covers("SCY-LOG-09", "SCY-LOG-10")
def test_a_position_older_than_the_log_is_reported_with_its_times(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    generation = cluster.new_generation(hour_ago_ms)
    cluster.create_table(item(keyspace, ttl=600))
    cluster.create_table(item(keyspace, "kept", ttl=0))
    source = scylla_source(cluster, cassandra_server)
    old = {"v": 1, "generation": generation.time_ms, "read_to": hour_ago_ms * 1000}
    source.head()

    lost, after = source.gaps({f"{keyspace}.item": old, f"{keyspace}.kept": old})

    (loss,) = lost
    assert f"{keyspace}.item keeps changes for 600 s" in loss.message
    assert loss.tables == (f"{keyspace}.item",)
    assert after[f"{keyspace}.kept"]["read_to"] == old["read_to"]
    begins_us = time.time_ns() // 1000 - 600 * SECOND_US
    assert 0 <= begins_us - after[f"{keyspace}.item"]["read_to"] < 5 * SECOND_US
    assert source.gaps(after) == ([], after)
    start = source.start() or {}
    assert start[f"{keyspace}.item"]["read_to"] > begins_us - 10 * SECOND_US
    time.sleep(0.01)
    source.head()
    assert source.gaps(start) == ([], start), "a beginning that expires meanwhile is no loss"


@pytest.mark.covers("SCY-WIN-04")
def test_a_new_connector_starts_as_far_back_as_configured(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    generation = cluster.new_generation(time.time_ns() // 1_000_000 - 3_600_000)
    cluster.create_table(item(keyspace))
    begin = scylla_source(cluster, cassandra_server).start() or {}
    assert begin[f"{keyspace}.item"]["read_to"] == generation.time_ms * 1000
    later = scylla_source(cluster, cassandra_server, lookback_seconds=60).start() or {}
    ago_us = time.time_ns() // 1000 - later[f"{keyspace}.item"]["read_to"]
    assert 60 * SECOND_US <= ago_us < 70 * SECOND_US


@pytest.mark.covers("SCY-WIN-02")
def test_a_change_is_read_when_it_is_as_old_as_the_confidence_window(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace))
    cluster.execute("item", insert(1, 1))
    captured = Captured(scylla_source(cluster, cassandra_server, confidence_window_seconds=3))
    assert not captured.run().records
    time.sleep(3.1)
    assert len(captured.run().records) == 1


@pytest.mark.covers("SCY-GEN-04")
def test_the_form_of_release_4_3_is_refused_with_the_way_on(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace))
    cluster.create_as_of_4_3()
    with pytest.raises(ConfigurationError, match=r"cdc_streams_descriptions only.*upgrade the cluster"):
        scylla_source(cluster, cassandra_server).head()


@pytest.mark.covers("SCY-LOG-01", "SCY-LOG-02")
def test_disabled_logs_are_rejected_or_reported(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace, "never", enabled=False))
    source = scylla_source(cluster, cassandra_server)
    assert source.tables() == []
    source._names = lambda table: table == f"{keyspace}.never"
    assert source.tables() == [f"{keyspace}.never"]
    assert source.head() == {}
    message = rf"{keyspace}.never is named but its changes aren't logged"
    for refuses in (source.codec, source.plan_snapshot):
        with pytest.raises(ConfigurationError, match=message):
            refuses(f"{keyspace}.never")
    assert any(f.level == "error" and "aren't logged" in f.message for f in source.check())

    source = scylla_source(cluster, cassandra_server)
    cluster.alter_cdc("never", enabled=True)
    records: list[dict[str, Any]] = []

    def learned() -> int:
        source.head()
        records.extend({name: r.get(name) for name in CHANGE_SCHEMA.names} for r in source.schema_records())
        source.learn(pa.Table.from_pylist(records, CHANGE_SCHEMA))
        return len(records)

    assert learned() == 1
    assert learned() == 1
    assert not source.schema_findings()
    cluster.alter_cdc("never", enabled=False)
    assert learned() == 2
    (finding,) = source.schema_findings()
    assert f"the log of {keyspace}.never is disabled" in finding
    assert source.tables() == [f"{keyspace}.never"]
    cluster.alter_cdc("never", enabled=True)
    assert learned() == 3
    assert source.resumed_at(f"{keyspace}.never") > 0
    assert not source.schema_findings()


@pytest.mark.covers("SCY-LOG-15", "SCY-LOG-16")
def test_a_change_that_is_not_whole_is_never_taken_in_part_nor_an_unknown_code_dropped(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace))
    (change,) = cluster.execute("item", insert(1, 1))
    where = log_row(change)
    table = f"{keyspace}.item_scylla_cdc_log"
    cassandra_session.execute(f'UPDATE {table} SET "cdc$operation" = 77 WHERE {where}')
    time.sleep(0.02)
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    (record,) = captured.records
    assert record["kind"] == "quarantine"
    assert record["reason"].startswith("unknown-operation: cdc$operation 77 in the log of ")
    assert change.stream.hex() in record["reason"]
    assert str(uuid.UUID(bytes=change.timeuuid)) in record["reason"]

    (change,) = cluster.execute("item", insert(2, 1))
    where = log_row(change)
    cassandra_session.execute(f'DELETE "cdc$end_of_batch" FROM {table} WHERE {where}')
    time.sleep(0.02)
    with pytest.raises(CorruptInput, match=f"is incomplete.*{change.stream.hex()}"):
        captured.run()


def test_a_generation_that_is_announced_late_is_read_from_its_start(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    cluster.create_table(item(keyspace))
    captured = Captured(scylla_source(cluster, cassandra_server)).run()
    time.sleep(0.05)
    began_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    captured.run()
    cluster.new_generation(began_ms)
    logged = cluster.execute("item", Insert((struct.pack(">i", 1),), (), {}, timestamp=began_ms * 1000 + 5))
    captured.run()
    assert [r["position"][24:] for r in captured.records] == [logged[0].stream]


@pytest.mark.covers("SCY-GEN-03")
def test_generations_are_looked_for_every_30_s_and_after_an_empty_window(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    began_ms = time.time_ns() // 1_000_000 - 60_000
    cluster.new_generation(began_ms)
    cluster.create_table(item(keyspace))
    poll_seconds = ScyllaAdvanced().generation_poll_seconds
    assert poll_seconds == 30

    def second_window(counts: Counter[str], announced_s: int, poll_seconds: float) -> tuple[int, int]:
        """Return generation and end of the second window if a generation was announced after the first."""
        source = scylla_source(
            cluster,
            cassandra_server,
            query_window_seconds=20,
            max_query_window_seconds=20,
            advanced={"generation_poll_seconds": poll_seconds},
        )
        newest_ms = cluster.generations.sets[-1].time_ms
        start = {f"{keyspace}.item": {"v": 1, "generation": newest_ms, "read_to": newest_ms * 1000}}
        head = source.head()
        first = source.plan(start, head, ReadLimit())
        cluster.new_generation(began_ms + announced_s * 1000)
        source.on_batch_read(ReadMetrics(counts))
        end = source.plan(first.end, head, ReadLimit()).end[f"{keyspace}.item"]
        source.close()
        return (end["generation"] - began_ms) // 1000, (end["read_to"] // 1000 - began_ms) // 1000

    some = Counter({"events": 1})
    assert second_window(some, 10, poll_seconds) == (0, 40), "it isn't looked for yet"
    assert second_window(Counter(), 12, poll_seconds) == (12, 32)
    assert second_window(some, 14, 0) == (14, 34)


@pytest.mark.covers("SCY-WIN-03")
def test_windows_keep_the_configured_interval_until_a_stop(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    assert ScyllaOptions().minimal_wait_seconds == 0
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation(time.time_ns() // 1_000_000 - 4_000)
    cluster.create_table(item(keyspace))
    source = scylla_source(
        cluster,
        cassandra_server,
        query_window_seconds=1,
        max_query_window_seconds=1,
        minimal_wait_seconds=0.4,
    )
    began = time.monotonic()
    windows = len(Captured(source).run().plans)
    assert windows >= 4
    assert time.monotonic() - began >= 0.4 * (windows - 1)

    stopped = scylla_source(cluster, cassandra_server, minimal_wait_seconds=60)
    stopped.cancel_when(lambda: True)
    head = stopped.head()
    began = time.monotonic()
    stopped.plan(stopped.start(), head, ReadLimit())
    stopped.plan(stopped.start(), head, ReadLimit())
    assert time.monotonic() - began < 10


@pytest.mark.covers("SCY-OFF-07")
def test_an_idle_table_is_read_on_from_where_it_was_last_looked_at(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace, vnodes=1, shards=1)
    cluster.new_generation(time.time_ns() // 1_000_000 - 80_000_000)
    cluster.create_table(item(keyspace))
    first = Captured(scylla_source(cluster, cassandra_server)).run()
    assert first.counts["requests"] > 5
    looked_us = (first.offset or {})[f"{keyspace}.item"]["read_to"]
    assert time.time_ns() // 1000 - looked_us < 60 * SECOND_US
    again = Captured(scylla_source(cluster, cassandra_server), first.offset).run()
    assert not first.records + again.records
    (read,) = [read for plan in again.plans for part in plan.partitions for read in part.reads]
    assert read.begin_us == looked_us, "the old time isn't scanned again"
    assert (again.offset or {})[f"{keyspace}.item"]["read_to"] > looked_us


_WORKER = """
import pickle, sys
import pyarrow as pa
from airflow_cdc_provider.sources.contract import ReadMetrics
reader, part = pickle.load(sys.stdin.buffer)
batches = list(reader.read([part], ReadMetrics()))
with pa.ipc.new_stream(sys.stdout.buffer, batches[0].schema) as out:
    for batch in batches:
        out.write_batch(batch)
"""


@pytest.mark.covers("SCY-STM-09")
def test_tasks_share_nothing_but_what_the_plan_gives_them(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str, tmp_path: Path
) -> None:
    cluster = imitated(cassandra_session, keyspace, vnodes=8)
    cluster.new_generation()
    cluster.create_table(item(keyspace))
    cluster.execute("item", *(insert(sku, 1) for sku in range(60)))
    time.sleep(0.02)
    source = scylla_source(cluster, cassandra_server)
    start, head = source.start(), source.head()
    plan = source.plan(start, head, ReadLimit(tasks=3))
    assert len(plan.partitions) == 3
    workers = []
    for number, part in enumerate(plan.partitions):
        # An interpreter, a folder, and bytes: what a task has on another machine.
        folder = tmp_path / str(number)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            cwd=folder,
            env={"PYTHONPATH": str(Path(__file__).parents[4])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((source.reader(), part)))
        process.stdin.close()
        workers.append(process)
    found = []
    for process in workers:
        assert process.stdout is not None
        found += pa.ipc.open_stream(process.stdout.read()).read_all().to_pylist()
        assert process.wait() == 0
    alone = Captured(scylla_source(cluster, cassandra_server)).run().records
    assert len(alone) == 60

    def places(records: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
        return sorted((r["origin"], r["position"]) for r in records)

    assert places(found) == places(alone)


@pytest.mark.covers("SCY-GEN-06")
def test_tables_with_vnodes_and_tablets_are_read_by_one_source(
    cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    vnodes = imitated(cassandra_session, keyspace)
    vnodes.new_generation()
    vnodes.create_table(item(keyspace))
    other = f"{keyspace}_t"
    tablets = ImitatedScylla(cassandra_session, other, tablets=2, names=vnodes.names)
    try:
        tablets.create()
        tablets.create_table(item(other))
        for cluster in (vnodes, tablets):
            cluster.execute("item", *(insert(sku, 1) for sku in range(10)))
        time.sleep(0.02)
        source = scylla_source(vnodes, cassandra_server)
        source._selects = lambda table: table in {f"{keyspace}.item", f"{other}.item"}
        captured = Captured(source).run()
    finally:
        cassandra_session.execute(f"DROP KEYSPACE {other}")
    tables = Counter(record["source_table"] for record in captured.records)
    assert tables == {f"{keyspace}.item": 10, f"{other}.item": 10}
    groups = {
        r["origin"].rpartition("/")[2] for r in captured.records if r["source_table"] == f"{other}.item"
    }
    tokens = {int.from_bytes(s[:8], "big", signed=True) for s in tablets.stream_sets["item"].sets[0].streams}
    assert groups <= {str(token) for token in tokens}


def test_offsets_keep_the_positions_of_unselected_tables_while_their_logs_have_what_follows(
    cassandra_session: Any, cassandra_server: CassandraServer, keyspace: str
) -> None:
    cluster = imitated(cassandra_session, keyspace)
    cluster.new_generation()
    for name, ttl in (("item", 0), ("brief", 60), ("lasting", 7200), ("forever", 0)):
        cluster.create_table(item(keyspace, name, ttl=ttl))
    source = scylla_source(cluster, cassandra_server)
    head = {f"{keyspace}.item": source.head()[f"{keyspace}.item"]}
    hour_ago = {"v": 1, "generation": 0, "read_to": time.time_ns() // 1000 - 3600 * SECOND_US}
    start = {f"{keyspace}.{name}": hour_ago for name in ("item", "brief", "lasting", "forever", "dropped")}
    end = source.plan(start, head, ReadLimit()).end
    assert {name.partition(".")[2] for name in end} == {"item", "lasting", "forever", "dropped"}
    assert all(end[f"{keyspace}.{name}"] == hour_ago for name in ("lasting", "forever", "dropped"))
