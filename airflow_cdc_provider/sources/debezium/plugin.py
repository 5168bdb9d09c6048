"""The plug-in of source ``debezium``: topics of Debezium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.debezium.options import FRAMED, DebeziumOptions
from airflow_cdc_provider.sources.plugin import ReadTopics, SourcePlugin, options_of

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.sources.contract import Source


class _DebeziumPlugin(SourcePlugin):
    name = "debezium"
    options = DebeziumOptions
    connection_type = "kafka"
    hook = "airflow_cdc_provider.hooks.debezium:DebeziumCdcHook"
    docs_page = "source-debezium"

    def source(self, connector: Connector, connection: Mapping[str, Any]) -> Source:
        """Build the connector's source; see :meth:`.plugin.SourcePlugin.source`."""
        from airflow_cdc_provider.sources.debezium.source import DebeziumSource

        options = options_of(connector, DebeziumOptions)
        retention = connector.lake.tombstone_retention_seconds
        return DebeziumSource(options, connection, connector.selects, retention)

    def topics(self, connector: Connector) -> ReadTopics:
        """Return the topics; see :meth:`.plugin.SourcePlugin.topics`."""
        options = options_of(connector, DebeziumOptions)
        key, value = options.key_converter, options.value_converter
        events = f"keys: {key}; values: {value}; envelope: {options.envelope}"
        return ReadTopics(options.topics, events, options.start, not {key, value}.isdisjoint(FRAMED))

    def events(self) -> NoReturn:
        """Raise ``ConfigurationError``: events can't be built."""
        raise ConfigurationError("source debezium has no events to publish: its topics have them already")

    def recordings(self) -> NoReturn:
        """Raise ``ConfigurationError``: there are no recordings."""
        raise ConfigurationError("topics have no recordings: use airflow cdc check")


PLUGIN = _DebeziumPlugin()
