"""The interface of a table format: the few operations that the changes table and the mirrors need.

Every commit is a compare-and-set: it names the head from which its content was derived, and takes effect only
if no other writer committed data since. Maintenance that keeps the data (compaction, expiry) does not count
as another writer: the commit is rebased on it and repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_cdc_provider.lake.layout import Layout


@dataclass(frozen=True)
class Head:
    """The state of a table that a commit is based on.

    Args:
        snapshot: The format's id of the newest snapshot, None for a table without one.
        properties: Properties (``cdc.*``) of this provider's newest commit; maintenance commits have none.
        added_rows: Rows that this commit appended; 0 for a head that was read.
    """

    snapshot: str | None
    properties: Mapping[str, str] = field(default_factory=dict)
    added_rows: int = 0


@dataclass(frozen=True)
class MaintenanceReport:
    """Result of maintenance: number of files rewritten and of snapshots expired."""

    rewritten_files: int
    expired_snapshots: int


class LakeTable(Protocol):
    """One table of one format.

    Attributes:
        name: ``namespace.table`` inside the lake's catalog.
        sql_name: The same for SQL, quoted and with the catalog.
    """

    name: str
    sql_name: str

    def exists(self) -> bool:
        """Return whether the table exists."""
        ...

    def create(self, schema: StructType, *, partition_by: Sequence[str] = ()) -> None:
        """Create the table if it doesn't exist.

        Args:
            schema: Its columns.
            partition_by: Columns whose values are partitions, untransformed.
        """
        ...

    def format_version(self) -> int:
        """Return the version of the format in which the table is stored."""
        ...

    def empty(self) -> bool:
        """Return whether the metadata show that it has no rows; False if they don't."""
        ...

    def drop(self) -> None:
        """Drop the table with its data."""
        ...

    def schema(self) -> StructType:
        """Return its columns."""
        ...

    def evolve(self, schema: StructType, drift: Drift = NO_DRIFT) -> list[str]:
        """Evolve the columns to a schema.

        Args:
            schema: The target schema: new columns are added, columns with a wider type are widened.
            drift: Which other columns are renamed, replaced or dropped.

        Returns:
            Descriptions of the changes; empty for none.

        Raises:
            ConfigurationError: A column's type changed in a way that the format doesn't support.
        """
        ...

    def head(self) -> Head:
        """Return the head that the next commit is based on."""
        ...

    def read(self, head: Head | None = None) -> DataFrame:
        """Read all rows, at a head or the newest."""
        ...

    def commit(
        self,
        base: Head,
        *,
        append: DataFrame | None = None,
        delete: str | None = None,
        delete_keys: tuple[str, DataFrame] | None = None,
        properties: Mapping[str, str],
    ) -> Head:
        """Delete and append as one atomic step.

        Args:
            base: The head that the content was derived from.
            append: Rows to add.
            delete: SQL predicate of rows to delete first.
            delete_keys: Column and a one-column frame of values: rows with one of them are deleted first.
            properties: ``cdc.*`` properties of the commit.

        Returns:
            The head after the commit.

        Raises:
            CommitConflict: Another writer committed after ``base``; this commit had no effect.
            CommitStateUnknown: The outcome is unknown.
        """
        ...

    def append(self, rows: DataFrame) -> None:
        """Add rows without a base, for tables whose content is commutative. Atomic, not a compare-and-set."""
        ...

    def discard(self, column: str, through: int, *, sparing: tuple[str, Sequence[str]]) -> None:
        """Delete whole partitions as maintenance, without a conflict for concurrent writers.

        Args:
            column: The column by which the table is partitioned, untransformed.
            through: Partitions up to this value are deleted,
            sparing: except those with one of the given values in another such column.
        """
        ...

    def maintain(self, *, retain_seconds: int, compact: bool = True) -> MaintenanceReport:
        """Compact small files and expire old snapshots; :meth:`head` still finds the newest commit.

        Args:
            retain_seconds: Age from which a snapshot may expire.
            compact: Whether to rewrite files.

        Returns:
            Counts.
        """
        ...


class Lake(Protocol):
    """A catalog of one format inside a Spark session.

    Attributes:
        format: The format's name.
        spark: The session.
        catalog: The catalog's name in it.
    """

    format: str
    spark: SparkSession
    catalog: str

    def table(self, name: str, layout: Layout | None = None) -> LakeTable:
        """Return a table by ``namespace.table``; it need not exist.

        Args:
            name: The table.
            layout: What it is created with, and must have when it is read or written: another one raises
                ``ConfigurationError``. None for any.
        """
        ...

    def create_namespace(self, name: str) -> None:
        """Create a namespace if it doesn't exist."""
        ...
