"""Events of the records in a changes table, for any source: to print or publish them.

:func:`captured_records` builds all of them on the driver, :func:`sliced_records` splits them for executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.context.stores import Stores
from airflow_cdc_provider.jobs.events.cassandra import lake as cassandra_lake
from airflow_cdc_provider.jobs.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.jobs.events.mongodb import lake as mongodb_lake
from airflow_cdc_provider.jobs.events.scylla import lake as scylla_lake
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.events.sliced import Sliced
from airflow_cdc_provider.jobs.events.vitess import lake as vitess_lake
from airflow_cdc_provider.sources.contract import Source
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

_NO_EVENTS: Final = "source debezium has no events to publish: its topics have them already"


def captured_records(
    job: Job, stores: Stores, source: Source, request: EventRequest, skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the records of batches of a changes table, oldest first.

    Args:
        job: The job; with tables in its spec only theirs.
        stores: The lake.
        source: The source.
        request: The events to build.
        skipped: Collects skipped records.

    Raises:
        CorruptInput: A record can't be decoded and ``skipped`` is strict.
        ConfigurationError: The declaration doesn't match the captured tables.
        TransientError: Rows must be read again and the source doesn't respond.
    """
    if isinstance(job.connector.source, MongodbOptions):
        return mongodb_lake.captured_records(job, stores.changes, request, skipped)
    if isinstance(job.connector.source, ScyllaOptions):
        return scylla_lake.captured_records(job, stores, source, request, skipped)
    if isinstance(job.connector.source, VitessOptions):
        return vitess_lake.captured_records(job, stores.changes, request, skipped)
    if isinstance(job.connector.source, DebeziumOptions):
        raise ConfigurationError(_NO_EVENTS)
    return cassandra_lake.captured_records(job, stores, source, request, skipped)


def sliced_records(job: Job, stores: Stores, source: Source, after: int, through: int) -> Sliced:
    """Partition the records of batches so that each row of the source is in one slice.

    Args:
        job: The job, for all tables.
        stores: The lake.
        source: The source.
        after: Batches up to this one are left out.
        through: The last one.

    Raises:
        ConfigurationError: The declaration doesn't fit what is there, or the source has no events.
    """
    options = job.connector.source
    if isinstance(options, MongodbOptions):
        return mongodb_lake.sliced_records(job.connector, stores.changes, after, through)
    if isinstance(options, ScyllaOptions):
        return scylla_lake.sliced_records(job.connector, stores.changes, after, through)
    if isinstance(options, VitessOptions):
        return vitess_lake.sliced_records(job.connector, stores.changes, after, through)
    if isinstance(options, DebeziumOptions):
        raise ConfigurationError(_NO_EVENTS)
    return cassandra_lake.sliced_records(job, stores, source, after, through)
