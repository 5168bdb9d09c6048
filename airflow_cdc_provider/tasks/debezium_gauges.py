"""Gauges ``cdc.debezium.*``: a connector's metrics by Debezium's names; see ``docs/operations.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_cdc_provider.tasks.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.jobs.metrics.debezium import Metrics


def emit_debezium_gauges(connector: Connector, metrics: Mapping[str, Metrics]) -> None:
    """Emit the numeric metrics by Debezium's names, ``cdc.debezium.<context>.<name>``.

    Their tags are those of Debezium's MBeans: ``context``, ``server`` (the topic prefix) and ``task``.
    """
    own = {**connector.tags, "server": connector.topic_prefix, "task": connector.publish.task_id}
    for context, of_context in metrics.items():
        tags = {**own, "context": context}
        for name, value in of_context.items():
            if isinstance(value, (bool, int, float)):
                Stats.gauge(f"cdc.debezium.{context}.{name}", value + 0, tags=tags)
            elif name == "RowsScanned":
                for table, rows in value.items():
                    Stats.gauge(f"cdc.debezium.{context}.{name}", rows, tags={**tags, "table": table})
            elif name == "RowsScannedByOrigin":
                for origin, tables in value.items():
                    for table, rows in tables.items():
                        of = {**tags, "table": table, "origin": origin}
                        Stats.gauge(f"cdc.debezium.{context}.{name}", rows, tags=of)
