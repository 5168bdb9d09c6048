"""How executors read the parts of a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass
class ReadMetrics:
    """What tasks report of their reads; a failed task reports nothing.

    Args:
        counts: Numbers by name. ``wait_us`` is the time spent waiting for the server, ``parse_us`` and
            ``convert_us`` the processing time. Readers with connections of their own add ``disconnects``,
            those with streams ``events`` and ``bytes``. ``creates``, ``updates``, ``deletes``, ``filtered``,
            ``broken`` and ``transactions`` are those of
            :class:`~airflow_cdc_provider.sources.stream_metrics.StreamMetrics`. A source that paces each
            table separately adds ``events <table>`` and ``bytes <table>``.
        skipped: Number of changes that were skipped on purpose, by origin and reason.
    """

    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)

    def update(self, other: ReadMetrics) -> None:
        """Add the numbers of another read."""
        self.counts.update(other.counts)
        self.skipped.update(other.skipped)

    def copy(self) -> ReadMetrics:
        """Return a copy."""
        return ReadMetrics(self.counts.copy(), self.skipped.copy())

    def since(self, earlier: ReadMetrics) -> ReadMetrics:
        """Return what was added since ``earlier``, a copy of these metrics."""
        return ReadMetrics(self.counts - earlier.counts, self.skipped - earlier.skipped)


class Reader(ABC):
    """Reads parts of one plan. Picklable; opens its connections in :meth:`read`."""

    @abstractmethod
    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read parts in sequence, over one connection if that saves some.

        Called once per task, by many tasks at once, each with its own copy of the reader. Spark calls it
        again with the same parts after an error, up to ``spark.task.maxFailures`` times, then the run fails;
        so nothing that was yielded counts until the task ends.

        Args:
            parts: ``partitions`` of a :class:`.values.Plan`, or ``ranges`` of a snapshot.
            metrics: Add to them before the last batch is consumed.

        Yields:
            Batches of :data:`~airflow_cdc_provider.changes.record.CHANGE_SCHEMA`, each of one part. Positions
            are unique in their origin. A change that can't be read is a record of kind ``quarantine``, unless
            the options say ``strict``.

        Raises:
            PositionLost: The source no longer has a part's data.
            CorruptInput: A change can't be read, and the options say ``strict``.
        """

    def describe_row(self, rows: pa.RecordBatch) -> str:
        """Describe the last row of a snapshot's batch, without its values other than the key.

        Called on executors for about each 10,000th row, for progress messages. Default: empty.

        Returns:
            A line of at most 1000 characters.
        """
        return ""
