"""Random statements with schema changes in between: captures at any times merge to the tables."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cassandra.cluster import NoHostAvailable

from airflow_cdc_provider.changes.fence import FenceRecord, add_fences, newest_generation
from airflow_cdc_provider.changes.record import CHANGE, CHANGE_SCHEMA, QUARANTINE, SCHEMA, TRUNCATE
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.lake.reconcile import reconcile_cells
from airflow_cdc_provider.sources.cassandra.codec import CassandraCodec
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.recordings import Recording
from server_kit import CassandraServer
from tests.integration.sources.cassandra.random_schemas import RandomSchema
from tests.integration.sources.cassandra.random_writes import write
from tests.oracles.cassandra_read_path import read
from tests.oracles.contributions import fed_back
from tests.recorded_lines import row_lines
from tests.seeds import seeds

pytestmark = [
    pytest.mark.integration,
    # Hypothesis takes a random number that a thread of the driver draws meanwhile for one of a strategy.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]


@pytest.fixture
def cassandra_server() -> Iterator[CassandraServer]:
    """A node whose log is read from its beginning: what it has of other tests can't always be explained."""
    with CassandraServer() as server:
        yield server


@pytest.fixture
def cassandra_session(cassandra_server: CassandraServer) -> Any:
    return cassandra_server.connect()


class Captured:
    """What captures took so far: a new source each time, as each run has."""

    def __init__(self, server: CassandraServer, connector: Connector) -> None:
        self.server = server
        self.connector = connector
        self.records = pa.table([[] for _ in CHANGE_SCHEMA], schema=CHANGE_SCHEMA)
        self.offset: Offset | None = None

    def source(self) -> CassandraSource:
        assert isinstance(self.connector.source, CassandraOptions)
        address = {"host": self.server.host, "port": self.server.port}
        source = CassandraSource(self.connector.source, address, self.connector.selects)
        source.learn(self.records)
        return source

    def capture(self, limit: int) -> None:
        """Take what there is, in batches of a size."""
        with closing(self.source()) as source:
            stop = source.head()
            self._add([pa.RecordBatch.from_pylist(list(source.schema_records()), CHANGE_SCHEMA)])
            source.learn(self.records)
            while True:
                plan = source.plan(self.offset, stop, ReadLimit(limit))
                batches = list(source.reader().read(plan.partitions, ReadMetrics()))
                batches.append(pa.RecordBatch.from_pylist(list(plan.records), CHANGE_SCHEMA))
                self._add(batches)
                self.offset = plan.end
                source.learn(self.records)
                if plan.at_head:
                    break
            self._land(source)

    def _land(self, source: CassandraSource) -> None:
        """Read quarantined mutations again at the end, as a run does: with the schema from the later log."""
        is_quarantined = pc.equal(self.records["kind"], QUARANTINE)
        quarantined = self.records.filter(is_quarantined).combine_chunks().to_batches()
        self.records = self.records.filter(pc.invert(is_quarantined))
        self._add([found for batch in quarantined for found in source.quarantine_reader()(batch)])

    def _add(self, batches: list[pa.RecordBatch]) -> None:
        self.records = pa.concat_tables([self.records, pa.Table.from_batches(batches, CHANGE_SCHEMA)])


def merged(codec: CassandraCodec, records: pa.Table, rng: random.Random) -> pa.Table:
    """Merge shuffled changes, some of them twice, in batches that are merged one by one."""
    fences = add_fences(
        (), map(FenceRecord.of, records.filter(pc.equal(records["kind"], TRUNCATE)).to_pylist())
    )
    changes = records.filter(pc.equal(records["kind"], CHANGE))
    order = [*range(len(changes)), *rng.choices(range(len(changes)), k=len(changes) // 3)]
    rng.shuffle(order)
    cuts = sorted(rng.choices(range(len(order) + 1), k=3))
    now = int(time.time())
    kept = None
    for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True):
        (portion,) = changes.take(pa.array(order[low:high], pa.int64())).combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], CHANGE_SCHEMA)
        ]
        decoded = codec.decode(portion, fences)
        assert not decoded.undecodable, decoded.reasons
        met = pa.Table.from_batches([decoded.contributions])
        if kept is not None:
            met = pa.concat_tables([met, fed_back(kept)])
        kept = reconcile_cells(met, now, codec.rules, min_generation=newest_generation(fences))
    assert kept is not None
    return kept.live


def as_json(codec: CassandraCodec, live: pa.Table) -> list[str]:
    batches = live.combine_chunks().to_batches()
    for batch in batches:
        assert codec.project(batch).num_rows == batch.num_rows
    return sorted(text for batch in batches for text in codec.to_json(batch))


def write_times(codec: CassandraCodec, live: pa.Table) -> Counter[tuple[str, int]]:
    """Count the write times of cells, by column; of columns with one cell a row."""
    names = {c.id: c.name for c in codec.schema.regular if not c.type.multi_cell}
    states = live.filter(pc.is_valid(live["state"]))["state"].to_pylist()
    cells = [cell for state in states for cell in read(state).cells if cell.column in names]
    return Counter((names[c.column], c.time) for c in cells if not c.tombstone)


def their_write_times(session: Any, codec: CassandraCodec) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for column in codec.schema.regular:
        if not column.type.multi_cell:
            rows = session.execute(f"SELECT WRITETIME({column.name}) FROM {codec.table}")
            found.update((column.name, row[0]) for row in rows if row[0] is not None)
    return found


def is_whole(folder: Path) -> bool:
    """Return whether a node kept all its segments. It keeps none with only schema changes.

    DROP and TRUNCATE start a new segment, so a CREATE between two of them may be in such a segment.
    """
    ids = sorted(int(file.stem.rpartition("-")[2]) for file in folder.glob("*.log"))
    return ids == list(range(ids[0], ids[-1] + 1))


def undefined_tables(records: pa.Table) -> Iterator[str]:
    """Check why changes are quarantined: their tables were dropped, and no record has their definition."""
    definitions = records.filter(pc.equal(records["kind"], SCHEMA))["payload"].to_pylist()
    for reason in records.filter(pc.equal(records["kind"], QUARANTINE))["reason"].to_pylist():
        found = re.match(r"unknown-table: .*\(([0-9a-f]{32}) at", reason)
        assert found, reason
        table_id = bytes.fromhex(found[1])
        assert not any(table_id in payload for payload in definitions), reason
        yield reason


def rows_offline(connector: Connector, folder: Path) -> dict[str, list[str]]:
    """Return what a recording adds up to, its schema known from the log alone."""
    damage = SkippedRecords(strict=False)
    chunks = row_lines(connector, Recording(folder, "", time.time_ns()), damage)
    rows: dict[str, list[str]] = {}
    for line in filter(None, b"".join(map(text_of, chunks)).decode().split("\n")):  # values have other ends
        table, _, row = line.removeprefix('{"table":"').partition('","row":')
        rows.setdefault(table, []).append(row.removesuffix("}"))
    assert not damage.undecodable
    return rows


def compare(
    server: CassandraServer, session: Any, keyspace: str, seed: int, tables: int, rounds: int, tmp_path: Path
) -> Counter[str]:
    """Write, change the schema and capture in turn; then compare each table in two ways."""
    rng = random.Random(seed)
    options = {
        "type": "cassandra",
        "cdc_raw": str(server.cdc_raw),
        "node": server.host_id,
        "advanced": {"timestamps": "milliseconds"},  # some lie beyond the lake's
    }
    connector = Connector.from_dict({"name": "c", "source": options, "tables": [rf"{keyspace}\.t.*"]})
    captured = Captured(server, connector)
    schema = RandomSchema(rng, keyspace)
    schema.create(session, tables)
    session.execute(f"CREATE TABLE {keyspace}.visits (k int PRIMARY KEY, n counter) WITH cdc = true")
    seen: Counter[str] = Counter()
    schema_changes = []
    for _ in range(rounds):
        done, refused = write(session, schema.statements(rng.randrange(1, 40)))
        session.execute(f"UPDATE {keyspace}.visits SET n = n + 1 WHERE k = {rng.randrange(3)}")
        seen.update(statements=done, refused=refused)
        schema_changes += [schema.change(session) for _ in range(rng.choice([0, 1, 1, 2]))]
        if rng.random() < 0.3:
            captured.capture(rng.choice([1000, 20_000, 1 << 40]))
            seen["captures"] += 1
    time.sleep(3)  # short TTLs run out
    server.roll_segment(session)
    captured.capture(1 << 40)
    seen.update(schema.done)
    story = "\n".join([f"seed {seed}", *schema_changes])
    records = captured.records
    whole = is_whole(server.cdc_raw)
    for unexplained in undefined_tables(records):
        assert not whole, f"{unexplained}\n{story}"
        seen["undefined"] += 1
    assert records.filter(pc.equal(records["kind"], SCHEMA)).num_rows > tables

    folder = tmp_path / str(seed)
    for copy in ("node-1", "node-2"):  # two replicas that hold the same
        shutil.copytree(server.cdc_raw, folder / copy)
    alone = Connector.from_dict({**connector_of(folder), "tables": [rf"{keyspace}\.t.*"]})
    offline = rows_offline(alone, folder) if whole else None
    with closing(captured.source()) as source:
        source.head()
        for table in schema.tables:
            try:
                selected_json = sorted(row[0] for row in session.execute(f"SELECT JSON * FROM {table.name}"))
            except NoHostAvailable:  # the server accepted a value that it can't return
                seen["unreadable"] += 1
                continue
            codec = source.codec(table.name)
            own = records.filter(pc.equal(records["source_table"], table.name))
            live = merged(codec, own, rng)
            assert as_json(codec, live) == selected_json, f"{table.create()}\n{story}"
            assert write_times(codec, live) == their_write_times(session, codec), story
            if offline is not None:
                assert sorted(offline.get(table.name, [])) == selected_json, f"{table.create()}\n{story}"
                seen["offline"] += 1
            seen.update(compared=1, rows=len(selected_json))
    return seen


def connector_of(folder: Path) -> dict[str, Any]:
    advanced = {"timestamps": "milliseconds"}
    return {"name": "c", "source": {"type": "cassandra", "cdc_raw": str(folder), "advanced": advanced}}


@pytest.mark.covers("CAS-SCHEMA-04")
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_tables_whose_schema_changes_equal_the_source(
    cassandra_server: CassandraServer, cassandra_session: Any, random_keyspace: str, seed: int, tmp_path: Path
) -> None:
    seen = compare(cassandra_server, cassandra_session, random_keyspace, seed, 3, 12, tmp_path)
    assert seen["statements"] > 100
    assert seen["drop"], "columns that have values in the log"
    assert seen["compared"] > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_schema_changes_on_many_tables_equal_the_source(
    cassandra_server: CassandraServer, cassandra_session: Any, random_keyspace: str, seed: int, tmp_path: Path
) -> None:
    seen = compare(cassandra_server, cassandra_session, random_keyspace, seed, 5, 60, tmp_path)
    assert seen["statements"] > 700
    assert {"add", "drop", "add again", "rename", "truncate", "re-create"} <= set(seen)
