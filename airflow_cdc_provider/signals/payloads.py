"""Data of signals about snapshots: the tables, the kind of snapshot, and the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from airflow_cdc_provider.patterns import compile_cost, fullmatches, untrusted

SnapshotKind = Literal["incremental", "blocking"]
_KINDS: Final[Mapping[str, SnapshotKind]] = {"incremental": "incremental", "blocking": "blocking"}
_QUOTED: Final = re.compile(r'"(?:[^"]|"")+"(?:\."(?:[^"]|"")+")*')
_QUOTED_PART: Final = re.compile(r'"((?:[^"]|"")+)"')
_MOST_NAMES: Final = 1_000
_MOST_CONDITIONS: Final = 100
_LONGEST_FILTER: Final = 16_384
_MOST_TABLES: Final = 10_000
"""Number of tables of all requests that come at once."""
_LARGEST_COST: Final = 8_000_000
"""What compiling all expressions of a signal costs: 0.3 s, and 50 MB as long as it is applied."""
_COMPILE_WORK: Final = 12
"""A unit of this cost as work."""
_MOST_INSTRUCTIONS: Final = 50_000
"""Size of all expressions of a signal as RE2's programs; it bounds the time that a name takes."""
_CALL_INSTRUCTIONS: Final = 20
"""What a call of RE2 costs, in instructions for a name."""
_COMPILE_CHARACTERS: Final = 600
"""What an instruction costs to compile, in characters that it reads."""
_MOST_WORK: Final = 10_000_000_000
"""Instructions times characters of all signals of one reception, about half a minute."""


class InvalidSignal(ValueError):
    """A signal's data is invalid; the message has the reason."""


@dataclass(frozen=True)
class Names:
    """Tables by name: anchored regular expressions, or names with each part in quotes.

    Args:
        texts: The entries.
        exact: Names of the entries in quotes.
        patterns: The other entries, compiled.
    """

    texts: tuple[str, ...] = ()
    exact: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    patterns: tuple[Any, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def read(cls, given: object, matching: Matching) -> Names:
        """Read ``data-collections``: a list, or comma-separated text.

        Raises:
            InvalidSignal: The value is neither, has an invalid regular expression, or is too large.
        """
        if isinstance(given, str):
            given = [part.strip() for part in given.split(",")]
        if given is None:
            given = []
        if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise InvalidSignal("data-collections is not a list of names")
        texts = tuple(one for one in given if one)
        if len(texts) > _MOST_NAMES:
            raise InvalidSignal(f"data-collections has {len(texts)} entries, more than {_MOST_NAMES}")
        quoted = {text for text in texts if _QUOTED.fullmatch(text)}
        exact = frozenset(map(_unquoted, quoted))
        return cls(texts, exact, tuple(matching.compiled(text) for text in texts if text not in quoted))

    def take(self, name: str) -> bool:
        """Return whether a table is selected."""
        return name in self.exact or any(fullmatches(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True)
class Condition:
    """A filter of the rows of some tables.

    Args:
        tables: One table, or several by a regular expression.
        filter: Filter in the source's query language: for MongoDB a query as JSON.
    """

    tables: Names
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
        return next((c.filter for c in self.conditions if c.tables.take(table)), "")


class Matching:
    """The work that the signals of one reception may be; it is counted before it is done.

    Args:
        tables: The captured tables.
    """

    def __init__(self, tables: Sequence[str] = ()) -> None:
        self.tables = tables
        self._left = _MOST_WORK
        self._tables_left = _MOST_TABLES
        self._cost = self._size = 0  # of the signal that is read

    def next_signal(self) -> None:
        """Begin with another signal."""
        self._cost = self._size = 0

    def compiled(self, text: str) -> Any:
        """Compile a pattern of the signal.

        Raises:
            InvalidSignal: It is invalid, or it would be too much work.
        """
        cost = compile_cost(text)
        self._cost += cost
        if self._cost <= _LARGEST_COST:
            self._spend(cost * _COMPILE_WORK)
            pattern = _compiled(text)
            self._size += pattern.programsize + _CALL_INSTRUCTIONS
            if self._size <= _MOST_INSTRUCTIONS:
                return pattern
        raise InvalidSignal("it has too many or too large regular expressions")

    def begin(self, tables: Iterable[str]) -> None:
        """Count the work of matching the signal's patterns with tables.

        Raises:
            InvalidSignal: It would be too much.
        """
        self._spend(self._size * (_COMPILE_CHARACTERS + sum(map(len, tables))))

    def queue(self, tables: int) -> None:
        """Count the tables of a request.

        Raises:
            InvalidSignal: They are too many.
        """
        self._tables_left -= tables
        if self._tables_left < 0:
            raise InvalidSignal("too many tables were requested at once; send it again, with another id")

    def _spend(self, work: int) -> None:
        if work > self._left:
            raise InvalidSignal(
                "too many or too large regular expressions came at once; send it again, with another id"
            )
        self._left -= work


def read_execute(data: Mapping[str, Any], matching: Matching) -> SnapshotPayload:
    """Read the data of ``execute-snapshot``.

    Raises:
        InvalidSignal: The data is invalid.
    """
    if data.get("surrogate-key"):
        raise InvalidSignal("surrogate-key isn't supported: chunks are split by the primary key")
    given = data.get("type") or "incremental"
    kind = _KINDS.get(str(given).lower())
    if kind is None:
        raise InvalidSignal(f"its snapshot type is {str(given)[:40]!r}, neither incremental nor blocking")
    matching.next_signal()
    names = Names.read(data.get("data-collections"), matching)
    if not names.texts:
        raise InvalidSignal("data-collections names no table")
    return SnapshotPayload(kind, names, _conditions(data.get("additional-conditions"), matching))


def read_stop(data: Mapping[str, Any], matching: Matching) -> tuple[SnapshotKind, Names | None]:
    """Read the data of ``stop-snapshot``: the kind of snapshot, and the tables to stop, None for all.

    Raises:
        InvalidSignal: The data is invalid.
    """
    given = data.get("type")
    kind = _KINDS.get(str(given or "").lower())
    if kind is None:
        raise InvalidSignal(f"type must be incremental or blocking, not {str(given)[:40]!r}")
    matching.next_signal()
    names = Names.read(data.get("data-collections"), matching)
    return kind, names if names.texts else None


def _unquoted(name: str) -> str:
    return ".".join(part.replace('""', '"') for part in _QUOTED_PART.findall(name))


def _conditions(given: object, matching: Matching) -> tuple[Condition, ...]:
    """Read conditions: the first of those that have the same expression."""
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidSignal("additional-conditions is not a list")
    if len(given) > _MOST_CONDITIONS:
        raise InvalidSignal(f"additional-conditions has more than {_MOST_CONDITIONS} entries")
    found: dict[str, Condition] = {}
    for one in given:
        tables = one.get("data-collection") if isinstance(one, Mapping) else None
        row_filter = one.get("filter") if isinstance(one, Mapping) else None
        if not isinstance(tables, str) or not tables or not row_filter:
            raise InvalidSignal("an entry of additional-conditions lacks data-collection or filter")
        text = row_filter if isinstance(row_filter, str) else json.dumps(row_filter)
        if len(text) > _LONGEST_FILTER:
            raise InvalidSignal(f"a filter has more than {_LONGEST_FILTER} characters")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidSignal("a filter has half a surrogate pair, which no server takes")
        if tables not in found:
            found[tables] = Condition(Names.read([tables], matching), text)
    return tuple(found.values())


def _compiled(pattern: str) -> Any:
    try:
        return untrusted(pattern)
    except ValueError as error:
        raise InvalidSignal(f"{pattern[:100]!r} is not a regular expression of RE2: {error}") from None
