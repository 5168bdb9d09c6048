"""The plug-in of source ``vitess``: Vitess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.plugin import SourcePlugin, options_of
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source
    from airflow_cdc_provider.sources.event_source import SourceEvents
    from airflow_cdc_provider.sources.recordings import Recordings


class _VitessPlugin(SourcePlugin):
    name = "vitess"
    options = VitessOptions
    connection_type = "cdc_vitess"
    hook = "airflow_cdc_provider.hooks.vitess:VitessCdcHook"
    stored_offsets = "airflow_cdc_provider.migration.offsets.vitess:VitessOffsets"
    docs_page = "source-vitess"
    supports = frozenset(
        {
            "publish.schema_changes",
            "publish.schema_changes_topic",
            "publish.skip_unchanged",
            "publish.transaction_topic",
            "publish.transactions",
            "publish.vitess",
        }
    )

    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source; see :meth:`.plugin.SourcePlugin.source`."""
        from airflow_cdc_provider.sources.vitess.check import SnapshotRules
        from airflow_cdc_provider.sources.vitess.source import VitessSource

        rules = SnapshotRules(connector.snapshot.mode == "never", connector.lost_position_action(hole=True))
        return VitessSource(options_of(connector, VitessOptions), connection, connector.selects, rules)

    def events(self) -> SourceEvents:
        """Return the builder of the source's events."""
        from airflow_cdc_provider.sources.vitess.events.source_events import VitessSourceEvents

        return VitessSourceEvents()

    def recordings(self) -> Recordings:
        """Return the readers of files of VStreamResponse."""
        from airflow_cdc_provider.sources.recordings import Recordings
        from airflow_cdc_provider.sources.vitess.events.recorded_rows import row_lines
        from airflow_cdc_provider.sources.vitess.events.recording import event_lines

        return Recordings(event_lines, row_lines)

    def schema_changes_topic(self, connector: Connector) -> str:
        """Return the topic of schema changes: only the prefix, as in Debezium."""
        from airflow_cdc_provider.events.topics import topic_name

        return topic_name(connector.publish.vitess.schema_changes_topic or connector.topic_prefix)


PLUGIN = _VitessPlugin()
