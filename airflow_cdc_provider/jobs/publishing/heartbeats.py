"""The heartbeats of a connector that publishes to Kafka, or prints its events."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats, heartbeat_producer
from airflow_cdc_provider.jobs.context.clients import Clients
from airflow_cdc_provider.jobs.publishing.targets.kafka import client_settings, positions_topic, registrar_of
from airflow_cdc_provider.jobs.resuming.progress import stored_offset
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.registry import source_plugin


def heartbeats_of(connector: Connector, changes: ChangesTable, clients: Clients) -> Heartbeats | None:
    """Return the sender of the connector's heartbeats, the same for all rounds of a job; None for none.

    Raises:
        ConfigurationError: The declaration or the job has no connection, or an invalid one.
    """
    publish = connector.publish
    if not publish.kafka.enabled or not publish.heartbeat_interval_seconds:
        return None
    if clients.heartbeats is None:
        settings = client_settings(connector, clients.connections)
        registrar = registrar_of(connector, clients.connections)
        positions = positions_topic(connector, settings)
        events = source_plugin(connector.type).events()

        def build(now_ns: int, through: int) -> pa.RecordBatch:
            offset = partial(stored_offset, changes, through)
            return events.heartbeat_records(connector, offset, now_ns, registrar)

        clients.heartbeats = Heartbeats(
            publish.heartbeat_interval_seconds,
            build,
            lambda: heartbeat_producer(connector, settings, positions),
            passes_refused=publish.writes_dead_letters,
        )
    return clients.heartbeats
