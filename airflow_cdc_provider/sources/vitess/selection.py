"""Which tables belong to a capture: those of its keyspaces that its patterns select."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_cdc_provider.sources.vitess.options import has_keyspace


@dataclass(frozen=True)
class Selects:
    """Tells whether ``keyspace.table`` belongs to the capture. Picklable, if what it asks is.

    Args:
        keyspace: Option ``keyspace``.
        selects: The declaration's patterns.
    """

    keyspace: str
    selects: Callable[[str], bool]

    def __call__(self, table: str) -> bool:
        """Tell it."""
        return has_keyspace(self.keyspace, table.partition(".")[0]) and self.selects(table)
