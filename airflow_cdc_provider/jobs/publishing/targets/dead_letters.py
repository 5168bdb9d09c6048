"""Dead letters: records that are refused permanently, or that can't be built, in a table of the lake.

The table ``<connector>_dead_letters`` has the record, its number in its batch (of its slice, if there are
several), and the reason. A record that can't be built, or whose schema the registry rejects, is in JSON as
after all transforms; if a transform fails, without value, which it might have masked, and without key if
transforms change keys or drop records. A dead letter is written before the position after the record: if a
run is killed in between, the next one writes it again, with the same batch and number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import listed, shortened
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.lake.layout import DEAD_LETTERS
from airflow_cdc_provider.lake.stores import Stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.lake.table import LakeTable

_COLUMNS: Final = (
    "batch bigint, record bigint, topic string, key binary, value binary, headers string, reason string, "
    "seen_at timestamp"
)
_MAX_REPORTED: Final = 20
_MAX_LOGGED: Final = 3


@dataclass(frozen=True)
class DeadLetters:
    """A connector's dead letters.

    Args:
        spark: The session.
        table: The table; it need not exist.
        findings: Gets topic, key and reason of the first ones.
    """

    spark: SparkSession
    table: LakeTable
    findings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, connector: Connector, stores: Stores) -> Self:
        """Return the dead letters of a connector."""
        return cls(stores.spark, stores.lake.table(connector.dead_letters_table, DEAD_LETTERS))

    def add(self, records: pa.Table, numbers: np.ndarray, batch: int, reasons: pa.ChunkedArray) -> None:
        """Append records.

        Args:
            records: Columns of the encoder's records.
            numbers: Their numbers in the batch, from 0.
            batch: The batch.
            reasons: Why they are refused, or can't be built.
        """
        from pyspark.sql.types import StructType

        keys = records["key"].cast(pa.large_binary())
        frame = self.spark.createDataFrame(
            pa.table(
                {
                    "batch": pa.repeat(batch, len(numbers)),
                    "record": pa.array(numbers, pa.int64()),
                    "topic": records["topic"].cast(pa.string()),
                    "key": keys.cast(pa.binary()),
                    "value": records["value"].cast(pa.large_binary()).cast(pa.binary()),
                    "headers": records["headers"].cast(pa.string()),
                    "reason": reasons.cast(pa.string()),
                }
            )
        )
        self.table.create(StructType.fromDDL(_COLUMNS))
        self.table.append(frame.selectExpr("*", "current_timestamp() seen_at"))
        first = slice(0, _MAX_REPORTED - len(self.findings))
        named = zip(*(column[first].to_pylist() for column in (records["topic"], keys, reasons)), strict=True)
        for topic, key, reason in named:
            text = shortened((key or b"").decode(errors="backslashreplace"))
            self.findings.append(f"topic {topic}, key {text}: {reason}; the record is in {self.table.name}")
        topics = listed(sorted(set(records["topic"].to_pylist())))
        log.warning(
            "%d records of topics %s are dead letters in %s: %s",
            len(numbers),
            topics,
            self.table.name,
            "; ".join(pc.unique(reasons)[:_MAX_LOGGED].to_pylist()),
        )
