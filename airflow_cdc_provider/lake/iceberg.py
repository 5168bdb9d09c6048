"""Iceberg tables as :mod:`airflow_cdc_provider.lake.table` wants them.

A commit is made on a branch of unique name, cut at the snapshot that its content was derived from, and takes
effect by fast-forwarding ``main``. That step also removes the branch and moves the tag :data:`HEAD_TAG` to
the commit, in one change of the table's metadata. So exactly one of two racing writers gets in, a killed
writer leaves at most a branch (which maintenance removes), and snapshot expiry never takes the newest
commit's properties.

Snapshots of operation ``replace`` (compaction) and those that carry :data:`MAINTENANCE` keep the data that
writers care about: a commit goes on from them.

Metadata are read and changed through Iceberg's own Java API, which costs some milliseconds; Spark runs only
what touches rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from airflow_cdc_provider.exceptions import CommitConflict, CommitStateUnknown, ConfigurationError
from airflow_cdc_provider.lake import iceberg_schema, maintenance
from airflow_cdc_provider.lake.iceberg_java import java_error, lineage, own_properties, quote, to_spark_schema
from airflow_cdc_provider.lake.table import Head, MaintenanceReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

T = TypeVar("T")

HEAD_TAG = "cdc_head"
"""Tag on the newest commit of ours: keeps its snapshot, and so its properties, from expiry."""

MAINTENANCE = "cdc.maintenance"
"""Property of snapshots that are ours but no writer's commit; its value says what was done."""

BRANCH_PREFIX = "cdc_w_"
"""Leads the names of commit branches: prefix, epoch second, ``_``, random hexadecimal digits."""

_ATTEMPTS = 20
_PROPERTY = re.compile(r"cdc\.[a-z0-9_.-]+")
_log = logging.getLogger(__name__)


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
        self._java = spark._jvm.org.apache.iceberg
        self._java_catalog: Any = None

    def table(self, name: str) -> IcebergTable:
        """Return a table by ``namespace.table``; it need not exist."""
        return IcebergTable(self, name)

    def create_namespace(self, name: str) -> None:
        """Create a namespace unless it is there."""
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quote(self.catalog, *name.split('.'))}")

    @property
    def java(self) -> Any:
        """Iceberg's Java package."""
        return self._java

    @property
    def java_catalog(self) -> Any:
        """Iceberg's own catalog object."""
        if self._java_catalog is None:
            spark3 = self._java.spark.Spark3Util
            self._java_catalog = spark3.loadIcebergCatalog(self.spark._jsparkSession, self.catalog)
        return self._java_catalog


class IcebergTable:
    """One Iceberg table. Safe to use from several processes; from several threads with one object each.

    Args:
        lake: Its catalog.
        name: ``namespace.table``.
    """

    def __init__(self, lake: IcebergLake, name: str) -> None:
        self.name = name
        self.lake = lake
        self.spark = lake.spark
        parts = name.split(".")
        self.sql_name = quote(lake.catalog, *parts)
        self._identifier = lake.java.catalog.TableIdentifier.parse(name)

    def exists(self) -> bool:
        """Tell whether the table is there."""
        return bool(self.lake.java_catalog.tableExists(self._identifier))

    def create(self, schema: StructType, *, partition_by: Sequence[str] = ()) -> None:
        """Create the table with an empty first snapshot; a table that is there already is left alone."""
        if not self.exists():
            partitioning = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
            properties = ", ".join(f"'{k}'='{v}'" for k, v in self._properties().items())
            columns = ", ".join(f"{quote(f.name)} {f.dataType.simpleString()}" for f in schema.fields)
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.sql_name} ({columns}) USING iceberg {partitioning} "
                f"TBLPROPERTIES ({properties})"
            )
        table = self.load()
        if table.currentSnapshot() is None:
            self._begin(table)

    def drop(self) -> None:
        """Drop the table with its data."""
        self.lake.java_catalog.dropTable(self._identifier, True)

    def schema(self) -> StructType:
        """Return its columns."""
        return to_spark_schema(self.spark, self.load().schema())

    def evolve(self, schema: StructType) -> list[str]:
        """Add columns that are new in ``schema`` and widen those whose type grew.

        Columns that ``schema`` lacks stay. No snapshot is made.
        """

        def change() -> list[str]:
            return iceberg_schema.evolve(self.spark, self.load(), schema, self.name)

        with self.exclusive():
            return self.retry(change)

    def head(self) -> Head:
        """Return what a following commit is based on."""
        table = self.load()
        current = table.currentSnapshot()
        if current is None:
            return Head(None)
        return Head(str(current.snapshotId()), self._newest_properties(table, current))

    def read(self, head: Head | None = None) -> DataFrame:
        """Read all rows, at a head or now. Columns are the table's present ones."""
        if head is None or head.snapshot is None:
            return self.spark.table(self.sql_name)
        rows = self.spark.read.option("versionAsOf", head.snapshot).table(self.sql_name)
        table = self.load()
        snapshot = table.snapshot(int(head.snapshot))
        if snapshot is not None and snapshot.schemaId() == table.schema().schemaId():
            return rows
        return rows.to(to_spark_schema(self.spark, table.schema()))

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

        The frames are evaluated once, and again when maintenance came between.
        """
        for name in properties:
            if not _PROPERTY.fullmatch(name) or name == MAINTENANCE:
                raise ConfigurationError(
                    f"property {name!r} can't be on a commit", expected="cdc. and lower-case letters"
                )
        with self.exclusive():
            for _ in range(_ATTEMPTS):
                table = self.load()
                if table.currentSnapshot() is None:
                    self._begin(table)
                    table = self.load()
                root = table.currentSnapshot().snapshotId()
                self._require_only_maintenance(table, base)
                branch = f"{BRANCH_PREFIX}{int(time.time())}_{uuid.uuid4().hex[:12]}"
                try:
                    self._cut(branch, root)
                    tip = self._write(branch, append, delete, delete_keys, properties)
                    if self._fast_forward(branch, root, tip, base):
                        return Head(str(tip), dict(properties), self._added_rows(tip))
                finally:
                    self._drop_branch(branch)
        raise CommitConflict(f"{self.name} was changed {_ATTEMPTS} times while one commit was tried")

    def append(self, rows: DataFrame) -> None:
        """Add rows blindly. Iceberg itself repeats the commit when another came first."""
        with self.exclusive():
            try:
                rows.writeTo(self.sql_name).append()
            except Exception as error:
                if java_error(error, "CommitStateUnknownException"):
                    raise CommitStateUnknown(f"the append to {self.name} may have taken effect") from error
                raise

    def discard(self, column: str, through: int) -> None:
        """Remove whole partitions as maintenance: other writers' commits go on as if nothing had happened.

        Args:
            column: The column that the table is partitioned by, as it is.
            through: Partitions up to this value go.
        """

        def delete() -> None:
            expression = self.lake.java.expressions.Expressions.lessThanOrEqual(column, through)
            self.load().newDelete().deleteFromRowFilter(expression).set(MAINTENANCE, "discard").commit()

        with self.exclusive():
            self.retry(delete)

    def maintain(self, *, retain_seconds: int) -> MaintenanceReport:
        """Compact small files, expire snapshots, and remove the branches that dead writers left."""
        with self.exclusive():
            return maintenance.maintain(self, retain_seconds=retain_seconds, branch_prefix=BRANCH_PREFIX)

    # What the operations above are made of.

    def load(self) -> Any:
        """Load the table's metadata as Iceberg's Java object.

        Raises:
            ConfigurationError: There is no such table.
        """
        try:
            return self.lake.java_catalog.loadTable(self._identifier)
        except Exception as error:
            if java_error(error, "NoSuchTableException", "NotFoundException"):
                raise ConfigurationError(f"there is no table {self.lake.catalog}.{self.name}") from error
            raise

    def retry(self, change: Callable[[], T]) -> T:
        """Repeat a change of metadata while other changes come first."""
        for attempt in range(_ATTEMPTS):
            try:
                return change()
            except Exception as error:
                if not java_error(error, "CommitFailedException") or attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(random.uniform(0.01, 0.05) * (attempt + 1))  # noqa: S311  # spreads racing writers
        raise AssertionError("unreachable")

    def remove_branch(self, branch: str) -> None:
        """Remove a branch if it is there."""

        def remove() -> None:
            table = self.load()
            if table.refs().containsKey(branch):
                table.manageSnapshots().removeBranch(branch).commit()

        self.retry(remove)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Take turns with other processes where the catalog can't tell winners from losers.

        A Hadoop catalog commits by renaming a file, and on a local file system a rename replaces another
        writer's commit. There, and only there, writers of this package lock the table's metadata folder.
        """
        folder = self._lockable_folder()
        if folder is None:
            yield
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _lockable_folder(self) -> str | None:
        if self.lake.java_catalog.getClass().getSimpleName() != "HadoopCatalog":
            return None
        location = urlparse(self.load().location())
        folder = os.path.join(unquote(location.path), "metadata")
        return folder if location.scheme in ("", "file") and os.path.isdir(folder) else None

    def _properties(self) -> dict[str, str]:
        return {
            "format-version": str(self.lake.format_version),
            "write.delete.mode": "merge-on-read",
            "write.update.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read",
            "write.parquet.compression-codec": "zstd",
            "write.distribution-mode": "none",
            "write.delete.distribution-mode": "hash",
            "write.spark.fanout.enabled": "true",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
            "commit.retry.num-retries": "20",
            "commit.retry.min-wait-ms": "20",
            "commit.retry.max-wait-ms": "2000",
        }

    def _begin(self, table: Any) -> None:
        table.newFastAppend().set(MAINTENANCE, "create").commit()

    def _newest_properties(self, table: Any, current: Any) -> dict[str, str]:
        oldest = current
        for snapshot in lineage(table, current):
            ours = own_properties(self.spark, snapshot)
            if ours and MAINTENANCE not in ours:
                return ours
            oldest = snapshot
        tagged = table.snapshot(HEAD_TAG)  # its way from main has expired, or main was rolled back behind it
        if tagged is not None and tagged.sequenceNumber() < oldest.sequenceNumber():
            return own_properties(self.spark, tagged)
        return {}

    def _require_only_maintenance(self, table: Any, base: Head) -> None:
        """Raise CommitConflict unless the table holds just the rows that it held at ``base``."""
        wanted = None if base.snapshot is None else int(base.snapshot)
        for snapshot in lineage(table, table.currentSnapshot()):
            if snapshot.snapshotId() == wanted:
                return
            if snapshot.operation() != "replace" and MAINTENANCE not in own_properties(self.spark, snapshot):
                raise CommitConflict(
                    f"another writer committed to {self.name}",
                    expected=f"nothing after snapshot {base.snapshot}",
                    found=f"snapshot {snapshot.snapshotId()} ({snapshot.operation()})",
                )
            if snapshot.parentId() == wanted:  # also where base itself has expired, or was before the first
                return
        raise CommitConflict(f"{self.name} does not descend from snapshot {base.snapshot} any more")

    def _cut(self, branch: str, snapshot: int) -> None:
        self.retry(lambda: self.load().manageSnapshots().createBranch(branch, snapshot).commit())

    def _write(
        self,
        branch: str,
        append: DataFrame | None,
        delete: str | None,
        delete_keys: tuple[str, DataFrame] | None,
        properties: Mapping[str, str],
    ) -> int:
        target = f"{self.sql_name}.{quote('branch_' + branch)}"
        if delete is not None:
            self.spark.sql(f"DELETE FROM {target} WHERE {delete}")
        if delete_keys is not None:
            self._delete_keys(target, *delete_keys)
        if append is not None:
            writer = append.writeTo(target)
            for name, value in properties.items():
                writer = writer.option(f"snapshot-property.{name}", value)
            writer.append()
        else:
            self.retry(lambda: self._mark(branch, properties))
        return int(self.load().snapshot(branch).snapshotId())

    def _added_rows(self, snapshot: int) -> int:
        return int(self.load().snapshot(snapshot).summary().getOrDefault("added-records", "0"))

    def _mark(self, branch: str, properties: Mapping[str, str]) -> None:
        update = self.load().newFastAppend()
        for name, value in properties.items():
            update = update.set(name, value)
        update.toBranch(branch).commit()

    def _delete_keys(self, target: str, column: str, keys: DataFrame) -> None:
        view = f"cdc_keys_{uuid.uuid4().hex}"
        keys.hint("broadcast").createTempView(view)
        try:
            key = quote(keys.columns[0])
            self.spark.sql(f"DELETE FROM {target} WHERE {self._column(column)} IN (SELECT {key} FROM {view})")
        finally:
            self.spark.catalog.dropTempView(view)

    def _column(self, name: str) -> str:
        return quote(name) if name in self.schema().names else quote(*name.split("."))

    def _fast_forward(self, branch: str, root: int, tip: int, base: Head) -> bool:
        """Publish a branch: True if done, False if it must be cut again."""
        for attempt in range(_ATTEMPTS):
            try:
                table = self.load()
                update = table.manageSnapshots().fastForwardBranch("main", branch).removeBranch(branch)
                tagged = table.refs().containsKey(HEAD_TAG)
                (update.replaceTag(HEAD_TAG, tip) if tagged else update.createTag(HEAD_TAG, tip)).commit()
                return True
            except Exception as error:  # noqa: BLE001  # the table's state decides, not the error
                try:
                    table = self.load()
                except Exception as unreadable:
                    raise self._unknown(tip, error) from unreadable
                main = table.currentSnapshot().snapshotId()
                if main == tip or self.lake.java.util.SnapshotUtil.isAncestorOf(table, main, tip):
                    return True
                if main != root:
                    self._require_only_maintenance(table, base)
                    return False
                if not java_error(error, "CommitFailedException"):
                    raise self._unknown(tip, error) from error
                time.sleep(random.uniform(0.01, 0.05) * (attempt + 1))  # noqa: S311  # spreads racing writers
        raise CommitConflict(
            f"{self.name}'s metadata were changed {_ATTEMPTS} times while one commit was tried"
        )

    def _unknown(self, tip: int, error: BaseException) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"the commit of snapshot {tip} to {self.name} may have taken effect",
            found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            remedy="read the table's head before going on",
        )

    def _drop_branch(self, branch: str) -> None:
        try:
            self.remove_branch(branch)
        except Exception:  # maintenance removes it later; the commit's outcome matters more
            _log.warning("branch %s of %s is left behind", branch, self.name, exc_info=True)
