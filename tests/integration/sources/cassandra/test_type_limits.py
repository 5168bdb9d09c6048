"""Values at the ends of each type in a real node's log: in the mirror and in events, against a SELECT."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.events.decode import EventDecoder
from airflow_cdc_provider.sources.cassandra.events.types import EventTypes
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.connect_metadata import CONNECT_NAME
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from server_kit import create_keyspace
from tests.unit.sources.cassandra.frozen_values import (
    COLUMNS,
    DRIVER_TYPES,
    FIELDS,
    ROWS,
    assert_restored,
    native,
)
from tests.unit.sources.cassandra.type_limits import TEXT, TYPE_LIMITS, as_numbers, covers, whole
from tests.unit.sources.cql.cql_values import Native, parts

if TYPE_CHECKING:
    from server_kit import CassandraServer

pytestmark = pytest.mark.integration

KEYSPACE: Final = "type_limits"
LEAST, GREATEST = -(1 << 31), (1 << 31) - 1
TOTALS: Final = (-(1 << 63), (1 << 63) - 1, 0)
FROZEN_ROWS: Final = [{**row, "fl": row["fl"][:30_000]} for row in ROWS]
"""A statement has 512 KiB at most."""
WRITTEN_NOW: Final = 2**31 - 1
"""A time after all writes, none of which expires."""


def collection(*elements: bytes, pairs: bool = False) -> bytes:
    """Write a collection as a client does."""
    return struct.pack(">i", len(elements) // (1 + pairs)) + parts(list(elements))


NUMBERS = pa.list_(pa.int32())
COLLECTIONS: Final = (
    covers(
        "CAS-TYPE-13", "list<int>", NUMBERS, NUMBERS, "",
        [
            (collection(*(whole(v, 4) for v in shown)), shown or None, shown)
            for shown in ([GREATEST, LEAST, GREATEST], [])
        ],
    ),
    covers(
        "CAS-TYPE-14", "map<text, int>", pa.map_(pa.utf8(), pa.int32()), pa.map_(pa.utf8(), pa.int32()), "",
        [
            (
                collection(b"", whole(GREATEST, 4), TEXT.encode(), whole(LEAST, 4), pairs=True),
                *[[("", GREATEST), (TEXT, LEAST)]] * 2,
            ),
            (collection(), None, []),
        ],
    ),
    covers(
        "CAS-TYPE-15", "set<int>", NUMBERS, NUMBERS, "",
        [
            (collection(*(whole(v, 4) for v in shown)), shown or None, shown)
            for shown in ([LEAST, GREATEST], [])
        ],
    ),
)  # fmt: skip
CASES: Final = (*TYPE_LIMITS, *COLLECTIONS)
NAMES: Final = {case.values[0]: f"v{number:02}" for number, case in enumerate(CASES)}
"""The column of each type."""


@dataclass(frozen=True)
class Captured:
    """What the node logged of each table, and what a snapshot of the counters returned."""

    source: CassandraSource
    log: pa.Table
    counts: pa.Table

    def changes(self, table: str) -> pa.RecordBatch:
        (batch,) = self.log.filter(pc.equal(self.log["source_table"], table)).combine_chunks().to_batches()
        return batch

    def live(self, table: str, changes: pa.RecordBatch) -> tuple[CassandraCodec, pa.RecordBatch]:
        """Merge changes; return the codec, and the live rows."""
        codec = self.source.codec(table)
        decoded = codec.decode(changes, ())
        assert decoded.undecodable == []
        live = reconcile_cells(pa.Table.from_batches([decoded.contributions]), WRITTEN_NOW).live
        return codec, live.combine_chunks().to_batches()[0]

    def events(self, table: str, changes: pa.RecordBatch, types: EventTypes | None = None) -> pa.RecordBatch:
        found = EventDecoder(self.source.schemas.tables[table], types or EventTypes()).decode(changes)
        assert found.reasons == ()
        return found.events


def insert(session: Any, table: str, columns: Sequence[str], rows: Sequence[Sequence[Native]]) -> None:
    """Write rows, one after the other, whose values are the bytes that the node is to store."""
    from cassandra.query import BoundStatement

    marks = ", ".join("?" * len(columns))
    statement = session.prepare(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})")
    for values in rows:
        bound = BoundStatement(statement)
        bound.values = list(values)
        session.execute(bound)


@pytest.fixture(scope="module")
def captured(cassandra_server: CassandraServer, cassandra_session: Any) -> Iterator[Captured]:
    """A table with a column of each type, one of frozen columns, and one of counters."""
    run = cassandra_session.execute
    create_keyspace(cassandra_session, KEYSPACE)
    columns = ", ".join(f"{name} {cql_type}" for cql_type, name in NAMES.items())
    run(f"CREATE TYPE {KEYSPACE}.u {FIELDS}")
    run(f"CREATE TABLE {KEYSPACE}.ends (p int PRIMARY KEY, {columns}) WITH cdc = true")
    run(f"CREATE TABLE {KEYSPACE}.frozen_ends {COLUMNS.replace('<u>', f'<{KEYSPACE}.u>')} WITH cdc = true")
    run(f"CREATE TABLE {KEYSPACE}.counts (p int PRIMARY KEY, c counter) WITH cdc = true")
    for number in range(max(len(case.values[-1]) for case in CASES)):
        given = {NAMES[c.values[0]]: c.values[-1][number][0] for c in CASES if number < len(c.values[-1])}
        insert(cassandra_session, f"{KEYSPACE}.ends", ["p", *given], [[whole(number, 4), *given.values()]])
    rows = [[native(name, row.get(name)) for name in DRIVER_TYPES] for row in FROZEN_ROWS]
    insert(cassandra_session, f"{KEYSPACE}.frozen_ends", list(DRIVER_TYPES), rows)
    for number, total in enumerate(TOTALS):
        run(f"UPDATE {KEYSPACE}.counts SET c = c + %s WHERE p = {number}", (total,))
    cassandra_server.roll_segment(cassandra_session)
    options = {
        "type": "cassandra",
        "cdc_raw": str(cassandra_server.cdc_raw),
        "node": cassandra_server.host_id,
    }
    connector = Connector.from_dict(
        {"name": "c", "source": {**options, "consistency": "ONE"}, "tables": [rf"{KEYSPACE}\..*"]}
    )
    assert isinstance(connector.source, CassandraOptions)
    address = {"host": cassandra_server.host, "port": cassandra_server.port}
    with closing(CassandraSource(connector.source, address, connector.selects)) as source:
        plan = source.plan(None, source.head(), ReadLimit(1 << 40))
        log = pa.Table.from_batches(list(source.reader().read(plan.partitions, ReadMetrics())))
        ranges = source.plan_snapshot(f"{KEYSPACE}.counts").ranges
        counts = pa.Table.from_batches(source.snapshot_reader().read(ranges, ReadMetrics()))
        yield Captured(source, log, counts)
    run(f"DROP KEYSPACE {KEYSPACE}")


def parsed(texts: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Return rows by their key; numbers as their text: 1.0 is not 1.00."""
    rows = [json.loads(text, parse_float=str, parse_int=str) for text in texts]
    return {int(row["p"]): row for row in rows}


@pytest.mark.parametrize(("cql_type", "lake_type", "event_type", "name", "values"), CASES)
def test_values_at_the_ends_of_a_type_are_those_of_a_select_and_of_debezium(
    captured: Captured,
    cassandra_session: Any,
    cql_type: str,
    lake_type: pa.DataType,
    event_type: pa.DataType,
    name: str,
    values: list[tuple[bytes, Any, Any]],
) -> None:
    table, column, count = f"{KEYSPACE}.ends", NAMES[cql_type], len(values)
    changes = captured.changes(table)
    codec, live = captured.live(table, changes)
    mirror = codec.project(live)
    mirror = mirror.take(pc.sort_indices(mirror, [("p", "ascending")])).column(column)
    after = captured.events(table, changes).column("after")
    events = pc.struct_field(after, [column, "value"])

    selected = cassandra_session.execute(f"SELECT JSON p, {column} FROM {table}")
    theirs, ours = parsed([row[0] for row in selected]), parsed(list(codec.to_json(live)))
    assert [ours[p][column] for p in range(count)] == [theirs[p][column] for p in range(count)]
    assert mirror.type.equals(lake_type)
    assert events.type.equals(event_type)
    # repr distinguishes -0.0 from 0.0.
    assert repr(as_numbers(mirror)[:count]) == repr([lake for _, lake, _ in values])
    assert repr(events.to_pylist()[:count]) == repr([event for _, _, event in values])
    expected = {CONNECT_NAME: name.encode()} if name else None
    assert after.type.field(column).type.field("value").metadata == expected


@pytest.mark.covers("CAS-TYPE-10")
def test_frozen_values_are_those_of_a_select_in_any_format(
    captured: Captured, cassandra_session: Any
) -> None:
    table = f"{KEYSPACE}.frozen_ends"
    changes = captured.changes(table)
    codec, live = captured.live(table, changes)
    selected = {len(row.p): row._asdict() for row in cassandra_session.execute(f"SELECT * FROM {table}")}

    assert_restored(
        [selected[len(row["p"])] for row in FROZEN_ROWS],
        codec.project(live),
        captured.events(table, changes),
        captured.events(table, changes, EventTypes(frozen="bytes")),
    )


@pytest.mark.covers("CAS-TYPE-05")
def test_counters_are_those_of_a_select_and_only_a_snapshot_has_them(
    captured: Captured, cassandra_session: Any
) -> None:
    table = f"{KEYSPACE}.counts"
    (snapshot,) = captured.counts.combine_chunks().to_batches()
    codec, live = captured.live(table, snapshot)

    mirror = {row["p"]: row["c"] for row in codec.project(live).to_pylist()}
    selected = {row.p: row.c for row in cassandra_session.execute(f"SELECT p, c FROM {table}")}
    assert mirror == selected == dict(enumerate(TOTALS))
    events = captured.events(table, snapshot)
    value = pc.struct_field(events.column("after"), ["c", "value"])
    assert (value.type, sorted(value.to_pylist())) == (pa.int64(), sorted(TOTALS))
    logged = captured.source.codec(table).decode(captured.changes(table), ())
    assert logged.contributions["state"].null_count == len(logged.contributions) == len(TOTALS)
