"""The schemas of rows that are recorded, and how many more there may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MOST_SCHEMAS: Final = 1_000
"""Most schemas of a table in a topic."""
_MOST_TABLE_BYTES: Final = 8 << 20
_MOST_TOPIC_BYTES: Final = 64 << 20
_LEAST_BYTES: Final = 1 << 18
"""What each slice of a batch may add, however many there are."""
_RECORD_BYTES: Final = 1_000
"""What a record takes beyond its schema."""

TOO_MANY_SCHEMAS: Final = (
    f"TOO-MANY-SCHEMAS: a table has at most {MOST_SCHEMAS:,} schemas, of together "
    f"{_MOST_TABLE_BYTES >> 20} MiB, and a topic {_MOST_TOPIC_BYTES >> 20} MiB; at once a quarter of that"
)

RecordedSchema = tuple[str, str, str]
"""Topic, table and name of a schema."""


class RecordedSchemas:
    """What is recorded, and what a reader adds to it: bounded, because each run's driver reads all of it.

    Args:
        known: The bytes of each recorded schema.
        slices: How many readers there are of the topic at once; none knows what the others add.
    """

    def __init__(self, known: Mapping[RecordedSchema, int] = MappingProxyType({}), slices: int = 1) -> None:
        self._slices = slices
        self._names = set(known)
        self._counts = Counter((topic, table) for topic, table, _ in known)
        self._bytes: Counter[tuple[str, ...]] = Counter()
        self._added: Counter[tuple[str, ...]] = Counter()
        for (topic, table, _), size in known.items():
            self._bytes[topic,] += size + _RECORD_BYTES
            self._bytes[topic, table] += size + _RECORD_BYTES

    @property
    def added(self) -> int:
        """The bytes that were added."""
        return sum(size for one, size in self._added.items() if len(one) == 1)

    def __contains__(self, name: object) -> bool:
        """Return whether a schema is recorded."""
        return name in self._names

    def add(self, name: RecordedSchema, size: int) -> bool:
        """Add a schema of some bytes; return False, without adding it, if there are too many."""
        topic, table, _ = name
        limits = {(topic,): _MOST_TOPIC_BYTES, (topic, table): _MOST_TABLE_BYTES}
        size += _RECORD_BYTES + len(table)
        if self._counts[topic, table] >= MOST_SCHEMAS or any(
            self._bytes[one] + size > most
            or self._added[one] + size > max(most // 4 // self._slices, _LEAST_BYTES)
            for one, most in limits.items()
        ):
            return False
        self._names.add(name)
        self._counts[topic, table] += 1
        for one in limits:
            self._bytes[one] += size
            self._added[one] += size
        return True
