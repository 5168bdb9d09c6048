"""Java regular expressions and replacements in settings of Kafka Connect and Debezium.

They apply to topic names, which are few and short. Named groups are ``(?<name>...)``; replacements have
``$1`` and ``${name}``, and a backslash before literal characters.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.patterns import compiled

_REFERENCE = re.compile(
    r"\\(?P<plain>.)|\$(?:\{(?P<name>[A-Za-z][A-Za-z0-9]*)\}|(?P<number>[0-9]))", re.DOTALL
)


def java_pattern(pattern: str) -> Any:
    """Compile an expression.

    Raises:
        re.error: It is invalid, or not supported by Python.
    """
    return compiled(re.sub(r"\(\?<(?![=!])", "(?P<", pattern))


def wrong_pattern(value: str) -> str:
    """Return what is expected if an expression is invalid; empty if it is valid."""
    try:
        java_pattern(value)
    except re.error as error:
        return f"a regular expression ({error})"
    return ""


def wrong_replacement(value: str) -> str:
    """Return what is expected if a replacement is invalid; empty if it is valid."""
    rest = _REFERENCE.sub("", value)
    return "text with $1 or ${group}, and \\$ for a dollar" if "$" in rest or rest.endswith("\\") else ""


def require_groups(option: str, pattern: str, replacement: str) -> None:
    """Reject a replacement that refers to groups that its expression doesn't have, as Java does.

    Raises:
        ConfigurationError: Names the option.
    """
    groups = java_pattern(pattern)
    for found in _REFERENCE.finditer(replacement):
        missing = found["name"] and found["name"] not in groups.groupindex
        if missing or int(found["number"] or 0) > groups.groups:
            raise ConfigurationError(
                f"option {option} refers to a group that its regular expression doesn't have",
                expected=f"a group of {pattern}",
                found=found[0],
            )


def replaced(pattern: str, replacement: str, text: str) -> str | None:
    """Replace the first match if the whole text matches, like Connect's routers.

    Returns:
        The new text; None if the text doesn't match.
    """
    compiled = java_pattern(pattern)
    if compiled.fullmatch(text) is None:
        return None
    return compiled.sub(lambda match: _expanded(replacement, match), text, count=1)


def _expanded(replacement: str, match: Any) -> str:
    def part(found: re.Match[str]) -> str:
        if found["plain"] is not None:
            return found["plain"]
        return match[found["name"] or int(found["number"])] or ""

    return _REFERENCE.sub(part, replacement)
