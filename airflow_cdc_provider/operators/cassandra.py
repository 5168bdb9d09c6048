"""Operator that enables or disables CDC of Cassandra tables, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.connector.declaration import ConnectorLike, to_connector
from airflow_cdc_provider.connector.snapshot_options import EVERY_TABLE
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks._of_connector import cassandra_hook
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.operators._on_connector import ConnectorOperator
from airflow_cdc_provider.tasks.parameters import to_flag, to_tables

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_log = logger("airflow_cdc_provider.operators")


class CassandraTableCdcOperator(ConnectorOperator):
    """Enables or disables ``cdc`` of tables; tables that already have the value aren't altered.

    A table is altered once all nodes agree on the schema. The task ends when all live nodes have the new
    schema. XCom: ``changed`` and ``unchanged``, each a list of tables, and ``cdc``.

    Args:
        connector: The connector, its declaration as a mapping, or the path of its YAML file (templated).
        enabled: The value of ``cdc`` to set (templated).
        tables: Anchored regular expressions of ``keyspace.table``, as in a declaration: a list, or
            comma-separated text or a JSON list (templated). Default: the connector's ``tables``; a connector
            without any is refused. Its ``exclude_tables`` are always excluded.
        source_conn_id: Connection of the cluster instead of the declared one (templated). Its role needs
            ``ALTER`` on the tables.

    Example::

        CassandraTableCdcOperator(task_id="on", connector="shop.yaml", tables=["shop.orders"])
    """

    template_fields: Sequence[str] = ("connector", "tables", "enabled", "source_conn_id")

    def __init__(
        self,
        *,
        connector: ConnectorLike,
        enabled: bool | str = True,
        tables: Sequence[str] | str = (),
        source_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(connector=connector, **kwargs)
        self.enabled = enabled
        self.tables = tables
        self.source_conn_id = source_conn_id

    def perform(self, context: Context) -> dict[str, Any]:
        """Alter the tables.

        Raises:
            ConfigurationError: A pattern matches no table, a table can't be captured, or the role lacks
                ``ALTER``. Tables that are already altered stay altered.
            TransientError: Nodes don't answer, or don't agree on the schema.
        """
        connector = to_connector(self.connector)
        enabled = to_flag("enabled", self.enabled)
        hook = cassandra_hook(connector, self.source_conn_id)
        try:
            patterns = to_tables(self.tables)
            if not patterns and connector.tables == EVERY_TABLE:
                raise ConfigurationError(
                    f"connector {connector.name} selects all tables, and cdc of all would be altered",
                    expected="tables, of the operator or of the connector",
                    remedy="name tables, or keyspaces as shop\\..*; '.*' as the operator's tables means all",
                )
            tables = hook.matching_tables(patterns or connector.tables, connector.exclude_tables)
            done = hook.switch_cdc(tables, enabled=enabled)
        finally:
            hook.close()
        word = "on" if enabled else "off"
        _log.info("cdc switched %s: %s", word, ", ".join(done.changed) or "none")
        _log.info("cdc was %s already: %s", word, ", ".join(done.unchanged) or "none")
        return {"cdc": enabled, "changed": list(done.changed), "unchanged": list(done.unchanged)}
