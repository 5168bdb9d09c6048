"""Recordings of a real Cassandra 5.0.9 node, and what Cassandra's own reader makes of them.

tests/fixtures/cassandra/A: ``cdc_raw`` as a reader meets it (segments packed), ``schema.cql`` at the end,
``updates.jsonl.gz`` with every update of a table that still exists, decoded by Cassandra's
``CommitLogReader``.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.sources.cassandra.capture import LogFolder, head, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys, open_keys
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables, log_tables
from airflow_cdc_provider.sources.cassandra.decoding.decode import UpdateDecoder
from airflow_cdc_provider.sources.cassandra.options import CassandraEncryption
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.reader import read_segments
from airflow_cdc_provider.sources.cassandra.records import ReadCounts
from airflow_cdc_provider.sources.contract import Offset, ReadLimit
from airflow_cdc_provider.sources.cql.comparable import AFTER, encode_clustering
from airflow_cdc_provider.sources.cql.describe import parse_cql
from airflow_cdc_provider.sources.cql.programs import compile_clustering
from airflow_cdc_provider.sources.cql.schema import Schemas, TableSchema
from airflow_cdc_provider.sources.cql.scratch import new_scratch
from tests.oracles.cassandra_read_path import (
    NEVER,
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
    STATIC,
    Cell,
    Contribution,
    Liveness,
    Row,
    read,
)

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "cassandra" / "A"
VARIANTS = ("v7-plain", "v8-plain", "v7-lz4", "v7-zstd", "v7-encrypted")
HOST = "6f1c1e0a-0000-4000-8000-000000000001"

Place = tuple[int, int, str]
"""Segment, logical end of the entry, table: names an update."""


@dataclass(frozen=True)
class Recording:
    """One recording."""

    folder: Path

    @property
    def log(self) -> LogFolder:
        return LogFolder(str(self.folder / "cdc_raw"), HOST, recorded=True, keys=self.keys)

    @property
    def keys(self) -> Keys | None:
        """What opens its segments."""
        keystore = self.folder / "keystore.jceks"
        options = CassandraEncryption(str(keystore) if keystore.exists() else "", "cassandra")
        return open_keys(options, {})

    @property
    def schemas(self) -> Schemas:
        return parse_cql((self.folder / "schema.cql").read_text())

    def tables(self, selected: Iterable[str] | None = None) -> LogTables:
        """All tables known, those named (default: all) selected."""
        schemas = self.schemas.tables
        return log_tables(schemas.values(), set(schemas if selected is None else selected))

    def updates(self) -> Iterator[dict[str, Any]]:
        """What Cassandra's reader found."""
        with gzip.open(self.folder / "updates.jsonl.gz", "rt") as lines:
            for line in lines:
                yield json.loads(line)

    def unpack(self, target: Path) -> Path:
        """Write ``cdc_raw`` as a node has it, and return its folder."""
        target.mkdir(parents=True)
        for path in (self.folder / "cdc_raw").iterdir():
            data = path.read_bytes()
            packed = path.suffix == ".gz"
            (target / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(data) if packed else data)
        return target

    def segment_bytes(self) -> dict[int, bytes]:
        """The unpacked segments by id."""
        return {
            int(path.name.split("-")[2].split(".")[0]): gzip.decompress(path.read_bytes())
            for path in sorted((self.folder / "cdc_raw").glob("*.log.gz"))
        }


@cache
def recording(variant: str) -> Recording:
    return Recording(FIXTURES / variant)


def read_all(
    log: LogFolder,
    tables: LogTables,
    start: Offset | None = None,
    limit: ReadLimit | None = None,
    counts: ReadCounts | None = None,
) -> tuple[pa.Table, Offset]:
    """Read everything up to the head, in batches of the limit."""
    stop = head(log)
    offset = start
    batches: list[pa.RecordBatch] = []
    while True:
        plan = plan_segments(log, offset, stop, limit or ReadLimit())
        for part in plan.partitions:
            batches += read_segments(part, tables, counts, keys=log.keys)
        offset = plan.end
        if plan.at_head:
            break
    return pa.Table.from_batches(batches) if batches else pa.table({}), offset


def of_kind(records: pa.Table, kind: str) -> pa.Table:
    return records.filter(pa.compute.equal(records["kind"], kind))


def places(changes: pa.Table) -> list[Place]:
    """Name each change as updates are named."""
    positions = [Position.unpack(p) for p in changes["position"].to_pylist()]
    tables = changes["source_table"].to_pylist()
    return [(p.segment, p.end, table) for p, table in zip(positions, tables, strict=True)]


def decode_all(
    changes: pa.Table, schemas: Mapping[str, TableSchema]
) -> tuple[dict[Place, list[Contribution]], list[str]]:
    """Decode changes of all tables: contributions by update, and reasons of what was left out."""
    found: dict[Place, list[Contribution]] = defaultdict(list)
    reasons: list[str] = []
    for table in sorted(set(changes["source_table"].to_pylist())):
        mine = changes.filter(pa.compute.equal(changes["source_table"], table)).combine_chunks()
        # The generation carries the number of the change that a contribution is from.
        numbered = mine.set_column(
            mine.schema.get_field_index("generation"), "generation", pa.array(range(len(mine)))
        )
        names = places(mine)
        decoded = UpdateDecoder(schemas[table]).decode(numbered.to_batches()[0], ())
        reasons += decoded.reasons
        for row in decoded.contributions.to_pylist():
            assert row["op"] == 0
            assert row["version"] is None
            found[names[row["generation"]]].append(contribution(row))
    return found, reasons


def contribution(row: Mapping[str, Any]) -> Contribution:
    """Decode an Arrow row of a contribution; its generation is omitted."""
    return Contribution(
        row["key"], row["scope"], row["clustering"], row["clustering_end"], 0, read(row["state"])
    )


def expected_contributions(update: Mapping[str, Any], schema: TableSchema) -> list[Contribution]:
    """Convert an update from Cassandra's reader to contributions."""
    key = bytes.fromhex(update["key"])
    found = []
    if deletion := update.get("partition_deletion"):
        found.append(Contribution(key, PARTITION_DELETION, b"", None, 0, Row(deletion=tuple(deletion))))
    if "static" in update and (row := _row(update["static"], schema, b"")):
        found.append(Contribution(key, STATIC, b"", None, 0, row))
    lower, deletion = b"", (0, 0)
    for item in update.get("unfiltered", ()):
        values = [None if v is None else bytes.fromhex(v) for v in item.get("clustering", item.get("values"))]
        native = b"".join(
            struct.pack("<i", -1) if v is None else struct.pack("<i", len(v)) + v for v in values
        )
        if "marker" not in item:
            if row := _row(item, schema, native):
                found.append(Contribution(key, ROW, comparable(schema, values), None, 0, row))
            continue
        after = item["marker"] in ("INCL_END_BOUND", "EXCL_START_BOUND", "INCL_END_EXCL_START_BOUNDARY")
        bound = comparable(schema, values) + (bytes([AFTER]) if after and values else b"")
        if close := item.get("close"):
            assert tuple(close) == deletion
            upper = bound if values else None
            found.append(Contribution(key, RANGE_DELETION, lower, upper, 0, Row(deletion=deletion)))
        if opening := item.get("open"):
            lower, deletion = bound, tuple(opening)
    return found


def comparable(schema: TableSchema, values: list[bytes | None]) -> bytes:
    """Encode a clustering or a prefix of one."""
    program = compile_clustering(schema)
    native = b"".join(struct.pack("<i", -1) if v is None else struct.pack("<i", len(v)) + v for v in values)
    out = np.empty(8 * len(native) + 4096, np.uint8)
    data = np.frombuffer(native or b"\0", np.uint8)
    end = encode_clustering(
        program.nodes,
        program.roots,
        program.descending,
        len(values),
        data,
        0,
        len(native),
        new_scratch(len(native)),
        out,
        0,
    )
    assert 0 <= end <= len(out)
    return out[:end].tobytes()


def _row(recorded: Mapping[str, Any], schema: TableSchema, native: bytes) -> Row:
    ids = {column.name: column.id for column in (*schema.static, *schema.regular)}
    cells = [
        Cell(
            column=ids[name],
            time=time,
            value=bytes.fromhex(value or ""),
            path=None if path is None else bytes.fromhex(path),
            tombstone=value is None,
            expiring=ttl > 0,
            ttl=ttl,
            end=NEVER if end is None else end,
        )
        for name, time, ttl, end, path, value in recorded["cells"]
    ]
    cells += [
        Cell(column=ids[name], time=time, end=end, complex_deletion=True)
        for name, (time, end) in recorded.get("complex_deletions", ())
    ]
    liveness = None
    if "liveness" in recorded:
        time, ttl, end = recorded["liveness"]
        liveness = Liveness(time, ttl, NEVER if end is None else end)
    deletion = tuple(recorded["deletion"]) if "deletion" in recorded else None
    return Row(liveness, deletion, native, tuple(sorted(cells, key=lambda cell: cell.place)))
