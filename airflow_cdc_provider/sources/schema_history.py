"""The recorded schema history, which sources need to list tables and to decode changes."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.contract import Source


def learn_schema(source: Source, changes: ChangesTable, through: int = 0) -> None:
    """Pass the recorded schema to the source, unless it has that already.

    Args:
        source: The source.
        changes: The changes table.
        through: The batch up to which the source must have the schema; 0 for any batch.
    """
    if source.has_schema_history and through > source.learned_through:
        source.learned_through = changes.state().batch
        if changes.table.exists():
            source.learn(changes.lasting(record.SCHEMA).drop("batch").toArrow())


def require_tables(known: Sequence[str], names: Sequence[str], connector: str) -> None:
    """Refuse tables that a source doesn't have.

    Args:
        known: The source's tables.
        names: The tables.
        connector: Name of the connector.

    Raises:
        ConfigurationError: The source doesn't have one of them, or the declaration excludes it.
    """
    if missing := sorted(set(names) - set(known)):
        raise ConfigurationError(
            f"the job names unknown tables: {', '.join(missing)}",
            expected=f"tables of the connector {connector}: {', '.join(known) or 'none'}",
            remedy="check the name, and the connector's tables and exclude_tables",
        )
