"""Sources that read topics with Debezium's events, and what they return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.options import parse
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.source import DebeziumSource
from server_kit import KafkaServer
from tests.integration.jobs.debezium_mirrors import connection
from tests.unit.sources.debezium.debezium_messages import Table, everything, rows


def source_of(server: KafkaServer, *topics: str, **options: Any) -> DebeziumSource:
    plain = {"conn_id": "kafka_shop", "topics": list(topics), **options}
    return DebeziumSource(parse(DebeziumOptions, plain, "source"), connection(server), everything)


def batches(
    source: DebeziumSource, start: Offset | None, changes: int = 10_000, tasks: int = 1
) -> Iterator[tuple[Offset, list[pa.RecordBatch]]]:
    """Capture to the head: each batch's offset and records."""
    head = source.head()
    while True:
        plan = source.plan(start, head, ReadLimit(changes=changes, tasks=tasks))
        start = plan.end
        yield plan.end, list(source.reader().read(plan.partitions, ReadMetrics()))
        if plan.at_head:
            return


def merged(table: Table, records: list[pa.RecordBatch]) -> dict[Any, dict[str, Any]]:
    shown: pa.RecordBatch | None = None
    for batch in records:
        shown = table.merge(batch)
    return {} if shown is None else rows(shown)
