"""The plug-in of source ``jsonl``, named by the distribution's entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.plugin import SourcePlugin, options_of

from .options import JsonLinesOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source


class _JsonLinesPlugin(SourcePlugin):
    name = "jsonl"
    options = JsonLinesOptions
    table_name = "database.table"
    docs_page = "add-a-source"

    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source; see :class:`SourcePlugin`."""
        from .source import JsonLinesSource

        return JsonLinesSource(options_of(connector, JsonLinesOptions), connector.selects)


PLUGIN = _JsonLinesPlugin()
