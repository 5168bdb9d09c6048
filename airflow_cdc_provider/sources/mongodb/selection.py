r"""Selects the captured namespaces, and translates the selection to a filter on the server.

The declaration's patterns are Python regular expressions, anchored, on ``database.collection``. The server
uses PCRE. A pattern is sent to the server only if its parts mean the same in both dialects (literals, ``\.``,
``.``, character classes, groups, quantifiers); with any other pattern the server sends all namespaces. The
client always filters again, so the server's filter is only an optimization.

Case-insensitive groups, ``(?i:...)``, which imported Debezium lists contain, are sent with both cases of each
letter written out: the two dialects differ in which other characters equal an ASCII letter (in Python a
dotless i matches ``i``, in PCRE it doesn't).

If the database's part of a pattern can be separated from the collection's, the filter is on ``ns.db`` and
``ns.coll``, which the server applies to the oplog before it creates events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from airflow_cdc_provider.patterns import selects

_PORTABLE: Final = re.compile(
    r"""(?:\(\?=)?                               # perhaps a group to look ahead, as imported lists begin
        (?: [A-Za-z0-9_\- /%&@!<>,;='"~`:]      # a character for itself
        | [^\x00-\x7f]
        | \\[.\-$+*?()\[\]{}|^\\]                # an escaped one
        | \.                                     # any character
        | \[\^?[A-Za-z0-9_\-]+\]                 # a class of plain characters
        | \((?:\?:|\?i:|(?!\?))                  # a group, at most with or without regard to case
        | [)|*+?]
        | \{[0-9]+(?:,[0-9]*)?\}
        )*""",
    re.VERBOSE,
)
_LITERAL: Final = re.compile(r"(?:[A-Za-z0-9_\- ]|[^\x00-\x7f]|\\[.\-$+*?()\[\]{}|^\\])*")
_DATABASE_PART: Final = re.compile(
    r"((?:[A-Za-z0-9_\-]|[^\x00-\x7f]|\[(?:[A-Za-z0-9_\-]|[^\x00-\x7f])+\][*+?]?)+)\\\.(.*)", re.DOTALL
)
_PARTS: Final = re.compile(r"\((?:\?(?:i?:|=))?|\[[^]]*\]|\\.|.", re.DOTALL)
_LIKE_ASCII: Final = [chr(code) for code in range(128)] + ["\u0130", "\u0131", "\u017f", "\u212a"]
"""All characters that a case-insensitive expression of ASCII characters can match in Python."""
OWN_DATABASES: Final = ("admin", "config", "local")
"""The server's own databases, which are never captured."""
_TEMPORARY: Final = (
    r"tmp[0-9A-Za-z]{5}\.(?:create|rename|renameCollection|convertToCapped\..*)|tmp\.(?:agg_out|mr)\..*"
)
"""Names that the server gives to collections while it fills them: by a rename between databases, ``$out``,
``convertToCapped`` and map-reduce. Their documents arrive under the name to which they are renamed."""
_OF_ROWS: Final = ("insert", "update", "replace", "delete")
OF_COLLECTIONS: Final = ("drop", "rename", "dropDatabase", "invalidate")
"""Operations that empty a mirror, and invalidate the stream of one collection."""
EXPANDED: Final = (
    "create",
    "createIndexes",
    "dropIndexes",
    "modify",
    "shardCollection",
    "reshardCollection",
    "refineCollectionShardKey",
)
"""Operations that a server sends with ``showExpandedEvents``."""


@dataclass(frozen=True)
class Selection:
    """The captured namespaces, as a predicate.

    Args:
        tables: Regular expressions, anchored, on ``database.collection``.
        exclude_tables: Regular expressions of namespaces to leave out.
        signals: The signal collection, which is always captured; empty for none.
    """

    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()
    signals: str = ""

    def __call__(self, namespace: str) -> bool:
        """Return whether a namespace is captured."""
        return (bool(namespace) and namespace == self.signals) or self.names(namespace)

    def names(self, namespace: str) -> bool:
        """Return whether the patterns select a namespace, so that it is a table with a mirror."""
        return selects(self.tables, self.exclude_tables, namespace)


def is_temporary(collection: str) -> bool:
    """Return whether the server has made a collection only to rename it once it is filled."""
    return re.fullmatch(_TEMPORARY, collection) is not None


def is_captured(namespace: str, selects: Callable[[str], bool]) -> bool:
    """Return whether a namespace is selected and not one of the server's own."""
    database, _, collection = namespace.partition(".")
    own = database in OWN_DATABASES or collection.startswith("system.") or is_temporary(collection)
    return bool(collection) and not own and selects(namespace)


def event_filter(
    selection: Selection | None,
    *,
    skipped: Collection[str] = (),
    expanded: bool = False,
    collated: bool = False,
) -> dict[str, Any]:
    """Build the ``$match`` of a change stream.

    Changes of rows pass if their namespace is selected and not temporary; drops, renames and invalidates
    always pass.

    Args:
        selection: The patterns; None if the server can't filter by them.
        skipped: Operations on rows that are left out.
        expanded: Whether expanded events of selected collections pass too.
        collated: Whether the stream has a collation. A collation may match names that a pattern doesn't, so
            only the client excludes names then.
    """
    own = {"$not": {"$regex": rf"\A(?:{'|'.join(OWN_DATABASES)})\z"}}
    conditions: list[Mapping[str, Any]] = [{"ns.db": own if collated else {"$nin": list(OWN_DATABASES)}}]
    if selection is not None:
        if included := _any_of(selection.tables):
            conditions.append(included)
        excluded = [f for p in selection.exclude_tables if (f := _one(p)) is not None]
        if excluded and not collated:
            conditions.append({"$nor": excluded})
    conditions.append({"$nor": [{"ns.coll": {"$regex": _anchored(_TEMPORARY)}}]})
    kinds = [kind for kind in _OF_ROWS if kind not in skipped]
    if expanded:
        kinds += EXPANDED
    of_rows = {"operationType": {"$in": kinds}, "$and": conditions}
    return {"$or": [of_rows, *always_passing(selection)]}


def always_passing(selection: Selection | None) -> list[dict[str, Any]]:
    """Return filters of events that must always pass: drops, renames, invalidates, and signals."""
    always: list[dict[str, Any]] = [{"operationType": {"$in": list(OF_COLLECTIONS)}}]
    if selection is not None and selection.signals:
        database, _, collection = selection.signals.partition(".")
        always.append({"operationType": {"$in": list(_OF_ROWS)}, "ns.db": database, "ns.coll": collection})
    return always


def server_applies(pattern: str) -> bool:
    """Return whether the server can filter by a pattern, so that it sends selected namespaces only."""
    return _one(pattern) is not None


def literal_name(pattern: str) -> str:
    """Return the namespace that a pattern without wildcards matches, empty for other patterns."""
    return _plain(pattern) if "\\." in pattern and _LITERAL.fullmatch(pattern) else ""


def _any_of(patterns: Sequence[str]) -> dict[str, Any] | None:
    """Join the filters of patterns, literal collections of one database as one ``$in``; None for all."""
    literal: dict[str, list[str]] = {}
    others = []
    for pattern in patterns:
        if pattern == ".*":
            return None
        split = _DATABASE_PART.fullmatch(pattern)
        if split and _LITERAL.fullmatch(split[1]) and _LITERAL.fullmatch(split[2]):
            literal.setdefault(_plain(split[1]), []).append(_plain(split[2]))
            continue
        one = _one(pattern)
        if one is None:
            return None
        others.append(one)
    filters = [{"ns.db": db, "ns.coll": {"$in": sorted(set(names))}} for db, names in sorted(literal.items())]
    filters += others
    return {"$or": filters}


def _one(pattern: str) -> dict[str, Any] | None:
    """Build the filter of one pattern, None if it can't be sent to the server."""
    written = _cases_written_out(pattern) if _PORTABLE.fullmatch(pattern) else None
    if written is None:
        return None
    split = _DATABASE_PART.fullmatch(written)
    if split is None or _has_bare_alternative(written):
        joined = {"$concat": ["$ns.db", ".", "$ns.coll"]}
        return {"$expr": {"$regexMatch": {"input": joined, "regex": _anchored(written)}}}
    found: dict[str, Any] = {"ns.db": _name_filter(split[1])}
    if split[2] != ".*":
        found["ns.coll"] = _name_filter(split[2])
    return found


def _cases_written_out(pattern: str) -> str | None:
    """Return a portable pattern without ``(?i:...)``; None if a letter in such a group isn't ASCII.

    Redundant groups are removed, since they would hide the end of the database's part.
    """
    parts = _PARTS.findall(pattern)
    written: list[str] = []
    opened: list[tuple[int, bool]] = []
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        ignores_case = bool(opened) and opened[-1][1]
        if part.startswith("("):
            opened.append((len(written), ignores_case or part == "(?i:"))
            written.append("(?:" if part in ("(", "(?i:") else part)
        elif part == ")":
            start, _ = opened.pop()
            inside = "".join(written[start + 1 :])
            needed = written[start] != "(?:" or following in ("*", "+", "?", "{")
            if needed or _has_bare_alternative(inside):
                written.append(part)
            else:
                written[start:] = [inside]
        elif not ignores_case:
            written.append(part)
        elif not part.isascii():
            return None
        else:
            written.append(_both_cases(part))
    return "".join(written)


@cache
def _both_cases(part: str) -> str:
    """Return a class of all characters that a letter or a class matches case-insensitively."""
    if not part.isalpha() and not part.startswith("["):
        return part
    negated = part.startswith("[^")
    expression = re.compile(part.replace("[^", "[", 1) if negated else part, re.IGNORECASE)
    found = [character for character in _LIKE_ASCII if expression.fullmatch(character)]
    escaped = "".join(f"\\{c}" if c in "\\]^[" else c for c in found if c != "-")
    return f"[{'^' if negated else ''}{escaped}{'-' if '-' in found else ''}]"


def _name_filter(pattern: str) -> Any:
    if _LITERAL.fullmatch(pattern):
        return _plain(pattern)
    return {"$regex": _anchored(pattern)}


def _anchored(pattern: str) -> str:
    # \z is the very end, where "$" allows a newline after it; with s "." matches a newline, too.
    return rf"\A(?s:{pattern})\z"


def _has_bare_alternative(pattern: str) -> bool:
    depth = 0
    escaped = False
    for character in pattern:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "|" and depth == 0:
            return True
    return False


def _plain(pattern: str) -> str:
    return re.sub(r"\\(.)", r"\1", pattern)
