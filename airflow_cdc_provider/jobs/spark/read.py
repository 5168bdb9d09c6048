"""Reading of a source's partitions on Spark: partitions are pickled, tasks read them as Arrow batches."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_cdc_provider.changes.record import CHANGE_SCHEMA, SPARK_DDL
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.exceptions import classified
from airflow_cdc_provider.sources.contract import Reader, ReadMetrics

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

_INLINE_BYTES = 1 << 20


class _MetricsParam:
    """Adds up metrics; a Spark AccumulatorParam."""

    def zero(self, value: ReadMetrics) -> ReadMetrics:
        return ReadMetrics()

    def addInPlace(self, value1: ReadMetrics, value2: ReadMetrics) -> ReadMetrics:
        value1.update(value2)
        return value1


def new_metrics(spark: SparkSession) -> Accumulator[ReadMetrics]:
    """Return an accumulator of the metrics of tasks; those that Spark runs twice may be included twice."""
    return spark.sparkContext.accumulator(ReadMetrics(), _MetricsParam())


def read_partitions(
    spark: SparkSession,
    reader: Reader,
    partitions: Sequence[Any],
    *,
    tasks: int | None = None,
    metrics: Accumulator[ReadMetrics] | None = None,
) -> DataFrame:
    """Return the changes of a plan's partitions as a frame of ``CHANGE_SCHEMA``.

    Args:
        spark: The session.
        reader: From ``Source.reader()`` or ``Source.snapshot_reader()``.
        partitions: From the plan; small ones travel in the task, large ones as data.
        tasks: Maximum number of tasks; None for one per partition.
        metrics: Accumulator for the reader's metrics.
    """
    pickled = [pickle.dumps(partition) for partition in partitions]
    if not pickled:
        return spark.createDataFrame([], SPARK_DDL)
    slices = min(len(pickled), tasks or len(pickled))
    if sum(map(len, pickled)) <= _INLINE_BYTES:
        frame = spark.range(0, len(pickled), 1, slices)
        return map_in_arrow(frame, _Read(reader, metrics, pickled), SPARK_DDL)
    blobs = spark.sparkContext.parallelize([(blob,) for blob in pickled], slices)
    return map_in_arrow(spark.createDataFrame(blobs, "blob binary"), _Read(reader, metrics), SPARK_DDL)


@dataclass(frozen=True)
class _Read:
    """Reads the partitions of one task, whose rows are pickled partitions or indexes of ``pickled``."""

    reader: Reader
    metrics: Accumulator[ReadMetrics] | None = None
    pickled: Sequence[bytes] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.column(0).to_pylist())
        blobs = rows if self.pickled is None else (self.pickled[number] for number in rows)
        # Pickled by this job's own driver.
        parts = (pickle.loads(blob) for blob in blobs)  # noqa: S301
        metrics = ReadMetrics()
        with classified():
            for batch in self.reader.read(parts, metrics):
                yield batch if batch.schema.equals(CHANGE_SCHEMA) else batch.cast(CHANGE_SCHEMA)
        if self.metrics is not None:
            self.metrics.add(metrics)
