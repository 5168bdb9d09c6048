"""Runs of jobs whose lake, source and brokers are fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import (
    Codec,
    Finding,
    Lag,
    Offset,
    Plan,
    Reader,
    ReadLimit,
    ReadMetrics,
    Source,
)


class FakeReader(Reader):
    """A reader whose parts are lists of batches."""

    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from part


class FakeSource(Source):
    """A source with the given tables, and nothing new."""

    def __init__(self, *tables: str) -> None:
        self.names = list(tables)

    def check(self) -> list[Finding]:
        return []

    def tables(self) -> list[str]:
        return self.names

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        raise NotImplementedError

    def head(self) -> Offset:
        return {}

    def validate_offset(self, offset: Offset) -> None: ...

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        return Plan({}, (), at_head=True)

    def reader(self) -> Reader:
        return FakeReader()

    def lag(self, offset: Offset | None) -> Lag:
        return Lag(0.0, None)


class NamedTables:
    """A lake whose tables have names and nothing else."""

    def table(self, name: str, layout: Any = None) -> Any:
        return SimpleNamespace(name=name)


@dataclass(frozen=True)
class FakeStores(Stores):
    """A lake with the given mirrors."""

    mirrors: Callable[[str], Any] | None = None

    def mirror(self, table: str) -> Any:
        return self.mirrors(table) if self.mirrors else super().mirror(table)


def stores_of(
    connector: Connector,
    *,
    spark: Any = None,
    lake: Any = None,
    changes: Any = None,
    mirrors: Callable[[str], Any] | None = None,
) -> Stores:
    """Return a lake with the given parts."""
    tables: Any = NamedTables()
    return FakeStores(spark, lake or tables, changes, connector, mirrors)


def run_of(
    connector: Connector,
    *,
    source: Any = None,
    options: dict[str, Any] | None = None,
    tables: Sequence[str] = (),
    stopping: Callable[[], bool] = lambda: False,
    connections: Connections | None = None,
    **stored: Any,
) -> Run:
    """Return a run; ``stored`` are the parts of :func:`stores_of`."""
    spec = JobSpec("sync", {}, "", tables=tables, options=options or {})
    job = Job(spec, connector, stopping)
    stores = stores_of(connector, **stored)
    return Run(job, stores, source, Clients(job, stores.lake, connections or Connections()), RunReport())
