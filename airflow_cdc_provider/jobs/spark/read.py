"""Reading of a source's partitions on Spark: partitions are pickled, tasks read them as Arrow batches."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SPARK_DDL
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.sources.abilities import (
    CountsSkipped,
    ReadMetrics,
    ReportsReadMetrics,
    SkippedCounts,
)
from airflow_cdc_provider.sources.paced import Reader, batches

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

_INLINE_BYTES = 1 << 20


class _CountParam:
    """Adds up counts by name; a Spark AccumulatorParam."""

    def zero(self, value: Counter[Any]) -> Counter[Any]:
        return Counter()

    def addInPlace(self, value1: Counter[Any], value2: Counter[Any]) -> Counter[Any]:
        value1.update(value2)
        return value1


def new_counts(spark: SparkSession) -> Accumulator[Counter[Any]]:
    """Return an accumulator of counts; counts of failed tasks may be included twice."""
    return spark.sparkContext.accumulator(Counter(), _CountParam())


def read_partitions(
    spark: SparkSession,
    reader: Reader,
    partitions: Sequence[Any],
    *,
    tasks: int | None = None,
    skipped: Accumulator[SkippedCounts] | None = None,
    reading: Accumulator[ReadMetrics] | None = None,
) -> DataFrame:
    """Return the changes of a plan's partitions as a frame of ``CHANGE_SCHEMA``.

    Args:
        spark: The session.
        reader: From ``Source.reader()`` or ``Source.snapshot_reader()``.
        partitions: From the plan; small ones travel in the task, large ones as data.
        tasks: Maximum number of tasks; None for one per partition.
        skipped: Accumulator for changes that a reader skipped
            (:class:`~airflow_cdc_provider.sources.abilities.CountsSkipped`).
        reading: Accumulator for the metrics of a reader
            (:class:`~airflow_cdc_provider.sources.abilities.ReportsReadMetrics`).
    """
    pickled = [pickle.dumps(partition) for partition in partitions]
    if not pickled:
        return spark.createDataFrame([], SPARK_DDL)
    slices = min(len(pickled), tasks or len(pickled))
    if sum(map(len, pickled)) <= _INLINE_BYTES:
        frame = spark.range(0, len(pickled), 1, slices)
        return map_in_arrow(frame, _ReadByNumber(reader, pickled, skipped, reading), SPARK_DDL)
    blobs = spark.sparkContext.parallelize([(blob,) for blob in pickled], slices)
    frame = spark.createDataFrame(blobs, "blob binary")
    return map_in_arrow(frame, _ReadBlob(reader, skipped, reading), SPARK_DDL)


class _ReadByNumber:
    def __init__(
        self,
        reader: Reader,
        pickled: Sequence[bytes],
        skipped: Accumulator[SkippedCounts] | None,
        reading: Accumulator[ReadMetrics] | None,
    ) -> None:
        self._reader = reader
        self._pickled = pickled
        self._skipped = skipped
        self._reading = reading

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        blobs = (self._pickled[number] for number in numbers)
        return _read(self._reader, blobs, self._skipped, self._reading)


class _ReadBlob:
    def __init__(
        self,
        reader: Reader,
        skipped: Accumulator[SkippedCounts] | None,
        reading: Accumulator[ReadMetrics] | None,
    ) -> None:
        self._reader = reader
        self._skipped = skipped
        self._reading = reading

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs = (blob for batch in batches for blob in batch.column(0).to_pylist())
        return _read(self._reader, blobs, self._skipped, self._reading)


def _read(
    reader: Reader,
    pickled: Iterable[bytes],
    skipped: Accumulator[SkippedCounts] | None = None,
    reading: Accumulator[ReadMetrics] | None = None,
) -> Iterator[pa.RecordBatch]:
    # Pickled by this job's own driver.
    parts = (pickle.loads(blob) for blob in pickled)  # noqa: S301
    counts: SkippedCounts = Counter()
    done: ReadMetrics = Counter()
    if skipped is not None and isinstance(reader, CountsSkipped):
        found = (batch for part in parts for batch in reader.read_with_skip_counts(part, counts))
    elif reading is not None and isinstance(reader, ReportsReadMetrics):
        found = (batch for part in parts for batch in reader.read_with_metrics(part, done))
    else:
        found = batches(reader, parts)
    for batch in found:
        yield batch if batch.schema.equals(CHANGE_SCHEMA) else batch.cast(CHANGE_SCHEMA)
    if skipped is not None and counts:
        skipped.add(counts)
    if reading is not None and done:
        reading.add(done)
