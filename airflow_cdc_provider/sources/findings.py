"""Findings of several sources: one line for each kind, which lists the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from airflow_cdc_provider.exceptions import listed
from airflow_cdc_provider.sources.contract import Finding

_PLURALS: Final = {"is": "are", "has": "have"}


def grouped(statements: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each statement, with all names that it is made of.

    Args:
        statements: A name, and what is said of it: a verb, which may be in the plural then, and more.
    """
    names: dict[str, list[str]] = {}
    for name, statement in statements:
        names.setdefault(statement, []).append(name)
    lines = []
    for statement, own in names.items():
        verb, space, more = statement.partition(" ")
        lines.append(f"{listed(own)} {_PLURALS.get(verb, verb) if len(own) > 1 else verb}{space}{more}")
    return lines


def name_findings(renamed: Mapping[str, Iterable[tuple[str, str]]]) -> Iterator[Finding]:
    """Report the names that new mirrors change (:mod:`airflow_cdc_provider.changes.column_names`).

    Args:
        renamed: By table, the name of each column or field at the source, and in the mirror.
    """
    changed = {
        table: [f"{name} is {other}" for name, other in names if name != other]
        for table, names in renamed.items()
    }
    if tables := [f"{table}: {listed(names)}" for table, names in changed.items() if names]:
        yield Finding(
            "warning",
            "names",
            f"engines confuse some names; in new mirrors of {listed(tables, '; ')}",
            "query the mirrors by these names, or rename the columns",
        )
