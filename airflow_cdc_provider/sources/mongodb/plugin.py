"""The plug-in of source ``mongodb``: MongoDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.plugin import SourcePlugin, options_of

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source
    from airflow_cdc_provider.sources.event_source import SourceEvents
    from airflow_cdc_provider.sources.recordings import Recordings


class _MongodbPlugin(SourcePlugin):
    name = "mongodb"
    options = MongodbOptions
    connection_type = "cdc_mongodb"
    hook = "airflow_cdc_provider.hooks.mongodb:MongodbCdcHook"
    stored_offsets = "airflow_cdc_provider.migration.offsets.mongodb:MongodbOffsets"
    docs_page = "source-mongodb"
    table_name = "database.collection"
    event_values = "documents"
    supports = frozenset(
        {
            "publish.envelope: document",
            "publish.mongodb",
            "publish.outbox",
            "publish.schema_changes",
            "publish.schema_changes_topic",
            "publish.skip_unchanged",
            "publish.transaction_topic",
            "publish.transactions",
            "publish.unwrap",
            "signals.collection",
        }
    )

    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source; see :meth:`.plugin.SourcePlugin.source`."""
        from airflow_cdc_provider.sources.mongodb.selection import Selection
        from airflow_cdc_provider.sources.mongodb.source import MongodbSource

        # The patterns themselves, not a function, so that the server can filter by them.
        selection = Selection(connector.tables, connector.exclude_tables, connector.signals.collection)
        return MongodbSource(options_of(connector, MongodbOptions), connection, selection)

    def events(self) -> SourceEvents:
        """Return the builder of the source's events."""
        from airflow_cdc_provider.sources.mongodb.events.source_events import MongodbSourceEvents

        return MongodbSourceEvents()

    def recordings(self) -> Recordings:
        """Return the readers of files of BSON documents."""
        from airflow_cdc_provider.sources.mongodb.events.recording import event_lines, row_lines
        from airflow_cdc_provider.sources.recordings import Recordings

        return Recordings(event_lines, row_lines)


PLUGIN = _MongodbPlugin()
