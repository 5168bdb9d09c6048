"""Commit-log segments to Arrow, against Cassandra's own CommitLogReader on the same files.

A real node writes rows of about 217 bytes into segments of 32 MiB and is stopped. Both readers then read the
same segments, warm, several times over; the best round of each counts, in CPU seconds of the whole process
(the JVM's collector included). Before that, entries, rows, cells and a hash over all values and write times
must agree, and our typed columns with the values that were written.

Cassandra's reader makes Java objects of each mutation and gives them to a handler that does nothing. Ours
makes change records (``capture``), cell rows with comparable keys (``decode``), and from them typed Arrow
columns (``project``); the ratio is reported for what the reader's objects correspond to, capture and decode,
and for all three.

Usage: python benchmarks/bench_commit_log.py [--rows 300000] [--rounds 8]
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from cassandra.concurrent import execute_concurrent_with_args

from airflow_cdc_provider.changes.cells import CELL_HEADER_BYTES, ROW_HEADER_BYTES
from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA
from airflow_cdc_provider.sources.cassandra.capture import LogFolder, SegmentSlice, head, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.tables import log_tables
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.reader import read_segments
from airflow_cdc_provider.sources.cassandra.records import ReadCounts
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.cql.projection import Projection
from airflow_cdc_provider.sources.cql.schema import TableSchema, number_columns
from airflow_cdc_provider.sources.cql.system_schema import load
from server_kit import CassandraServer
from server_kit.cassandra_releases import java_flags
from server_kit.jars import CASSANDRA_VERSION, cassandra_jars
from server_kit.programs import find_java, run_program

TABLE = (
    "CREATE TABLE bench.orders (id bigint PRIMARY KEY, customer text, amount bigint, status text, "
    "note text, total double) WITH cdc = true"
)
INSERT = "INSERT INTO bench.orders (id, customer, amount, status, note, total) VALUES (?, ?, ?, ?, ?, ?)"
_SOURCE = Path(__file__).with_name("CommitLogRead.java")
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Found:
    """Result of a reader."""

    entries: int
    rows: int
    cells: int
    hash: int


@dataclass(frozen=True)
class Times:
    """CPU seconds of one round."""

    capture: float
    decode: float
    project: float


def values(rows: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows to write, in the order of :data:`INSERT`."""
    return ((k, f"customer-{k % 5000:08d}", k * 7919 % 10**6, "paid", "n" * 90, k * 0.5) for k in range(rows))


def write_rows(server: CassandraServer, rows: int) -> TableSchema:
    """Write the rows, close the segments and return the table."""
    session = server.connect()
    session.execute(
        "CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute(TABLE)
    statement = session.prepare(INSERT)
    execute_concurrent_with_args(session, statement, values(rows), concurrency=200, raise_on_first_error=True)
    server.roll_segment(session)
    return number_columns(load(session).tables["bench.orders"])


def read_with_cassandra(server: CassandraServer, segments: Iterable[str], rounds: int) -> tuple[Found, float]:
    """Read segments of a stopped node with its own reader: what it found, and its best CPU seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = {**server.settings, "cdc_enabled": False, "commitlog_directory": f"{scratch}/commitlog"}
        Path(scratch, "cassandra.yaml").write_text(yaml.safe_dump(settings))
        Path(scratch, "logback.xml").write_text("<configuration/>")
        output = run_program(
            [
                find_java(),
                *java_flags(CASSANDRA_VERSION),
                "-Xms1g",
                "-Xmx1g",
                "-XX:+UseSerialGC",
                f"-Dcassandra.config=file://{scratch}/cassandra.yaml",
                f"-Dcassandra.storagedir={server.folder}",
                f"-Dlogback.configurationFile={scratch}/logback.xml",
                "-cp",
                f"{cassandra_jars()}/*",
                str(_SOURCE),
                "bench",
                str(rounds),
                *segments,
            ],
            "reading segments with Cassandra's reader",
        )
    lines = [line.split() for line in output.splitlines()]
    (found,) = (line[1:] for line in lines if line[:1] == ["found"])
    entries, rows, cells, value_hash = map(int, found)
    seconds = [int(line[1]) / 1e9 for line in lines if line[:1] == ["cpu_ns"]]
    return Found(entries, rows, cells, value_hash & _MASK), min(seconds)


class OurReader:
    """The same segments by this package."""

    def __init__(self, folder: Path, table: TableSchema) -> None:
        log = LogFolder(str(folder), "bench")
        self.tables = log_tables([table], {table.full_name})
        self.parts: list[SegmentSlice] = list(
            plan_segments(log, None, head(log), ReadLimit(bytes=1 << 40)).partitions
        )
        self.decoder = UpdateDecoder(table)
        self.projection = Projection(table)

    @property
    def segments(self) -> list[str]:
        """Paths of the segments."""
        return sorted({part.path for part in self.parts})

    def capture(self, counts: ReadCounts | None = None) -> list[pa.RecordBatch]:
        """Segments to change records."""
        found = [batch for part in self.parts for batch in read_segments(part, self.tables, counts)]
        return [b for b in found if b.column("kind")[0].as_py() == "change"]

    def decode(self, changes: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Change records to cell rows."""
        decoded = [self.decoder.decode(batch, ()) for batch in changes]
        if any(d.undecodable for d in decoded):
            raise SystemExit("some changes could not be decoded")
        return [d.contributions for d in decoded]

    def project(self, contributions: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Cell rows to typed columns."""
        return [self.projection.project(_as_live_rows(batch)) for batch in contributions]

    def found(self) -> Found:
        """Count and hash, value by value."""
        counts = ReadCounts()
        rows = cells = value_hash = 0
        for batch in self.decode(self.capture(counts)):
            for state in batch.column("state").to_pylist():
                rows += 1
                at = ROW_HEADER_BYTES + int.from_bytes(state[40:44], "little")
                while at < len(state):
                    timestamp, _, path, length = struct.unpack_from("<qqII", state, at + 8)
                    at += CELL_HEADER_BYTES + path
                    value_hash += zlib.crc32(state[at : at + length]) * (timestamp | 1)
                    at += length
                    cells += 1
        return Found(counts.entries, rows, cells, value_hash & _MASK)

    def time(self) -> Times:
        """Read everything once."""
        marks = [time.process_time()]
        changes = self.capture()
        marks.append(time.process_time())
        contributions = self.decode(changes)
        marks.append(time.process_time())
        self.project(contributions)
        marks.append(time.process_time())
        return Times(*(after - before for before, after in pairwise(marks)))


def _as_live_rows(contributions: pa.RecordBatch) -> pa.RecordBatch:
    count = contributions.num_rows
    columns: list[Any] = [
        contributions.column(field.name)
        if field.name in contributions.schema.names
        else pa.nulls(count, field.type)
        for field in LIVE_ROW_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LIVE_ROW_SCHEMA)


def main() -> None:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    with CassandraServer(commitlog_segment_size_mib=32, cdc_total_space_mib=4096, heap_mib=1024) as server:
        table = write_rows(server, arguments.rows)
        server.stop(drain=True)
        ours = OurReader(server.cdc_raw, table)
        our_found = ours.found()
        their_found, theirs = read_with_cassandra(server, ours.segments, arguments.rounds)
        if our_found != their_found:
            sys.exit(f"the readers differ: Cassandra's {their_found}, ours {our_found}")
        shown = pa.Table.from_batches(ours.project(ours.decode(ours.capture()))).sort_by("id")
        names = ("id", "customer", "amount", "status", "note", "total")
        written = zip(*values(arguments.rows), strict=True)
        if any(shown[name].to_pylist() != list(column) for name, column in zip(names, written, strict=True)):
            sys.exit("the typed columns are not the values that were written")
        best = min((ours.time() for _ in range(arguments.rounds)), key=lambda t: t.capture + t.decode)
        size = sum(Path(path).stat().st_size for path in ours.segments)
    print(f"{len(ours.segments)} segments, {size / 1e6:.0f} MB, {our_found}")
    print(f"{'':34}CPU s    us/row   ratio")
    for name, seconds in (
        ("Cassandra's CommitLogReader", theirs),
        ("ours: capture, decode", best.capture + best.decode),
        ("ours: capture, decode, project", best.capture + best.decode + best.project),
    ):
        print(f"{name:34}{seconds:5.3f}  {seconds / our_found.rows * 1e6:7.2f}  {theirs / seconds:6.2f}")
    print(f"(capture {best.capture:.3f}, decode {best.decode:.3f}, project {best.project:.3f})")


if __name__ == "__main__":
    main()
