"""The recorded schema history, which sources need to list tables and to decode changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.contract import SchemaLimit, Source

_COLUMNS: Final = ("batch", *record.CHANGE_SCHEMA.names)


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
            source.learn(recorded_schema(source, changes))


def recorded_schema(source: Source, changes: ChangesTable) -> pa.Table:
    """Return the records of kind ``schema`` that a source learns; the table must exist."""
    rows = changes.lasting(record.SCHEMA)
    if source.schema_limits:
        rows = rows.coalesce(1)  # else each limit would shuffle them
    for limit in source.schema_limits:
        rows = rows.selectExpr(*_COLUMNS, f"{counted_before(limit)} AS before").where(
            f"before < {limit.most}"
        )
    return rows.drop("batch", "before").toArrow()


def counted_before(limit: SchemaLimit) -> str:
    """Return the SQL expression of what the records before a record count together."""
    return (
        f"coalesce(sum({limit.each}) OVER (PARTITION BY {limit.of} "
        "ORDER BY batch, captured_at, committed_at, position, origin "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)"
    )


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
