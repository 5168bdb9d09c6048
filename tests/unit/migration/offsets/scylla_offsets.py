"""Offsets as ScyllaDB's source connector stores them."""

from __future__ import annotations

import uuid
from typing import Any

FIRST, SECOND, NOW = 1_000_000_000_000, 1_000_000_900_000, 1_000_001_000_000
"""Begins of two generations, and the slowest clock, ms since 1970."""


def bound(ms: int, rest: int, *, less: int = 0) -> str:
    """Write a bound of a window as the connector does, by the fields of a UUID; ``less`` in 100 ns."""
    ticks = ms * 10_000 + 0x01B21DD213814000 - less
    fields = (ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF | 0x1000, rest >> 56)
    return str(uuid.UUID(fields=(*fields, rest >> 48 & 0xFF, rest & 0xFFFFFFFFFFFF)))


def entry(vnode: int, start_ms: int, generation: int = FIRST, table: str = "item", **more: Any) -> Any:
    partition = {
        "keyspace_name": "shop",
        "table_name": table,
        "vnode_id": str(vnode),
        "generation_start": str(generation),
    }
    offset = {
        "window_start": bound(start_ms, 0x8080808080808080),
        "window_end": bound(start_ms + 30_000, 0x7F7F7F7F7F7F7F7F, less=1),
    }
    return {"partition": partition, "offset": {**offset, **more}}
