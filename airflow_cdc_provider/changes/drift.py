"""Drift: changes of a table's columns since its mirror was last written that their names don't show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Drift:
    """Column changes that can't be derived from the names in the target schema.

    Args:
        recreated: The table was dropped and re-created: rows of the old one are invalid.
        keys: Number of leading columns that are matched by position, whatever their names.
        replaced: Names of columns that were dropped and added again as other columns.
        exact: Columns that the source no longer has are dropped from the mirror, and fields of structs are
            matched by position, whatever their names. Otherwise columns are kept, and fields are matched by
            name.
    """

    recreated: bool = False
    keys: int = 0
    replaced: frozenset[str] = frozenset()
    exact: bool = False


NO_DRIFT = Drift()
