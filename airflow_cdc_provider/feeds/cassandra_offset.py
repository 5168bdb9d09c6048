"""Compares commit-log segments with a Cassandra offset: captured, partly captured, or new.

The rules are the source's own (:mod:`airflow_cdc_provider.sources.cassandra.position`). It is
imported on first use, because it imports Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_cdc_provider.transfer.segments import Segment, is_plausible

_ONLY_NODE: Final = "node"
"""Origin of segments if neither their folder nor their connector names a host id."""


def has_new_changes(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Return whether a segment has durable changes after an offset.

    Args:
        segment: The segment.
        offset: The source's offset; None for the start.
    """
    if not (segment.readable and is_plausible(segment.id)) or is_captured(segment, offset):
        return False
    return segment.complete or (segment.index is not None and segment.index.end > _read_to(segment, offset))


def is_captured(segment: Segment, offset: Mapping[str, Any] | None) -> bool:
    """Return whether an offset counts a segment as captured to its end, or as skipped."""
    from airflow_cdc_provider.sources.cassandra.position import WHOLE

    return _read_to(segment, offset) == WHOLE


def _read_to(segment: Segment, offset: Mapping[str, Any] | None) -> int:
    from airflow_cdc_provider.sources.cassandra.position import NodeOffset

    node_offset = (offset or {}).get(segment.host or _ONLY_NODE)
    return 0 if node_offset is None else NodeOffset.from_json(node_offset).position(segment.id)
