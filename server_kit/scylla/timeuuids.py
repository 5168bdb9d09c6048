"""The two kinds of timeuuids that ScyllaDB makes: times of the log, and ids of list cells."""

from __future__ import annotations

import random

EPOCH_TICKS = 0x01B21DD213814000
"""1970-01-01 in ticks of 100 ns since 1582-10-15."""
_NODE = b"\x01\x02\x03\x04\x05\x06"


def log_time(time_us: int, chance: random.Random) -> bytes:
    """Make a ``cdc$time``: the write's microsecond, and eight random bytes.

    Not even the variant bits of RFC 4122 are set in them (scylla source, utils/UUID_gen.hh,
    ``get_random_time_UUID_from_micros``).
    """
    return _time_half(time_us * 10 + EPOCH_TICKS) + chance.randbytes(8)


def list_id(time_us: int, number: int) -> bytes:
    """Make the id of a list's cell: the microsecond, a number that orders cells of one request, and the node.

    The number's upper three bits count ticks of 100 ns, its lower 14 are the clock sequence, laid out so that
    signed bytes order it (scylla source, utils/UUID_gen.hh,
    ``get_time_UUID_bytes_from_micros_and_submicros``). Two requests of one timestamp to one coordinator make
    the same ids.
    """
    sequence = number & 0x3FFF
    tail = bytes([0x80 | sequence >> 8, (sequence & 0xFF) ^ 0x80])
    return _time_half(time_us * 10 + EPOCH_TICKS + (number >> 14)) + tail + _NODE


def time_us(value: bytes) -> int:
    """Return a timeuuid's microsecond since 1970."""
    ticks = int.from_bytes(bytes([value[6] & 0x0F]) + value[7:8] + value[4:6] + value[:4], "big")
    return (ticks - EPOCH_TICKS) // 10


def _time_half(ticks: int) -> bytes:
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF
    return low.to_bytes(4, "big") + middle.to_bytes(2, "big") + (0x1000 | high).to_bytes(2, "big")
