"""Paths of fields that events leave out or rename. Imports no driver: read by DAG files.

An entry is ``database.collection.field[.nested]``, followed by ``:new_name`` for a rename. In database and
collection ``*`` matches any text; they are case-insensitive, as in Debezium. A path traverses documents and
arrays of documents, but not arrays inside arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from airflow_cdc_provider.patterns import matches

_SMALLEST: Final = 3


@dataclass(frozen=True)
class FieldRule:
    """A rule for one field.

    Args:
        namespace: Database and collection, in which ``*`` matches any text.
        path: Member names that lead to the field.
        new_name: Replaces the last name of the path; empty: the field is left out.
    """

    namespace: str
    path: tuple[str, ...]
    new_name: str = ""

    def __str__(self) -> str:
        """Return the rule's entry."""
        return ".".join([self.namespace, *self.path]) + (f":{self.new_name}" if self.new_name else "")

    def applies(self, database: str, collection: str) -> bool:
        """Return whether the rule applies to a collection."""
        pattern = r"\.".join(
            ".*".join(map(re.escape, part.split("*"))) for part in self.namespace.split(".", 1)
        )
        return matches(f"(?i){pattern}", f"{database}.{collection}", dot_all=True)


def field_rules(exclude: Iterable[str], rename: Iterable[str]) -> tuple[FieldRule, ...]:
    """Parse entries that :func:`wrong_exclusion` and :func:`wrong_renaming` have validated.

    Exclusions come first, in the order in which Debezium applies them.
    """
    rules = [_rule(entry, "") for entry in exclude]
    for entry in rename:
        path, _, new_name = entry.strip().rpartition(":")
        rules.append(_rule(path, new_name.strip()))
    return tuple(rules)


def wrong_exclusion(entries: Iterable[str]) -> str:
    """Return what was expected where an entry is wrong, else an empty text."""
    for entry in entries:
        parts = entry.strip().split(".")
        if len(parts) < _SMALLEST or not all(parts):
            return f"database.collection.field each, with .nested for one inside it ({entry!r})"
    return ""


def wrong_renaming(entries: Iterable[str]) -> str:
    """Return what was expected where an entry is wrong, else an empty text."""
    for entry in entries:
        path, _, new_name = (part.strip() for part in entry.partition(":"))
        if not new_name or ":" in new_name or wrong_exclusion([path]):
            return f"database.collection.field:new_name each, with .nested before the colon ({entry!r})"
        if "." in new_name:
            return f"a new name for the last part of the path, without dots ({entry!r})"
        if path.rpartition(".")[2] == new_name:
            return f"another name than the field has ({entry!r})"
    return ""


def _rule(entry: str, new_name: str) -> FieldRule:
    database, collection, *path = entry.strip().split(".")
    return FieldRule(f"{database}.{collection}", tuple(path), new_name)
