"""Named tables and materialized views: which can be captured; and the liveness of a view's rows.

A view whose key has a column that isn't in its base's key has a row as long as that column's cell in the base
is live: the cell's write time and TTL are the row's liveness. A SELECT of the view can't return them, so such
a view is read from its base. If a view's key is its base's in another order, its rows live as in any table,
and the view itself is read.
"""

from __future__ import annotations

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cql.schema import TableSchema, ViewDefinition
from airflow_cdc_provider.sources.cql.types import cql_name, quote_name


def refusal_of(table: TableSchema, *, captured: bool) -> ConfigurationError | None:
    """Return why a table or view that is selected by its name can't be captured; None if it can.

    Args:
        table: The table or view.
        captured: Whether it has ``cdc = true``, or once had it.

    Returns:
        The error: it never had ``cdc = true``; a view's base isn't known, or its snapshot can't be read.
    """
    kind = "materialized view" if table.view else "table"
    if not captured:
        return ConfigurationError(
            f"the {kind} {table.full_name} is named but doesn't have cdc = true",
            expected="cdc = true",
            found="cdc = false",
            remedy=f"ALTER {kind.upper()} {cql_name(table.full_name)} WITH cdc = true, or remove it from "
            "tables",
        )
    if not table.view:
        return None
    if table.definition is None:
        return ConfigurationError(
            f"the base of the materialized view {table.full_name} is unknown",
            expected="its base in the schema",
            remedy="provide a connection, or a schema file with the CREATE TABLE of its base",
        )
    if others := [c for c in other_conditions(table.definition) if table.liveness_column]:
        return ConfigurationError(
            f"the materialized view {table.full_name} can't be read from its base",
            expected="a WHERE with only IS NOT NULL and conditions on clustering columns of its base",
            found=" AND ".join(others),
            remedy=f"remove it from tables and capture {table.definition.base}",
        )
    return None


def other_conditions(definition: ViewDefinition) -> list[str]:
    """List the conditions of a view that can't be combined with token ranges when its base is read."""
    names = tuple(f"{quote_name(name)} " for name in definition.clustering)
    return [c for c in definition.conditions if not c.startswith(names)]
