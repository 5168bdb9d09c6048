"""Parser of Java properties files."""

from __future__ import annotations

import re
from typing import Final


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse Java properties: separators ``=``, ``:``, space; continuation ``\``; ``\uXXXX``; ``#``."""
    properties: dict[str, str] = {}
    logical = ""
    for line in re.split(r"\r\n|\n|\r", text):  # Java ends lines at no other character
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
