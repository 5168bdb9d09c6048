"""The source of a connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.sources.base import Source


def build_source(connector: Connector, connection: Mapping[str, Any]) -> Source:
    """Build the connector's source.

    Args:
        connector: The declaration.
        connection: The Airflow connection's values; empty for offline input.
    """
    if isinstance(connector.source, CassandraOptions):
        if connector.source.advanced.latest_segment_only:
            raise ConfigurationError(
                "source.advanced.latest_segment_only is for inspecting a log: a job would lose changes",
                remedy="remove it; airflow cdc events supports it",
            )
        from airflow_cdc_provider.sources.cassandra.source import CassandraSource

        return CassandraSource(connector.source, connection, connector.selects, names=connector.names)
    if isinstance(connector.source, ScyllaOptions):
        from airflow_cdc_provider.sources.scylla.check import RequiredImages
        from airflow_cdc_provider.sources.scylla.source import ScyllaSource

        images = RequiredImages(*connector.publish.scylla.images())
        return ScyllaSource(
            connector.source, connection, connector.selects, names=connector.names, images=images
        )
    if isinstance(connector.source, VitessOptions):
        from airflow_cdc_provider.sources.vitess.source import VitessSource

        return VitessSource(connector.source, connection, connector.selects)
    if isinstance(connector.source, DebeziumOptions):
        from airflow_cdc_provider.sources.debezium.source import DebeziumSource

        return DebeziumSource(
            connector.source, connection, connector.selects, connector.lake.tombstone_retention_seconds
        )
    from airflow_cdc_provider.sources.mongodb.selection import Selection
    from airflow_cdc_provider.sources.mongodb.source import MongodbSource

    # The patterns themselves, not a function, so that the server can filter by them.
    selection = Selection(connector.tables, connector.exclude_tables, connector.signals.collection)
    return MongodbSource(connector.source, connection, selection)
