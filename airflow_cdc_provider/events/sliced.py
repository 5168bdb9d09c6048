"""Events of a slice of a changes table's records, built on executors.

A **slice** has all records of each of its source rows, in the order of the whole table. So the same code
builds the events of a slice and of the whole table, and a row has the same events in the same order in both.
Each source defines how records are partitioned and how their events are built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.skipped_records import SkippedRecords

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class SliceBuilder(Protocol):
    """Builds the events of records. Picklable; uses neither Spark nor the source's connection."""

    def __call__(
        self, rows: Iterator[pa.RecordBatch], request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the events, oldest first.

        Args:
            rows: Batches of ``TABLE_SCHEMA`` in the order of the slice: only the requested records.
            request: The events to build.
            skipped: Collects skipped records.

        Raises:
            CorruptInput: A record can't be decoded and ``skipped`` is strict.
            ConfigurationError: The declaration doesn't match the captured tables.
        """
        ...


@dataclass(frozen=True)
class Sliced:
    """Records of batches, their partitioning, and the builder of their events.

    Args:
        rows: The records, columns of ``TABLE_SCHEMA``.
        partition_by: Bytes or text that are equal for all records of a source row.
        order: Sort order of the records of a slice, the batch first.
        build: Builds their events.
        isolated: Batches in which rows change their ``partition_by``, as in a reshard: all slices must have
            published the batches before, and the batch itself, before any of them continues.
    """

    rows: DataFrame
    partition_by: Column
    order: Sequence[Column]
    build: SliceBuilder
    isolated: frozenset[int] = frozenset()


@dataclass
class SliceRows:
    """Records of a slice, which can be read once, batch by batch.

    Args:
        found: Batches of ``TABLE_SCHEMA``, in the order of the slice.
    """

    found: Iterable[pa.RecordBatch]
    _runs: Iterator[tuple[int, pa.RecordBatch]] = field(init=False, repr=False)
    _next: tuple[int, pa.RecordBatch] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Split records where the batch changes."""
        self._runs = (run for rows in self.found for run in runs_of_batches(rows))

    def between(self, after: int, through: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of some batches; earlier ones are skipped, later ones stay.

        Args:
            after: Batches up to this one are excluded.
            through: The last one.
        """
        while True:
            run = self._next or next(self._runs, None)
            self._next = run
            if run is None or run[0] > through:
                return
            self._next = None
            if run[0] > after:
                yield run[1]


def runs_of_batches(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield runs of records of one batch, with its number.

    Args:
        rows: Batch of ``TABLE_SCHEMA``.
    """
    numbers = rows["batch"].to_numpy()
    if len(numbers):
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in pairwise(bounds):
            yield int(numbers[start]), rows.slice(start, end - start)


def batch_ranges(
    counts: Mapping[int, int], after: int, through: int, *, rows_at_once: int, isolated: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Group batches into ranges that are published in sequence, each by all slices.

    Args:
        counts: Number of records by batch; batches without records may be missing.
        after: The batch before the first.
        through: The last batch.
        rows_at_once: Approximate number of records of a range; a batch isn't split.
        isolated: Batches that form a range by themselves.

    Yields:
        The batch before each range, and its last one. The ranges cover all batches.
    """
    start, size = after, 0
    for batch in sorted(number for number in counts if after < number <= through):
        full = size and size + counts[batch] > rows_at_once
        if (full or batch in isolated) and batch - 1 > start:
            yield start, batch - 1
            start, size = batch - 1, 0
        size += counts[batch]
        if batch in isolated:
            yield start, batch
            start, size = batch, 0
    if start < through:
        yield start, through
