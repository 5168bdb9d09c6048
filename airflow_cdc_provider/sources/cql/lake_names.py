"""The names of columns and of fields of types in a new mirror."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_cdc_provider.changes.column_names import column_names, distinct_fields
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema


def lake_names(table: TableSchema) -> Iterator[tuple[str, str]]:
    """Return the name of each column and field, with the path to it, at the source and in the mirror."""
    yield from column_names(column.name for column in table.columns).items()
    for column in table.columns:
        yield from _field_names(column.type, column.name)


def _field_names(cql_type: CqlType, path: str) -> Iterator[tuple[str, str]]:
    for name, other in zip(cql_type.fields, distinct_fields(cql_type.fields), strict=True):
        yield f"{path}.{name}", f"{path}.{other}"
    for number, inner in enumerate(cql_type.parameters):
        yield from _field_names(inner, f"{path}.{cql_type.fields[number]}" if cql_type.fields else path)
