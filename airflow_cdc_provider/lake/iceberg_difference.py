"""The rows in which two snapshots of an Iceberg table differ, by the files that they don't share.

A data file with the same deletes in both snapshots has the same rows in both and is not read. Of the others:

* a file that only one of them has: its rows there;
* a file that both have, with other deletes: the rows that one of them marks as deleted and the other doesn't;
  of format 3, whose staged files don't show that mark to Spark, its rows in each of them.

So what is read is in proportion to the files that changed. Their list costs a look at the metadata of all
files, which is made on the driver. Rows that a compaction moved from one file to another are on both sides:
:mod:`.row_changes` leaves them out. Position deletes (format 2) and deletion vectors (format 3) are both
read by Iceberg itself, which is handed its own scan tasks, as its compaction hands them to Spark.

A snapshot from which a difference is to be taken later must not expire: :func:`pin` keeps it by a tag.
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
"""Leads the names of tags that keep snapshots; the snapshot's number follows."""

_SHOWS_DELETED: Final = 2
"""The newest format of which Spark can ask for deleted rows of staged files: row lineage hides the column."""

_PLACE: Final = ("_file", "_pos")
"""Iceberg's metadata columns that name a row of a file."""


@dataclass(frozen=True)
class Difference:
    """Rows of files that two snapshots don't share, in the table's present columns.

    Both may hold a row that was only moved. Neither holds a row twice that the snapshots hold once.

    Args:
        gone: Rows of the earlier snapshot.
        new: Rows of the later one.
        files: How many data files are read for them.
    """

    gone: DataFrame
    new: DataFrame
    files: int


def table_id(table: IcebergTable) -> str:
    """Return what names a table for as long as it lives; one that is made anew has another."""
    return str(table.load().uuid())


def has_snapshot(table: IcebergTable, snapshot: str) -> bool:
    """Tell whether a snapshot hasn't expired."""
    return table.load().snapshot(int(snapshot)) is not None


def newest_of_same_rows(table: IcebergTable, snapshot: str) -> str:
    """Return the newest snapshot that only compaction led to from a certain one, or itself.

    A difference from there reads none of the files that were compacted.
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
    """Keep a snapshot, and all files that it needs, from expiry, and let go of others that were kept.

    Args:
        table: The table.
        snapshot: The snapshot.
        keep: Those that stay, too; None for all.
    """
    name = f"{PIN_PREFIX}{snapshot}"

    def change() -> None:
        loaded = table.load()
        names = _pins(loaded)
        kept = names if keep is None else {name, *(f"{PIN_PREFIX}{other}" for other in keep)}
        update = _without(loaded, names - kept)
        if name not in names:
            update = update.createTag(name, int(snapshot))
        if name not in names or names - kept:
            update.commit()

    with table.exclusive():
        table.retry(change)


def release(table: IcebergTable, before: str | None) -> None:
    """Let go of snapshots that were pinned.

    Args:
        table: The table.
        before: Only of those that are older than this one, None for all. Who takes a difference pins its
            newer snapshot before it can say so.
    """

    def change() -> None:
        loaded = table.load()
        names = _pins(loaded)
        if before is not None:
            oldest = loaded.snapshot(int(before))
            since = 0 if oldest is None else oldest.sequenceNumber()
            names = {name for name in names if loaded.snapshot(name).sequenceNumber() < since}
        if names:
            _without(loaded, names).commit()

    with table.exclusive():
        table.retry(change)


def _pins(loaded: Any) -> set[str]:
    return {str(name) for name in loaded.refs() if name.startswith(PIN_PREFIX)}


def _without(loaded: Any, names: Collection[str]) -> Any:
    return reduce(lambda update, name: update.removeTag(name), names, loaded.manageSnapshots())


@contextmanager
def difference(table: IcebergTable, since: str, until: str) -> Iterator[Difference]:
    """Find the rows in which two snapshots differ.

    Args:
        table: The table.
        since: The earlier snapshot; it must be there.
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
        gone = [staged.rows([task for file, task in earlier.items() if file not in kept])]
        new = [staged.rows([task for file, task in later.items() if file not in kept])]
        then, now = [earlier[file] for file in kept], [later[file] for file in kept]
        if int(loaded.operations().current().formatVersion()) > _SHOWS_DELETED:
            gone.append(staged.rows(then))
            new.append(staged.rows(now))
        else:
            deleted_then, deleted_now = staged.deleted(then), staged.deleted(now)
            gone.append(_less(deleted_now, deleted_then))
            # Deletes are only ever added, but by who makes an older snapshot the newest.
            if not any(found.snapshotId() == int(since) for found in lineage(loaded, after)):
                new.append(_less(deleted_then, deleted_now))
        yield Difference(_together(gone), _together(new), len(earlier.keys() | later.keys()))
    finally:
        staged.clear()


def _touched(table: IcebergTable, loaded: Any, before: Any, after: Any) -> set[str] | None:
    """Return the places of data files that aren't the same in both snapshots; None where all may be.

    Manifests never change, so that only those are read that one of the snapshots has.
    """
    found = {place for place, _ in _apart(table, loaded, before, after, deletes=False)}
    names = java_class(table.spark, "org.apache.iceberg.util.ContentFileUtil")
    for delete in _apart(table, loaded, before, after, deletes=True).values():
        location = names.referencedDataFileLocation(delete)
        if location is None:  # it has deletes of several files
            return None
        found.add(str(location))
    return found


def _apart(
    table: IcebergTable, loaded: Any, before: Any, after: Any, *, deletes: bool
) -> dict[tuple[str, int], Any]:
    """Return the data files, or those with deletes, that only one of two snapshots has, by their places."""
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
                    # A file may hold the deletion vectors of several data files, each at a place of its own.
                    offset = file.contentOffset() if deletes else None
                    found[str(file.location()), offset or 0] = file
            finally:
                reader.close()
        return found

    then, now = manifests(before), manifests(after)
    earlier, later = files(then, now), files(now, then)
    return {
        place: file for place, file in {**earlier, **later}.items() if (place in earlier) != (place in later)
    }


def _tasks(loaded: Any, snapshot: str, touched: set[str] | None) -> dict[str, Any]:
    """Return Iceberg's scan tasks of some data files in a snapshot, by their places; of all for None."""
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
    """Yield what a Java iterable has that is no collection."""
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


class _Staged:
    """Scan tasks that are handed to Spark, as Iceberg's own compaction does it.

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
        """Return the rows of files that are marked as deleted there, with the columns of :data:`_PLACE`."""
        marked = [task for task in tasks if not task.deletes().isEmpty()]
        return self._frame(marked).where("_deleted").select(*self._columns, *_PLACE)

    def clear(self) -> None:
        """Forget all tasks."""
        for name in self._names:
            self._sets.removeTasks(self._loaded, name)
            self._tables.remove(name)

    @property
    def _columns(self) -> list[str]:
        return [f"`{name.replace('`', '``')}`" for name in self._table.schema().names]

    def _frame(self, tasks: list[Any]) -> DataFrame:
        if not tasks:
            nothing = self._table.spark.table(self._table.sql_name).where("false")
            return nothing.select("*", *_PLACE, "_deleted")
        name = uuid.uuid4().hex
        self._names.append(name)
        self._tables.add(name, self._loaded)
        self._sets.stageTasks(self._loaded, name, tasks)
        return self._table.spark.read.format("iceberg").load(name)


def _less(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Return rows that aren't at the places of others."""
    return rows.join(others.select(*_PLACE), list(_PLACE), "left_anti").drop(*_PLACE)


def _together(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)
