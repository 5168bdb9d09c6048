"""Convert the offset file of Debezium's connector for Cassandra, ``commitlog_offset.properties``.

It has a line per table, ``keyspace.table=CommitLog-7-1795247392874.log:307939``: the last position that was
emitted. The connector has a file on each node. Tables may be at different positions, and a position is not
guaranteed to be the end of an entry. So capture resumes from the start of the oldest of these segments.
"""

from __future__ import annotations

import re
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.conversion import ConnectOffsets, ImportedOffset, OffsetFile
from airflow_cdc_provider.properties_file import parse_properties
from airflow_cdc_provider.sources.cassandra.position import NodeOffset, write_offset

_POSITION: Final = re.compile(r"CommitLog-\d+-(\d+)\.log:-?\d+")


class CassandraOffsets(ConnectOffsets):
    """Offsets of Debezium's connector for Cassandra."""

    @staticmethod
    def recognizes(content: bytes) -> bool:
        """Return whether a file has this format, which is not JSON."""
        return not content.lstrip().startswith((b"{", b"["))

    def imported(self, file: OffsetFile) -> ImportedOffset:
        """Convert the file of one node."""
        if not file.host_id:
            raise ConfigurationError(
                "the file does not name its node",
                expected="--host-id with the node's host ID, as printed by nodetool info",
            )
        node, remarks = position_of(file.content)
        return ImportedOffset(dict(write_offset({file.host_id: node})), remarks, partial=True)


def position_of(content: bytes) -> tuple[NodeOffset, tuple[str, ...]]:
    """Read a node's file.

    Returns:
        The position from which capture resumes, and remarks for the operator.

    Raises:
        ConfigurationError: The file is not in this format, or has no segment.
    """
    positions = parse_properties(content.decode(errors="replace"))
    segments: dict[str, int] = {}
    for table, position in positions.items():
        found = _POSITION.fullmatch(position.strip())
        if found is None:
            raise ConfigurationError(
                f"invalid position of {table}",
                expected="keyspace.table=CommitLog-7-<id>.log:<position>, as in commitlog_offset.properties",
                found=position[:80],
            )
        segments[table] = int(found[1])
    if not segments:
        raise ConfigurationError(
            "the file has no position", expected="Debezium's commitlog_offset.properties", found="no table"
        )
    first, last = min(segments.values()), max(segments.values())
    behind = sorted(table for table, segment in segments.items() if segment == first)
    remarks = [f"capture resumes from the start of segment {first}: changes in it are emitted again"]
    if first != last:
        remarks.append(
            f"tables have different positions, {', '.join(behind)} at segment {first}, others up to {last}: "
            "their changes in the segments in between are emitted again, too"
        )
    return NodeOffset(floor=first - 1), tuple(remarks)
