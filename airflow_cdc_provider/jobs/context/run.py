"""A run of a job: all of its parts, opened and closed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.context.clients import Clients, Connections
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session
from airflow_cdc_provider.jobs.spec import DECLARED, JobSpec
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.registry import source_plugin


class Run(NamedTuple):
    """What the function of a stage takes.

    Args:
        job: The job.
        stores: The lake.
        source: The source.
        clients: Clients of other systems.
        report: What the run has done so far.
    """

    job: Job
    stores: Stores
    source: Source
    clients: Clients
    report: RunReport


@contextmanager
def open_run(spec: JobSpec, stopping: Callable[[], bool], report: RunReport) -> Iterator[Run]:
    """Open the resources of a job and close them at the end.

    Args:
        spec: The job's specification.
        stopping: Returns whether a clean stop was requested.
        report: Updated by the stage; remains valid after the end.

    Raises:
        ConfigurationError: The declaration, the connection, Java or the lake's classes are invalid.
    """
    values = spec.connection.resolve()
    connector = Connector.with_secrets(spec.connector, values.pop(DECLARED, ()))
    job = Job(spec, connector, stopping)
    connections, values = Connections.split_off(values)
    source = source_plugin(connector.type).source(connector, values)
    source.cancel_when(stopping)
    try:
        spark = build_session(connector, f"cdc {connector.name} {spec.stage}")
        try:
            lake = build_lake(spark, connector)
            lake.create_namespace(connector.namespace)
            with closing(Clients(job, lake, connections)) as clients:
                yield Run(job, Stores.of(spark, lake, connector), source, clients, report)
        finally:
            spark.stop()
    finally:
        source.close()
