"""The encoding of stream ids and times of a log.

A stream id, 16 bytes, big-endian::

    127..64  token, signed
     63..26  random
     25..4   index of the vnode; 0 with tablets
      3..0   version, 1

A ``cdc$time`` is a timeuuid whose second half is all random, without the variant bits of RFC 4122. The
database orders timeuuids by their 60 bits of time, then by the bytes of the second half, each with a sign.
"""

from __future__ import annotations

from typing import Final

STREAM_ID_BYTES: Final = 16
EPOCH_TICKS: Final = 0x01B21DD213814000
"""1970 in UUID time: 100 ns since 1582."""
_SIGNS: Final = int.from_bytes(b"\x80" * 8, "big")


def vnode_index(stream: bytes) -> int:
    """Return the index of a stream's vnode."""
    return int.from_bytes(stream[8:], "big") >> 4 & 0x3FFFFF


def stream_token(stream: bytes) -> int:
    """Return the token of a stream."""
    return int.from_bytes(stream[:8], "big", signed=True)


def first_time(moment_us: int) -> bytes:
    """Return the smallest timeuuid of a microsecond since 1970: the inclusive lower bound of a window."""
    return _timeuuid((moment_us * 10 + EPOCH_TICKS) << 64)


def time_after(time: bytes) -> bytes:
    """Return the next timeuuid in the database's order."""
    return _timeuuid(int.from_bytes(sortable_time(time), "big") + 1)


def sortable_time(time: bytes) -> bytes:
    """Return a timeuuid in a byte order that sorts as the database does."""
    ticks = bytes([time[6] & 0x0F]) + time[7:8] + time[4:6] + time[:4]
    return ticks + (int.from_bytes(time[8:], "big") ^ _SIGNS).to_bytes(8, "big")


def time_us(time: bytes) -> int:
    """Return the microsecond since 1970 of a timeuuid."""
    return (int.from_bytes(sortable_time(time)[:8], "big") - EPOCH_TICKS) // 10


def timeuuid(sortable: bytes) -> bytes:
    """Return the timeuuid for the result of :func:`sortable_time`."""
    return _timeuuid(int.from_bytes(sortable, "big"))


def _timeuuid(sortable: int) -> bytes:
    ticks, rest = sortable >> 64, (sortable & (1 << 64) - 1) ^ _SIGNS
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF
    return (low << 96 | middle << 80 | (0x1000 | high) << 64 | rest).to_bytes(16, "big")
