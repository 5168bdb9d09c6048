"""The lake tables of a connector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import Mirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.connector import Connector
    from airflow_cdc_provider.lake.iceberg import IcebergLake


@dataclass(frozen=True)
class Stores:
    """The lake of a connector.

    Args:
        spark: The session.
        lake: The lake.
        changes: The connector's changes table.
        connector: The declaration, which names the tables.
    """

    spark: SparkSession
    lake: IcebergLake
    changes: ChangesTable
    connector: Connector

    @classmethod
    def of(cls, spark: SparkSession, lake: IcebergLake, connector: Connector) -> Stores:
        """Return the lake of a connector."""
        return cls(spark, lake, ChangesTable(lake, connector), connector)

    def mirror(self, table: str) -> Mirror:
        """Return the mirror of a source table."""
        connector = self.connector
        in_table = connector.lake.static_columns == "table"
        owner = f"table {table} of connector {connector.name}"
        return Mirror(self.lake, connector.mirror_table(table), static_columns_table=in_table, owner=owner)
