"""Quarantine of changes that a merge could not decode. They are decoded again when the schema is newer.

The table ``<connector>_quarantine`` has the columns of a change record, and the time when it was quarantined.
A change is removed when a merge with another schema has decoded it; until then it is counted and reported.

Changes in quarantine, or of kind ``quarantine`` in the changes table, may be merged after the tombstones of
their table would have expired. So no merge expires tombstones of a table that has such changes: the result is
the same as if they had been merged at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.layout import QUARANTINE
from airflow_cdc_provider.sources.contract import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.lake.iceberg import IcebergLake
    from airflow_cdc_provider.lake.table import LakeTable

_COLUMNS = f"{record.SPARK_DDL}, seen_at timestamp"


def schemas_awaited(changes: ChangesTable, source: Source) -> bool:
    """Return whether the changes table has quarantined records that a later schema may explain."""
    from pyspark.sql import functions as f

    if not source.has_schema_history or not changes.table.exists():
        return False
    reasons = changes.lasting(record.QUARANTINE).select(f.substring_index("reason", ":", 1)).distinct()
    return any(source.may_become_readable(row[0] or "") for row in reasons.collect())


@dataclass(frozen=True)
class Quarantine:
    """A connector's undecodable changes.

    Args:
        table: The quarantine table; it need not exist.
    """

    table: LakeTable

    @classmethod
    def of(cls, connector: Connector, lake: IcebergLake) -> Quarantine:
        """Return that of a job's connector."""
        return cls(lake.table(connector.quarantine_table, QUARANTINE))

    def counts(self) -> dict[str, int]:
        """Count the quarantined changes, per source table."""
        if not self.table.exists():
            return {}
        counted = self.table.read().groupBy("source_table").count().collect()
        return {row["source_table"]: int(row["count"]) for row in counted}

    def waiting(self, tables: Collection[str]) -> DataFrame:
        """Read the changes of some tables, in the columns of ``CHANGE_SCHEMA``."""
        from pyspark.sql import functions as f

        rows = self.table.read().where(f.col("source_table").isin(list(tables)))
        # A run that was killed between its merges and the release has left a change twice.
        return rows.select(*record.CHANGE_SCHEMA.names).dropDuplicates(["origin", "position", "source_table"])

    def add(self, faults: DataFrame) -> dict[str, int]:
        """Keep changes that could not be decoded.

        Args:
            faults: Frame with a column ``fault`` (:data:`~.decode.FAULT_TYPE`).

        Returns:
            How many there are, per source table.
        """
        from pyspark.sql.types import StructType

        counted = {row[0]: int(row[1]) for row in faults.groupBy("source_table").count().collect()}
        if counted:
            self.table.create(StructType.fromDDL(_COLUMNS))
            self.table.append(faults.selectExpr("fault.*", "current_timestamp() seen_at"))
            for name, count in counted.items():
                log.warning(
                    "%s: %d changes could not be decoded; they and the reasons are in %s",
                    name,
                    count,
                    self.table.name,
                )
        return counted

    def release(self, tables: Collection[str], seen_before_us: int) -> None:
        """Remove changes that were decoded again: all that were quarantined before a given time.

        Args:
            tables: The source tables.
            seen_before_us: The time, µs since 1970; changes that failed again were added after it.
        """
        names = ", ".join("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in tables)
        condition = f"source_table IN ({names}) AND seen_at < timestamp_micros({seen_before_us})"
        try:
            self.table.commit(self.table.head(), delete=condition, properties={})
        except CommitConflict:
            # Decoding them again changes nothing.
            log.info(
                "%s: changes that were merged are removed from quarantine by the next run", self.table.name
            )
