"""The rows in which two snapshots of an Iceberg table differ, found by the files that they don't share.

A data file with the same deletes in both snapshots has the same rows in both and is not read. The others are:

* a file that only one snapshot has: its rows there are read;
* a file that both have with different deletes: the rows that only one of them marks as deleted are read. In
  format 3, Spark can't read that mark in staged files; there the file's rows are read in each snapshot.

So the work is in proportion to the files that changed. To list these, the driver reads the metadata of all
files. Rows that a compaction moved to another file are on both sides; :mod:`.row_changes` drops them. Iceberg
reads position deletes (format 2) and deletion vectors (format 3) itself: it gets its own scan tasks, as its
compaction passes them to Spark.

The base snapshot of a later difference must not expire: :func:`pin` keeps it with a tag.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from airflow_cdc_provider.lake.iceberg_java import call_static, java_class, lineage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.lake.iceberg import IcebergTable

PIN_PREFIX: Final = "cdc_pin_"
"""Prefix of the names of tags that keep snapshots; the snapshot id follows."""

_SELECTS_DELETED: Final = 2
"""The newest format in which Spark can select deleted rows of staged files: row lineage hides the column."""

_ROW_POSITION: Final = ("_file", "_pos")
"""Iceberg's metadata columns that identify a row of a file."""


@dataclass(frozen=True)
class Difference:
    """Rows of files that two snapshots don't share, in the table's present columns.

    Both frames have a row that was only moved. Neither has a row twice that the snapshots have once.

    Args:
        removed: Rows of the earlier snapshot.
        added: Rows of the later snapshot.
        files: Number of data files that are read.
    """

    removed: DataFrame
    added: DataFrame
    files: int


def table_id(table: IcebergTable) -> str:
    """Return the UUID of a table; a table that is dropped and re-created gets another one."""
    return str(table.load().uuid())


def has_snapshot(table: IcebergTable, snapshot: str) -> bool:
    """Return whether a snapshot has not expired."""
    return table.load().snapshot(int(snapshot)) is not None


def newest_of_same_rows(table: IcebergTable, snapshot: str) -> str:
    """Return the newest snapshot with the same rows: only compactions came after the given snapshot.

    A difference from there doesn't read the files that were compacted.
    """
    loaded = table.load()
    newest = None
    for found in lineage(loaded, loaded.currentSnapshot()):
        if found.snapshotId() == int(snapshot):
            break
        if found.operation() != "replace":
            newest = None
        elif newest is None:
            newest = found
    else:
        return snapshot
    return snapshot if newest is None else str(newest.snapshotId())


def pin(table: IcebergTable, snapshot: str, keep: Collection[str] | None = None) -> None:
    """Keep a snapshot and all its files from expiry, and release other pinned snapshots.

    Args:
        table: The table.
        snapshot: The snapshot.
        keep: Other snapshots that stay pinned; None for all.
    """
    name = f"{PIN_PREFIX}{snapshot}"

    def change() -> None:
        loaded = table.load()
        names = pins(loaded)
        kept = names if keep is None else {name, *(f"{PIN_PREFIX}{other}" for other in keep)}
        update = _without(loaded, names - kept)
        if name not in names:
            update = update.createTag(name, int(snapshot))
        if name not in names or names - kept:
            update.commit()

    with table.exclusive():
        table.retry(change)


def release(table: IcebergTable, before: str | None) -> None:
    """Release pinned snapshots.

    Args:
        table: The table.
        before: Release only snapshots older than this one, None for all: a publisher pins the newer snapshot
            of a difference before it stores its position.
    """

    def change() -> None:
        loaded = table.load()
        names = pins(loaded)
        if before is not None:
            oldest = loaded.snapshot(int(before))
            since = 0 if oldest is None else oldest.sequenceNumber()
            names = {name for name in names if loaded.snapshot(name).sequenceNumber() < since}
        if names:
            _without(loaded, names).commit()

    with table.exclusive():
        table.retry(change)


def pins(loaded: Any) -> set[str]:
    """Return the names of the tags of pinned snapshots."""
    return {str(name) for name in loaded.refs() if name.startswith(PIN_PREFIX)}


def _without(loaded: Any, names: Collection[str]) -> Any:
    return reduce(lambda update, name: update.removeTag(name), names, loaded.manageSnapshots())


@contextmanager
def difference(table: IcebergTable, since: str, until: str) -> Iterator[Difference]:
    """Find the rows in which two snapshots differ.

    Args:
        table: The table.
        since: The earlier snapshot; it must not have expired.
        until: The later one.

    Yields:
        Frames that can be read until the context ends.
    """
    loaded = table.load()
    before, after = loaded.snapshot(int(since)), loaded.snapshot(int(until))
    touched = _touched(table, loaded, before, after)
    earlier, later = _tasks(loaded, since, touched), _tasks(loaded, until, touched)
    kept = earlier.keys() & later.keys()
    staged = _Staged(table, loaded)
    try:
        removed = [staged.rows([task for file, task in earlier.items() if file not in kept])]
        added = [staged.rows([task for file, task in later.items() if file not in kept])]
        old, new = [earlier[file] for file in kept], [later[file] for file in kept]
        if int(loaded.operations().current().formatVersion()) > _SELECTS_DELETED:
            removed.append(staged.rows(old))
            added.append(staged.rows(new))
        else:
            deleted_in_old, deleted_in_new = staged.deleted(old), staged.deleted(new)
            removed.append(_anti_join(deleted_in_new, deleted_in_old))
            # Deletes are only removed by a rollback to an older snapshot.
            if not any(found.snapshotId() == int(since) for found in lineage(loaded, after)):
                added.append(_anti_join(deleted_in_old, deleted_in_new))
        yield Difference(_union(removed), _union(added), len(earlier.keys() | later.keys()))
    finally:
        staged.clear()


def _touched(table: IcebergTable, loaded: Any, before: Any, after: Any) -> set[str] | None:
    """Return the locations of data files that differ between the snapshots; None if all may differ.

    Manifests never change, so only those are read that one of the snapshots has.
    """
    found = {location for location, _ in _symmetric_difference(table, loaded, before, after, deletes=False)}
    names = java_class(table.spark, "org.apache.iceberg.util.ContentFileUtil")
    for delete in _symmetric_difference(table, loaded, before, after, deletes=True).values():
        location = names.referencedDataFileLocation(delete)
        if location is None:  # it has deletes of several files
            return None
        found.add(str(location))
    return found


def _symmetric_difference(
    table: IcebergTable, loaded: Any, before: Any, after: Any, *, deletes: bool
) -> dict[tuple[str, int], Any]:
    """Return the data files, or delete files, that only one of two snapshots has, by location and offset."""
    io, specs = loaded.io(), loaded.specs()
    manifest_files = java_class(table.spark, "org.apache.iceberg.ManifestFiles")
    read = manifest_files.readDeleteManifest if deletes else manifest_files.read

    def manifests(snapshot: Any) -> dict[str, Any]:
        found = snapshot.deleteManifests(io) if deletes else snapshot.dataManifests(io)
        return {str(manifest.path()): manifest for manifest in found}

    def files(own: dict[str, Any], others: dict[str, Any]) -> dict[tuple[str, int], Any]:
        found = {}
        for path in own.keys() - others.keys():
            reader = read(own[path], io, specs)
            try:
                for file in _each(reader):
                    # A file may hold the deletion vectors of several data files at different offsets.
                    offset = file.contentOffset() if deletes else None
                    found[str(file.location()), offset or 0] = file
            finally:
                reader.close()
        return found

    old, new = manifests(before), manifests(after)
    earlier, later = files(old, new), files(new, old)
    return {key: file for key, file in {**earlier, **later}.items() if (key in earlier) != (key in later)}


def _tasks(loaded: Any, snapshot: str, touched: set[str] | None) -> dict[str, Any]:
    """Return Iceberg's scan tasks of data files in a snapshot, by location; of all files for None."""
    found: dict[str, Any] = {}
    if touched is not None and not touched:
        return found
    planned = loaded.newScan().useSnapshot(int(snapshot)).planFiles()
    try:
        for task in _each(planned):
            location = str(task.file().location())
            if touched is None or location in touched:
                found[location] = task
    finally:
        planned.close()
    return found


def _each(found: Any) -> Iterator[Any]:
    """Yield the elements of a Java iterable that is not a collection."""
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


class _Staged:
    """Scan tasks that are passed to Spark, as Iceberg's own compaction does.

    Args:
        table: The table.
        loaded: Its metadata.
    """

    def __init__(self, table: IcebergTable, loaded: Any) -> None:
        self._table = table
        self._loaded = loaded
        self._names: list[str] = []
        self._tables = call_static(table.spark, "org.apache.iceberg.spark.SparkTableCache", "get")
        self._sets = java_class(table.spark, "org.apache.iceberg.spark.ScanTaskSetManager").get()

    def rows(self, tasks: list[Any]) -> DataFrame:
        """Return the rows of files."""
        return self._frame(tasks).select(*self._columns)

    def deleted(self, tasks: list[Any]) -> DataFrame:
        """Return the rows of files that are marked as deleted, with the columns of :data:`_ROW_POSITION`."""
        marked = [task for task in tasks if not task.deletes().isEmpty()]
        return self._frame(marked).where("_deleted").select(*self._columns, *_ROW_POSITION)

    def clear(self) -> None:
        """Release all tasks."""
        for name in self._names:
            self._sets.removeTasks(self._loaded, name)
            self._tables.remove(name)

    @property
    def _columns(self) -> list[str]:
        return [f"`{name.replace('`', '``')}`" for name in self._table.schema().names]

    def _frame(self, tasks: list[Any]) -> DataFrame:
        if not tasks:
            empty = self._table.spark.table(self._table.sql_name).where("false")
            return empty.select("*", *_ROW_POSITION, "_deleted")
        name = uuid.uuid4().hex
        self._names.append(name)
        self._tables.add(name, self._loaded)
        self._sets.stageTasks(self._loaded, name, tasks)
        return self._table.spark.read.format("iceberg").load(name)


def _anti_join(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Return rows at positions that others don't have."""
    return rows.join(others.select(*_ROW_POSITION), list(_ROW_POSITION), "left_anti").drop(*_ROW_POSITION)


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)
