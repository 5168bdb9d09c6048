"""What a Cassandra offset says about a segment: read, partly read, or new.

The offset is the Cassandra source's: host id -> ``{"v": 1, "segment": id, "position": logical end of the last
entry read, "completed": whether the segment was read to its natural end}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_cdc_provider.hooks.cdc_raw import Segment


def is_news(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Tell whether a segment holds durable changes after an offset.

    Args:
        segment: The segment.
        offset: The source's offset, None for the begin.
    """
    if not segment.readable:
        return False
    place = _place(offset, segment.host)
    if place is None or segment.id > place["segment"]:
        return True
    if segment.id < place["segment"] or place.get("completed"):
        return False
    # After a crash replay the idx of a completed segment holds the file's length, beyond the last entry.
    if segment.index is None:
        return False
    return segment.index.end > place["position"] or segment.index.completed


def is_consumed(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Tell whether everything that a segment will ever hold has been captured.

    Args:
        segment: The segment.
        offset: The source's offset, None for the begin.
    """
    place = _place(offset, segment.host)
    if place is None:
        return False
    if segment.id < place["segment"]:
        return segment.complete
    return segment.id == place["segment"] and segment.complete and bool(place.get("completed"))


def _place(offset: Mapping[str, Any] | None, host: str) -> Mapping[str, Any] | None:
    place = (offset or {}).get(host)
    return place if isinstance(place, Mapping) and isinstance(place.get("segment"), int) else None


def is_passed(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Tell whether capture has gone on to a later segment of the node."""
    place = _place(offset, segment.host)
    return place is not None and segment.id < place["segment"]
