"""Names that differ in a mirror (:mod:`airflow_cdc_provider.changes.column_names`), as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_cdc_provider.sources.contract import Finding


def name_findings(table: str, renamed: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Report the names that a new mirror of a table changes.

    Args:
        table: The table.
        renamed: The name of each column or field at the source, and in the mirror.
    """
    changed = [f"{name} is {other}" for name, other in renamed if name != other]
    if changed:
        yield Finding(
            "warning",
            table,
            f"engines confuse some names; in a new mirror {', '.join(changed)}",
            "query the mirror by these names, or rename the columns",
        )
