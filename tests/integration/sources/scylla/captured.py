"""Runs a ScyllaDB source without Spark, batch after batch, as the capture job does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import Offset, Plan, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.scylla.check import RequiredImages
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.payload import LOG_ROW_TTL
from airflow_cdc_provider.sources.scylla.quarantine import payload_rows
from airflow_cdc_provider.sources.scylla.source import ScyllaSource
from server_kit import CassandraServer
from server_kit.scylla import ImitatedScylla

_built: list[ScyllaSource] = []


def scylla_source(
    cluster: ImitatedScylla,
    server: CassandraServer,
    images: RequiredImages | None = None,
    spelled_out: Callable[[str], bool] = lambda table: False,
    **options: Any,
) -> ScyllaSource:
    """Build a source of the imitation's tables; what is written is read at once, unless options say."""
    names = cluster.names
    advanced = {
        "distributed_keyspace": names.distributed,
        "system_keyspace": names.system,
        "schema_keyspace": names.schema,
        "generation_poll_seconds": 0,
        **options.pop("advanced", {}),
    }
    plain: Mapping[str, Any] = {
        "consistency": "ONE",
        "confidence_window_seconds": 0,
        **options,
        "advanced": advanced,
    }
    source = ScyllaSource(
        parse(ScyllaOptions, plain, "source"),
        {"host": server.host, "port": server.port},
        lambda table: table.startswith(f"{cluster.keyspace}.") and not table.endswith("_scylla_cdc_log"),
        names=spelled_out,
        images=images,
    )
    _built.append(source)
    return source


def close_sources() -> None:
    """Close the connections of all sources that were built."""
    while _built:
        _built.pop().close()


@dataclass
class Captured:
    """What a source gave so far.

    Args:
        source: The source.
        offset: The offset that is stored.
        changes: Records of all batches.
        plans: The plans.
        counts: What was done to read.
        columns: Names of the columns of each schema that was recorded.
    """

    source: ScyllaSource
    offset: Offset | None = None
    changes: list[pa.RecordBatch] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    columns: dict[str, list[str]] = field(default_factory=dict)

    def run(self, limit: ReadLimit | None = None) -> Captured:
        """Capture up to the head that there is now."""
        limit = limit or ReadLimit(tasks=3)
        if self.offset is None:
            self.offset = self.source.start()
        head = self.source.head()
        for record in self.source.schema_records():
            content = json.loads(record["payload"])
            self.columns[record["schema_id"]] = [name for name, _ in content.get("columns", ())]
        reader = self.source.reader()
        while True:
            plan = self.source.plan(self.offset, head, limit)
            self.plans.append(plan)
            metrics = ReadMetrics()
            self.changes += reader.read(plan.partitions, metrics)
            self.source.on_batch_read(metrics)
            self.counts.update(metrics.counts)
            self.offset = plan.end
            if plan.at_head:
                return self

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records."""
        found: list[dict[str, Any]] = pa.Table.from_batches(self.changes, CHANGE_SCHEMA).to_pylist()
        return found

    @property
    def log_rows(self) -> Counter[LogRow]:
        """Log rows: the table, and what of their columns isn't null, but for the rest of their TTL."""
        return Counter(
            (r["source_table"], row_values(row, self.columns[r["schema_id"]]))
            for r in self.records
            for row in payload_rows(r["payload"])
        )


LogRow = tuple[str, frozenset[tuple[str, bytes]]]


def row_values(row: bytes, columns: Sequence[str]) -> frozenset[tuple[str, bytes]]:
    """Split a row into its values."""
    found, at = [], 0
    for name in columns:
        length = int.from_bytes(row[at : at + 4], "big", signed=True)
        if length >= 0 and name != LOG_ROW_TTL:
            found.append((name, row[at + 4 : at + 4 + length]))
        at += 4 + max(length, 0)
    assert at == len(row)
    return frozenset(found)
