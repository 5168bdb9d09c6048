"""What fences make invalid of row-level sources: contributions and rows up to a position of their own feed.

A row that was merged before a fence was known has an older generation than it should, so its version decides,
which is a place in its feed. Sources with one feed compare all rows with its last fence. Where there are
several (shards), positions of one say nothing of another's rows: keys then begin with what names their feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.fence import Fence


@runtime_checkable
class HasFeeds(Protocol):
    """What a row-level codec adds whose source has several feeds."""

    def key_prefix(self, origin: str) -> bytes:
        """Return what the keys of all rows of a feed begin with, and no others."""
        ...


@dataclass(frozen=True)
class RowFences:
    """The last fence of each feed.

    Args:
        last: What the feed's keys begin with (empty: all keys) and the fence's position.
    """

    last: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, fences: Sequence[Fence], shape: object) -> RowFences:
        """Take the fences of a table; ``shape`` is its codec."""
        last: dict[bytes, bytes] = {}
        for fence in fences:
            prefix = shape.key_prefix(fence.origin) if fence.origin and isinstance(shape, HasFeeds) else b""
            last[prefix] = max(last.get(prefix, b""), fence.position)
        return cls(tuple(sorted(last.items())))

    def above(self, other: RowFences) -> bool:
        """Tell whether any feed has a later fence than there."""
        known = dict(other.last)
        return any(position > known.get(prefix, b"") for prefix, position in self.last)

    def filter(self, contributions: pa.Table) -> pa.Table:
        """Leave out what doesn't count: versions up to the fence of their feed."""
        for prefix, position in self.last:
            late = pc.greater(contributions["version"], pa.scalar(position, pa.binary()))
            if prefix:
                late = pc.or_(late, pc.invert(pc.starts_with(contributions["key"], prefix)))
            contributions = contributions.filter(late)
        return contributions

    def predicate(self, cdc: str) -> str:
        """Return SQL that finds the rows that don't count, by their column ``_cdc``."""
        parts = []
        for prefix, position in self.last:
            part = f"{cdc}.version <= X'{position.hex()}'"
            if prefix:
                part = f"({part} AND substring({cdc}.key, 1, {len(prefix)}) = X'{prefix.hex()}')"
            parts.append(part)
        return " OR ".join(parts) or "false"


NO_FENCES = RowFences()
"""Everything counts."""
