"""Patterns of tables: anchored regular expressions on full names, whose dot matches every character."""

from __future__ import annotations

import re
from collections.abc import Iterable


def matches_any(patterns: Iterable[str], table: str) -> bool:
    """Return whether one of the patterns matches a table's name."""
    return any(re.fullmatch(pattern, table, re.DOTALL) for pattern in patterns)


def selects(tables: Iterable[str], exclude_tables: Iterable[str], table: str) -> bool:
    """Return whether a table is among ``tables``, and not among ``exclude_tables``."""
    return matches_any(tables, table) and not matches_any(exclude_tables, table)
