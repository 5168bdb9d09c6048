"""Reading at a limited rate."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.sources.contract import Reader, ReadMetrics


@dataclass(frozen=True)
class Paced(Reader):
    """A rate-limited reader.

    Args:
        reader: The wrapped reader.
        rows_per_second: Maximum average rate of each task.
    """

    reader: Reader
    rows_per_second: float

    def read(self, parts: Iterable[Any], metrics: ReadMetrics) -> Iterator[pa.RecordBatch]:
        """Read partitions within the limit."""
        return paced(self.reader.read(parts, metrics), self.rows_per_second)

    def describe_row(self, rows: pa.RecordBatch) -> str:
        """Return the reader's description of a row."""
        return self.reader.describe_row(rows)


def share_pace(reader: Reader, rows_per_second: float, tasks: int) -> Reader:
    """Return the reader for tasks that run at once and share a rate; 0 rows per second are no limit."""
    return Paced(reader, rows_per_second / max(tasks, 1)) if rows_per_second else reader


def paced(batches: Iterable[pa.RecordBatch], rows_per_second: float) -> Iterator[pa.RecordBatch]:
    """Yield batches, and pause after each so that the average rate is at most ``rows_per_second``."""
    free_at = time.monotonic()
    for batch in batches:
        yield batch
        now = time.monotonic()
        free_at = max(free_at, now) + batch.num_rows / rows_per_second
        time.sleep(free_at - now)
