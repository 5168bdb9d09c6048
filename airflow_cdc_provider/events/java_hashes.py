"""Iteration order of strings in Java's ``HashMap`` and ``HashSet``, which is visible in Debezium's events.

Buckets are ordered by hash, entries of a bucket by insertion; the initial 16 buckets double at a load factor
of 0.75.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_MIN_BUCKETS: Final = 16


@lru_cache(maxsize=4096)
def spread_hash(text: str) -> int:
    """Return the spread hash that determines a bucket: ``String.hashCode`` xor its upper half."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        code = (code * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return code ^ code >> 16


def bucket_count(entries: int) -> int:
    """Return the number of buckets of a map with this number of entries."""
    buckets = _MIN_BUCKETS
    while entries > buckets * 3 // 4:
        buckets *= 2
    return buckets
