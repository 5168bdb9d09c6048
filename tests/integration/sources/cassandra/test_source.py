"""The Cassandra source on a real node: snapshots, checks, schemas."""

from __future__ import annotations

import json
import logging
import pickle
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, UPSERT
from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, SCHEMA
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError, SchemaUnknown, TransientError
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.lake.unresolved import resolve
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Finding, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.cql import snapshot
from airflow_cdc_provider.sources.cql.comparable import comparable_bytes
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.programs import compile_types
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.types import parse_type, to_cql
from tests.chance import draw
from tests.integration.jobs.workloads import CASSANDRA_TABLES, create_cassandra, write_cassandra
from tests.seeds import seeds
from tests.unit.sources.cql.cql_values import SCALARS, values

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

BuildSource = Callable[..., CassandraSource]


@pytest.fixture
def keyspace(cassandra_session: Any) -> Iterator[str]:
    name = f"k{random.randrange(10**9)}"
    create_cassandra(cassandra_session, name)
    yield name
    cassandra_session.execute(f"DROP KEYSPACE {name}")


@pytest.fixture
def build(cassandra_server: CassandraServer, keyspace: str) -> Iterator[BuildSource]:
    built: list[CassandraSource] = []

    def source(*, connection: dict[str, Any] | None = None, **options: Any) -> CassandraSource:
        declared = {
            "type": "cassandra",
            "cdc_raw": str(cassandra_server.cdc_raw),
            "node": cassandra_server.host_id,
            "consistency": "LOCAL_ONE",
            **options,
        }
        connector = Connector.from_dict({"name": "c", "source": declared, "tables": [rf"{keyspace}\..*"]})
        assert isinstance(connector.source, CassandraOptions)
        values = {"host": cassandra_server.host, "port": cassandra_server.port}
        built.append(CassandraSource(connector.source, {**values, **(connection or {})}, connector.selects))
        return built[-1]

    yield source
    for made in built:
        made.close()


def _snapshot(source: CassandraSource, table: str, where: str | None = None) -> pa.Table:
    reader = pickle.loads(pickle.dumps(source.snapshot_reader()))  # as Spark sends it
    ranges = pickle.loads(pickle.dumps(source.plan_snapshot(table, where).ranges))
    return pa.Table.from_batches(reader.read(ranges, ReadMetrics()))


def _contributions(codec: CassandraCodec, changes: pa.Table) -> pa.Table:
    contributions = []
    for batch in changes.to_batches():
        decoded = codec.decode(batch, ())
        assert decoded.undecodable == []
        contributions.append(decoded.contributions)
    return pa.Table.from_batches(contributions, CONTRIBUTION_SCHEMA)


def _as_json(codec: CassandraCodec, live: pa.Table) -> list[str]:
    for batch in live.combine_chunks().to_batches():
        assert codec.project(batch).num_rows == batch.num_rows
    return sorted(text for batch in live.to_batches() for text in codec.to_json(batch))


def _texts(codec: CassandraCodec, changes: pa.Table, now_seconds: int | None = None) -> list[str]:
    live = reconcile_cells(_contributions(codec, changes), now_seconds or int(time.time())).live
    return _as_json(codec, live)


def _selected(session: Any, table: str) -> list[str]:
    return sorted(row[0] for row in session.execute(f"SELECT JSON * FROM {table}"))


@pytest.mark.covers("DSX-CON-09")
@pytest.mark.parametrize("fetch_size", [7, 5000])
def test_a_snapshot_equals_the_table_whatever_the_pages(
    build: BuildSource, cassandra_session: Any, keyspace: str, fetch_size: int
) -> None:
    write_cassandra(cassandra_session, keyspace, 1, count=400)
    time.sleep(3)
    source = build(advanced={"fetch_size": fetch_size, "ranges_per_snapshot": 5})
    assert source.tables() == sorted(f"{keyspace}.{t}" for t in CASSANDRA_TABLES)
    rows = 0
    for table in source.tables():
        assert len(source.plan_snapshot(table).ranges) >= 5, "what tasks read in parallel"
        changes = _snapshot(source, table)
        assert _texts(source.codec(table), changes) == _selected(cassandra_session, table)
        positions = changes.column("position").to_pylist()
        assert len(set(positions)) == len(positions)
        rows += len(changes)
    assert rows > 30


@pytest.mark.covers("CAS-SNAP-07")
@pytest.mark.parametrize("seed", seeds(2, 14))
def test_snapshot_and_log_merge_in_any_order_and_unresolved_keys_are_resolved(
    build: BuildSource,
    cassandra_server: CassandraServer,
    cassandra_session: Any,
    keyspace: str,
    seed: int,
) -> None:
    source = build()
    write_cassandra(cassandra_session, keyspace, seed, count=300)
    shots = {t: _snapshot(source, t) for t in source.tables()}
    write_cassandra(cassandra_session, keyspace, seed + 1, count=300)
    time.sleep(3)
    cassandra_server.roll_segment(cassandra_session)
    plan = source.plan(None, source.head(), ReadLimit(1 << 40))
    log = pa.Table.from_batches(list(source.reader().read(plan.partitions, ReadMetrics())))
    for table, shot in shots.items():
        codec, expected = source.codec(table), _selected(cassandra_session, table)
        own = log.filter(pc.equal(log["source_table"], table))
        found = [_contributions(codec, changes) for changes in (own, shot)]
        found = [part.take(np.random.default_rng(seed).permutation(len(part))) for part in found]
        merged = reconcile_cells(pa.concat_tables(found), int(time.time()))
        unresolved = set(merged.unresolved_keys.to_pylist())
        is_unresolved = pc.is_in(merged.live["key"], pa.array(unresolved, pa.binary()))
        assert set(_as_json(codec, merged.live.filter(pc.invert(is_unresolved)))) <= set(expected), table
        again = _contributions(
            codec, pa.Table.from_batches(source.read_keys(table, sorted(unresolved)), CHANGE_SCHEMA)
        )
        settled = [
            {
                "key": s.key,
                "scope": s.scope,
                "clustering": s.clustering,
                "generation": 0,
                "op": UPSERT,
                "state": s.state,
            }
            for s in resolve(
                merged.live.filter(is_unresolved),
                merged.tombstones.filter(
                    pc.is_in(merged.tombstones["key"], pa.array(unresolved, pa.binary()))
                ),
                again.to_batches(),
                int(time.time()),
            )
        ]
        answers = pa.Table.from_pylist(settled, CONTRIBUTION_SCHEMA)
        whole = reconcile_cells(pa.concat_tables([*found, again, answers]), int(time.time()))
        assert _as_json(codec, whole.live) == expected, table


@pytest.mark.covers("CAS-SNAP-07")
def test_write_times_and_expiries_are_those_of_the_server(
    build: BuildSource, cassandra_session: Any, keyspace: str
) -> None:
    table = f"{keyspace}.plain"
    cassandra_session.execute(f"INSERT INTO {table} (id, a) VALUES (1, 'x') USING TIMESTAMP -7")
    cassandra_session.execute(f"UPDATE {table} USING TTL 1000 SET b = 5 WHERE id = 1")
    expires = time.time() + 1000
    source = build()
    codec = source.codec(table)
    (state,) = codec.decode(_snapshot(source, table).to_batches()[0], ()).contributions["state"].to_pylist()
    times = {}
    at = 48
    while at < len(state):
        column, _, _, _, time_us, seconds, _, length = struct.unpack_from("<HBBiqqII", state, at)
        times[column] = (time_us, seconds)
        at += 32 + length
    ids = {c.name: c.id for c in codec.schema.regular}
    assert times[ids["a"]][0] == -7
    assert abs(times[ids["b"]][1] - expires) <= 2
    now = int(time.time())
    assert '"b": 5' in _texts(codec, _snapshot(source, table))[0]
    assert '"b": null' in _texts(codec, _snapshot(source, table), now + 1010)[0]


@pytest.mark.covers("CAS-EVT-15")
def test_events_of_deletions_have_the_times_of_their_statements(
    build: BuildSource, cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    table = f"{keyspace}.wide"
    wheres = ["p = 'p' AND c1 = 1 AND c2 = 'a'", "p = 'q'", "p = 'p' AND c1 > 2"]
    for time_us, where in enumerate(wheres, start=1_700_000_000_000_001):
        cassandra_session.execute(f"DELETE FROM {table} USING TIMESTAMP {time_us} WHERE {where}")
    cassandra_server.roll_segment(cassandra_session)
    source = build()
    plan = source.plan(None, source.head(), ReadLimit(1 << 40))
    log = pa.Table.from_batches(list(source.reader().read(plan.partitions, ReadMetrics())))
    own = log.filter(pc.equal(log["source_table"], table)).combine_chunks().to_batches()[0]
    events = EventDecoder(source.schemas.tables[table]).decode(own).events.to_pylist()
    first, second, third = (1_700_000_000_000_000 + n for n in (1, 2, 3))
    assert [(e["op"], e["ts_us"]) for e in events] == [("d", first), ("d", second), ("r", third)]
    assert [e["after"]["v"] and e["after"]["v"]["deletion_ts"] for e in events] == [first, second, None]


def test_a_long_lived_source_has_the_columns_and_tables_of_the_log_it_reads(
    build: BuildSource, cassandra_server: CassandraServer, cassandra_session: Any, keyspace: str
) -> None:
    source = build()
    offset = source.head()
    assert "h" not in {c.name for c in source.schemas.tables[f"{keyspace}.plain"].regular}
    cassandra_session.execute(f"ALTER TABLE {keyspace}.plain ADD h text")
    cassandra_session.execute(f"INSERT INTO {keyspace}.plain (id, h) VALUES (77, 'new')")
    cassandra_session.execute(f"CREATE TABLE {keyspace}.later (p int PRIMARY KEY) WITH cdc = true")
    cassandra_session.execute(f"INSERT INTO {keyspace}.later (p) VALUES (1)")
    cassandra_server.roll_segment(cassandra_session)
    plan = source.plan(offset, source.head(), ReadLimit(1 << 40))
    log = pa.Table.from_batches(list(source.reader().read(plan.partitions, ReadMetrics())))
    assert set(log["kind"].to_pylist()) == {CHANGE, SCHEMA}
    log = log.filter(pc.equal(log["kind"], CHANGE))
    for table, text in (("plain", '"h": "new"'), ("later", '{"p": 1}')):
        own = log.filter(pc.equal(log["source_table"], f"{keyspace}.{table}"))
        (selected_json,) = _texts(source.codec(f"{keyspace}.{table}"), own)
        assert text in selected_json


@pytest.mark.covers("CAS-SNAP-05", "CAS-CFG-02", "DSX-CON-09")
def test_a_snapshot_without_enough_replicas_fails_and_returns_nothing(
    build: BuildSource, cassandra_session: Any, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CassandraOptions().consistency == "ALL"
    table = f"{keyspace}.plain"
    for number in range(20):
        cassandra_session.execute(f"INSERT INTO {table} (id) VALUES ({number})")
    rows = _snapshot(build(consistency="ALL"), table).num_rows
    assert rows == 20
    for level in ("ONE", "QUORUM", "local_quorum", "LOCAL_ONE"):
        assert _snapshot(build(consistency=level), table).num_rows == rows
    monkeypatch.setattr(snapshot, "_FIRST_WAIT_SECONDS", 0.01)
    read: list[pa.RecordBatch] = []
    source = build(consistency="TWO")  # of the one replica that there is
    with pytest.raises(TransientError, match="plain"):
        for part in source.plan_snapshot(table).ranges:
            read += source.snapshot_reader().read([part], ReadMetrics())
    assert read == []


def test_a_filter_limits_the_snapshot(build: BuildSource, cassandra_session: Any, keyspace: str) -> None:
    table = f"{keyspace}.wide"
    for c1 in range(10):
        cassandra_session.execute(f"INSERT INTO {table} (p, c1, c2, v) VALUES ('p', %s, '', 'v')", (c1,))
    source = build()
    assert len(_texts(source.codec(table), _snapshot(source, table, "c1 >= 4 AND c1 < 7"))) == 3
    with pytest.raises(ConfigurationError, match="was rejected"):
        _snapshot(source, table, "nosuch = 1")


def test_whole_partitions_are_read_again_by_their_keys(
    build: BuildSource, cassandra_session: Any, keyspace: str
) -> None:
    table = f"{keyspace}.wide"
    for p in "abc":
        cassandra_session.execute(f"INSERT INTO {table} (p, c1, c2, s) VALUES (%s, 1, '', 3)", (p,))
    source = build()
    changes = pa.Table.from_batches(source.read_keys(table, [b"a", b"c", b"gone"]))
    assert set(changes["key"].to_pylist()) == {b"a", b"c"}
    assert len(_texts(source.codec(table), changes)) == 2


def test_every_type_is_formatted_like_the_server(
    build: BuildSource, cassandra_session: Any, keyspace: str
) -> None:
    names = ["ascii", "bigint", "blob", "boolean", "date", "decimal", "double", "duration", "float", "inet"]
    names += ["int", "smallint", "text", "time", "timestamp", "timeuuid", "tinyint", "uuid", "varint"]
    names += ["list<timestamp>", "set<decimal>", "map<inet, duration>", "map<uuid, frozen<list<text>>>"]
    names += [
        "frozen<map<frozen<map<int, int>>, text>>",
        "tuple<int, frozen<set<float>>>",
        "vector<double, 2>",
    ]
    columns = ", ".join(f"v{i} {name}" for i, name in enumerate(names))
    cassandra_session.execute(f"CREATE TABLE {keyspace}.kinds (p int PRIMARY KEY, {columns}) WITH cdc = true")
    extremes = [
        ("date", ["-5877641-06-23", "9999-12-31", "0000-01-01", "1969-12-31"]),
        ("timestamp", ["9223372036854775", "-9223372036854775", "0", "-62135596800001"]),
        ("decimal", ["1e30", "-0.00001", "0e-7", "123456789012345678901234567890.5"]),
        ("double", ["NaN", "-Infinity", "4.9e-324", "1.7976931348623157e308"]),
        ("float", ["1.4e-45", "3.4028235e38", "-0.0", "16777216"]),
        ("inet", ["'::ffff:1.2.3.4'", "'2001:db8::1'", "'255.255.255.255'", "'::'"]),
        ("varint", [str(2**200), str(-(2**64)), "0", "-1"]),
        ("duration", ["-1y2mo3d4h5m6s7ms8us9ns", "0s", "P1Y", "106751d"]),
        ("time", ["'23:59:59.999999999'", "'00:00:00'", "0", "1"]),
    ]
    for kind, literals in extremes:
        column = f"v{names.index(kind)}"
        for p, value in enumerate(literals):
            literal = f"'{value}'" if kind == "date" else value
            cassandra_session.execute(f"INSERT INTO {keyspace}.kinds (p, {column}) VALUES ({p}, {literal})")
    nested = {
        "list<timestamp>": "[0, 1, -1]",
        "set<decimal>": "{10, 2, -3.5, 2.50}",
        "map<inet, duration>": "{'1.2.3.4': 1d, '::1': 2h}",
        "map<uuid, frozen<list<text>>>": "{00000000-0000-0000-0000-000000000001: ['a', '']}",
        "frozen<map<frozen<map<int, int>>, text>>": "{{1: 2}: 'x'}",
        "tuple<int, frozen<set<float>>>": "(null, {1.5, -2})",
        "vector<double, 2>": "[1.5, -0.0]",
    }
    for kind, literal in nested.items():
        statement = f"INSERT INTO {keyspace}.kinds (p, v{names.index(kind)}) VALUES (9, {literal})"
        cassandra_session.execute(statement)
    source = build()
    table = f"{keyspace}.kinds"
    assert _texts(source.codec(table), _snapshot(source, table)) == _selected(cassandra_session, table)


@pytest.mark.parametrize(
    "kind",
    [
        *sorted(SCALARS),
        "frozen<list<int>>",
        "frozen<set<decimal>>",
        "frozen<map<text, double>>",
        "frozen<tuple<varint, text>>",
    ],
)
@pytest.mark.parametrize("order", ["ASC", pytest.param("DESC", marks=pytest.mark.long)])
def test_clusterings_sort_as_the_server_sorts_them(
    cassandra_session: Any, keyspace: str, kind: str, order: str
) -> None:
    from cassandra.query import BoundStatement

    rng = random.Random(f"{kind} {order}")
    cql_type = parse_type(kind)
    programs = compile_types([cql_type])
    name = f"{keyspace}.o{rng.randrange(10**6)}"
    cassandra_session.execute(
        f"CREATE TABLE {name} (p int, c {to_cql(cql_type)}, v int, PRIMARY KEY (p, c)) "
        f"WITH CLUSTERING ORDER BY (c {order})"
    )
    insert = cassandra_session.prepare(f"INSERT INTO {name} (p, c, v) VALUES (0, ?, ?)")
    # The server itself fails to write keys that hold empty numbers.
    tens = st.lists(values(cql_type, empties=False), min_size=10, max_size=10)
    drawn = [value for _ in range(6) for value in draw(tens, rng)]
    for number, value in enumerate(drawn):
        bound = BoundStatement(insert)
        bound.values = [value, struct.pack(">i", number)]
        cassandra_session.execute(bound)
    selected_json = [row.v for row in cassandra_session.execute(f"SELECT v FROM {name}")]
    descending = order == "DESC"
    encoded = [comparable_bytes(programs, 0, v, descending=descending) for v in drawn]
    # Of values that are equal to the server the last one stays.
    last = {code: number for number, code in enumerate(encoded)}
    assert selected_json == [last[code] for code in sorted(last)]


def test_the_servers_describe_gives_the_schema_of_its_own_tables(
    build: BuildSource, cassandra_session: Any, keyspace: str
) -> None:
    session = cassandra_session
    session.execute(
        f'CREATE TYPE {keyspace}."Odd ""T" (a int, "B" frozen<pair>)'.replace("<pair", f"<{keyspace}.pair")
    )
    session.execute(
        f'CREATE TABLE {keyspace}."T" ("K" int PRIMARY KEY, u {keyspace}."Odd ""T", x text, y set<int>)'
    )
    session.execute(f'ALTER TABLE {keyspace}."T" DROP x')
    session.execute(f'ALTER TABLE {keyspace}."T" DROP y')
    session.execute(f'ALTER TABLE {keyspace}."T" ADD x text')
    session.execute(f"CREATE INDEX ON {keyspace}.plain (a)")
    described = session.execute(f"DESCRIBE KEYSPACE {keyspace} WITH INTERNALS")
    text = "\n".join(row.create_statement for row in described)
    from_text = parse_cql(text)
    from_rows = build().schemas
    expected_rows = {n: t for n, t in from_rows.tables.items() if t.keyspace == keyspace}
    assert {n: _drops_in_milliseconds(t) for n, t in from_text.tables.items()} == expected_rows
    assert set(expected_rows[f"{keyspace}.T"].dropped) == {"x", "y"}


def _drops_in_milliseconds(table: TableSchema) -> TableSchema:
    """The server's memory, from which DESCRIBE is answered, has microseconds; its table has milliseconds."""
    dropped = {n: replace(d, dropped_at_us=d.dropped_at_us // 1000 * 1000) for n, d in table.dropped.items()}
    return replace(table, dropped=dropped)


def _levels(findings: list[Finding], subject: str) -> list[str]:
    return [f.level for f in findings if subject in f.subject]


def test_a_sound_set_up_has_no_findings_but_good_ones(build: BuildSource) -> None:
    findings = build().check()
    assert {f.level for f in findings} == {"ok"}, findings
    assert {f.subject.split(" on ")[0] for f in findings} >= {"connection", "version", "tables", "cdc_raw"}


def test_each_fault_of_the_set_up_is_one_finding_with_a_remedy(
    build: BuildSource, cassandra_session: Any, keyspace: str, tmp_path: Any
) -> None:
    session = cassandra_session
    session.execute(f"CREATE TABLE {keyspace}.off (a int PRIMARY KEY)")
    session.execute(f"CREATE TABLE {keyspace}.count (a int PRIMARY KEY, c counter) WITH cdc = true")
    session.execute(f"ALTER KEYSPACE {keyspace} WITH durable_writes = false")
    source = build(cdc_raw=str(tmp_path / "missing"), consistency="ANY", advanced={"rules": "3.11"})
    findings = source.check()
    assert _levels(findings, f"{keyspace}.off") == ["warning"]
    assert _levels(findings, f"{keyspace}.count") == ["error"]
    assert _levels(findings, "counters") == ["note"]
    assert _levels(findings, f"{keyspace}.plain") == ["error"]
    assert _levels(findings, "cdc_raw") == ["error"]
    assert _levels(findings, "consistency") == ["error"]
    assert _levels(findings, "version") == ["warning"]
    assert all(f.remedy for f in findings if f.level in ("warning", "error"))
    assert f"{keyspace}.off" not in source.tables()


def test_names_and_compact_tables_are_one_finding_each(
    build: BuildSource, cassandra_session: Any, keyspace: str
) -> None:
    session = cassandra_session
    session.execute(f'CREATE TYPE {keyspace}.odd ("first name" int, "a.b" int, a int, "A" int)')
    for table in ("one", "two"):
        session.execute(
            f'CREATE TABLE {keyspace}.{table} (id int PRIMARY KEY, name text, "NAME" text, t frozen<odd>) '
            "WITH cdc = true"
        )
        session.execute(
            f"CREATE TABLE {keyspace}.flat_{table} (k int PRIMARY KEY, v int) "
            "WITH COMPACT STORAGE AND cdc = true"
        )
    messages = {f.subject: f.message for f in build().check() if f.level != "ok"}
    assert set(messages) == {"names", "compact storage"}
    changed = "name is name__2, t.a is t.a__2, t.A is t.A__3"
    assert f"{keyspace}.one: {changed}; {keyspace}.two: {changed}" in messages["names"]
    assert messages["compact storage"].startswith(f"{keyspace}.flat_one, {keyspace}.flat_two: ")


@pytest.mark.covers("CAS-CFG-07", "CAS-CFG-08")
def test_a_cluster_that_does_not_answer_is_a_finding_and_a_transient_error(
    build: BuildSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source = build(
        connection={"port": 1, "login": "the-reader", "password": "s3cret"},
        advanced={"request_timeout_seconds": 1.0},
    )
    findings = source.check()
    assert _levels(findings, "connection") == ["error"]
    with pytest.raises(TransientError) as caught:
        source.tables()
    assert "s3cret" not in str(caught.value) + repr(findings) + repr(source) + repr(vars(caught.value))
    assert not any(secret in caplog.text for secret in ("the-reader", "s3cret"))


def test_a_secret_is_in_no_text_of_a_reader(build: BuildSource) -> None:
    source = build(connection={"login": "me", "password": "s3cret"})
    assert "s3cret" not in repr(source.snapshot_reader()) + repr(source)


def test_unknown_tables_are_rejected_by_name(build: BuildSource, keyspace: str) -> None:
    source = build()
    with pytest.raises(SchemaUnknown, match="nosuch"):
        source.codec(f"{keyspace}.nosuch")
    memory = json.loads(json.dumps(source.codec(f"{keyspace}.plain").remember()))
    again, first = source.codec(f"{keyspace}.plain", memory), source.codec(f"{keyspace}.plain")
    assert (again.schema, again.last_id) == (first.schema, first.last_id)
    assert not again.drift.recreated and not again.drift.replaced
