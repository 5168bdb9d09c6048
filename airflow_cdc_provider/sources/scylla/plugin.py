"""The plug-in of source ``scylla``: ScyllaDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.plugin import SourcePlugin, options_of
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source
    from airflow_cdc_provider.sources.event_source import SourceEvents


class _ScyllaPlugin(SourcePlugin):
    name = "scylla"
    options = ScyllaOptions
    connection_type = "cdc_scylla"
    hook = "airflow_cdc_provider.hooks.scylla:ScyllaCdcHook"
    event_version = "2.0.4"
    stored_offsets = "airflow_cdc_provider.migration.offsets.scylla:ScyllaOffsets"
    docs_page = "source-scylla"
    supports = frozenset({"publish.scylla", "publish.unwrap"})

    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source; see :meth:`.plugin.SourcePlugin.source`."""
        from airflow_cdc_provider.sources.scylla.check import RequiredImages
        from airflow_cdc_provider.sources.scylla.source import ScyllaSource

        return ScyllaSource(
            options_of(connector, ScyllaOptions),
            connection,
            connector.selects,
            names=connector.names,
            images=RequiredImages(*connector.publish.scylla.images()),
        )

    def events(self) -> SourceEvents:
        """Return the builder of the source's events."""
        from airflow_cdc_provider.sources.scylla.events.source_events import ScyllaSourceEvents

        return ScyllaSourceEvents()

    def recordings(self) -> NoReturn:
        """Raise ``ConfigurationError``: there are no recordings."""
        raise ConfigurationError("ScyllaDB has no recordings: use events --from-lake")


PLUGIN = _ScyllaPlugin()
