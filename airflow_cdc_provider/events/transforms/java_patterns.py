"""Java's regular expressions and replacements, as settings of Kafka Connect and Debezium hold them.

They are for names of topics, which are few and short. Named groups are written ``(?<name>...)`` there; a
replacement has ``$1`` and ``${name}``, and a backslash before what is meant as it is.
"""

from __future__ import annotations

import re
from functools import lru_cache

_REFERENCE = re.compile(
    r"\\(?P<plain>.)|\$(?:\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}|(?P<number>[0-9]))", re.DOTALL
)


@lru_cache(maxsize=256)
def java_pattern(pattern: str) -> re.Pattern[str]:
    """Compile an expression.

    Raises:
        re.error: It isn't one, or has what Python's expressions don't know.
    """
    return re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", pattern))


def wrong_pattern(value: str) -> str:
    """Tell what was expected if an expression can't be compiled; empty if it can."""
    try:
        java_pattern(value)
    except re.error as error:
        return f"a regular expression ({error})"
    return ""


def wrong_replacement(value: str) -> str:
    """Tell what was expected if a replacement is none; empty if it is one."""
    rest = _REFERENCE.sub("", value)
    return "text with $1 or ${group}, and \\$ for a dollar" if "$" in rest or rest.endswith("\\") else ""


def replaced(pattern: str, replacement: str, text: str) -> str | None:
    """Do as Connect's routers: where a text matches as a whole, put the replacement for the first match.

    Returns:
        The new text; None if the text doesn't match.
    """
    compiled = java_pattern(pattern)
    if compiled.fullmatch(text) is None:
        return None
    return compiled.sub(lambda match: _expanded(replacement, match), text, count=1)


def _expanded(replacement: str, match: re.Match[str]) -> str:
    groups = match.groupdict("")

    def part(found: re.Match[str]) -> str:
        if found["plain"] is not None:
            return found["plain"]
        if found["name"]:
            return groups.get(found["name"], "")
        number = int(found["number"])
        return (match.group(number) or "") if number <= match.re.groups else ""

    return _REFERENCE.sub(part, replacement)
