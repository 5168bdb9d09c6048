"""What signals about snapshots say in their data: which tables, how, and which rows of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

SnapshotKind = Literal["incremental", "blocking"]
_KINDS: Final[Mapping[str, SnapshotKind]] = {"incremental": "incremental", "blocking": "blocking"}
_QUOTED: Final = re.compile(r'"(?:[^"]|"")+"(?:\."(?:[^"]|"")+")*')
_QUOTED_PART: Final = re.compile(r'"((?:[^"]|"")+)"')


class Unclear(ValueError):
    """A signal's data can't be followed; its text says why."""


@dataclass(frozen=True)
class Names:
    """Tables by their names: regular expressions on the whole name, or names with each part in quotes."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def read(cls, given: object) -> Names:
        """Read ``data-collections``: a list, or one text with commas.

        Raises:
            Unclear: It is something else, or holds no regular expression.
        """
        if isinstance(given, str):
            given = [part.strip() for part in given.split(",")]
        if given is None:
            given = []
        if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise Unclear(f"data-collections is no list of names: {given!r}"[:200])
        patterns = tuple(one for one in given if one)
        for pattern in patterns:
            _require_expression(pattern)
        return cls(patterns)

    def take(self, name: str) -> bool:
        """Tell whether a table is meant."""
        return any(is_meant(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True)
class Condition:
    """Which rows of some tables are wanted.

    Args:
        tables: A regular expression, or a name in quotes.
        filter: In the source's own language: for MongoDB a query as JSON.
    """

    tables: str
    filter: str


@dataclass(frozen=True)
class SnapshotWish:
    """The data of ``execute-snapshot``.

    Args:
        kind: Beside the stream, or in its place.
        names: Which tables.
        conditions: The first one that means a table holds for it.
    """

    kind: SnapshotKind
    names: Names
    conditions: tuple[Condition, ...] = ()

    def filter_of(self, table: str) -> str:
        """Return the filter of a table, empty for all rows."""
        return next((c.filter for c in self.conditions if is_meant(c.tables, table)), "")


def read_execute(data: Mapping[str, Any]) -> SnapshotWish:
    """Read the data of ``execute-snapshot``.

    Raises:
        Unclear: They can't be followed.
    """
    if data.get("surrogate-key"):
        raise Unclear("surrogate-key isn't offered: chunks go by the primary key")
    given = data.get("type") or "incremental"
    kind = _KINDS.get(str(given).lower())
    if kind is None:
        raise Unclear(f"its snapshot is {given!r}, neither incremental nor blocking")
    names = Names.read(data.get("data-collections"))
    if not names.patterns:
        raise Unclear("data-collections names no table, so there is nothing to do")
    return SnapshotWish(kind, names, _conditions(data.get("additional-conditions")))


def read_stop(data: Mapping[str, Any]) -> Names | None:
    """Read the data of ``stop-snapshot``: which tables to leave out, None for all.

    Raises:
        Unclear: They can't be followed.
    """
    given = data.get("type")
    if str(given or "").lower() != "incremental":
        raise Unclear(f"type must be incremental, not {given!r}: no other snapshot can be stopped")
    names = Names.read(data.get("data-collections"))
    return names if names.patterns else None


def is_meant(pattern: str, name: str) -> bool:
    """Tell whether an entry of ``data-collections`` means a table."""
    if _QUOTED.fullmatch(pattern):
        return name == ".".join(part.replace('""', '"') for part in _QUOTED_PART.findall(pattern))
    return re.fullmatch(pattern, name) is not None


def _conditions(given: object) -> tuple[Condition, ...]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise Unclear("additional-conditions is no list")
    found = []
    for one in given:
        tables = one.get("data-collection") if isinstance(one, Mapping) else None
        wanted = one.get("filter") if isinstance(one, Mapping) else None
        if not isinstance(tables, str) or not tables or not wanted:
            raise Unclear("an entry of additional-conditions lacks data-collection or filter")
        _require_expression(tables)
        found.append(Condition(tables, wanted if isinstance(wanted, str) else json.dumps(wanted)))
    return tuple(found)


def _require_expression(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise Unclear(f"{pattern!r} is no regular expression: {error}") from None
