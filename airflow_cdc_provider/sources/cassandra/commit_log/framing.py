"""Find, check and locate the entries of sections in one kernel (reference §4).

An entry, big-endian::

    0      u32  size S
    4      u32  CRC-32 of the size's four bytes
    8      S    a mutation
    8+S    u32  the same CRC-32, continued over the mutation

Corrupt ranges are located and skipped as Cassandra's reader does when it is configured to ignore errors: an
invalid size or size checksum, or an entry that exceeds its section, skips the rest of the section, because
the start of the next entry is unknown; an invalid checksum of the entry skips that entry. Unlike Cassandra's,
this reader continues with the next section after a size of zero, and reports damage if anything but zeros
follows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cassandra.commit_log.checksum import crc32
from airflow_cdc_provider.sources.cql.reasons import (
    ENTRY_BEYOND_SECTION,
    ENTRY_CHECKSUM,
    SIZE_CHECKSUM,
    SIZE_INVALID,
    ZERO_SIZE,
)
from airflow_cdc_provider.sources.cql.wire import read_i32

_OVERHEAD_BYTES: Final = 12
_LEAST_SIZE: Final = 10

START: Final = 0
"""Columns of ``entries``: offset of the mutation in the plain bytes, and its length."""
LENGTH: Final = 1
END: Final = 2
"""Column of ``entries``: logical position of the entry's end."""

DAMAGE_AT: Final = 0
"""Column of ``damage``: its offset in the plain bytes; then its length, logical position and reason."""
DAMAGE_LENGTH: Final = 1
DAMAGE_POSITION: Final = 2
DAMAGE_REASON: Final = 3


class Entries(NamedTuple):
    """The entries and the corrupt ranges of plain bytes.

    ``entries``  int64, a row per valid entry
    ``damage``   int64, a row per unreadable range
    """

    entries: Ints
    damage: Ints


def find_entries(plain: Bytes, starts: Ints, ends: Ints, positions: Ints) -> Entries:
    """Find all entries of some sections.

    Args:
        plain: Decompressed bytes of the sections.
        starts: Offset of each section in them.
        ends: End offset of each section.
        positions: Logical position of each section's first byte.

    Returns:
        The entries and corrupt ranges.
    """
    most = int((ends - starts).sum()) // (_LEAST_SIZE + _OVERHEAD_BYTES) + len(starts)
    entries = np.empty((most, 3), np.int64)
    damage = np.empty((most, 4), np.int64)
    found, broken = _find(plain, starts, ends, positions, entries, damage)
    return Entries(entries[:found], damage[:broken])


@walker
def _find(
    plain: Bytes, starts: Ints, ends: Ints, positions: Ints, entries: Ints, damage: Ints
) -> tuple[int, int]:
    found = 0
    broken = 0
    for section in range(len(starts)):
        at, end = starts[section], ends[section]
        to_position = positions[section] - at
        while end - at >= 4:
            size = read_i32(plain, at)
            reason = 0
            lost_to = end
            if size == 0:
                reason = ZERO_SIZE
            elif end - at < 8:
                reason = ENTRY_BEYOND_SECTION
            else:
                crc = crc32(plain, at, np.int64(4), np.int64(0))
                if crc != read_i32(plain, at + 4) & 0xFFFFFFFF:
                    reason = SIZE_CHECKSUM
                elif size < _LEAST_SIZE:
                    reason = SIZE_INVALID
                elif size > end - at - _OVERHEAD_BYTES:
                    reason = ENTRY_BEYOND_SECTION
                elif crc32(plain, at + 8, size, crc) != read_i32(plain, at + 8 + size) & 0xFFFFFFFF:
                    reason = ENTRY_CHECKSUM
                    lost_to = at + _OVERHEAD_BYTES + size
            if reason == 0:
                entries[found, START] = at + 8
                entries[found, LENGTH] = size
                at += _OVERHEAD_BYTES + size
                entries[found, END] = at + to_position
                found += 1
                continue
            if reason != ZERO_SIZE or _anything(plain, at, end):
                damage[broken, DAMAGE_AT] = at
                damage[broken, DAMAGE_LENGTH] = lost_to - at
                damage[broken, DAMAGE_POSITION] = at + to_position
                damage[broken, DAMAGE_REASON] = reason
                broken += 1
            at = lost_to
    return found, broken


@walker
def _anything(plain: Bytes, at: Int, end: Int) -> bool:
    """Return whether any byte is not zero."""
    for i in range(at, end):  # noqa: SIM110  # Numba compiles no generators in any()
        if plain[i] != 0:
            return True
    return False
