"""The order in which Java's ``HashMap`` and ``HashSet`` hand out texts, where Debezium shows it.

Buckets by hash, and in a bucket the order of insertion; there are 16 buckets, and twice as many each time
that three of four are filled (``java.util.HashMap``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_LEAST_BUCKETS: Final = 16


@lru_cache(maxsize=4096)
def spread_hash(text: str) -> int:
    """Return what a text's bucket is taken from: ``String.hashCode`` with its upper half mixed in."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        code = (code * 31 + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    return code ^ code >> 16


def bucket_count(entries: int) -> int:
    """Return how many buckets a map has that grew to so many entries."""
    buckets = _LEAST_BUCKETS
    while entries > buckets * 3 // 4:
        buckets *= 2
    return buckets
