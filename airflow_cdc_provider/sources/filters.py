"""Filters of rows in signals, which others write, for sources that put them into a query as text.

A filter is a list of comparisons, joined by AND: ``status = 'open' AND day IN (1, 2)``. So it can't end the
query, nor add a clause, a subquery, a comment or a placeholder, nor call a function that isn't named here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<value>'(?:[^'\\]|'')*' | "(?:[^"\\]|"")*" | `(?:[^`\\]|``)*`
                | 0[xX][0-9A-Fa-f]+ | [0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}
                | [-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?![\w$.])
      | (?P<word>[A-Za-z_]\w*)
      | (?P<operator><=|>=|<>|!=|[=<>])
      | (?P<bracket>[(\[{])
      | (?P<end>[)\]}])
      | (?P<separator>[,:.])""",
    re.VERBOSE | re.ASCII,
)
_OPERATORS: Final = ("and", "in", "not", "contains", "key", "like", "is")
_PHRASES: Final = (("not", "in"), ("contains", "key"), ("is", "not"), ("not", "like"))
_CLOSES: Final = {"(": ")", "[": "]", "{": "}"}
CQL_FUNCTIONS: Final = ("token", "mintimeuuid", "maxtimeuuid")
_MOST_OPEN: Final = 8
"""Number of brackets in brackets: parsers of servers recurse, and some end with the stack."""
_MOST_COMBINATIONS: Final = 1_000
"""Product of the lengths of all IN lists: Cassandra builds all combinations before it reads anything."""
_FORM: Final = "comparisons of columns with constants, joined by AND"


def refused_filter(where: str, functions: Collection[str] = ()) -> str:
    """Return why a filter is refused; empty if it is a list of comparisons.

    Values and operators alternate, so no word of another clause has a place.

    Args:
        where: The filter.
        functions: Names of functions that it may call, in lower case.
    """
    at = 0
    before: str = "operator"  # or value, function, separator
    opened: list[str] = []
    operators: tuple[str, ...] = ()
    items = combinations = 1
    while at < len(where):
        token = _TOKEN.match(where, at)
        if token is None:
            return f"expected {_FORM}, found {where[at : at + 20]!r} at character {at}"
        at, text, kind = token.end(), token[0].lower(), token.lastgroup
        wrong = f"expected {_FORM}, found {text[:40]!r} at character {token.start()}"
        if kind == "space":
            continue
        if kind == "word" and text in _OPERATORS:
            kind = "operator"
        if kind == "operator":
            follows = before == "operator" and (*operators, text) in _PHRASES
            if opened or not (before == "value" or follows):
                return wrong
            combinations, items = combinations * items, 1
            operators = (*operators, text) if follows else (text,)
            before = "operator"
        elif kind in ("word", "value"):
            if before not in ("operator", "separator"):
                return wrong
            before = "function" if kind == "word" and text in functions else "value"
        elif kind == "bracket":
            if before == "value" and text != "[":
                return f"it may not call {_called(where, token.start())}"
            if len(opened) == _MOST_OPEN:
                return f"more than {_MOST_OPEN} brackets are open at character {token.start()}"
            opened.append(_CLOSES[text])
            before = "separator"
        elif kind == "end":
            if not opened or opened.pop() != text or before == "function":
                return wrong
            before = "value"
        elif before != "value" or (text != "." and not opened):
            return wrong
        else:
            items += text == "," and len(opened) == 1 and operators[-1:] == ("in",)
            before = "separator"
    if combinations * items > _MOST_COMBINATIONS:
        return f"its IN lists have more than {_MOST_COMBINATIONS} combinations"
    return "" if before == "value" and not opened else f"expected {_FORM}, found its end"


def _called(where: str, at: int) -> str:
    return where[:at].rsplit(maxsplit=1)[-1][-40:] if where[:at].split() else "a function"
