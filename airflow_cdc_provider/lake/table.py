"""What a table format must do: the few operations that the changes table and the mirrors are made of.

Every commit is a compare-and-set: it names the head from which its content was derived and takes effect only
if no other writer's data came between. Maintenance that keeps the data (compaction, expiry) does not count as
another writer: the commit is cut again and repeated.
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
        snapshot: The format's own name of the newest snapshot, None for a table without one.
        properties: Properties (``cdc.*``) of the newest commit of ours; maintenance commits carry none.
        added_rows: Rows that this commit appended; 0 for a head that was read.
    """

    snapshot: str | None
    properties: Mapping[str, str] = field(default_factory=dict)
    added_rows: int = 0


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance did: files rewritten, snapshots expired."""

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
        """Tell whether the table is there."""
        ...

    def create(self, schema: StructType, *, partition_by: Sequence[str] = ()) -> None:
        """Create the table; a table that is there already is left alone.

        Args:
            schema: Its columns.
            partition_by: Columns or transforms in the words of Spark's ``PARTITIONED BY``.
        """
        ...

    def empty(self) -> bool:
        """Tell from metadata alone whether it has no rows; False where they don't tell."""
        ...

    def drop(self) -> None:
        """Drop the table with its data."""
        ...

    def schema(self) -> StructType:
        """Return its columns."""
        ...

    def evolve(self, schema: StructType, drift: Drift = NO_DRIFT) -> list[str]:
        """Fit the columns to what is wanted.

        Args:
            schema: Columns that are new in it are added, those whose type grew are widened.
            drift: Which others are renamed, replaced or dropped.

        Returns:
            What was changed, in words; empty for nothing.

        Raises:
            ConfigurationError: A column's type changed in a way that the format can't follow.
        """
        ...

    def head(self) -> Head:
        """Return what a following commit is based on."""
        ...

    def read(self, head: Head | None = None) -> DataFrame:
        """Read all rows, at a head or now."""
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
            delete: SQL predicate of rows to remove first.
            delete_keys: Column and a one-column frame of values: rows whose column is among them go first.
            properties: ``cdc.*`` properties of the commit.

        Raises:
            CommitConflict: Another writer committed after ``base``; nothing of this commit is left.
            CommitStateUnknown: The outcome can't be told.
        """
        ...

    def append(self, rows: DataFrame) -> None:
        """Add rows blindly, for tables whose content is commutative. Atomic, not a compare-and-set."""
        ...

    def discard(self, column: str, through: int, *, sparing: tuple[str, Sequence[str]]) -> None:
        """Remove whole partitions as maintenance: other writers' commits go on as if nothing had happened.

        Args:
            column: The column by which the table is partitioned, untransformed.
            through: Partitions up to this value go,
            sparing: but not those that have one of some values in another such column.
        """
        ...

    def maintain(self, *, retain_seconds: int, compact: bool = True) -> MaintenanceReport:
        """Compact small files and expire old snapshots; :meth:`head` still finds our newest commit.

        Args:
            retain_seconds: Age from which a snapshot may go.
            compact: False leaves files as they are.
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
        """Create a namespace unless it is there."""
        ...
