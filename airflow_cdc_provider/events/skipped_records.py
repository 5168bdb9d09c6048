"""Input records without events or rows: undecodable ones, and kinds that are left out on purpose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from airflow_cdc_provider.exceptions import CorruptInput, listed, shortened

OPERATIONS: Final = {
    "c": "create",
    "i": "insert",
    "u": "update",
    "d": "delete",
    "r": "read",
}
"""Operations of events, in words."""
_MAX_REPORTED: Final = 20


@dataclass
class SkippedRecords:
    """Records of the input without events or rows.

    Args:
        strict: Whether to raise for the first undecodable record.
        undecodable: Position and reason of each undecodable record, one text each.
        by_kind: Number of events left out on purpose, by kind in words; ``replica duplicate`` are writes that
            the log of another node had already.
        inexact_keys: Number of records by table whose key isn't that of one row alone.
        removed: What emptied tables, which has no event: ``truncate`` or ``drop``, and the table.
    """

    strict: bool
    undecodable: list[str] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    removed: set[tuple[str, str]] = field(default_factory=set)
    inexact_keys: Counter[str] = field(default_factory=Counter)

    def add(self, position: str, reason: str) -> None:
        """Add an undecodable record.

        Raises:
            CorruptInput: The source is strict.
        """
        text = f"{shortened(position)}: {reason}"
        if self.strict:
            raise CorruptInput(text, remedy="set source.advanced.strict: false to skip such records")
        self.undecodable.append(text)

    def update(self, other: SkippedRecords) -> None:
        """Add the records of a part of the input."""
        self.undecodable += other.undecodable
        self.by_kind.update(other.by_kind)
        self.removed |= other.removed
        self.inexact_keys.update(other.inexact_keys)

    def report(self) -> list[str]:
        """Return a readable report: the first undecodable records, their number, and what was left out."""
        lines = [f"undecodable: {text}" for text in self.undecodable[:_MAX_REPORTED]]
        if len(self.undecodable) > _MAX_REPORTED:
            lines.append(f"undecodable: and {len(self.undecodable) - _MAX_REPORTED} more")
        if self.undecodable:
            lines.append(f"summary: {len(self.undecodable)} records of the input could not be decoded")
        if counted := +self.by_kind:
            lines.append(
                "skipped: " + ", ".join(f"{n} of kind {kind}" for kind, n in sorted(counted.items()))
            )
        if self.inexact_keys:
            named = listed([f"{table} ({count})" for table, count in sorted(self.inexact_keys.items())])
            lines.append(
                "keys with bytes that are not UTF-8, written as U+FFFD, as with Debezium, in records of "
                f"{named}: keys of different rows may be equal, so readers and compaction may mix rows"
            )
        if self.removed:
            kinds = {
                kind: sorted(t for k, t in self.removed if k == kind) for kind, _ in sorted(self.removed)
            }
            named = " and ".join(f"{kind.upper()} of {listed(tables)}" for kind, tables in kinds.items())
            lines.append(
                f"{named}: no event deletes their rows, as with Debezium, so topics keep them. Delete the "
                "topics' earlier records if readers must not see them; with publish.kafka.mode: after_merge "
                "each such row has a delete event"
            )
        return lines
