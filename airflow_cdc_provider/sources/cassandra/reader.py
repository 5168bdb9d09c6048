"""Read slices of segments on executors, section by section (:mod:`.records` builds the records)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.cassandra.capture import SegmentSlice
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys
from airflow_cdc_provider.sources.cassandra.commit_log.sections import (
    CorruptRange,
    Section,
    plain_sections,
    unreadable,
)
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentBytes
from airflow_cdc_provider.sources.cassandra.commit_log.tables import LogTables
from airflow_cdc_provider.sources.cassandra.records import ReadCounts, SegmentRecords
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics

log = logger(__name__)

_BATCH_BYTES: Final = 8 * 1024 * 1024


def read_segments(
    part: SegmentSlice,
    tables: LogTables,
    counts: ReadCounts | None = None,
    *,
    keys: Keys | None = None,
    full: frozenset[bytes] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read one partition of a plan.

    Args:
        part: From :func:`~.capture.plan_segments`.
        tables: The known tables.
        counts: Incremented by this read, if given; the counts are logged in any case.
        keys: Keys of encrypted segments.
        full: As for :class:`~.records.SegmentRecords`.

    Yields:
        Batches of ``CHANGE_SCHEMA``; rows of one kind are in the order of the log.

    Raises:
        PositionLost: The segment was deleted.
        TransientError: The segment can't be read.
        CorruptInput: Bytes are unreadable and the slice is strict; the message locates them.
        SchemaUnknown: A table or column is unknown and the slice is strict.
        ConfigurationError: The key of the segment is missing, or its compression is unknown.
    """
    reader = SegmentRecords(
        part.origin, part.descriptor.segment, tables, part.strict, counts or ReadCounts(), full
    )
    yield from reader.damage(part.damage)
    plain: list[bytes] = []
    positions: list[int] = []
    size = 0
    for section, content in _contents(part, keys):
        if isinstance(content, CorruptRange):
            yield from reader.damage([content])
            continue
        plain.append(content)
        positions.append(section.position)
        size += len(content)
        if size >= _BATCH_BYTES:
            yield from reader.read(plain, positions, part.descriptor.version, part.after)
            plain, positions, size = [], [], 0
    if plain:
        yield from reader.read(plain, positions, part.descriptor.version, part.after)
    log.info("read %s, %d sections: %s", part.path, len(part.sections), reader.counts)


def _contents(part: SegmentSlice, keys: Keys | None) -> Iterator[tuple[Section, bytes | CorruptRange]]:
    """Read the sections; a segment that became a link or another kind of file has lost them."""
    try:
        source = SegmentBytes(part.path)
    except CorruptInput as error:
        log.warning("%s", error)
        yield from ((section, unreadable(section, b"")) for section in part.sections)
        return
    with source:
        yield from plain_sections(source, part.descriptor, part.sections, keys)


@dataclass(frozen=True)
class SegmentReader(Reader):
    """Reads partitions of a plan on executors. Picklable.

    Args:
        tables: The known tables, once for all partitions.
        keys: Keys of encrypted segments.
        full: As for :class:`~.records.SegmentRecords`.
    """

    tables: LogTables
    keys: Keys | None = None
    full: frozenset[bytes] | None = None

    def read(self, parts: Iterable[SegmentSlice], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read slices, and count the updates of tables that are not captured: see :class:`ReadCounts`."""
        for part in parts:
            counts = ReadCounts()
            yield from read_segments(part, self.tables, counts, keys=self.keys, full=self.full)
            metrics.skipped.update({(part.origin, why): count for why, count in counts.skipped.items()})
