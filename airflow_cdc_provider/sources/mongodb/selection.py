r"""Which namespaces are captured, and the same as a filter that the server applies before it sends.

The declaration's patterns are Python's regular expressions, anchored, on ``database.collection``. The server
has PCRE. A pattern goes to the server only if it is made of parts that mean the same in both (literals,
``\.``, ``.``, character classes, groups, quantifiers); with any other pattern the server sends all, and the
client chooses. The client always chooses again, so the server's filter saves work and never decides.

Where the database's part of a pattern can be told from the collection's, the filter is on ``ns.db`` and
``ns.coll``, which the server applies to the oplog before it makes events of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_PORTABLE: Final = re.compile(
    r"""(?: [A-Za-z0-9_\- /%&@!<>,;='"~`:]      # a character for itself
        | [^\x00-\x7f]
        | \\[.\-$+*?()\[\]{}|^\\]                # an escaped one
        | \.                                     # any character
        | \[\^?[A-Za-z0-9_\-]+\]                 # a class of plain characters
        | \((?:\?:|(?!\?))                       # a group, without flags or assertions
        | [)|*+?]
        | \{[0-9]+(?:,[0-9]*)?\}
        )*""",
    re.VERBOSE,
)
_LITERAL: Final = re.compile(r"(?:[A-Za-z0-9_\- ]|[^\x00-\x7f]|\\[.\-$+*?()\[\]{}|^\\])*")
_DATABASE_PART: Final = re.compile(
    r"((?:[A-Za-z0-9_\-]|[^\x00-\x7f]|\[[A-Za-z0-9_\-]+\][*+?]?)+)\\\.(.*)", re.DOTALL
)
OWN_DATABASES: Final = ("admin", "config", "local")
"""Databases of the server itself, never captured."""
_OF_ROWS: Final = ("insert", "update", "replace", "delete")
_OF_COLLECTIONS: Final = ("drop", "rename", "dropDatabase", "invalidate")


@dataclass(frozen=True)
class Selection:
    """The namespaces of a capture; calling it with one tells whether it belongs.

    Args:
        tables: Regular expressions, anchored, on ``database.collection``.
        exclude_tables: Likewise, what to leave out.
    """

    tables: tuple[str, ...] = (".*",)
    exclude_tables: tuple[str, ...] = ()

    def __call__(self, namespace: str) -> bool:
        """Tell whether a namespace belongs to the capture."""
        return any(re.fullmatch(p, namespace) for p in self.tables) and not any(
            re.fullmatch(p, namespace) for p in self.exclude_tables
        )


def event_filter(selection: Selection | None) -> dict[str, Any]:
    """Build the ``$match`` of a change stream.

    Changes of rows pass if their namespace is selected; drops, renames and the end of a stream always pass.

    Args:
        selection: The patterns, None if only the client knows what is selected.
    """
    conditions: list[Mapping[str, Any]] = [{"ns.db": {"$nin": list(OWN_DATABASES)}}]
    if selection is not None:
        if included := _any_of(selection.tables):
            conditions.append(included)
        excluded = [f for p in selection.exclude_tables if (f := _one(p)) is not None]
        if excluded:
            conditions.append({"$nor": excluded})
    of_rows = {"operationType": {"$in": list(_OF_ROWS)}, "$and": conditions}
    return {"$or": [of_rows, {"operationType": {"$in": list(_OF_COLLECTIONS)}}]}


def literal_name(pattern: str) -> str:
    """Return the one namespace that a pattern without wildcards stands for, empty for other patterns."""
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
    """Build the filter of one pattern, None if it can't go to the server."""
    if not _PORTABLE.fullmatch(pattern):
        return None
    split = _DATABASE_PART.fullmatch(pattern)
    if split is None or _has_bare_alternative(pattern):
        joined = {"$concat": ["$ns.db", ".", "$ns.coll"]}
        return {"$expr": {"$regexMatch": {"input": joined, "regex": _anchored(pattern)}}}
    found: dict[str, Any] = {"ns.db": _name_filter(split[1])}
    if split[2] != ".*":
        found["ns.coll"] = _name_filter(split[2])
    return found


def _name_filter(pattern: str) -> Any:
    if _LITERAL.fullmatch(pattern):
        return _plain(pattern)
    return {"$regex": _anchored(pattern)}


def _anchored(pattern: str) -> str:
    # \z is the very end, where "$" allows a newline after it; "." leaves out only \n in both dialects.
    return rf"\A(?:{pattern})\z"


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
