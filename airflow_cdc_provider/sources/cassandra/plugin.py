"""The plug-in of source ``cassandra``: Cassandra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    stored_offsets = "airflow_cdc_provider.migration.offsets.cassandra:CassandraOffsets"
    docs_page = "source-cassandra"
    event_values = "cells"
    event_headers = False
    tombstones = False
    supports = frozenset(
        {
            "lake.static_columns",
            "publish.cassandra",
            "publish.envelope: datastax",
            "publish.envelope: datastax-cells",
            "publish.event_index",
            "publish.exclude_columns",
        }
    )

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

    def offset_gauges(self, offset: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, str]]]:
        """Yield each node's segment and position; see :meth:`.plugin.SourcePlugin.offset_gauges`."""
        from airflow_cdc_provider.sources.cassandra.position import read_positions

        for host, (segment, position) in read_positions(offset).items():
            yield "commit_log.segment", segment, {"host": host}
            if position is not None:
                yield "commit_log.position", position, {"host": host}


PLUGIN = _CassandraPlugin()
