"""Events of a part of a changes table's records, made where the records are: on executors.

A **slice** has all records of each row of the source that it has any of, in the order that the whole table is
told in. So it is made by what makes the whole, and its events are those of the whole that are of its rows, in
the same order. Which records belong together, and what they are made by, each source says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class SliceMaker(Protocol):
    """Makes the events of records. Picklable; knows neither Spark nor the source's connection."""

    def __call__(self, rows: Iterator[pa.RecordBatch], wanted: Wanted, damage: Damage) -> Iterator[Made]:
        """Make them, oldest first.

        Args:
            rows: Batches of ``TABLE_SCHEMA``, in the order of the slice: what is wanted, and nothing else.
            wanted: How they are made.
            damage: Collects what is left out.

        Raises:
            CorruptInput: A record can't be decoded and ``damage`` is strict.
            ConfigurationError: The declaration doesn't fit what is there.
        """
        ...


@dataclass(frozen=True)
class Sliced:
    """How the records of batches are parted.

    Args:
        rows: The records, columns of ``TABLE_SCHEMA``.
        part_by: Bytes or text that are the same for all records of a row of the source.
        order: By which the records of a slice are sorted; the batch comes first.
        make: Makes events of them.
        alone: Batches in which rows get another ``part_by``, as by a reshard: all slices must have published
            what is before, and such a batch, before one goes on.
    """

    rows: DataFrame
    part_by: Column
    order: Sequence[Column]
    make: SliceMaker
    alone: frozenset[int] = frozenset()


@dataclass
class SliceRows:
    """Records of a slice, which can be read once: a batch's are given out when it is asked for.

    Args:
        found: Batches of ``TABLE_SCHEMA``, in the order of the slice.
    """

    found: Iterable[pa.RecordBatch]
    _runs: Iterator[tuple[int, pa.RecordBatch]] = field(init=False, repr=False)
    _next: tuple[int, pa.RecordBatch] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Cut records where the batch changes."""
        self._runs = (run for rows in self.found for run in runs_of_batches(rows))

    def between(self, after: int, through: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of some batches; earlier ones are passed over, later ones stay.

        Args:
            after: Batches up to this one are left out.
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
    """Yield records by runs of one batch, and its number.

    Args:
        rows: Batch of ``TABLE_SCHEMA``.
    """
    numbers = rows["batch"].to_numpy()
    if len(numbers):
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for start, end in pairwise(cuts):
            yield int(numbers[start]), rows.slice(start, end - start)


def stretches(
    counts: Mapping[int, int], after: int, through: int, *, rows_at_once: int, alone: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Cut batches into stretches that are published one after the other, each by all slices.

    Args:
        counts: Records by batch; batches that have none may be missing.
        after: The batches begin after this one.
        through: The last one.
        rows_at_once: Records of a stretch, about; a batch isn't cut.
        alone: Batches that are a stretch of their own.

    Yields:
        The batch before each stretch, and its last one. Together they are all batches.
    """
    begin, size = after, 0
    for batch in sorted(number for number in counts if after < number <= through):
        full = size and size + counts[batch] > rows_at_once
        if (full or batch in alone) and batch - 1 > begin:
            yield begin, batch - 1
            begin, size = batch - 1, 0
        size += counts[batch]
        if batch in alone:
            yield begin, batch
            begin, size = batch, 0
    if begin < through:
        yield begin, through
