"""Masks the secrets that this process knows, by their values, in all text that leaves it.

A process registers what it reads: the values of connections, resolved references, secrets of a declaration.
Errors mask their text when they are made (:class:`~airflow_cdc_provider.exceptions.CdcError`), a job also its
log and its result, and Airflow all of a task's log. So no code that composes a text needs to know a secret's
place in it.

Masked are a value, its parts that are secrets themselves (lines of a key, a password in an address or in
``name=value`` text), their usual encodings, and what a text's end cuts off of them. What a text has of a
value of fewer than 4 characters is masked only where it is a word of its own; one of 1 character isn't.

Everything in a connection is a secret, unless its name (``host``, ``tls_ca_file``) or its form (a number, a
word, a host name) says that it isn't. Standard library only: the shipper has this module.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

MASK: Final = "***"
_SHORT: Final = 4
"""Shorter values are part of many words."""
_DISTINCT: Final = 8
"""Shorter parts of a value are not looked for: they say little of it, and are in other text by chance."""

_MOST_PARTS, _LONGEST_PART = 400, 2000
"""Of a value that has secrets in it."""

_ALWAYS: Final = re.compile(
    r"header|cookie|authorization|authmechanismproperties|secreturi|user[._-]?info|jaas|connectionstring"
    r"|oauthbearer[._]config"
)
_NEVER: Final = re.compile(
    r"(^|[._-])(file|location|path|folder|dir|url|uri|endpoint|type|class|mechanisms?|method|algorithms?"
    r"|protocol|enabled|format|ms|seconds|bytes|impl|warehouse|suites?|source|providers?)$"
)
_USUALLY: Final = re.compile(
    r"pass(word|wd|phrase)?([._-]|\d|$)|pwd|password|passphrase|secret|token|bearer|assertion|private|credential"
    r"|(^|[._-])(sas|sig|salt|pem|keytab)([._-]|$)|key$|key[._-]?(pem|data|material)|(api|access|account|encryption|master)[._-]?key"
)
_NAMING: Final = re.compile(
    r"(^|[._-])(hosts?|servers?|port|schema|database|rack|zone|keyspace|datacenter|region|region_name|topic|id|login|user"
    r"|username|principal|realm|(app)?name|source|set|group)$"
)
_PLAIN: Final = re.compile(
    r"[A-Za-z]*([ _,./:-]+[A-Za-z]+)*|[+-]?[\d.,:]+ ?[A-Za-z]{0,2}|/[^?;=@]*|[A-Za-z]{1,3}\d{1,3}"
    r"|[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?"
)
"""Words, a number with its unit, a path, a host's name."""
_LOGIN: Final = re.compile(r"(?:://|thin:|oci:)[^/@:\s]*[:/](\S{1,200})@|https?://([^/@:\s]{4,})@")
_PAIR: Final = re.compile(r"""(?<![\w.-])(?=([\w.-]+)["']?\s*[=:]\s*("[^"]*"|'[^']*'|[^\s;,&)]+))""")
_MARKER: Final = re.compile(r"(\[CDC-[A-Z-]+\] )")

_secrets: set[str] = set()
_forms: dict[str, None] = {}
"""All that is masked, longest first."""
_starts: dict[str, list[str]] = {}
"""Forms by their first characters, which a text's end may cut."""
_ends: dict[str, list[str]] = {}


def remember(values: Any, *, secret: bool = False) -> frozenset[str]:
    """Register the secrets in values, for as long as this process lives.

    Args:
        values: A connection's values, or those of an option.
        secret: Whether all of them are secrets, whatever their names and forms.

    Returns:
        The secrets.
    """
    found = secrets_of(values, secret=secret)
    if new := found - _secrets:
        _secrets.update(new)
        added = {form for one in new for form in _forms_of(one)} - _forms.keys()
        forms = sorted({*_forms, *added}, key=lambda form: (-len(form), form))
        _forms.clear()
        _forms.update(dict.fromkeys(forms))
        for form in added:
            if len(form) > _DISTINCT:
                _starts.setdefault(form[:_DISTINCT], []).append(form)
                _ends.setdefault(form[-_DISTINCT:], []).append(form)
    return found


def secrets_of(values: Any, *, secret: bool = False) -> frozenset[str]:
    """Return the secrets in values; the arguments are those of :func:`remember`."""
    return frozenset(filter(str.strip, _found(values, "password" if secret else "")))


def known() -> frozenset[str]:
    """Return all registered secrets, for another process of the job."""
    return frozenset(_secrets)


def masked(text: str) -> str:
    """Return a text with ``***`` in place of each registered secret. The code of an error stays."""
    if not _forms:
        return text
    pieces = _MARKER.split(text)
    return "".join(piece if at % 2 else _masked(piece) for at, piece in enumerate(pieces))


def masked_values(value: Any, keep: Collection[str] = ()) -> Any:
    """Return plain data in which all texts are masked, except the names of mappings and the members kept."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {
            name: member if name in keep else masked_values(member, keep) for name, member in value.items()
        }
    return [masked_values(member, keep) for member in value] if isinstance(value, (list, tuple)) else value


def forget() -> None:
    """Forget all secrets."""
    for known in (_secrets, _forms, _starts, _ends):
        known.clear()


def _masked(text: str) -> str:
    if "\n" in text:
        text = _without_wrapped(text)
    for form in _forms:
        if len(form) == 1:
            continue
        if len(form) < _SHORT:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])", MASK, text)
        elif form in text:
            text = text.replace(form, MASK)
    return "\n".join(map(_without_cut, text.split("\n")))


def _without_cut(line: str) -> str:
    """Mask the start of a secret at a line's end, and the end of one at its start."""
    longest = len(next(iter(_forms)))
    for at in range(max(len(line) - longest, 0), len(line) - _DISTINCT + 1):
        if any(form.startswith(line[at:]) for form in _starts.get(line[at : at + _DISTINCT], ())):
            line = line[:at] + MASK
            break
    for at in range(min(len(line), longest), _DISTINCT - 1, -1):
        if any(form.endswith(line[:at]) for form in _ends.get(line[at - _DISTINCT : at], ())):
            return MASK + line[at:]
    return line


def _without_wrapped(text: str) -> str:
    """Mask secrets that are broken across lines."""
    places = [at for at, character in enumerate(text) if not character.isspace()]
    packed = "".join(text[at] for at in places)
    spans = []
    for form in {"".join(form.split()) for form in _forms}:
        at = packed.find(form) if len(form) > _DISTINCT else -1
        while at >= 0:
            spans.append((places[at], places[at + len(form) - 1] + 1))
            at = packed.find(form, at + len(form))
    for begin, end in sorted(spans, reverse=True):
        text = text[:begin] + MASK + text[end:]
    return text


def _found(value: Any, name: str) -> Iterator[str]:
    """Return the secrets in a value of a name."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _found(member, name if _is_secret_name(name) else _words(key))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for member in value:
            yield from _found(member, name)
    elif isinstance(value, (str, bytes, int, float)) and not isinstance(value, bool):
        yield from _in_text(value.decode(errors="replace") if isinstance(value, bytes) else str(value), name)


def by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some settings whose names say that they are secrets: most have values of any form."""
    return {name: value for name, value in values.items() if _is_secret_name(_words(name))}


def _words(name: object) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(name)).lower()


def _is_secret_name(name: str) -> bool:
    plain = name.replace("_", "").replace("-", "")
    return bool(_ALWAYS.search(plain) or (_USUALLY.search(name) and not _NEVER.search(name)))


def _in_text(text: str, name: str) -> Iterator[str]:
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _found(json.loads(text), name)
    for password, token in _LOGIN.findall(text):
        for one in {password, password.partition("@")[0], token}:
            yield from (one, unquote(one))
    is_secret = _is_secret_name(name)
    is_address = "://" in text
    for pair in islice(_PAIR.finditer(text), _MOST_PARTS):
        given = pair[2].strip("\"'")[:_LONGEST_PART]
        if _is_secret_name(_words(pair[1])):
            yield from (given, unquote(given), unquote(given.partition(":")[2]))
        elif is_secret and not is_address and len(given) >= _SHORT and given not in ("true", "false"):
            yield from (given, unquote(given))
    if not is_secret:
        for one in text.split("&") if "=" in text else (text,):
            key, _, value = one.rpartition("=")
            if not (_NEVER.search(key or name) or _NAMING.search(key or name) or _PLAIN.fullmatch(value)):
                yield value
        return
    yield text
    yield text.strip()
    if is_address:
        return
    if len(after := text.partition(":")[2].strip()) >= _SHORT:
        yield after
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) > 1:
        yield "".join(lines)
        lines = [line for line in lines if not line.startswith("-----")]
        yield "".join(lines)
    words = (word for line in lines for word in line.split() if len(word) >= _DISTINCT)
    yield from islice(words, _MOST_PARTS)


def _forms_of(secret: str) -> Iterator[str]:
    """Return a secret and its usual encodings."""
    data = secret.encode(errors="surrogateescape")
    quoted = json.dumps(secret)[1:-1]
    encoded = [quote(data, safe=safe) for safe in ("", "/", "!$&'()*+,;=:")]
    encoded += [quote_plus(data), quote_plus(data, safe="*").replace("~", "%7E"), quote(encoded[0])]
    yield from (secret, quoted, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(quoted)[1:-1])
    yield re.sub(r"[&<>='+]", lambda special: f"\\u{ord(special.group()):04x}", quoted)
    yield from (repr(secret)[1:-1], repr(data)[2:-1], shlex.quote(secret), repr(repr(secret))[2:-2])
    yield from (html.escape(secret).replace("&#x27;", mark) for mark in ("&#x27;", "&#39;", "&apos;"))
    yield from (*encoded, base64.b64encode(data).decode().rstrip("="))
    yield from (re.sub("%..", lambda code: code.group().lower(), one) for one in encoded)
    if len(data) < _DISTINCT // 2:
        return
    yield from (data.hex(), data.hex().upper())
    for before in range(3):  # the encoding of a text that has the secret anywhere
        begin, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            if end - begin >= _SHORT:
                yield encode(b"\0" * before + data).decode()[begin:end]
