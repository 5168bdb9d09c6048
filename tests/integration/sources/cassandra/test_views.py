"""Materialized views as the source sees them: taken by name alone, equal to the server's in any order."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from tests.integration.view_workload import VIEWS, create, write
from tests.oracles.contributions import fed_back
from tests.seeds import seeds

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

STRICT = ("by_v", "low")
"""Views whose rows live by a column of their key."""

BuildSource = Callable[[Sequence[str]], CassandraSource]


@pytest.fixture
def build(cassandra_server: CassandraServer, random_keyspace: str) -> Iterator[BuildSource]:
    built: list[CassandraSource] = []

    def source(tables: Sequence[str]) -> CassandraSource:
        options = {
            "type": "cassandra",
            "cdc_raw": str(cassandra_server.cdc_raw),
            "node": cassandra_server.host_id,
        }
        patterns = [pattern.format(ks=random_keyspace) for pattern in tables]
        connector = Connector.from_dict({"name": "c", "source": options, "tables": patterns})
        assert isinstance(connector.source, CassandraOptions)
        address = {"host": cassandra_server.host, "port": cassandra_server.port}
        built.append(CassandraSource(connector.source, address, connector.selects, names=connector.names))
        return built[-1]

    yield source
    for one in built:
        one.close()


def captured(source: CassandraSource) -> pa.Table:
    plan = source.plan(None, source.head(), ReadLimit(1 << 40))
    return pa.Table.from_batches(list(source.reader().read(plan.partitions, ReadMetrics())))


def contributions(codec: CassandraCodec, changes: pa.Table) -> pa.Table:
    found = []
    for batch in changes.to_batches():
        decoded = codec.decode(batch, ())
        assert not decoded.undecodable
        found.append(decoded.contributions)
    return pa.Table.from_batches(found, CONTRIBUTION_SCHEMA)


def merged(parts: pa.Table, rng: random.Random) -> Any:
    """Merge contributions shuffled and in portions, some of them twice."""
    order = list(range(len(parts)))
    order += rng.sample(order, len(order) // 3)
    rng.shuffle(order)
    cuts = sorted(rng.sample(range(len(order) + 1), 3))
    result = reconcile_cells(parts.slice(0, 0), int(time.time()))
    for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True):
        portion = parts.take(pa.array(order[low:high], pa.int64()))
        result = reconcile_cells(pa.concat_tables([portion, fed_back(result)]), int(time.time()))
    return result


def texts(codec: CassandraCodec, live: pa.Table) -> list[str]:
    return sorted(text for batch in live.combine_chunks().to_batches() for text in codec.to_json(batch))


def selected(session: Any, table: str) -> list[str]:
    return sorted(row[0] for row in session.execute(f"SELECT JSON * FROM {table}", timeout=60))


@pytest.mark.parametrize("seed", seeds(0, 1, 2, 3))
def test_views_read_from_the_log_equal_the_servers_in_any_order_of_changes(
    build: BuildSource,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    random_keyspace: str,
    seed: int,
) -> None:
    create(cassandra_session, random_keyspace)
    rng = random.Random(seed)
    write(cassandra_session, random_keyspace, rng, 250)
    time.sleep(4)
    cassandra_server.roll_segment(cassandra_session)
    source = build(["{ks}\\..*", *(f"{{ks}}\\.{view}" for view in VIEWS)])
    log = captured(source)
    shown = 0
    for view in VIEWS:
        name = f"{random_keyspace}.{view}"
        codec = source.codec(name)
        own = contributions(codec, log.filter(pc.equal(log["source_table"], name)))
        expected = selected(cassandra_session, name)
        assert texts(codec, merged(own, rng).live) == expected, name
        shown += len(expected)
    assert shown > 10


@pytest.mark.parametrize("seed", seeds(10, 11))
def test_a_snapshot_of_a_view_and_later_changes_equal_it_and_so_do_its_keys_read_again(
    build: BuildSource,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    random_keyspace: str,
    seed: int,
) -> None:
    create(cassandra_session, random_keyspace)
    rng = random.Random(seed)
    write(cassandra_session, random_keyspace, rng, 150)
    cassandra_server.roll_segment(cassandra_session)
    source = build(["{ks}\\..*", *(f"{{ks}}\\.{view}" for view in VIEWS)])
    before = captured(source).num_rows
    reader = source.snapshot_reader()
    read = {
        view: pa.Table.from_batches(
            list(reader.read(source.plan_snapshot(f"{random_keyspace}.{view}").ranges, ReadMetrics()))
        )
        for view in STRICT
    }
    write(cassandra_session, random_keyspace, rng, 150)
    time.sleep(4)
    cassandra_server.roll_segment(cassandra_session)
    log = captured(source).slice(before)
    certain = 0
    for view in STRICT:
        name = f"{random_keyspace}.{view}"
        codec = source.codec(name)
        own = log.filter(pc.equal(log["source_table"], name))
        result = merged(pa.concat_tables([contributions(codec, read[view]), contributions(codec, own)]), rng)
        expected = selected(cassandra_session, name)
        keys = pc.unique(pc.fill_null(result.live["key"], b""))
        again = list(source.read_keys(name, keys.to_pylist()))
        reread = contributions(codec, pa.Table.from_batches(again, log.schema)) if again else None
        if reread is not None:
            live = reconcile_cells(reread, int(time.time())).live
            assert set(texts(codec, live)) <= set(expected)
        # Elements of lists have no paths in a SELECT: keys whose lists changed since are read again.
        is_unresolved = pc.is_in(result.live["key"], value_set=result.unresolved_keys.cast(pa.binary()))
        sure = texts(codec, result.live.filter(pc.invert(is_unresolved)))
        assert set(sure) <= set(expected), name
        if not len(result.unresolved_keys):
            assert sure == expected, name
        certain += len(sure)
    assert certain > 3


@pytest.mark.covers("CAS-UNSUP-05")
def test_a_view_is_counted_and_skipped_unless_it_is_named(
    build: BuildSource, cassandra_server: CassandraServer, cassandra_session: Any, random_keyspace: str
) -> None:
    create(cassandra_session, random_keyspace)
    write(cassandra_session, random_keyspace, random.Random(0), 40)
    cassandra_server.roll_segment(cassandra_session)
    base, view = f"{random_keyspace}.base", f"{random_keyspace}.by_v"

    def read(*tables: str) -> tuple[list[str], Counter[str], int]:
        """Return the captured tables, how many changes each has, and how many views' updates were counted."""
        source = build(tables)
        metrics = ReadMetrics()
        plan = source.plan(None, source.head(), ReadLimit(1 << 40))
        changes = pa.Table.from_batches(source.reader().read(plan.partitions, metrics))
        of_tables = changes.filter(pc.equal(changes["kind"], CHANGE))["source_table"].to_pylist()
        return source.tables(), Counter(of_tables), metrics.skipped[cassandra_server.host_id, "view"]

    for patterns in (["{ks}\\..*"], ["{ks}\\.by_.*", "{ks}\\.base"]):
        tables, changes, counted = read(*patterns)
        assert tables == list(changes) == [base]
        assert counted > 10
    for name in ("{ks}.by_v", "{ks}\\.by_v"):
        tables, changes, left = read("{ks}\\..*", name)
        assert tables == sorted(changes) == [base, view]
        assert changes[view] == counted - left > 10
    assert read("{ks}\\.by_v")[0] == [view]


def test_a_named_view_that_cannot_be_captured_is_refused_alone_with_the_remedy(
    build: BuildSource, cassandra_session: Any, random_keyspace: str
) -> None:
    create(cassandra_session, random_keyspace)
    cassandra_session.execute(f"ALTER MATERIALIZED VIEW {random_keyspace}.by_v WITH cdc = false")
    cassandra_session.execute(
        f"CREATE MATERIALIZED VIEW {random_keyspace}.of_one AS SELECT * FROM {random_keyspace}.base "
        "WHERE p = 1 AND c IS NOT NULL AND v IS NOT NULL PRIMARY KEY (v, p, c) WITH cdc = true"
    )
    off = build(["{ks}\\.base", "{ks}\\.by_v"])
    base, by_v = off.tables()
    assert off.codec(base).table == base
    for refused in (off.codec, off.plan_snapshot):
        with pytest.raises(ConfigurationError, match=r"ALTER MATERIALIZED VIEW \w+\.by_v WITH cdc = true"):
            refused(by_v)
    with pytest.raises(ConfigurationError, match=r"p = 1"):
        build(["{ks}\\.of_one"]).codec(f"{random_keyspace}.of_one")
    levels = {f.subject: f.level for f in off.check()}
    assert levels[f"{random_keyspace}.by_v"] == "error"
    cassandra_session.execute(f"ALTER MATERIALIZED VIEW {random_keyspace}.by_v WITH cdc = true")
    assert build(["{ks}\\.base", "{ks}\\.by_v"]).tables() == [
        f"{random_keyspace}.base",
        f"{random_keyspace}.by_v",
    ]


def test_a_row_that_moves_to_another_key_gives_a_deletion_and_an_insert(
    build: BuildSource, cassandra_server: CassandraServer, cassandra_session: Any, random_keyspace: str
) -> None:
    create(cassandra_session, random_keyspace)
    run = cassandra_session.execute
    run(f"INSERT INTO {random_keyspace}.base (p, c, v, t) VALUES (1, 1, 7, 'a') USING TIMESTAMP 1000")
    run(f"UPDATE {random_keyspace}.base USING TIMESTAMP 2000 SET v = 8, t = 'b' WHERE p = 1 AND c = 1")
    run(f"DELETE FROM {random_keyspace}.base USING TIMESTAMP 3000 WHERE p = 1 AND c = 1")
    cassandra_server.roll_segment(cassandra_session)
    source = build(["{ks}\\.by_v"])
    log = captured(source)
    own = log.filter(pc.equal(log["source_table"], f"{random_keyspace}.by_v")).combine_chunks()
    decoder = EventDecoder(source.schemas.tables[f"{random_keyspace}.by_v"])
    (changes,) = own.to_batches()

    events = decoder.decode(changes).events.to_pylist()

    cells = [event["after"]["t"] for event in events]
    published = [
        (event["op"], event["key"]["v"], text["value"], text["deletion_ts"])
        for event, text in zip(events, cells, strict=True)
    ]
    assert sorted(published, key=repr) == [
        ("d", 7, None, 1000),
        ("d", 8, None, 3000),
        ("i", 7, "a", None),
        ("i", 8, "b", None),
    ]
