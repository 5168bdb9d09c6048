r"""Regular expressions of declarations and signals, matched in linear time where that is possible.

Names of tables, topics and columns come from sources, and patterns of signals from whoever may write to a
channel. Python's ``re`` can take hours for 30 characters, so RE2 matches. Their syntax differs:

* a pattern of a declaration is translated for RE2 if all its parts mean the same in both; else (look-around,
  references to groups, ``$`` before the end, rare escapes) ``re`` matches it: its author is trusted;
* a pattern of a signal is matched by RE2 alone, within bounds, or refused.

``\w``, ``\d`` and ``\s`` are those of ``re``: all letters, digits and spaces of its version of Unicode.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any, Final, Protocol

_CLASS_PART: Final = r"[^\[\]\\&|~]|\\[^A-Za-z0-9]|\\[wdsnrtf]"
_PART: Final = re.compile(
    rf"""\\(?P<escape>[wdsWDS])              # a class of characters
      | \\(?:[^A-Za-z0-9]|[nrtf])            # an escaped character
      | \[\^?(?:{_CLASS_PART})+\]
      | \((?:\?i?:|\?P<[A-Za-z_]\w*>|(?!\?))
      | \{{\d{{1,3}}(?:,\d{{0,3}})?\}}
      | [^\\(\[{{]                           # a character for itself, a repetition, an alternative""",
    re.VERBOSE | re.ASCII,
)
_CLASSES: Final = re.compile(r"\\[wdspWDSP]")
_COUNTS: Final = re.compile(r"[{,](\d{1,4})", re.ASCII)
_UNTRUSTED_CHARACTERS: Final = 1_000
_UNTRUSTED_BYTES: Final = 1 << 18
"""Memory of one pattern of a signal, most of it for states that RE2 keeps while it matches."""


class Pattern(Protocol):
    """A compiled pattern, of RE2 or ``re``."""

    def fullmatch(self, text: str) -> Any:
        """Return the match of the whole text, None for none."""
        ...


@lru_cache(maxsize=1024)
def compiled(pattern: str, *, dot_all: bool = False) -> Any:
    """Compile a declaration's pattern.

    Returns:
        A pattern of RE2, if that means the same, else of ``re``. Both have the same methods; names for RE2
        must be encodable, see :func:`matches`.

    Raises:
        re.error: It is invalid, or too large.
    """
    try:
        plain = re.compile(pattern, re.DOTALL if dot_all else 0)
    except (OverflowError, RecursionError) as error:
        raise re.error(f"too large: {error}") from None
    translated = _translated(pattern)
    if translated is None or "$" in pattern[:-1]:  # before a line end at the end it matches, too
        return plain
    import re2

    try:
        return re2.compile(translated, _options(dot_all=dot_all))
    except (re2.error, UnicodeEncodeError):
        return plain


def compile_cost(pattern: str) -> int:
    """Return what :func:`untrusted` takes at most for a pattern, in units of about 30 ns and 6 bytes.

    A class of Unicode has hundreds of ranges, and each repetition of ``x{1000}`` is a node of its own.
    """
    repeated = sum(min(int(count), 1_000) for count in _COUNTS.findall(pattern))
    return 100 * len(pattern) + 8_000 * len(_CLASSES.findall(pattern)) + 10 * repeated


def untrusted(pattern: str) -> Any:
    """Compile a pattern that anyone may have written; a dot matches every character. It isn't cached.

    Raises:
        ValueError: RE2 doesn't support it, or it is too large.
    """
    import re2

    if len(pattern) > _UNTRUSTED_CHARACTERS:
        raise ValueError(f"it has more than {_UNTRUSTED_CHARACTERS} characters")
    options = _options(dot_all=True)
    options.max_mem = _UNTRUSTED_BYTES
    try:
        return re2._Regexp(_translated(pattern) or pattern, options)  # re2.compile would keep 128 of them
    except re2.error as error:
        reason = error.args[0] if error.args else "invalid"
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else reason) from None


def matches(pattern: str, text: str, *, dot_all: bool = False) -> bool:
    """Return whether a declaration's pattern matches a whole name."""
    if "(?i" in pattern and not text.isascii():  # which other letters equal an ASCII one differs
        return re.fullmatch(pattern, text, re.DOTALL if dot_all else 0) is not None
    return fullmatches(compiled(pattern, dot_all=dot_all), text)


def fullmatches(pattern: Pattern, text: str) -> bool:
    """Return whether a compiled pattern matches a whole name, with "?" for half a surrogate pair."""
    return pattern.fullmatch(text.encode(errors="replace").decode()) is not None


def matches_any(patterns: Iterable[str], table: str) -> bool:
    """Return whether one of the patterns matches a table's name; their dot matches every character."""
    return any(matches(pattern, table, dot_all=True) for pattern in patterns)


def selects(tables: Iterable[str], exclude_tables: Iterable[str], table: str) -> bool:
    """Return whether a table is among ``tables``, and not among ``exclude_tables``."""
    return matches_any(tables, table) and not matches_any(exclude_tables, table)


def wrong_patterns(values: Iterable[str], of: str = "") -> str:
    """Return what is expected of a declaration's patterns; empty if they are valid.

    Args:
        values: The patterns.
        of: What they match, for the text.
    """
    for value in values:
        try:
            compiled(value)
        except re.error as error:
            return f"regular expressions{f' on {of}' if of else ''} ({value!r}: {error})"
    return ""


def _options(*, dot_all: bool) -> Any:
    import re2

    options = re2.Options()
    options.dot_nl, options.log_errors = dot_all, False
    return options


@cache
def _ranges(letter: str) -> str:
    """Return the characters that ``re`` takes for one of the class, as ranges for RE2."""
    points = array("I", range(sys.maxunicode + 1)).tobytes()
    every = points.decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")
    found = (one.span() for one in re.finditer(rf"\{letter}+", every))
    return "".join(rf"\x{{{start:x}}}-\x{{{end - 1:x}}}" for start, end in found)


def _translated(pattern: str) -> str | None:
    """Return a pattern for RE2 with the meaning that it has for ``re``, None if that isn't known."""
    start = "(?i)" if pattern.startswith("(?i)") else ""
    at, parts = len(start), [start]
    while at < len(pattern):
        part = _PART.match(pattern, at)
        if part is None:
            return None
        at = part.end()
        letter = part["escape"]
        if letter:
            negation = "^" if letter.isupper() else ""
            parts.append(f"[{negation}{_ranges(letter.lower())}]")
        elif part[0].startswith("["):
            parts.append(re.sub(r"\\([wds])", lambda found: _ranges(found[1]), part[0]))
        else:
            parts.append(part[0])
    return "".join(parts)
