"""Sources of a real Vitess, and what they capture."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions, VitessStream
from airflow_cdc_provider.sources.vitess.source import VitessSource
from server_kit import VitessServer
from tests.integration.sources.vitess.workload import read


def source_of(server: VitessServer, table: str, **chosen: Any) -> VitessSource:
    advanced = chosen.pop("advanced", VitessAdvanced(connect_attempts=3, connect_backoff_seconds=0.2))
    stream = chosen.pop("stream", VitessStream(heartbeat_seconds=2))
    options = VitessOptions(keyspace="shop", stream=stream, advanced=advanced, **chosen)
    return VitessSource(options, server.connection, lambda name: name == f"shop.{table}")


def captured(source: VitessSource, start: Any, limit: ReadLimit | None = None) -> tuple[pa.Table, Any]:
    """Read up to the present head, batch by batch; the records and the offset after them."""
    head = source.head()
    tables = []
    while True:
        plan = source.plan(start, head, limit or ReadLimit())
        tables.append(read(source.reader(), plan.partitions))
        start = plan.end
        if plan.at_head:
            return pa.concat_tables(tables), start


def captured_with_schema(source: VitessSource, start: Any) -> list[dict[str, Any]]:
    """Read up to the present head; all records, also those of the plan."""
    plan = source.plan(start, source.head(), ReadLimit())
    assert plan.at_head
    found: list[dict[str, Any]] = read(source.reader(), plan.partitions).to_pylist()
    return [*map(dict, plan.records), *found]


def snapshot(source: VitessSource, table: str) -> pa.Table:
    plan = source.plan_snapshot(f"shop.{table}")
    return read(source.snapshot_reader(), plan.ranges)
