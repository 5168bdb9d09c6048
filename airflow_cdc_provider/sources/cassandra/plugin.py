"""The plug-in of source ``cassandra``: Cassandra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.plugin import SourcePlugin, options_of

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source
    from airflow_cdc_provider.sources.event_source import SourceEvents
    from airflow_cdc_provider.sources.recordings import Recordings


class _CassandraPlugin(SourcePlugin):
    name = "cassandra"
    options = CassandraOptions
    connection_type = "cdc_cassandra"
    hook = "airflow_cdc_provider.hooks.cassandra:CassandraCdcHook"
    docs_page = "source-cassandra"

    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source; see :meth:`.plugin.SourcePlugin.source`."""
        from airflow_cdc_provider.sources.cassandra.source import CassandraSource

        options = options_of(connector, CassandraOptions)
        if options.advanced.latest_segment_only:
            raise ConfigurationError(
                "source.advanced.latest_segment_only is for inspecting a log: a job would lose changes",
                remedy="remove it; airflow cdc events supports it",
            )
        return CassandraSource(options, connection, connector.selects, names=connector.names)

    def events(self) -> SourceEvents:
        """Return the builder of the source's events."""
        from airflow_cdc_provider.sources.cassandra.events.source_events import CassandraSourceEvents

        return CassandraSourceEvents()

    def recordings(self) -> Recordings:
        """Return the readers of segments in folders."""
        from airflow_cdc_provider.sources.cassandra.events.recording import event_lines, row_lines
        from airflow_cdc_provider.sources.recordings import Recordings

        return Recordings(event_lines, row_lines)


PLUGIN = _CassandraPlugin()
