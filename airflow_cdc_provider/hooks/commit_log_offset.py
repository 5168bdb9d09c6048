"""What a Cassandra offset says about a segment: read, partly read, or new.

The rules are the source's own (:mod:`airflow_cdc_provider.sources.cassandra.commit_log.offsets`). It is
imported when first used, because it brings Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.transfer.segments import Segment

_ONLY_NODE: Final = "node"
"""Origin of segments whose folder and whose connector name no host id."""


def is_news(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Tell whether a segment holds durable changes after an offset.

    Args:
        segment: The segment.
        offset: The source's offset, None for the begin.
    """
    if not segment.readable or is_passed(segment, offset):
        return False
    return segment.complete or (segment.index is not None and segment.index.end > _read_to(segment, offset))


def is_passed(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Tell whether an offset calls a segment read to its end, or not wanted."""
    from airflow_cdc_provider.sources.cassandra.commit_log.offsets import WHOLE

    return _read_to(segment, offset) == WHOLE


def reached(offset: Mapping[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Return how far each node's log was read: its newest segment that was, and the position in it.

    Args:
        offset: The source's offset.

    Returns:
        By host id: the segment's number, and the logical position, None where it was read to its end.
    """
    from airflow_cdc_provider.sources.cassandra.commit_log.offsets import read_offset

    found = {}
    for host, node in read_offset(offset).items():
        newest = max(node.floor, *node.open, *(last for _, last in node.done), 0)
        if newest:
            found[host] = newest, node.open.get(newest)
    return found


def _read_to(segment: Segment, offset: Mapping[str, Any] | None) -> int:
    from airflow_cdc_provider.sources.cassandra.commit_log.offsets import NodeOffset

    place = (offset or {}).get(segment.host or _ONLY_NODE)
    return 0 if place is None else NodeOffset.from_json(place).position(segment.id)
