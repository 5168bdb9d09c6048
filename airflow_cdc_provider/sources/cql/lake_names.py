"""Names that differ in a mirror (:mod:`airflow_cdc_provider.changes.column_names`), as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_cdc_provider.changes.column_names import column_names, field_names
from airflow_cdc_provider.sources.contract import Finding
from airflow_cdc_provider.sources.cql.schema import CqlType, TableSchema


def check_names(tables: Iterable[TableSchema]) -> Iterator[Finding]:
    """Report names that the mirrors of tables change."""
    for table in tables:
        renamed = [f"{name} is {other}" for name, other in _renamed(table)]
        if renamed:
            yield Finding(
                "warning",
                table.full_name,
                f"engines confuse some names; in a new mirror {', '.join(renamed)}",
                "query the mirror by these names, or rename the columns",
            )


def _renamed(table: TableSchema) -> Iterator[tuple[str, str]]:
    for name, other in column_names(column.name for column in table.columns).items():
        if name != other:
            yield name, other
    for column in table.columns:
        yield from _renamed_fields(column.type, column.name)


def _renamed_fields(cql_type: CqlType, path: str) -> Iterator[tuple[str, str]]:
    for name, other in zip(cql_type.fields, field_names(cql_type.fields), strict=True):
        if name != other:
            yield f"{path}.{name}", f"{path}.{other}"
    for number, inner in enumerate(cql_type.parameters):
        yield from _renamed_fields(inner, f"{path}.{cql_type.fields[number]}" if cql_type.fields else path)
