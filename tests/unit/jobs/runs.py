"""Runs of jobs whose lake, source and brokers are fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spec import JobSpec
from airflow_cdc_provider.lake.stores import Stores


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
