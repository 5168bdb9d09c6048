"""Where Debezium's connector for Cassandra stands: its file ``commitlog_offset.properties``.

A line for each table: ``keyspace.table=CommitLog-7-1795247392874.log:307939``, the last place that was handed
on. The connector has a file on each node. Tables may stand apart, and what it calls a position in a segment
is not where an entry ends for sure: so a capture goes on with the oldest of the segments, from its begin.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.properties_file import parse_properties
from airflow_cdc_provider.sources.cassandra.commit_log.offsets import NodeOffset

_PLACE: Final = re.compile(r"CommitLog-\d+-(\d+)\.log:-?\d+")


def is_debeziums(content: bytes) -> bool:
    """Tell whether a file is such a one: no JSON."""
    return not content.lstrip().startswith((b"{", b"["))


def position_of(content: bytes) -> tuple[NodeOffset, tuple[str, ...]]:
    """Read a node's file.

    Returns:
        Where its capture goes on, and what a person should know, in sentences.

    Raises:
        ConfigurationError: It is no such file, or tells no segment.
    """
    told = parse_properties(content.decode(errors="replace"))
    segments: dict[str, int] = {}
    for table, place in told.items():
        found = _PLACE.fullmatch(place.strip())
        if found is None:
            raise ConfigurationError(
                f"the place of {table} can't be read",
                expected="keyspace.table=CommitLog-7-<id>.log:<position>, as commitlog_offset.properties has",
                found=place[:80],
            )
        segments[table] = int(found[1])
    if not segments:
        raise ConfigurationError(
            "the file tells no place", expected="Debezium's commitlog_offset.properties", found="no table"
        )
    first, last = min(segments.values()), max(segments.values())
    behind = sorted(table for table, segment in segments.items() if segment == first)
    remarks = [f"capture goes on with segment {first} from its begin: what was handed on of it comes again"]
    if first != last:
        remarks.append(
            f"tables stand apart, {', '.join(behind)} at segment {first}, others up to {last}: of these "
            "what was handed on of the segments in between comes again, too"
        )
    return NodeOffset(floor=first - 1), tuple(remarks)
