"""The schemas of rows that are recorded, and how many more there may be.

Each run's driver reads what is recorded, so it is bounded. Readers record no schema beyond the most. None
knows what the others add in the same batch, so of what several readers recorded, the driver reads each schema
once, and the oldest ones up to the most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from airflow_cdc_provider.sources.contract import SchemaLimit

MOST_SCHEMAS: Final = 1_000
"""Most schemas of a table in a topic."""
_MOST_TABLE_BYTES: Final = 8 << 20
_MOST_TOPIC_BYTES: Final = 64 << 20
_RECORD_BYTES: Final = 1_000
"""What a record takes beyond its schema and the name of its table."""

TOO_MANY_SCHEMAS: Final = (
    f"TOO-MANY-SCHEMAS: a table has at most {MOST_SCHEMAS:,} schemas, of together "
    f"{_MOST_TABLE_BYTES >> 20} MiB, and a topic {_MOST_TOPIC_BYTES >> 20} MiB"
)

RecordedSchema = tuple[str, str, str]
"""Topic, table and name of a schema."""

_TOPIC: Final = "regexp_replace(origin, '/[0-9]+$', '')"
_BYTES: Final = f"octet_length(payload) + length(source_table) + {_RECORD_BYTES}"
LEARNED: Final = (
    SchemaLimit(f"{_TOPIC}, source_table, schema_id", "1", 1),
    SchemaLimit(f"{_TOPIC}, source_table", "1", MOST_SCHEMAS),
    SchemaLimit(f"{_TOPIC}, source_table", _BYTES, _MOST_TABLE_BYTES),
    SchemaLimit(_TOPIC, _BYTES, _MOST_TOPIC_BYTES),
)
"""The records that the driver reads. If it leaves any out, those that it reads reach the most."""


class RecordedSchemas:
    """What is recorded, and what a reader adds to it.

    Args:
        known: The bytes of each recorded schema.

    Attributes:
        added: The number of schemas that were added.
    """

    def __init__(self, known: Mapping[RecordedSchema, int] = MappingProxyType({})) -> None:
        self._names: set[RecordedSchema] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, ...]] = Counter()
        for name, size in known.items():
            self._count(name, size)
        self.added = 0

    @property
    def full_topics(self) -> list[str]:
        """The topics of which the driver may have left out schemas, sorted."""
        return sorted(
            part[0] for part, size in self._bytes.items() if len(part) == 1 and size >= _MOST_TOPIC_BYTES
        )

    def __contains__(self, name: object) -> bool:
        """Return whether a schema is recorded."""
        return name in self._names

    def add(self, name: RecordedSchema, size: int) -> bool:
        """Add a schema of some bytes; return False, without adding it, if there are too many."""
        topic, table, _ = name
        more = size + len(table) + _RECORD_BYTES
        if (
            self._counts[topic, table] >= MOST_SCHEMAS
            or self._bytes[topic, table] + more > _MOST_TABLE_BYTES
            or self._bytes[topic,] + more > _MOST_TOPIC_BYTES
        ):
            return False
        self._count(name, size)
        self.added += 1
        return True

    def _count(self, name: RecordedSchema, size: int) -> None:
        topic, table, _ = name
        self._names.add(name)
        self._counts[topic, table] += 1
        for part in ((topic,), (topic, table)):
            self._bytes[part] += size + len(table) + _RECORD_BYTES
