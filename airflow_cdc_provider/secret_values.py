"""Says which values of settings are secrets, and which parts of them are.

Everything in a connection is a secret, unless its name (``host``, ``tls_ca_file``) or its form (a number, a
word, a host name) says that it isn't. Standard library only: the shipper has this module.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

SHORT: Final = 4
"""Shorter values are part of many words."""
DISTINCT: Final = 8
"""Shorter parts of a value are not looked for: they say little of it, and are in other text by chance."""
_MOST_PARTS: Final = 400
"""Of a value that has secrets in it."""

_ALWAYS: Final = re.compile(r"cookie|authorization|secreturi|user[._-]?info|connectionstring")
_HOLDS: Final = re.compile(r"(headers?|authmechanismproperties|jaas|jaas[._]config|oauthbearer[._]config)$")
"""Names of values that are several settings, each with its own name."""
_NEVER: Final = re.compile(
    r"(^|[._-])(file|location|path|folder|dir|url|uri|endpoint|type|class|mechanisms?|method|algorithms?"
    r"|protocol|enabled|format|ms|seconds|bytes|impl|warehouse|suites?|source|providers?|resource|name)$"
)
_USUALLY: Final = re.compile(
    r"pass(word|wd|phrase)?([._-]|\d|$)|pwd|password|passphrase|secret|token|bearer|assertion|private|credential"
    r"|(^|[._-])(sas|sig|salt|pem|keytab)([._-]|$)|(^|[._-])auth$|key$|key[._-]?(pem|data|material)"
    r"|(api|access|account|encryption|master)[._-]?key"
)
_NAMING: Final = re.compile(
    r"(^|[._-])(hosts?|servers?|port|schema|database|rack|zone|keyspace|datacenter|region|region_name|topic|id|login|user"
    r"|username|principal|realm|scope|environment|(app)?name|source|set|group)$"
)
_PLAIN: Final = re.compile(
    r"[A-Za-z]*([ _,./:-]+[A-Za-z]+)*|[+-]?[\d.,:]+ ?[A-Za-z]{0,2}|/[^?;=@]*|[A-Za-z]{1,3}\d{1,3}"
    r"|[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?"
)
"""Words, a number with its unit, a path, a host's name."""
_ADDRESSES: Final = re.compile(r",\s*(?=[\w+.-]+:)")
"""Between the addresses of a list."""
_PAIR: Final = re.compile(
    r"""(?<![\w.-])(?=([\w.-]{1,200})["']?\s{0,9}[=:]\s{0,9}("[^"]{0,2000}"|'[^']{0,2000}'|[^\s;,&)]{1,2000}))"""
)
"""``name=value`` or ``name: value``; values may be quoted."""


def secrets_of(values: Any, *, secret: bool = False) -> frozenset[str]:
    """Return the secrets in values.

    Args:
        values: A connection's values, or those of an option.
        secret: Whether all of them are secrets, whatever their names and forms.
    """
    return frozenset(filter(str.strip, _found(values, "password" if secret else "")))


def _found(value: Any, name: str) -> Iterator[str]:
    """Return the secrets in a value of a name."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _found(member, name if is_secret_name(name) else _words(key))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for member in value:
            yield from _found(member, name)
    elif isinstance(value, (str, bytes, int, float)) and not isinstance(value, bool):
        yield from _in_text(value.decode(errors="replace") if isinstance(value, bytes) else str(value), name)


def stated_secrets(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the secrets in values whose forms say nothing, such as classes and flags.

    They are the values of names of secrets, and in others logins of addresses and ``password=...``.
    """
    found: set[str] = set()
    for name, value in values.items():
        if is_secret_name(name) or _holds(_words(name)):
            found |= secrets_of({name: value})
        else:
            found.update(_stated(str(value)))
    return frozenset(filter(str.strip, found))


def _words(name: object) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name)).lower()


def _holds(name: str) -> bool:
    return bool(_HOLDS.search(name.replace("_", "").replace("-", "")))


def is_secret_name(name: object) -> bool:
    """Return whether the value of a name is a secret, whatever its form."""
    words = _words(name)
    plain = words.replace("_", "").replace("-", "")
    usually = _USUALLY.search(words) and not (_NEVER.search(words) or _holds(words))
    return bool(usually or _ALWAYS.search(plain))


def _is_public(name: str, value: str) -> bool:
    return bool(_NEVER.search(name) or _NAMING.search(name) or _PLAIN.fullmatch(value))


def _stated(text: str) -> Iterator[str]:
    """Return logins in addresses, and values after names of secrets."""
    for address in _ADDRESSES.split(text):
        before, _, after = address.rpartition("@")
        kind, is_address, authority = before.rpartition("://")
        if before.startswith("jdbc:") and not is_address:  # jdbc:oracle:thin:user/password@host
            authority = before.rpartition(":")[2].replace("/", ":", 1)
        user, _, password = authority.partition(":")
        token = user if kind.startswith("http") and not password and len(user) >= SHORT else ""
        if after:
            for one in (password, password.partition("@")[0], token):
                yield from (one, unquote(one))
    for pair in islice(_PAIR.finditer(text), _MOST_PARTS):
        if is_secret_name(pair[1]):
            given = pair[2].strip("\"'")
            yield from (given, unquote(given), unquote(given.partition(":")[2]), given.partition(" ")[2])


def _in_text(text: str, name: str) -> Iterator[str]:
    is_secret, is_address = is_secret_name(name), "://" in text
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _found(json.loads(text), name)
            if not is_secret:
                return
    yield from _stated(text)
    if _holds(name) or (is_secret and not is_address):
        for pair in islice(_PAIR.finditer(text), _MOST_PARTS):
            given = pair[2].strip("\"'")
            if len(given) >= SHORT and not _is_public(_words(pair[1]), given):
                yield from (given, unquote(given))
    if not is_secret:
        for one in text.split("&") if "=" in text else (text,):
            key, _, value = one.partition("=")
            if not value.strip("="):  # base64
                key, value = "", one
            if _holds(_words(key)):
                yield from _in_text(value, _words(key))
            elif not (_holds(name) and _PAIR.search(text)) and not _is_public(key or name, value):
                yield value
        return
    yield from (text, text.strip())
    if is_address:
        return
    if len(after := text.partition(":")[2].strip()) >= SHORT:
        yield after
    if text.lower().startswith(("bearer ", "basic ", "token ", "apikey ")):
        yield text.rsplit(maxsplit=1)[-1]
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) > 1:
        yield "".join(lines)
        lines = [line for line in lines if not line.startswith("-----")]
        yield "".join(lines)
    words = (word for line in lines for word in line.split() if len(word) >= DISTINCT)
    yield from islice((word for word in words if len(lines) > 1 or not word.isalpha()), _MOST_PARTS)
