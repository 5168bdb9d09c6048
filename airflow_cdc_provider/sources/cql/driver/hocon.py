"""A strict parser for the subset of HOCON that drivers' ``application.conf`` files use.

Supported: objects with and without outer braces, ``key = value``, ``key : value``, ``key { ... }``, dotted
keys, lists, quoted and unquoted text, ``null``, comments with ``#`` and ``//``, and ``${NAME}`` or
``${?NAME}`` as a whole value for an environment variable (an optional one that isn't set keeps the key's
earlier value). Later values override earlier ones; objects merge.

Rejected, with the line number: ``include``, ``+=``, triple-quoted text, concatenated values, and references
to other keys. Errors contain no values, which may be secrets.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\f\ufeff]+|(?:\#|//)[^\n]*)
    |(?P<line>\n)
    |(?P<long>\"\"\")
    |(?P<quoted>"(?:[^"\\\n]|\\.)*")
    |(?P<reference>\$\{\??[^}\n]*\})
    |(?P<add>\+=)
    |(?P<sign>[{}\[\]=:,])
    |(?P<text>(?:(?!//)[^\s{}\[\]=:,+\#"$`^?!@*&\\])+)""",
    re.VERBOSE,
)
_UNCHANGED: Final = object()


def parse_hocon(text: str, name: str) -> dict[str, Any]:
    """Parse a file's text.

    Args:
        text: The text.
        name: The file's name, for messages.

    Returns:
        Values by their dotted keys: verbatim text, also for numbers, None for ``null``, or a list of these.

    Raises:
        ConfigurationError: The syntax is unsupported; the message has the line number.
    """
    return _Parser(text, name).parse()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._tokens = list(self._read(text))
        self._at = 0
        self._values: dict[str, Any] = {}

    def parse(self) -> dict[str, Any]:
        self._skip("line")
        braces = self._take("{")
        self._object("", "}" if braces else "")
        self._skip("line")
        if self._kind() != "end":
            raise self._error("nothing after the last brace")
        return self._values

    def _read(self, text: str) -> Iterator[tuple[str, str, int, bool]]:
        """Yield kind, text and line of each token, and whether space precedes it."""
        at, line, spaced = 0, 1, False
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._syntax_error(
                    line, 'quotes around text that has any of $ " { } [ ] : = , + # ` ^ ? ! @ * & \\'
                )
            at = found.end()
            kind = str(found.lastgroup)
            if kind == "space":
                spaced = True
                continue
            yield (found.group() if kind == "sign" else kind, found.group(), line, spaced)
            spaced = False
            line += kind == "line"
        yield ("end", "", line, False)

    def _object(self, prefix: str, closing: str) -> None:
        while True:
            self._skip("line", ",")
            if closing and self._take(closing):
                return
            if self._kind() == "end":
                if closing:
                    raise self._error(f"a closing {closing}")
                return
            self._entry(prefix)

    def _entry(self, prefix: str) -> None:
        key = prefix + self._key()
        if self._kind() == "{":
            self._at += 1
            self._object(f"{key}.", "}")
            return
        if not (self._take("=") or self._take(":")):
            raise self._error("= or : or { after a key")
        self._skip("line")
        if self._take("{"):
            self._object(f"{key}.", "}")
        else:
            value = self._value()
            if value is not _UNCHANGED:
                self._values[key] = value
        if self._kind() not in ("line", ",", "}", "end"):
            raise self._error("one value, and after it the end of the line, a comma or a brace")

    def _key(self) -> str:
        kind, text, _, _ = self._tokens[self._at]
        if kind not in ("text", "quoted") or text == "include":
            raise self._error("a key (files are not included)" if text == "include" else "a key")
        self._at += 1
        return self._unquoted(text) if kind == "quoted" else text

    def _value(self) -> Any:
        kind, text, _, _ = self._tokens[self._at]
        if kind == "[":
            self._at += 1
            return list(self._items())
        if kind == "quoted":
            self._at += 1
            return self._unquoted(text)
        if kind == "reference":
            self._at += 1
            return self._from_environment(text)
        if kind != "text":
            raise self._error("a value: text, a number, a list, ${NAME}")
        words = self._words()
        return None if words == "null" else words

    def _items(self) -> Iterator[Any]:
        while True:
            self._skip("line", ",")
            if self._take("]"):
                return
            if self._kind() == "end":
                raise self._error("] at the end of a list")
            item = self._value()
            if item is not _UNCHANGED:
                yield item

    def _words(self) -> str:
        """Read unquoted text, which may contain spaces, to its end."""
        words: list[str] = []
        while self._kind() == "text":
            _, part, _, spaced = self._tokens[self._at]
            words.append(f" {part}" if spaced and words else part)
            self._at += 1
        return "".join(words)

    def _from_environment(self, reference: str) -> object:
        name = reference[2:-1].strip()
        optional, name = name.startswith("?"), name.removeprefix("?").strip()
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self._error(
                "the name of an environment variable in ${...}; references to keys are not supported", -1
            )
        if name in os.environ:
            return os.environ[name]
        if optional:
            return _UNCHANGED
        raise self._error(f"environment variable {name}, which is not set", -1)

    def _unquoted(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except ValueError:  # its text contains the value
            raise self._error("quoted text with JSON's escapes", -1) from None

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _take(self, kind: str) -> bool:
        found = self._kind() == kind
        self._at += found
        return found

    def _skip(self, *kinds: str) -> None:
        while self._kind() in kinds:
            self._at += 1

    def _error(self, expected: str, step: int = 0) -> ConfigurationError:
        return self._syntax_error(self._tokens[max(self._at + step, 0)][2], expected)

    def _syntax_error(self, line: int, expected: str) -> ConfigurationError:
        return ConfigurationError(f"invalid syntax in line {line} of {self._name}", expected=expected)
