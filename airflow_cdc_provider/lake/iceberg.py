"""Iceberg tables: the implementation of :mod:`airflow_cdc_provider.lake.table`.

A commit is written to a branch with a unique name, created at the snapshot that its content was derived from,
and takes effect by fast-forwarding ``main``. That step also removes the branch and moves the tag
:data:`HEAD_TAG` to the commit, in one change of the table's metadata. So exactly one of two racing writers
commits, a killed writer leaves at most a branch (which maintenance removes), and expiry never removes the
newest commit's properties. Snapshots of operation ``replace`` (compaction) and those with the property
:data:`MAINTENANCE` keep the rows that commits are derived from: a commit is repeated on a new branch there.

Metadata is read and changed through Iceberg's Java API, in milliseconds; Spark only reads and writes rows.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from airflow_cdc_provider.changes.drift import NO_DRIFT, Drift
from airflow_cdc_provider.exceptions import CommitConflict, CommitStateUnknown, ConfigurationError
from airflow_cdc_provider.lake import iceberg_maintenance, iceberg_schema
from airflow_cdc_provider.lake.iceberg_java import (
    java_class,
    java_error,
    lineage,
    own_properties,
    quote,
    to_java_schema,
    to_spark_schema,
)
from airflow_cdc_provider.lake.layout import LAYOUT_PROPERTY, Layout
from airflow_cdc_provider.lake.local_lock import locked
from airflow_cdc_provider.lake.table import Head, MaintenanceReport
from airflow_cdc_provider.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")

HEAD_TAG = "cdc_head"
"""Tag of this provider's newest commit: keeps its snapshot, and so its properties, from expiry."""

MAINTENANCE = "cdc.maintenance"
"""Property of this provider's maintenance snapshots; its value names the operation."""

BRANCH_PREFIX = "cdc_w_"
"""Prefix of the names of commit branches; epoch second, ``_`` and random hexadecimal digits follow."""

_ATTEMPTS = 20
_PROPERTY = re.compile(r"cdc\.[a-z0-9_.-]+")  # Spark converts the names of write options to lower case
_log = logger(__name__)


class IcebergLake:
    """A catalog of Iceberg tables.

    Args:
        spark: The session; its catalog must not cache tables.
        catalog: The catalog's name.
        format_version: Iceberg version of tables that are created, 2 or 3.
    """

    format = "iceberg"

    def __init__(self, spark: SparkSession, catalog: str, *, format_version: int = 2) -> None:
        self.spark = spark
        self.catalog = catalog
        self.format_version = format_version
        self._java_catalog: Any = None

    def table(self, name: str, layout: Layout | None = None) -> IcebergTable:
        """Return a table by ``namespace.table``; it need not exist.

        Args:
            name: The table.
            layout: What it is created with, and must have when it is read or written; None for any.
        """
        return IcebergTable(self, name, layout)

    def create_namespace(self, name: str) -> None:
        """Create a namespace if it doesn't exist; several processes may do so concurrently."""
        statement = f"CREATE NAMESPACE IF NOT EXISTS {quote(self.catalog, *name.split('.'))}"
        for more in (True, True, False):
            try:
                self.spark.sql(statement)
                return
            except Exception as error:
                # A JDBC catalog checks before it creates, first its own tables and then the namespace.
                # Each check can be outdated once; the next attempt finds what the other process created.
                if not more or not java_error(error, "UncheckedSQLException"):
                    raise

    @property
    def java_catalog(self) -> Any:
        """Iceberg's catalog object, created once."""
        if self._java_catalog is None:
            spark3 = java_class(self.spark, "org.apache.iceberg.spark.Spark3Util")
            self._java_catalog = spark3.loadIcebergCatalog(self.spark._jsparkSession, self.catalog)
        return self._java_catalog

    def local_folder(self, location: str) -> str | None:
        """Return the path whose lock must be held to commit; None if the catalog is atomic."""
        if self.java_catalog.getClass().getSimpleName() != "HadoopCatalog":
            return None
        url = urlparse(location)
        return unquote(url.path) if url.scheme in {"", "file"} else None


class IcebergTable:
    """One Iceberg table. Several processes may use it; each thread needs its own object.

    Args:
        lake: Its catalog.
        name: ``namespace.table``.
        layout: The layout of its content, None for any.
    """

    def __init__(self, lake: IcebergLake, name: str, layout: Layout | None = None) -> None:
        self.name = name
        self.lake = lake
        self.layout = layout
        self.spark = lake.spark
        self.sql_name = quote(lake.catalog, *name.split("."))
        self._identifier = java_class(lake.spark, "org.apache.iceberg.catalog.TableIdentifier").parse(name)
        self._lock_folder: str | None = None

    def exists(self) -> bool:
        """Return whether the table exists."""
        return bool(self.lake.java_catalog.tableExists(self._identifier))

    def create(self, schema: StructType, *, partition_by: Sequence[str] = ()) -> None:
        """Create the table with an empty first snapshot if it doesn't exist."""
        if not self.exists():
            warehouse = self.spark.conf.get(f"spark.sql.catalog.{self.lake.catalog}.warehouse", "")
            folder = self.lake.local_folder(warehouse)
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
            with locked(folder):
                self._create(schema, partition_by)
        with self.exclusive():
            self._begin()

    def format_version(self) -> int:
        """Return the version of the format in which the table is stored."""
        return int(self.load().operations().current().formatVersion())

    def empty(self) -> bool:
        """Return whether the metadata show that it has no rows; False if they don't."""
        current = self.load().currentSnapshot()
        return current is None or current.summary().getOrDefault("total-records", "") == "0"

    def drop(self) -> None:
        """Drop the table with its data."""
        self.lake.java_catalog.dropTable(self._identifier, True)

    def schema(self) -> StructType:
        """Return its columns."""
        return to_spark_schema(self.spark, self.load().schema())

    def evolve(self, schema: StructType, drift: Drift = NO_DRIFT) -> list[str]:
        """Evolve the columns to ``schema``. No snapshot is created, so the head doesn't change.

        Args:
            schema: The target schema: new columns are added, columns with a wider type are widened.
            drift: Which other columns are renamed, replaced or dropped.

        Returns:
            Descriptions of the changes.
        """
        with self.exclusive():
            return self.retry(
                lambda: iceberg_schema.evolve(self.spark, self.load(), schema, self.name, drift)
            )

    def head(self) -> Head:
        """Return the head that the next commit is based on."""
        table = self.load()
        current = table.currentSnapshot()
        if current is None:
            return Head(None)
        return Head(str(current.snapshotId()), self._newest_properties(table, current))

    def read(self, head: Head | None = None) -> DataFrame:
        """Read all rows, at a head or the newest, in the table's present columns.

        Columns that were renamed since an older head are matched by id, fields of structs by name.
        """
        from pyspark.sql import functions

        table = self.load()
        if head is None or head.snapshot is None:
            return self.spark.table(self.sql_name)
        snapshot = table.snapshot(int(head.snapshot))
        rows = self.spark.read.option("versionAsOf", head.snapshot).table(self.sql_name)
        if snapshot is None or snapshot.schemaId() == table.schema().schemaId():
            return rows
        if snapshot.snapshotId() == table.currentSnapshot().snapshotId():
            # Only this way of reading matches by id at any depth. Rows of a concurrent writer do no harm: a
            # commit on this head is rejected then.
            return self.spark.table(self.sql_name)
        at_head = table.schemas().get(snapshot.schemaId())
        names = [
            (field.name(), at_head.findColumnName(field.fieldId())) for field in table.schema().columns()
        ]
        kept = [functions.col(quote(old)).alias(new) for new, old in names if old is not None]
        return rows.select(*kept).to(to_spark_schema(self.spark, table.schema()))

    def commit(
        self,
        base: Head,
        *,
        append: DataFrame | None = None,
        delete: str | None = None,
        delete_keys: tuple[str, DataFrame] | None = None,
        properties: Mapping[str, str],
    ) -> Head:
        """Delete and append as one atomic step; see :class:`~airflow_cdc_provider.lake.table.LakeTable`.

        The frames are evaluated once, and again after concurrent maintenance; the keys must be deterministic.
        A dot in the column of ``delete_keys`` refers to a struct field unless a column has that name.
        """
        for name in properties:
            if not _PROPERTY.fullmatch(name) or name == MAINTENANCE:
                raise ConfigurationError(
                    "invalid name of a commit property",
                    expected="cdc. followed by lower-case letters, digits, _ . and -",
                    found=repr(name),
                )
        with self.exclusive():
            for _ in range(_ATTEMPTS):
                table = self._begin()
                self._require_only_maintenance(table, base)
                tip = self._try_commit(table, append, delete, delete_keys, properties)
                if tip is not None:
                    added = int(tip.summary().getOrDefault("added-records", "0"))
                    return Head(str(tip.snapshotId()), dict(properties), added)
        raise CommitConflict(f"{self.name} was changed concurrently in {_ATTEMPTS} attempts to commit")

    def append(self, rows: DataFrame) -> None:
        """Add rows without a base. If another writer commits first, only Iceberg's commit is repeated."""
        with self.exclusive():
            try:
                self.retry(lambda: rows.writeTo(self.sql_name).append())
            except Exception as error:
                if java_error(error, "CommitStateUnknownException"):
                    raise CommitStateUnknown(f"the append to {self.name} may have taken effect") from error
                raise

    def discard(self, column: str, through: int, *, sparing: tuple[str, Sequence[str]]) -> None:
        """Delete whole partitions as maintenance, without a conflict for concurrent writers.

        Args:
            column: A column by which the table is partitioned, untransformed.
            through: Partitions up to this value are deleted,
            sparing: except those with one of the given values in another such column.
        """
        spared, values = sparing

        def delete() -> None:
            expressions = java_class(self.lake.spark, "org.apache.iceberg.expressions.Expressions")
            old = expressions.lessThanOrEqual(column, through)
            others = [expressions.notEqual(spared, value) for value in values]
            expression = reduce(getattr(expressions, "and"), others, old)
            self.load().newDelete().deleteFromRowFilter(expression).set(MAINTENANCE, "discard").commit()

        with self.exclusive():
            self.retry(delete)

    def maintain(self, *, retain_seconds: int, compact: bool = True) -> MaintenanceReport:
        """Compact small files, expire snapshots, and remove the branches of dead writers.

        Args:
            retain_seconds: Age at which snapshots expire. A commit that takes longer may end in
                ``CommitConflict``, because the snapshots since its base have expired.
            compact: Whether to rewrite files.

        Returns:
            Counts.
        """
        with self.exclusive():
            return iceberg_maintenance.maintain(
                self, retain_seconds=retain_seconds, compact=compact, branch_prefix=BRANCH_PREFIX
            )

    def load(self) -> Any:
        """Load the table's metadata, as Iceberg's Java object.

        Raises:
            ConfigurationError: The table doesn't exist, or has another layout.
        """
        try:
            table = self.lake.java_catalog.loadTable(self._identifier)
        except Exception as error:
            if java_error(error, "NoSuchTableException"):
                raise ConfigurationError(f"there is no table {self.lake.catalog}.{self.name}") from error
            raise
        if self.layout is not None:
            self.layout.require(self.name, table.properties().get(LAYOUT_PROPERTY))
        return table

    def retry(self, change: Callable[[], T]) -> T:
        """Change the metadata, and retry while other changes are committed first."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return change()
            except Exception as error:
                if not java_error(error, "CommitFailedException"):
                    raise
                _pause(attempt)
        return change()

    def remove_branch(self, branch: str) -> None:
        """Remove a branch if it exists."""

        def remove() -> None:
            table = self.load()
            if table.refs().containsKey(branch):
                table.manageSnapshots().removeBranch(branch).commit()

        self.retry(remove)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock out other processes if the catalog can't detect conflicts itself."""
        if self._lock_folder is None:
            folder = self.lake.local_folder(self.load().location())
            self._lock_folder = "" if folder is None else f"{folder}/metadata"
        with locked(self._lock_folder or None):
            yield

    def _create(self, schema: StructType, partition_by: Sequence[str]) -> None:
        properties = {
            "format-version": str(self.lake.format_version),
            "write.delete.mode": "merge-on-read",
            "write.update.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read",
            "write.distribution-mode": "none",  # a batch is one partition: hash would put it into one task
            "write.delete.distribution-mode": "none",  # hash would put the deletes of a merge into one task
            "write.spark.fanout.enabled": "true",  # avoids sorting by partition
            "write.parquet.compression-codec": "zstd",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
            "commit.retry.num-retries": str(_ATTEMPTS),
            "commit.retry.min-wait-ms": "20",
            "commit.retry.max-wait-ms": "2000",
        }
        if self.layout is not None:
            properties[LAYOUT_PROPERTY] = str(self.layout)
        java_schema = to_java_schema(self.spark, schema)
        partitions = java_class(self.spark, "org.apache.iceberg.PartitionSpec").builderFor(java_schema)
        for column in partition_by:
            partitions.identity(column)
        builder = self.lake.java_catalog.buildTable(self._identifier, java_schema)
        builder.withPartitionSpec(partitions.build()).withProperties(properties)
        try:
            builder.create()
        except Exception as error:
            if not java_error(error, "AlreadyExistsException"):  # by a concurrent job
                raise

    def _begin(self) -> Any:
        """Load the table, with an empty first snapshot at which branches can be created."""
        table = self.load()
        if table.currentSnapshot() is None:
            table.newFastAppend().set(MAINTENANCE, "create").commit()
        return table

    def _newest_properties(self, table: Any, current: Any) -> dict[str, str]:
        oldest = current
        for snapshot in lineage(table, current):
            ours = own_properties(self.spark, snapshot)
            if ours and MAINTENANCE not in ours:
                return ours
            oldest = snapshot
        # All snapshots between the tag and main have expired, or main was rolled back to one before it.
        tagged = table.snapshot(HEAD_TAG)
        if tagged is not None and tagged.sequenceNumber() < oldest.sequenceNumber():
            return own_properties(self.spark, tagged)
        return {}

    def _require_only_maintenance(self, table: Any, base: Head) -> None:
        """Raise CommitConflict unless the table has exactly the rows of ``base``."""
        base_id = None if base.snapshot is None else int(base.snapshot)
        for snapshot in lineage(table, table.currentSnapshot()):
            if snapshot.snapshotId() == base_id:
                return
            if snapshot.operation() != "replace" and MAINTENANCE not in own_properties(self.spark, snapshot):
                raise CommitConflict(
                    f"another writer committed to {self.name}",
                    expected=f"nothing after snapshot {base.snapshot}",
                    found=f"snapshot {snapshot.snapshotId()} ({snapshot.operation()})",
                )
            # The base has expired, or is None: the state before the first snapshot.
            if snapshot.parentId() == base_id:
                return
        raise CommitConflict(f"{self.name} does not descend from snapshot {base.snapshot} any more")

    def _try_commit(
        self,
        table: Any,
        append: DataFrame | None,
        delete: str | None,
        delete_keys: tuple[str, DataFrame] | None,
        properties: Mapping[str, str],
    ) -> Any:
        """Commit on top of main as of ``table``; None if main moved or the branch was removed."""
        root = table.currentSnapshot().snapshotId()
        branch = f"{BRANCH_PREFIX}{int(time.time())}_{uuid.uuid4().hex[:12]}"
        published = False
        try:
            table.manageSnapshots().createBranch(branch, root).commit()
            self._write(
                f"{self.sql_name}.{quote('branch_' + branch)}", append, delete, delete_keys, properties
            )
            table.refresh()
            if append is None:
                self._mark(table, branch, properties)
            tip = table.snapshot(branch)
            if tip.snapshotId() == root:
                raise CommitStateUnknown(f"Spark wrote to {self.name} but not to the branch {branch}")
            published = self._publish(table, branch, root, tip.snapshotId())
            return tip if published else None
        except Exception as error:
            if java_error(error, "CommitFailedException"):  # many concurrent metadata changes
                return None
            raise
        finally:
            if not published:
                self._drop_branch(branch)

    def _write(
        self,
        target: str,
        append: DataFrame | None,
        delete: str | None,
        delete_keys: tuple[str, DataFrame] | None,
        properties: Mapping[str, str],
    ) -> None:
        if delete is not None:
            self.spark.sql(f"DELETE FROM {target} WHERE {delete}")
        if delete_keys is not None:
            column, keys = delete_keys
            path = quote(column) if column in self.schema().names else quote(*column.split("."))
            view = f"cdc_keys_{uuid.uuid4().hex}"
            keys.hint("broadcast").createTempView(view)  # otherwise the whole table would be shuffled
            try:
                select = f"SELECT {quote(keys.columns[0])} FROM {view}"
                self.spark.sql(f"DELETE FROM {target} WHERE {path} IN ({select})")
            finally:
                self.spark.catalog.dropTempView(view)
        if append is not None:
            writer = append.writeTo(target)
            for name, value in properties.items():
                writer = writer.option(f"snapshot-property.{name}", value)
            writer.append()

    def _mark(self, table: Any, branch: str, properties: Mapping[str, str]) -> None:
        update = table.newFastAppend()
        for name, value in properties.items():
            update = update.set(name, value)
        update.toBranch(branch).commit()
        table.refresh()

    def _publish(self, table: Any, branch: str, root: int, tip: int) -> bool:
        """Fast-forward main to a branch's tip; False if main moved or the branch was removed."""
        for attempt in range(1, _ATTEMPTS):
            try:
                self._fast_forward(table, branch, tip)
                return True
            except Exception as error:  # noqa: BLE001  # the outcome is read from the table, whatever was raised
                outcome = self._outcome(table, branch, root, tip, error)
                if outcome is not None:
                    return outcome
                _pause(attempt)
        return False

    def _fast_forward(self, table: Any, branch: str, tip: int) -> None:
        update = table.manageSnapshots().fastForwardBranch("main", branch).removeBranch(branch)
        tagged = table.refs().containsKey(HEAD_TAG)
        (update.replaceTag(HEAD_TAG, tip) if tagged else update.createTag(HEAD_TAG, tip)).commit()

    def _outcome(self, table: Any, branch: str, root: int, tip: int, error: Exception) -> bool | None:
        """Return how a failed fast-forward ended: True for committed, False for lost, None for pending."""
        definite = java_error(
            error, "CommitFailedException", "IllegalArgumentException", "ValidationException"
        )
        try:
            if not definite:
                self.remove_branch(branch)  # so that the failed call can't take effect late
            table.refresh()
        except Exception as unreadable:
            raise self._unknown(tip, error) from unreadable
        if self._contains(table, tip):
            return True
        if not definite:
            raise self._unknown(tip, error) from error
        moved = table.currentSnapshot().snapshotId() != root
        return False if moved or not table.refs().containsKey(branch) else None

    def _contains(self, table: Any, tip: int) -> bool:
        return any(snapshot.snapshotId() == tip for snapshot in lineage(table, table.currentSnapshot()))

    def _unknown(self, tip: int, error: Exception) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"snapshot {tip} of {self.name} may have been committed",
            found=f"{type(error).__name__} ({str(error).partition(chr(10))[0][:200]})",
            remedy="read the table's head before continuing",
        )

    def _drop_branch(self, branch: str) -> None:
        try:
            self.remove_branch(branch)
        except Exception:  # noqa: BLE001  # maintenance removes it later; the commit's own error matters more
            _log.warning("branch %s of %s could not be removed", branch, self.name, exc_info=True)


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * min(0.02 * attempt, 0.5))  # noqa: S311  # spreads racing writers
