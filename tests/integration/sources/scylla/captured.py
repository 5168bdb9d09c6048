"""Runs a ScyllaDB source without Spark, batch after batch, as the capture job does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.base import Offset, Plan, ReadingCounts, ReadLimit
from airflow_cdc_provider.sources.scylla.check import WantedImages
from airflow_cdc_provider.sources.scylla.log_reader import payload_rows
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.scylla.source import ScyllaSource
from server_kit import CassandraServer
from server_kit.scylla import ImitatedScylla


def scylla_source(
    cluster: ImitatedScylla, server: CassandraServer, images: WantedImages | None = None, **options: Any
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
    return ScyllaSource(
        parse(ScyllaOptions, plain, "source"),
        {"host": server.host, "port": server.port},
        lambda table: table.startswith(f"{cluster.keyspace}.") and not table.endswith("_scylla_cdc_log"),
        images=images,
    )


@dataclass
class Captured:
    """What a source gave so far.

    Args:
        source: The source.
        offset: The offset that is stored.
        changes: Records of all batches.
        plans: The plans.
        counts: What was done to read.
    """

    source: ScyllaSource
    offset: Offset | None = None
    changes: list[pa.RecordBatch] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    counts: ReadingCounts = field(default_factory=Counter)

    def run(self, limit: ReadLimit | None = None) -> Captured:
        """Capture up to the head that there is now."""
        limit = limit or ReadLimit(tasks=3)
        if self.offset is None:
            self.offset = self.source.start()
        head = self.source.head()
        reader = self.source.reader()
        while True:
            plan = self.source.plan(self.offset, head, limit)
            self.plans.append(plan)
            told: ReadingCounts = Counter()
            for part in plan.partitions:
                self.changes += reader.read_telling(part, told)
            self.source.heard(told)
            self.counts.update(told)
            self.offset = plan.end
            if plan.at_head:
                return self

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records."""
        found: list[dict[str, Any]] = pa.Table.from_batches(self.changes, CHANGE_SCHEMA).to_pylist()
        return found

    @property
    def log_rows(self) -> Counter[tuple[str, bytes]]:
        """Log rows as bytes, with their tables."""
        return Counter((r["source_table"], row) for r in self.records for row in payload_rows(r["payload"]))
