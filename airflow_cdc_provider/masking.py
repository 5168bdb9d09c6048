"""Masks the secrets that this process knows, by their values, in all text that leaves it.

A process registers what it reads: the values of connections, resolved references, secrets of a declaration.
Errors mask their text when they are made (:class:`~airflow_cdc_provider.exceptions.CdcError`), a job also its
log and its result, and Airflow all of a task's log. So no code that composes a text needs to know a secret's
place in it. Only texts that are shown are masked: code that decides by a text, or takes a name from it, does
so before it makes an error of it, and structured data keep their names, keys, numbers and states.

Masked are a value, its parts that are secrets themselves (lines of a key, a password in an address or in
``name=value`` text), and what a cut leaves of them. They are searched in a text as it is, in base64 and
hexadecimal, and in the text without escapes (of addresses, JSON, Java, shells, SQL, HTML) and line breaks.
A value of fewer than 4 characters is masked only where it is a word of its own; one of 1 character, or a
number of fewer than 4 digits, isn't. A value that is also a name of the declaration, or a common word, is
masked only where a secret is expected: ``password=shop``.

Which values are secrets: :mod:`.secret_values`. Standard library only: the shipper has this module.
"""

from __future__ import annotations

import base64
import contextlib
import html
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from airflow_cdc_provider.secret_values import DISTINCT, SHORT, is_secret_name, secrets_of

MASK: Final = "***"

_MARKER: Final = re.compile(r"(\[CDC-[A-Z-]+\] )")

_CUTS: Final = (re.compile(r"""\n|["' \[(<]{0,2}(?:\.{3,}|…)["' \])>]{0,2}"""), re.compile("[\"'`]"))
"""Where only a part of a value may be left: programs mark what they cut, or quote it."""
_COMMON: Final = frozenset(
    re.findall(
        r"\w+",
        "admin connection database default disabled enabled error false host key login no none null off on"
        " optional password plain public refused required root secret server source table test token topic"
        " true user yes cassandra kafka mongodb pulsar scylla spark vitess",
    )
)
_HEX: Final = "[0-9A-Fa-f]"
_ESCAPE: Final = re.compile(
    "|".join(
        [
            *(
                rf"(?P<{name}>{begin}[C-Fc-f]{_HEX}(?:{begin}[89ABab]{_HEX})+|{begin}{_HEX}{{2}})"
                for name, begin in (("percent", "%(?:25)*"), ("byte", r"\\+x"))
            ),
            r"(?P<octal>\\+3[0-7]{2}(?:\\+2[0-7]{2})+|\\+[0-3][0-7]{2})",
            rf"(?P<unit>\\+u[Dd][89ABab]{_HEX}{{2}}\\+u[Dd][C-Fc-f]{_HEX}{{2}}|\\+u{_HEX}{{4}})",
            rf"\\+U(?P<rune>00(?:0{_HEX}|10){_HEX}{{4}})",
            r"(?P<space>\\+[nrt])",
            r"(?P<backslash>\\+)",
            rf"&(?:amp;)*(?P<entity>#\d{{1,7}}|#[Xx]{_HEX}{{1,6}}|[A-Za-z]{{2,8}});",
            r"(?P<latin>[\xc2-\xf4][\x80-\xbf]+)",
            r"(?P<marks>[A-Za-z][\u0300-\u036f]+)",
        ]
    )
)
"""A character as programs write it, also if escaped twice. ``latin``: UTF-8 that was read as Latin-1."""


def _of_bytes(data: bytes) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode()
    return data.decode("latin-1")


_READ: Final[Mapping[str, Callable[[str], str]]] = {
    **dict.fromkeys(
        ("percent", "byte"),
        lambda found: _of_bytes(bytes.fromhex("".join(re.findall(r"(?:%(?:25)*|\\+x)(..)", found)))),
    ),
    "octal": lambda found: _of_bytes(bytes(int(one, 8) for one in re.findall(r"\d{3}", found))),
    "unit": lambda found: bytes.fromhex("".join(re.findall("u(.{4})", found))).decode("utf-16-be", "replace"),
    "rune": lambda found: chr(int(found, 16)),
    "space": lambda _: " ",
    "backslash": lambda _: "",
    "entity": lambda found: html.unescape(f"&{found};"),
    "latin": lambda found: _of_bytes(found.encode("latin-1")),
    "marks": lambda found: unicodedata.normalize("NFC", found),
}
_PASSES: Final = 3
"""How often a text may be encoded, each time in another way."""
_BETWEEN: Final = dict.fromkeys(map(ord, " \t\n\r\v\f'\"`+\\\xa0"))
"""What programs put between the characters of a value, or in place of others: line ends, doubled quotes."""


class Known(NamedTuple):
    """All that a process knows."""

    secrets: frozenset[str]
    names: frozenset[str]


class _Forms:
    """The texts that are searched in one view of a text."""

    def __init__(self, forms: Iterable[str]) -> None:
        self._all = frozenset(form for form in forms if len(form) > 1)
        self._longest = max(map(len, self._all), default=0)
        self._starts: dict[str, list[str]] = {}
        self._ends: dict[str, list[str]] = {}
        for form in self._all:
            if len(form) > DISTINCT:
                self._starts.setdefault(form[:DISTINCT], []).append(form)
                self._ends.setdefault(form[-DISTINCT:], []).append(form)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Return where they are."""
        for form in self._all:
            if len(form) < SHORT or (form.isdigit() and len(form) < DISTINCT):
                if not form.isdigit() or len(form) >= SHORT:
                    word = rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"
                    yield from (found.span() for found in re.finditer(word, text))
                continue
            at = text.find(form)
            while at >= 0:
                yield at, at + len(form)
                at = text.find(form, at + len(form))
        for cuts in _CUTS if self._starts else ():
            begin = 0
            for cut in cuts.finditer(text):
                yield from self._cut(text, begin, cut.start())
                begin = cut.end()
            yield from self._cut(text, begin, len(text))

    def _cut(self, text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Find the start of one at the end of a part of a text, and the end of one at its start."""
        for at in range(max(end - self._longest, begin), end - DISTINCT + 1):
            starts = self._starts.get(text[at : at + DISTINCT], ())
            if any(form.startswith(text[at:end]) for form in starts):
                yield at, end
                break
        for at in range(min(end, begin + self._longest), begin + DISTINCT - 1, -1):
            ends = self._ends.get(text[at - DISTINCT : at], ())
            if any(form.endswith(text[begin:at]) for form in ends):
                yield begin, at
                break


_secrets: set[str] = set()
_names: set[str] = set(_COMMON)


def remember(values: Any, *, secret: bool = False) -> frozenset[str]:
    """Register the secrets in values, for as long as this process lives.

    Args:
        values: A connection's values, or those of an option.
        secret: Whether all of them are secrets, whatever their names and forms.

    Returns:
        The secrets, without those that are names.
    """
    found = secrets_of(values, secret=secret)
    restore(Known(found, frozenset()))
    return found - _names


def remember_names(names: Iterable[str]) -> None:
    """Register names of a declaration: they are in all texts, and masking them would hide nothing."""
    restore(Known(frozenset(), frozenset(names)))


def known() -> Known:
    """Return all that is registered, for another process of the job."""
    return Known(frozenset(_secrets), frozenset(_names))


def restore(other: Known) -> None:
    """Register what another process knows."""
    _secrets.update(other.secrets)
    _names.update(other.names)


def forget() -> None:
    """Forget all secrets and names."""
    _secrets.clear()
    _names.clear()
    _names.update(_COMMON)


def masked(text: str) -> str:
    """Return a text with ``***`` in place of each registered secret. The code of an error stays."""
    if not _secrets:
        return text
    pieces = _MARKER.split(text)
    return "".join(piece if at % 2 else _masked(piece) for at, piece in enumerate(pieces))


def masked_values(value: Any, texts: Collection[str], path: str = "") -> Any:
    """Return plain data in which the texts of some members are masked.

    Args:
        value: The data.
        texts: Paths of members that are free text: ``error``, ``tables.error``. All others name or count
            something, and stay.
        path: The path of the value.
    """
    if isinstance(value, Mapping):
        is_text = path in texts
        return {
            name: masked_values(member, texts, path if is_text else f"{path}.{name}".lstrip("."))
            for name, member in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [masked_values(member, texts, path) for member in value]
    return masked(value) if isinstance(value, str) and path in texts else value


def _masked(text: str) -> str:
    forms, packed = _searched(frozenset(_secrets - _names))
    decoded, places = _decoded(text)
    named = _named(decoded, frozenset(_secrets & _names))
    spans = [*forms.spans(text), *((places[begin], places[end]) for begin, end in named)]
    if decoded != text:
        spans += [(places[begin], places[end]) for begin, end in forms.spans(decoded)]
    if found := list(packed.spans(decoded.translate(_BETWEEN))):
        kept = [at for at, character in enumerate(decoded) if ord(character) not in _BETWEEN]
        spans += [(places[kept[begin]], places[kept[end - 1] + 1]) for begin, end in found]
    pieces: list[str] = []
    done = 0
    for begin, end in sorted(spans):
        if begin >= done:
            pieces += (text[done:begin], MASK)
        done = max(done, end)
    return "".join((*pieces, text[done:]))


@lru_cache(maxsize=1)
def _searched(secrets: frozenset[str]) -> tuple[_Forms, _Forms]:
    """Return what is searched in a text, also in one without escapes; and in one without line ends."""
    forms = {form for secret in secrets for form in (secret, _decoded(secret)[0], *_forms_of(secret))}
    packed = (form.translate(_BETWEEN) for form in forms)
    return (
        _Forms(form for form in forms if form in secrets or len(form) >= SHORT),
        _Forms(form for form in packed if len(form) > DISTINCT),
    )


@lru_cache(maxsize=1)
def _expected(secrets: frozenset[str]) -> re.Pattern[str]:
    """Return what matches secrets that are names, or common words, where a secret is expected."""
    either = "|".join(re.escape(one) for one in sorted(secrets, key=len, reverse=True))
    return re.compile(
        rf"""(?<![\w.-])(?P<name>[\w.-]{{1,60}})["']?\s{{0,3}}(?:[=:>]\s{{0,3}}b?["']?(?:\w{{1,60}}:)?|["'])"""
        rf"""(?P<after>{either})(?![\w-])|://[^\s/@:]{{0,60}}:(?P<login>{either})@"""
    )


def _named(text: str, secrets: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Find secrets that are names, or common words, after the name of a secret, and in addresses."""
    for found in _expected(secrets).finditer(text) if secrets else ():
        if found["login"] or is_secret_name(found["name"]):
            yield found.span("login" if found["login"] else "after")


def _decoded(text: str) -> tuple[str, Sequence[int]]:
    """Return a text without escapes, and where each of its characters, and its end, is in the text."""
    places: Sequence[int] = range(len(text) + 1)
    for _ in range(_PASSES):
        pieces, found, done = list[str](), list[int](), 0
        for escape in _ESCAPE.finditer(text):
            kind = str(escape.lastgroup)
            plain = _READ[kind](escape[kind])
            pieces += (text[done : escape.start()], plain)
            found.extend(places[done : escape.start()])
            found.extend([places[escape.start()]] * len(plain))
            done = escape.end()
        if not done:
            break
        found.extend(places[done:])
        text, places = "".join((*pieces, text[done:])), found
    return text, places


def _forms_of(secret: str) -> Iterator[str]:
    """Return a secret in base64, inside of any text, and in hexadecimal."""
    data = secret.encode(errors="surrogateescape")
    yield base64.b64encode(data).decode().rstrip("=")
    if len(data) < DISTINCT // 2:
        return
    for written in (data.hex(), data.hex(":")):
        yield from (written, written.upper())
    for before in range(3):
        begin, end = (before * 8 + 5) // 6, (before + len(data)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            if end - begin >= SHORT:
                yield encode(b"\0" * before + data).decode()[begin:end]
