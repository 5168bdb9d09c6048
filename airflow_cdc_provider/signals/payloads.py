"""Data of signals about snapshots: the tables, the kind of snapshot, and the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from airflow_cdc_provider.table_patterns import matches_any

SnapshotKind = Literal["incremental", "blocking"]
_KINDS: Final[Mapping[str, SnapshotKind]] = {"incremental": "incremental", "blocking": "blocking"}
_QUOTED: Final = re.compile(r'"(?:[^"]|"")+"(?:\."(?:[^"]|"")+")*')
_QUOTED_PART: Final = re.compile(r'"((?:[^"]|"")+)"')


class InvalidSignal(ValueError):
    """A signal's data is invalid; the message has the reason."""


@dataclass(frozen=True)
class Names:
    """Tables by name: anchored regular expressions, or names with each part in quotes."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: object) -> Names:
        """Read ``data-collections``: a list, or comma-separated text.

        Raises:
            InvalidSignal: The value is neither, or has an invalid regular expression.
        """
        if isinstance(given, str):
            given = [part.strip() for part in given.split(",")]
        if given is None:
            given = []
        if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise InvalidSignal(f"data-collections is not a list of names: {given!r}"[:200])
        patterns = tuple(one for one in given if one)
        for pattern in patterns:
            _require_expression(pattern)
        return cls(patterns)

    def take(self, name: str) -> bool:
        """Return whether a table is selected."""
        return any(matches(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True)
class Condition:
    """A filter of the rows of some tables.

    Args:
        tables: A regular expression, or a name in quotes.
        filter: Filter in the source's query language: for MongoDB a query as JSON.
    """

    tables: str
    filter: str


@dataclass(frozen=True)
class SnapshotPayload:
    """The data of ``execute-snapshot``.

    Args:
        kind: ``incremental``, while the stream continues, or ``blocking``, which pauses it.
        names: The tables.
        conditions: Filters; the first one that matches a table applies to it.
    """

    kind: SnapshotKind
    names: Names
    conditions: tuple[Condition, ...] = ()

    def filter_of(self, table: str) -> str:
        """Return the filter of a table; empty for all rows."""
        return next((c.filter for c in self.conditions if matches(c.tables, table)), "")


def read_execute(data: Mapping[str, Any]) -> SnapshotPayload:
    """Read the data of ``execute-snapshot``.

    Raises:
        InvalidSignal: The data is invalid.
    """
    if data.get("surrogate-key"):
        raise InvalidSignal("surrogate-key isn't supported: chunks are split by the primary key")
    given = data.get("type") or "incremental"
    kind = _KINDS.get(str(given).lower())
    if kind is None:
        raise InvalidSignal(f"its snapshot type is {given!r}, neither incremental nor blocking")
    names = Names.read(data.get("data-collections"))
    if not names.patterns:
        raise InvalidSignal("data-collections names no table")
    return SnapshotPayload(kind, names, _conditions(data.get("additional-conditions")))


def read_stop(data: Mapping[str, Any]) -> Names | None:
    """Read the data of ``stop-snapshot``: the tables to stop, None for all.

    Raises:
        InvalidSignal: The data is invalid.
    """
    given = data.get("type")
    if str(given or "").lower() != "incremental":
        raise InvalidSignal(f"type must be incremental, not {given!r}: no other snapshot can be stopped")
    names = Names.read(data.get("data-collections"))
    return names if names.patterns else None


def matches(pattern: str, name: str) -> bool:
    """Return whether an entry of ``data-collections`` matches a table."""
    if _QUOTED.fullmatch(pattern):
        return name == ".".join(part.replace('""', '"') for part in _QUOTED_PART.findall(pattern))
    return matches_any([pattern], name)


def _conditions(given: object) -> tuple[Condition, ...]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidSignal("additional-conditions is not a list")
    found = []
    for one in given:
        tables = one.get("data-collection") if isinstance(one, Mapping) else None
        row_filter = one.get("filter") if isinstance(one, Mapping) else None
        if not isinstance(tables, str) or not tables or not row_filter:
            raise InvalidSignal("an entry of additional-conditions lacks data-collection or filter")
        _require_expression(tables)
        found.append(Condition(tables, row_filter if isinstance(row_filter, str) else json.dumps(row_filter)))
    return tuple(found)


def _require_expression(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidSignal(f"{pattern!r} is not a regular expression: {error}") from None
