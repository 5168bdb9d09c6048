"""Records that a broker refused for good, or that can't be made: kept beside the mirrors, for a person.

The table ``<connector>_refused`` has what the record was to be, which one of its batch it was, and why it was
refused; one that can't be made is there in JSON, as it was before all transforms. It is written before the
position that passes over the record is: a run that is killed in between sets the record apart a second time,
with the same batch and number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.lake.layout import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.lake.table import LakeTable

_COLUMNS = (
    "batch bigint, record bigint, topic string, key binary, value binary, headers string, reason string, "
    "seen_at timestamp"
)


@dataclass(frozen=True)
class RefusedRecords:
    """A connector's refused records.

    Args:
        spark: The session.
        table: Where they are; it need not exist.
    """

    spark: SparkSession
    table: LakeTable

    @classmethod
    def of(cls, context: JobContext) -> RefusedRecords:
        """Return those of a job's connector."""
        return cls(context.spark, context.lake.table(context.connector.refused_table, DEAD_LETTERS))

    def add(self, records: pa.Table, numbers: np.ndarray, batch: int, reason: str) -> None:
        """Keep records.

        Args:
            records: Columns of the encoder's records.
            numbers: Which ones of their batch they are, from 0.
            batch: The batch.
            reason: The broker's, or why they can't be made.
        """
        from pyspark.sql.types import StructType

        frame = self.spark.createDataFrame(
            pa.table(
                {
                    "batch": pa.repeat(batch, len(numbers)),
                    "record": pa.array(numbers, pa.int64()),
                    "topic": records["topic"].cast(pa.string()),
                    "key": records["key"].cast(pa.large_binary()).cast(pa.binary()),
                    "value": records["value"].cast(pa.large_binary()).cast(pa.binary()),
                    "headers": records["headers"].cast(pa.string()),
                    "reason": pa.repeat(reason, len(numbers)),
                }
            )
        )
        self.table.create(StructType.fromDDL(_COLUMNS))
        self.table.append(frame.selectExpr("*", "current_timestamp() seen_at"))
        topics = ", ".join(sorted(set(records["topic"].to_pylist())))
        log.warning(
            "%d records of topics %s are not published, but in %s: %s",
            len(numbers),
            topics,
            self.table.name,
            reason,
        )
