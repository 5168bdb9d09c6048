"""Selects the tables of a capture: tables of its keyspaces that match its patterns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_cdc_provider.sources.vitess.options import has_keyspace


@dataclass(frozen=True)
class Selects:
    """Returns whether ``keyspace.table`` belongs to the capture. Picklable if ``selects`` is.

    Args:
        keyspace: Option ``keyspace``.
        selects: The declaration's patterns.
    """

    keyspace: str
    selects: Callable[[str], bool]

    def __call__(self, table: str) -> bool:
        """Return whether the table is selected."""
        return has_keyspace(self.keyspace, table.partition(".")[0]) and self.selects(table)
