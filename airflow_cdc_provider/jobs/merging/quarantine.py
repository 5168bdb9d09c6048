"""Changes that a merge could not decode: kept whole beside the mirrors, and decoded again by a newer schema.

The table ``<connector>_quarantine`` has the columns of a change record, and when it was seen. A
change leaves it when a merge by another schema has decoded it; until then it is counted and told.

What waits here, or as records of kind ``quarantine`` in the changes table, may land later than deletions are
remembered. So no merge forgets deletions of a table while some of its changes wait: what lands then finds
what it would have found had it landed at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.lake.layout import QUARANTINE
from airflow_cdc_provider.sources.abilities import HasSchemaHistory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.lake.table import LakeTable

_COLUMNS = f"{record.SPARK_DDL}, seen_at timestamp"


def schemas_awaited(context: JobContext) -> bool:
    """Tell whether the changes table holds records, of whatever tables, that a better schema may explain."""
    from pyspark.sql import functions as f

    source, changes = context.source, context.changes
    if not isinstance(source, HasSchemaHistory) or not changes.table.exists():
        return False
    reasons = changes.lasting(record.QUARANTINE).select(f.substring_index("reason", ":", 1)).distinct()
    return any(source.may_become_readable(row[0] or "") for row in reasons.collect())


@dataclass(frozen=True)
class Quarantine:
    """A connector's undecodable changes.

    Args:
        table: Where they are; it need not exist.
    """

    table: LakeTable

    @classmethod
    def of(cls, context: JobContext) -> Quarantine:
        """Return that of a job's connector."""
        return cls(context.lake.table(context.connector.quarantine_table, QUARANTINE))

    def counts(self) -> dict[str, int]:
        """Count what waits, per source table."""
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
        """Let go of what was decoded again: all that was seen before a moment.

        Args:
            tables: The source tables.
            seen_before_us: The moment, µs since 1970; what failed again was added after it.
        """
        names = ", ".join("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in tables)
        condition = f"source_table IN ({names}) AND seen_at < timestamp_micros({seen_before_us})"
        try:
            self.table.commit(self.table.head(), delete=condition, properties={})
        except CommitConflict:
            # Decoding them once more changes nothing.
            log.info("%s: changes that have landed are let go by the next run", self.table.name)
