"""The plug-in of source ``vitess``: Vitess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.plugin import SourcePlugin, options_of
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source


class _VitessPlugin(SourcePlugin):
    name = "vitess"
    options = VitessOptions
    connection_type = "cdc_vitess"
    hook = "airflow_cdc_provider.hooks.vitess:VitessCdcHook"
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
        from airflow_cdc_provider.sources.vitess.source import VitessSource

        return VitessSource(options_of(connector, VitessOptions), connection, connector.selects)


PLUGIN = _VitessPlugin()
