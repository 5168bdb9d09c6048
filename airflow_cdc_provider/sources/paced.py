"""Reading of a source's partitions in sequence, optionally at a limited rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_cdc_provider.sources.abilities import DescribesRows, ReadsPartitions

Reader = Callable[[Any], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Paced:
    """A rate-limited reader. Picklable.

    Args:
        reader: The wrapped reader.
        rows_per_second: Maximum average rate of each task.
    """

    reader: Reader
    rows_per_second: float

    def __call__(self, part: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return self.read_sequentially([part])

    def describe_row(self, rows: pa.RecordBatch) -> str:
        """Return the reader's description of a row."""
        return self.reader.describe_row(rows) if isinstance(self.reader, DescribesRows) else ""

    def read_sequentially(self, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Read partitions in sequence."""
        free_at = time.monotonic()
        for batch in batches(self.reader, parts):
            yield batch
            now = time.monotonic()
            free_at = max(free_at, now) + batch.num_rows / self.rows_per_second
            time.sleep(free_at - now)


def batches(reader: Reader, parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Read partitions in sequence, over one connection if the reader supports it."""
    if isinstance(reader, ReadsPartitions):
        return reader.read_sequentially(parts)
    return (batch for part in parts for batch in reader(part))
