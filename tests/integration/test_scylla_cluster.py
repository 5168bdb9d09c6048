"""The imitated ScyllaDB as a reader meets it: logs, generations, streams, options, on a real Cassandra."""

from __future__ import annotations

import random
import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server_kit.scylla import (
    CdcOptions,
    Column,
    CqlType,
    ImitatedScylla,
    InvalidRequest,
    Table,
)
from server_kit.scylla.statements import AddElements, Batch, DeleteRow, Insert, SetWhole, Update
from server_kit.scylla.timeuuids import log_time, time_us
from server_kit.scylla.values import timeuuid_key
from tests.integration.imitated_keyspace import imitated_keyspace
from tests.oracles.raw_rows import raw_rows

pytestmark = pytest.mark.integration

INT, TEXT = CqlType("int"), CqlType("text")
SECOND_US = 1_000_000


def i(number: int) -> bytes:
    return struct.pack(">i", number)


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    yield from imitated_keyspace(cassandra_session)


@pytest.fixture
def cluster(cassandra_session: Any, keyspace: str) -> ImitatedScylla:
    made = ImitatedScylla(cassandra_session, keyspace)
    made.create()
    return made


@pytest.fixture
def item(cluster: ImitatedScylla) -> Table:
    regular = (Column("name", TEXT), Column("qty", INT), Column("tags", CqlType("set", (TEXT,))))
    return cluster.create_table(
        Table(cluster.keyspace, "item", (Column("shop", INT),), (Column("sku", INT),), (), regular)
    ).table


def insert(shop: int, sku: int, qty: int, timestamp: int | None = None) -> Insert:
    return Insert((i(shop),), (i(sku),), {"qty": i(qty)}, timestamp)


def log_of(cluster: ImitatedScylla, table: Table) -> list[Any]:
    return list(cluster.session.execute(f"SELECT * FROM {table.keyspace}.{table.log_name}"))


def test_the_driver_reads_log_rows_with_their_types(cluster: ImitatedScylla, item: Table) -> None:
    cluster.execute(
        item, Update((i(7),), (i(1),), (AddElements("tags", (b"a", b"b")), SetWhole("qty", None)))
    )
    (row,) = cluster.session.execute(
        f'SELECT "cdc$stream_id" AS stream, "cdc$time" AS moment, "cdc$batch_seq_no" AS number, '
        f'"cdc$operation" AS op, "cdc$ttl" AS ttl, "cdc$end_of_batch" AS last, shop, sku, qty, tags, '
        f'"cdc$deleted_qty" AS no_qty, "cdc$deleted_elements_tags" AS removed, TTL(sku) AS left '
        f"FROM {item.keyspace}.{item.log_name}"
    )
    assert len(row.stream) == 16
    assert isinstance(row.moment, uuid.UUID)
    assert abs(time_us(row.moment.bytes) / SECOND_US - time.time()) < 5
    assert (row.number, row.op, row.ttl, row.last) == (0, 1, None, True)
    assert (row.shop, row.sku, row.qty, row.no_qty, row.tags, row.removed) == (
        7,
        1,
        None,
        True,
        {"a", "b"},
        None,
    )
    assert 86_390 <= row.left <= 86_400


def test_a_stream_is_read_in_the_order_of_its_times_by_windows(cluster: ImitatedScylla, item: Table) -> None:
    begin = cluster.clock_us()
    logged = cluster.execute(item, *(insert(7, n % 5, n, begin + n // 4) for n in range(40)))
    (stream,) = {change.stream for change in logged}
    query = (
        f'SELECT "cdc$time" FROM {item.keyspace}.{item.log_name} WHERE "cdc$stream_id" = 0x{stream.hex()} '
        'AND "cdc$time" > {} AND "cdc$time" <= {}'
    )

    def window(first_us: int, last_us: int) -> list[bytes]:
        halves = [log_time(at, random.Random())[:8] for at in (first_us, last_us)]
        low, high = uuid.UUID(bytes=halves[0] + b"\x80" * 8), uuid.UUID(bytes=halves[1] + b"\x7f" * 8)
        found = raw_rows(cluster.session, query.format(low, high))
        return [row["cdc$time"] or b"" for row in found]

    times = sorted((change.timeuuid for change in logged), key=timeuuid_key)
    assert window(begin, begin + 9) == times
    parts = [window(begin + low, begin + low + 1) for low in range(0, 10, 2)]
    assert [moment for part in parts for moment in part] == times


def test_generations_are_announced_with_all_their_streams(cluster: ImitatedScylla, item: Table) -> None:
    first = cluster.generations.sets[0]
    second = cluster.new_generation(cluster.clock_us() // 1000 + 2000, nodes=3)
    distributed = cluster.names.distributed
    seen = cluster.session.execute(
        f"SELECT toUnixTimestamp(time) AS ms FROM {distributed}.cdc_generation_timestamps "
        "WHERE key = 'timestamps'"
    )
    assert [row.ms for row in seen] == [second.time_ms, first.time_ms]
    for generation in (first, second):
        rows = cluster.session.execute(
            f"SELECT range_end, streams FROM {distributed}.cdc_streams_descriptions_v2 WHERE time = %s",
            (generation.time_ms,),
        )
        assert [(r.range_end, set(r.streams)) for r in rows] == [
            (v.end, set(v.streams)) for v in generation.vnodes
        ]
    assert len(second.streams) == 3 * cluster.vnodes * cluster.shards


def test_writes_move_to_the_next_generation_by_their_timestamps(cluster: ImitatedScylla, item: Table) -> None:
    first = cluster.generations.sets[0]
    second = cluster.new_generation(cluster.clock_us() // 1000 + 2000)
    switch_us = second.time_ms * 1000
    before, at = cluster.execute(item, insert(7, 1, 1, switch_us - 1), insert(7, 1, 2, switch_us))
    assert before.stream in first.streams
    assert at.stream in second.streams
    both = Batch((insert(7, 2, 1, switch_us - 1), insert(7, 3, 2, switch_us)))
    assert [c.stream for c in cluster.execute(item, both)] == [before.stream, at.stream]
    with pytest.raises(InvalidRequest, match="future"):
        cluster.execute(item, insert(7, 1, 3, switch_us + 10 * SECOND_US))
    with pytest.raises(InvalidRequest, match="past"):
        cluster.execute(item, insert(7, 1, 3, first.time_ms * 1000 - 60 * SECOND_US))
    assert len(log_of(cluster, item)) == 4
    rows = cluster.session.execute(f"SELECT qty FROM {item.full_name}")
    assert [row.qty for row in rows] == [2, 1, 2], "what is refused isn't written"


def test_late_log_rows_come_when_they_are_let(cluster: ImitatedScylla, item: Table) -> None:
    late = cluster.execute(item, insert(7, 1, 1), late=True)
    cluster.execute(item, insert(7, 2, 2))
    assert [row.sku for row in log_of(cluster, item)] == [2]
    assert len(list(cluster.session.execute(f"SELECT * FROM {item.full_name}"))) == 2
    cluster.write_log(late)
    assert [row.sku for row in log_of(cluster, item)] == [1, 2]
    cluster.write_log(late)
    assert len(log_of(cluster, item)) == 2


def test_log_rows_expire_after_the_options_ttl(cluster: ImitatedScylla, item: Table) -> None:
    altered = cluster.alter_cdc("item", ttl=2)
    cluster.execute(altered, insert(7, 1, 1))
    assert len(log_of(cluster, item)) == 1
    cluster.alter_cdc("item", ttl=0)
    cluster.execute(altered, insert(7, 2, 1))
    time.sleep(3)
    assert [row.sku for row in log_of(cluster, item)] == [2]


def test_switched_off_nothing_is_logged_and_the_log_stays(cluster: ImitatedScylla, item: Table) -> None:
    cluster.execute(item, insert(7, 1, 1))
    off = cluster.alter_cdc("item", enabled=False)
    assert cluster.execute(off, insert(7, 2, 2)) == []
    assert [row.sku for row in log_of(cluster, item)] == [1]
    on = cluster.alter_cdc("item", enabled=True)
    cluster.execute(on, insert(7, 3, 3))
    assert [row.sku for row in log_of(cluster, item)] == [1, 3]


def test_options_and_releases_are_reported(cluster: ImitatedScylla, item: Table) -> None:
    (row,) = cluster.session.execute(f"SELECT * FROM {cluster.names.schema}.scylla_tables")
    assert (row.table_name, row.cdc["enabled"], row.cdc["delta"], row.cdc["ttl"]) == (
        "item",
        "true",
        "full",
        "86400",
    )
    cluster.alter_cdc("item", postimage=True)
    (row,) = cluster.session.execute(f"SELECT cdc FROM {cluster.names.schema}.scylla_tables")
    assert row.cdc["postimage"] == "true"
    (release,) = cluster.session.execute(f"SELECT version FROM {cluster.names.system}.versions")
    assert release.version == "2026.1.0"
    cluster.drop_table("item")
    assert not list(cluster.session.execute(f"SELECT * FROM {cluster.names.schema}.scylla_tables"))
    found = cluster.session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (cluster.keyspace,)
    )
    assert not list(found)


def test_tables_without_the_option_have_no_log(cluster: ImitatedScylla, item: Table) -> None:
    plain = replace(item, name="plain", cdc=CdcOptions(enabled=False))
    cluster.create_table(plain)
    assert cluster.execute(plain, insert(7, 1, 1)) == []
    found = cluster.session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (cluster.keyspace,)
    )
    assert sorted(row.table_name for row in found) == ["item", "item_scylla_cdc_log", "plain"]


def test_tables_that_cannot_be_captured_are_refused(cluster: ImitatedScylla, item: Table) -> None:
    counters = replace(item, name="counts", regular=(Column("n", CqlType("counter")),))
    with pytest.raises(InvalidRequest, match="Counter"):
        cluster.create_table(counters)
    with pytest.raises(InvalidRequest, match="log for a log"):
        cluster.create_table(replace(item, name=item.log_name))
    taken = replace(item, name="a_scylla_cdc_log", cdc=CdcOptions(enabled=False))
    cluster.create_table(taken)
    with pytest.raises(InvalidRequest, match="already exists"):
        cluster.create_table(replace(item, name="a"))


def test_columns_come_and_go_in_table_and_log(cluster: ImitatedScylla, item: Table) -> None:
    cluster.execute(item, insert(7, 1, 1))
    cluster.add_column("item", Column("sizes", CqlType("list", (INT,))))
    added = Update((i(7),), (i(1),), (AddElements("sizes", (i(4), i(5))),))
    cluster.execute("item", added)
    cluster.drop_column("item", "qty")
    cluster.execute("item", DeleteRow((i(7),), (i(2),)))
    rows = log_of(cluster, item)
    assert [len(row.sizes or {}) for row in rows] == [0, 2, 0]
    assert not any(name.endswith("qty") or name.endswith("qty_") for name in rows[0]._fields)
    assert cluster.tables["item"].select(int(time.time()))[0].keys() == {
        "shop",
        "sku",
        "name",
        "tags",
        "sizes",
    }


def test_tablets_have_streams_per_table_which_change_with_a_split(
    cassandra_session: Any, keyspace: str
) -> None:
    cluster = ImitatedScylla(cassandra_session, keyspace, tablets=2)
    cluster.create()
    table = cluster.create_table(
        Table(keyspace, "item", (Column("id", INT),), regular=(Column("qty", INT),))
    ).table
    before = cluster.stream_sets["item"].sets[0]
    after = cluster.resize_tablets("item", 4, cluster.clock_us() // 1000 + 1000)
    where = f"WHERE keyspace_name = '{keyspace}' AND table_name = 'item'"
    system = cluster.names.system
    times = cassandra_session.execute(
        f'SELECT toUnixTimestamp("timestamp") AS ms FROM {system}.cdc_timestamps {where}'
    )
    assert [row.ms for row in times] == [after.time_ms, before.time_ms]

    def streams(time_ms: int, state: int) -> set[bytes]:
        rows = cassandra_session.execute(
            f'SELECT stream_id FROM {system}.cdc_streams {where} AND "timestamp" = %s AND stream_state = %s',
            (time_ms, state),
        )
        return {row.stream_id for row in rows}

    assert streams(before.time_ms, 0) == set(before.streams)
    assert streams(before.time_ms, 1) == streams(before.time_ms, 2) == set()
    assert streams(after.time_ms, 0) == streams(after.time_ms, 2) == set(after.streams)
    assert streams(after.time_ms, 1) == set(before.streams)
    for key in range(20):
        old = Insert((i(key),), (), {"qty": i(1)}, after.time_ms * 1000 - 1)
        new = replace(old, timestamp=after.time_ms * 1000)
        first, second = cluster.execute(table, old, new)
        assert first.stream in before.streams
        assert second.stream in after.streams
    (row,) = cassandra_session.execute(f"SELECT initial_tablets FROM {cluster.names.schema}.scylla_keyspaces")
    assert row.initial_tablets == 2


def test_release_4_3_has_old_descriptions_alone(cluster: ImitatedScylla) -> None:
    cluster.create_as_of_4_3()
    (row,) = cluster.session.execute(
        f"SELECT streams FROM {cluster.names.distributed}.cdc_streams_descriptions"
    )
    assert set(row.streams) == set(cluster.generations.sets[0].streams)
    found = cluster.session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (cluster.names.distributed,)
    )
    assert [row.table_name for row in found] == ["cdc_streams_descriptions"]


def test_before_the_first_generation_writes_fail(cassandra_session: Any, keyspace: str) -> None:
    cluster = ImitatedScylla(cassandra_session, keyspace)
    cluster.create(first_generation=False)
    table = cluster.create_table(
        Table(keyspace, "item", (Column("id", INT),), regular=(Column("qty", INT),))
    ).table
    with pytest.raises(InvalidRequest, match="no stream"):
        cluster.execute(table, Insert((i(1),), (), {"qty": i(1)}))
