"""Parsers of connector configurations: Java properties files and Kafka Connect's JSON."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError


def read_settings(text: str) -> dict[str, str]:
    """Read a connector's configuration: a properties file, or JSON of Kafka Connect's REST API.

    Args:
        text: ``name=value`` lines; or a JSON object of properties, optionally nested in ``config`` next to
            the connector's ``name``.

    Returns:
        Property values by name.

    Raises:
        ConfigurationError: The text starts like a JSON object but is not a connector configuration.
    """
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return parse_properties(text)
    try:
        document: Any = json.loads(text.lstrip("\ufeff"))
    except ValueError as error:
        raise ConfigurationError("the connector configuration is not valid JSON", found=str(error)) from None
    config = document.get("config", document)
    if not isinstance(config, dict) or any(isinstance(value, (dict, list)) for value in config.values()):
        raise ConfigurationError(
            "invalid connector configuration",
            expected='{"name": "...", "config": {...}}, of one connector, or the properties alone',
            found=f"members {', '.join(map(repr, document))}"[:200],
        )
    named = (
        {"name": document["name"]} if config is not document and isinstance(document.get("name"), str) else {}
    )
    return {name: _as_text(value) for name, value in {**named, **config}.items() if value is not None}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse Java properties: separators ``=``, ``:``, space; continuation ``\``; ``\uXXXX``; ``#``."""
    properties: dict[str, str] = {}
    logical = ""
    for line in text.splitlines():
        stripped = line.lstrip(" \t\f")
        if not logical and (not stripped or stripped[0] in "#!"):
            continue
        logical += stripped
        if (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1]
            continue
        name, value = _split_property(logical)
        properties[name] = value
        logical = ""
    if logical:
        name, value = _split_property(logical)
        properties[name] = value
    return properties


_PROPERTY: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _split_property(line: str) -> tuple[str, str]:
    match = _PROPERTY.fullmatch(line)
    assert match is not None  # the expression matches every text
    return _unescape(match[1]), _unescape(match[2])


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(one, text)
