"""Character sets of MySQL: the codec for the text of a column, by the collation id of its field.

Vitess sends text in the column's own character set. ``Field.charset`` is a collation's id
(``information_schema.collations``); 0 is a character set that Vitess doesn't know, 63 is ``binary``.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

BINARY: Final = 63
UNKNOWN: Final = 0


def _ids(*parts: int | range) -> tuple[int, ...]:
    return tuple(one for part in parts for one in ((part,) if isinstance(part, int) else part))


_COLLATIONS: Final[dict[str, tuple[int, ...]]] = {
    "big5": _ids(1, 84),
    "latin2": _ids(2, 9, 21, 27, 77),
    "dec8": _ids(3, 69),
    "cp850": _ids(4, 80),
    "latin1": _ids(5, 8, 15, 31, 47, 48, 49, 94),
    "hp8": _ids(6, 72),
    "koi8r": _ids(7, 74),
    "swe7": _ids(10, 82),
    "ascii": _ids(11, 65),
    "ujis": _ids(12, 91),
    "sjis": _ids(13, 88),
    "cp1251": _ids(14, 23, 50, 51, 52),
    "hebrew": _ids(16, 71),
    "tis620": _ids(18, 89),
    "euckr": _ids(19, 85),
    "latin7": _ids(20, 41, 42, 79),
    "koi8u": _ids(22, 75),
    "gb2312": _ids(24, 86),
    "greek": _ids(25, 70),
    "cp1250": _ids(26, 34, 44, 66, 99),
    "gbk": _ids(28, 87),
    "cp1257": _ids(29, 58, 59),
    "latin5": _ids(30, 78),
    "armscii8": _ids(32, 64),
    "utf8mb3": _ids(33, 76, 83, range(192, 216), 223),
    "ucs2": _ids(35, 90, range(128, 152), 159),
    "cp866": _ids(36, 68),
    "keybcs2": _ids(37, 73),
    "macce": _ids(38, 43),
    "macroman": _ids(39, 53),
    "cp852": _ids(40, 81),
    "utf8mb4": _ids(45, 46, range(224, 248), range(255, 324)),
    "utf16": _ids(54, 55, range(101, 125)),
    "utf16le": _ids(56, 62),
    "cp1256": _ids(57, 67),
    "utf32": _ids(60, 61, range(160, 184)),
    "binary": _ids(63),
    "geostd8": _ids(92, 93),
    "cp932": _ids(95, 96),
    "eucjpms": _ids(97, 98),
    "gb18030": _ids(248, 249, 250),
}
"""MySQL's character sets and the ids of their collations."""

_NAMES: Final = {number: name for name, numbers in _COLLATIONS.items() for number in numbers}

_CODECS: Final = {
    "big5": "big5",
    "latin2": "iso8859_2",
    "cp850": "cp850",
    "latin1": "cp1252",
    "hp8": "hp_roman8",
    "koi8r": "koi8_r",
    "ascii": "ascii",
    "ujis": "euc_jp",
    "sjis": "shift_jis",
    "cp1251": "cp1251",
    "hebrew": "iso8859_8",
    "tis620": "tis_620",
    "euckr": "cp949",
    "latin7": "iso8859_13",
    "koi8u": "koi8_u",
    "gb2312": "gb2312",
    "greek": "iso8859_7",
    "cp1250": "cp1250",
    "gbk": "gbk",
    "cp1257": "cp1257",
    "latin5": "iso8859_9",
    "utf8mb3": "utf_8",
    "ucs2": "utf_16_be",
    "cp866": "cp866",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "cp852": "cp852",
    "utf8mb4": "utf_8",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "cp1256": "cp1256",
    "utf32": "utf_32_be",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "gb18030": "gb18030",
}
"""Python's codecs. ``dec8``, ``swe7``, ``armscii8``, ``keybcs2`` and ``geostd8`` have none."""

_UTF8: Final = ("utf8mb3", "utf8mb4")
_NOT_ASCII: Final = ("ucs2", "utf16", "utf16le", "utf32")
_CONTROLS: Final = frozenset(b"\x81\x8d\x8f\x90\x9d")


def charset_name(collation: int) -> str:
    """Return MySQL's name of the character set of a collation; empty for an unknown collation."""
    return _NAMES.get(collation, "")


def decode_column(raw: pa.Array, charset: str) -> pa.Array:
    """Decode a column of text.

    ASCII and UTF-8 aren't converted; of other text each distinct value is decoded once.

    Args:
        raw: Binary values.
        charset: MySQL's name of their character set; empty if it is unknown: then valid UTF-8 counts as
            UTF-8.

    Returns:
        Strings; null where a value is null or isn't valid in the character set.
    """
    is_ascii_superset = charset not in _NOT_ASCII
    if is_ascii_superset and _all_ascii(raw):
        return raw.view(pa.string())
    if charset in _UTF8 or charset not in _CODECS:
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_or_none(_decode_utf8, value) for value in raw.to_pylist()], pa.string())
    distinct = pc.dictionary_encode(raw)
    decode = decoder(charset)
    texts = pa.array([_or_none(decode, value) for value in distinct.dictionary.to_pylist()], pa.string())
    return texts.take(distinct.indices)


@cache
def decoder(charset: str) -> Callable[[bytes], tuple[str, int]]:
    """Return the function that decodes one text of a character set, as functions of :mod:`codecs` do.

    MySQL's ``latin1`` is Windows code page 1252, with control characters in its five unassigned positions.
    """
    if charset == "latin1":
        return _decode_latin1
    codec = codecs.getdecoder(_CODECS.get(charset, "utf_8"))
    return lambda raw: codec(raw, "strict")


def can_decode(charset: str) -> bool:
    """Return whether there is a codec for a character set."""
    return charset in _CODECS


def _decode_utf8(raw: bytes) -> tuple[str, int]:
    return codecs.utf_8_decode(raw, "strict", True)  # else it ignores an incomplete character at the end


def _decode_latin1(raw: bytes) -> tuple[str, int]:
    if _CONTROLS.isdisjoint(raw):
        return codecs.charmap_decode(raw, "strict", _LATIN1)
    return "".join(chr(byte) if byte in _CONTROLS else _LATIN1[byte] for byte in raw), len(raw)


_LATIN1: Final = bytes(range(256)).decode("cp1252", "replace")


def _or_none(decode: Callable[[bytes], tuple[str, int]], raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        return decode(raw)[0]
    except UnicodeDecodeError:
        return None


def _all_ascii(raw: pa.Array) -> bool:
    """Return whether no byte of a binary column has its upper bit set."""
    data = raw.buffers()[2]
    if data is None or not len(raw):
        return True
    offsets = pa.Array.from_buffers(pa.int32(), len(raw) + 1, [None, raw.buffers()[1]], offset=raw.offset)
    view = memoryview(data)[offsets[0].as_py() : offsets[-1].as_py()]
    return bytes(view).isascii()
