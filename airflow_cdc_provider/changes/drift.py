"""Drift: what became of a table's columns since its mirror was last written, beyond what their names tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Drift:
    """What a mirror can't see from the columns that are wanted.

    Args:
        renewed: The table was dropped, and this is another one of its name: nothing of the old one counts.
        keys: So many columns, from the first on, are the same by their place, whatever their names.
        replaced: Names that now stand for another column: dropped and added again.
        exact: The source's columns are all there is: a column that it no longer has goes from the mirror, and
            fields of structs are the same by their place, whatever their names. Without it columns stay, and
            fields are told by name.
    """

    renewed: bool = False
    keys: int = 0
    replaced: frozenset[str] = frozenset()
    exact: bool = False


NO_DRIFT = Drift()
