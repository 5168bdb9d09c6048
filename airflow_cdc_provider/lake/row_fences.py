"""Fences of row-level sources: they invalidate contributions and rows up to a position in their feed.

A row that was merged before a fence was known has too low a generation, so its version decides, which is a
position in its feed. Sources with one feed compare all rows with its last fence. With several feeds (shards),
positions of different feeds can't be compared: keys then begin with a prefix that identifies their feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.fence import Fence


class HasFeeds(Protocol):
    """A codec, which knows the feeds of its rows."""

    def key_prefix(self, origin: str) -> bytes:
        """Return the prefix that the keys of all rows of a feed have, and no others; empty for one feed."""
        ...


@dataclass(frozen=True)
class RowFences:
    """The last fence of each feed.

    Args:
        last: The prefix of each feed's keys (empty: all keys) and the fence's position.
    """

    last: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, fences: Sequence[Fence], shape: HasFeeds) -> RowFences:
        """Build them from the fences of a table; ``shape`` is its codec."""
        last: dict[bytes, bytes] = {}
        for fence in fences:
            prefix = shape.key_prefix(fence.origin) if fence.origin else b""
            last[prefix] = max(last.get(prefix, b""), fence.position)
        return cls(tuple(sorted(last.items())))

    def above(self, other: RowFences) -> bool:
        """Return whether any feed has a later fence than in ``other``."""
        known = dict(other.last)
        return any(position > known.get(prefix, b"") for prefix, position in self.last)

    def filter(self, contributions: pa.Table) -> pa.Table:
        """Drop invalid contributions: those with versions up to the fence of their feed."""
        for prefix, position in self.last:
            late = pc.greater(contributions["version"], pa.scalar(position, pa.binary()))
            if prefix:
                late = pc.or_(late, pc.invert(pc.starts_with(contributions["key"], prefix)))
            contributions = contributions.filter(late)
        return contributions

    def predicate(self, cdc: str) -> str:
        """Return a SQL predicate of the invalid rows, by their column ``_cdc``."""
        parts = []
        for prefix, position in self.last:
            part = f"{cdc}.version <= X'{position.hex()}'"
            if prefix:
                part = f"({part} AND substring({cdc}.key, 1, {len(prefix)}) = X'{prefix.hex()}')"
            parts.append(part)
        return " OR ".join(parts) or "false"


NO_FENCES = RowFences()
"""No row is invalid."""
