"""Positions in a change stream, and their encodings as positions of records, versions and offsets.

A deployment orders its changes by cluster time (seconds, increment). The operations of a transaction share
one, so the index of the event among those of its cluster time, in the order of the stream, completes the
order::

    position = u32 seconds | u32 increment | u32 index       big-endian, 12 bytes; a version is the same

An index of 2^32 - 1 is after all events of a cluster time: the version of a snapshot row is the cluster time
before its read began, with that index. A change that the read may have missed is later, so it wins; a change
that the read did see results in the same row.

An offset is ``{"stream": {"v": 1, "token": ..., "t": ..., "i": ..., "index": ...}}``. ``token`` is the resume
token's BSON in base64; capture resumes after it. Without a token (the start of a snapshot, a manually set
offset, a token above :data:`MOST_BYTES`) it resumes after the first ``index + 1`` events of cluster time
``t``, ``i``. A token contains the document's key, which has no largest size.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import bson
from bson.errors import BSONError
from bson.timestamp import Timestamp

from airflow_cdc_provider.exceptions import ConfigurationError

ORIGIN: Final = "stream"
"""The one ordered feed of a MongoDB source."""

LAST_INDEX: Final = 0xFFFF_FFFF
MOST_BYTES: Final = 4096
"""Largest token, key or boundary that is stored with each offset."""
_FORMAT: Final = 1
_U32: Final = 1 << 32
_FRAGMENT: Final = re.compile(r"00(?:29|2B[0-9A-F]{2})04$")
"""End of a fragment's token: the end of an object, a number from 0 to 127, and the end of the token."""


@dataclass(frozen=True, order=True)
class StreamPosition:
    """A position right after an event, or after all events of a cluster time.

    Args:
        seconds: Seconds of the cluster time.
        increment: Increment of the cluster time.
        index: Index of the event among those of its cluster time; LAST_INDEX for all of them.
        token: Resume token's BSON; empty if only the time is known.
    """

    seconds: int
    increment: int
    index: int = LAST_INDEX
    token: bytes = b""

    @classmethod
    def after(cls, time: Timestamp) -> StreamPosition:
        """Return the position after all events of a cluster time."""
        return cls(time.time, time.inc)

    @classmethod
    def before(cls, time: Timestamp) -> StreamPosition:
        """Return the position before all events of a cluster time."""
        last = (time.time << 32 | time.inc) - 1
        return cls(last >> 32, last & (_U32 - 1))

    @property
    def time(self) -> int:
        """The cluster time as one number, seconds in the upper half."""
        return self.seconds << 32 | self.increment

    @property
    def encoded(self) -> bytes:
        """The position as sortable bytes."""
        return self.time.to_bytes(8, "big") + self.index.to_bytes(4, "big")

    @property
    def stored_token(self) -> bytes:
        """The token, empty if it is too large to be stored."""
        return self.token if len(self.token) <= MOST_BYTES else b""

    @property
    def start_time(self) -> Timestamp:
        """The first cluster time of which events may follow."""
        following = self.time + 1 if self.index == LAST_INDEX else self.time
        return Timestamp(following >> 32, following & (_U32 - 1))

    @property
    def unsplit(self) -> StreamPosition:
        """The position for a stream that doesn't split the event before it, if that was split.

        The token of a fragment is that of its event, which ends with an object, with the fragment's number as
        last part. A server resumes after it only if the stream splits the event, and after the event's own
        token only if it doesn't.
        """
        members = bson.decode(self.token) if self.token else {}
        whole = {n: _FRAGMENT.sub("0004", v) if isinstance(v, str) else v for n, v in members.items()}
        return self if whole == members else replace(self, token=bson.encode(whole))

    def to_offset(self) -> dict[str, Any]:
        """Return the position as an offset."""
        return {
            ORIGIN: {
                "v": _FORMAT,
                "token": base64.b64encode(self.stored_token).decode(),
                "t": self.seconds,
                "i": self.increment,
                "index": self.index,
            }
        }

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> StreamPosition:
        """Read an offset.

        Raises:
            ConfigurationError: Not a valid offset.
        """
        value = offset.get(ORIGIN)
        if set(offset) != {ORIGIN} or not isinstance(value, Mapping) or value.get("v") != _FORMAT:
            raise _wrong(f"the members {sorted(offset)}")
        if unknown := set(value) - {"v", "token", "t", "i", "index"}:
            raise _wrong(f"unknown members {sorted(unknown)}")
        numbers = [value.get("t"), value.get("i"), value.get("index", LAST_INDEX)]
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _U32 for n in numbers):
            raise _wrong(f"t, i, index = {numbers}")
        try:
            token = base64.b64decode(value.get("token", ""), validate=True)
            if token:
                bson.decode(token)
        except (binascii.Error, TypeError, ValueError, BSONError) as error:
            raise _wrong("a token that is not a BSON document in base64") from error
        seconds, increment, index = numbers
        return cls(seconds, increment, index, token)


def token_time(token: Mapping[str, Any]) -> int:
    """Return the cluster time of a resume token, seconds in the upper half; 0 if it has none.

    ``_data`` is a KeyString in hexadecimal; it starts with 82, the type of a timestamp, and the time,
    big-endian.
    """
    text = token.get("_data")
    if not isinstance(text, str) or len(text) < 18 or not text.startswith("82"):
        return 0
    try:
        return int(text[2:18], 16)
    except ValueError:
        return 0


def _wrong(found: str) -> ConfigurationError:
    return ConfigurationError(
        "not a valid MongoDB offset",
        expected='{"stream": {"v": 1, "token": base64 or "", "t": seconds, "i": increment, "index": number}}'
        ", numbers from 0 to 4294967295",
        found=found,
    )


def describe(position: StreamPosition) -> str:
    """Return a position as readable text."""
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(position.seconds))
    return f"cluster time {position.seconds}:{position.increment} ({date})"
