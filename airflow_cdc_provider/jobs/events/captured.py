"""Events of what a changes table holds, whatever its source: for printing and for publishing them.

All of them, on the driver (:func:`captured_records`); or parted for executors (:func:`sliced_records`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.cassandra import lake as cassandra_lake
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.mongodb import lake as mongodb_lake
from airflow_cdc_provider.jobs.events.scylla import lake as scylla_lake
from airflow_cdc_provider.jobs.events.sliced import Sliced
from airflow_cdc_provider.jobs.events.vitess import lake as vitess_lake
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

_NO_EVENTS: Final = "the events of source debezium stand in its topics: read them there"


def captured_records(context: JobContext, wanted: Wanted, damage: Damage) -> Iterator[Made]:
    """Make the records of batches of a changes table, oldest first.

    Args:
        context: The job; with tables in its spec only theirs.
        wanted: Which.
        damage: Collects what is left out.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
        ConfigurationError: The declaration doesn't fit what is there.
        TransientError: Rows are to be read again and the source doesn't answer.
    """
    if isinstance(context.connector.source, MongodbOptions):
        return mongodb_lake.captured_records(context, wanted, damage)
    if isinstance(context.connector.source, ScyllaOptions):
        return scylla_lake.captured_records(context, wanted, damage)
    if isinstance(context.connector.source, VitessOptions):
        return vitess_lake.captured_records(context, wanted, damage)
    if isinstance(context.connector.source, DebeziumOptions):
        raise ConfigurationError(_NO_EVENTS)
    return cassandra_lake.captured_records(context, wanted, damage)


def sliced_records(context: JobContext, after: int, through: int) -> Sliced:
    """Part the records of batches so that each row of the source is in one slice, and say how they are made.

    Args:
        context: The job, for all tables.
        after: Batches up to this one are left out.
        through: The last one.

    Raises:
        ConfigurationError: The declaration doesn't fit what is there, or the source has no events.
    """
    source = context.connector.source
    if isinstance(source, MongodbOptions):
        return mongodb_lake.sliced_records(context, after, through)
    if isinstance(source, ScyllaOptions):
        return scylla_lake.sliced_records(context, after, through)
    if isinstance(source, VitessOptions):
        return vitess_lake.sliced_records(context, after, through)
    if isinstance(source, DebeziumOptions):
        raise ConfigurationError(_NO_EVENTS)
    return cassandra_lake.sliced_records(context, after, through)


def is_strict(connector: Connector) -> bool:
    """Tell whether what can't be decoded ends the job; logs of ScyllaDB have no option for that."""
    source = connector.source
    return not isinstance(source, ScyllaOptions) and source.advanced.strict
