"""Reread of unresolved keys: rows that a merge could not decide are read from the source and merged."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.fence import newest_generation
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Mirror, MirrorState, RereadBasis
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.lake.unresolved import keys_not_in_snapshot, resolve
from airflow_cdc_provider.sources.contract import Codec, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS_AT_ONCE: Final = 20_000
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
_KEY_SCHEMA: Final = pa.schema([pa.field("key", pa.binary())])


class Reread(NamedTuple):
    """A committed reread of one table.

    Args:
        asked: The unresolved keys of the mirror at the time of the reread.
        unread: Keys that could not be read; they stay unresolved.
    """

    asked: RereadBasis
    unread: Sequence[bytes]


def reread_unresolved_keys(
    job: Job, stores: Stores, source: Source, tables: Sequence[str]
) -> Mapping[str, Reread]:
    """Read all unresolved keys from the source and commit them as snapshot changes, in one or more batches.

    The changes captured before are merged already, so a difference between source and mirror is either newer
    than the capture or resolves the key; see :mod:`airflow_cdc_provider.lake.unresolved`.

    Args:
        job: The job.
        stores: The lake.
        source: The source.
        tables: Tables to check for unresolved keys.

    Returns:
        The rereads, by table; the next merge resolves their keys. A table that can't be read now is missing:
        its keys stay unresolved.
    """
    if not source.rereads_keys:
        return {}
    read: dict[str, Reread] = {}
    for table in tables:
        mirror = stores.mirror(table)
        state = mirror.state()
        if not (state.unresolved_keys or state.snapshot_started_us):
            continue
        try:
            unread = _read_table(job, stores, source, table, mirror, state)
        except TransientError as error:
            # They stay unresolved, which the run reports at its end; the next run tries again.
            log.warning("%s: unresolved keys can't be read now: %s", table, error)
            continue
        if unread is not None:
            read[table] = Reread(state.reread_basis, unread)
    return read


def _read_table(
    job: Job, stores: Stores, source: Source, table: str, mirror: Mirror, state: MirrorState
) -> Sequence[bytes] | None:
    """Read the unresolved keys of one table.

    Returns:
        Keys that could not be read, or were left when a stop was requested; None if none was read.

    Raises:
        TransientError: No key can be read.
    """
    found = mirror.unresolved_keys(state)
    if state.snapshot_started_us:
        found = found.union(keys_not_in_snapshot(mirror, state))
    keys = found.distinct().toArrow()["key"].to_pylist()
    # Shuffled so that a key that can't be read doesn't block the same keys in each run.
    random.shuffle(keys)
    log.info("%s: rereading %d unresolved keys", table, len(keys))
    codec = source.codec(table, state.memory)
    started = time.monotonic()
    done = 0
    try:
        for some, changes in _portions(source.read_keys(table, keys), keys):
            if job.stopping():
                break
            corrections = list(_corrections(mirror, codec, state, some, changes))
            changes_state = stores.changes.state()
            offset = Progress.from_offset(changes_state.offset).to_offset()
            stores.changes.append_batch(_frame(stores.spark, [*changes, *corrections]), offset, changes_state)
            done += len(some)
            seconds = time.monotonic() - started
            log.info(
                "%s: %d of %d unresolved keys read, %d rows corrected, %.0f keys/s, about %.0f s left",
                table,
                done,
                len(keys),
                sum(batch.num_rows for batch in corrections),
                done / seconds,
                (len(keys) - done) * seconds / done,
            )
    except TransientError as error:
        if not done:
            raise
        log.warning("%s: %d unresolved keys can't be read now: %s", table, len(keys) - done, error)
    return keys[done:] if done or not keys else None


def _portions(
    read: Iterator[pa.RecordBatch], keys: Sequence[bytes]
) -> Iterator[tuple[Sequence[bytes], list[pa.RecordBatch]]]:
    """Split a reading of keys into portions of whole keys that fit a commit.

    Args:
        read: Rows in the order of the keys, none for a deleted key. Each batch is of one key.
        keys: The requested keys.

    Raises:
        TransientError: One key can't be read; the keys before it were yielded.
    """
    indexes = {key: index for index, key in enumerate(keys)}
    start, index, size = 0, 0, 0
    changes: list[pa.RecordBatch] = []
    of_last: list[pa.RecordBatch] = []
    try:
        for batch in read:
            if (now := indexes[batch.column("key")[0].as_py()]) != index:
                index, changes, of_last = now, [*changes, *of_last], []
                while index - start >= _KEYS_AT_ONCE:
                    yield keys[start : start + _KEYS_AT_ONCE], changes
                    start, changes, size = start + _KEYS_AT_ONCE, [], 0
                if index > start and size >= _BYTES_AT_ONCE:
                    yield keys[start:index], changes
                    start, changes, size = index, [], 0
            of_last.append(batch)
            size += batch.nbytes
    except TransientError:
        if index > start:  # the last key may be incomplete
            yield keys[start:index], changes
        raise
    changes += of_last
    while start < len(keys):
        yield keys[start : start + _KEYS_AT_ONCE], changes
        start, changes = start + _KEYS_AT_ONCE, []


def _corrections(
    mirror: Mirror,
    codec: Codec,
    state: MirrorState,
    keys: Sequence[bytes],
    changes: Sequence[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    if codec.model == "row":
        return  # the greatest version wins as a whole, so the rows read need no corrections
    from pyspark.sql import functions as f

    spark = mirror.lake.spark
    broadcast_keys = f.broadcast(
        spark.createDataFrame(pa.table([pa.array(keys, pa.binary())], schema=_KEY_SCHEMA))
    )
    rows = mirror.table.read(state.head).select(f"{CDC_COLUMN}.*").join(broadcast_keys, "key", "left_semi")
    held = rows.select("key", "clustering", "state").toArrow()
    side = mirror.tombstone_rows().join(broadcast_keys, "key", "left_semi")
    remembered = side.select("key", "scope", "clustering", "clustering_end", "state").toArrow()
    read_rows = [codec.decode(batch, state.fences).contributions for batch in changes]
    newest = newest_generation(state.fences)
    if any(part.num_rows and pc.min(part["generation"]).as_py() < newest for part in read_rows):
        # The rows would not count in the merge, but the corrections would.
        raise TransientError(
            f"rows read of {codec.table} may be older than its last TRUNCATE",
            remedy="run again ten minutes after the TRUNCATE",
        )
    origin, position, schema_id = _position_of(changes)
    values = {
        "source_table": codec.table,
        "kind": record.SNAPSHOT,
        "origin": origin,
        "position": position,
        "schema_id": schema_id,
        # It corrects rows of the mirror, whose generation is the newest.
        "generation": newest,
        "captured_at": datetime.now(UTC),
    }
    found = [
        {**values, "key": correction.key, "payload": codec.state_payload(correction.state)}
        for correction in resolve(held, remembered, read_rows, int(time.time()))
    ]
    if found:
        yield pa.RecordBatch.from_pylist(found, schema=record.CHANGE_SCHEMA)


def _position_of(changes: Sequence[pa.RecordBatch]) -> tuple[str, bytes, str | None]:
    """Return feed, position and schema of a reading, which its corrections get too.

    They must be of the same table, which may be dropped and re-created before they are merged.
    """
    for batch in changes:
        if batch.num_rows:
            origin, position, schema_id = (
                batch.column(name)[0].as_py() for name in ("origin", "position", "schema_id")
            )
            return origin, position, schema_id
    return "", b"\xff" * 16, None


def _frame(spark: SparkSession, batches: Sequence[pa.RecordBatch]) -> DataFrame | None:
    if not any(batch.num_rows for batch in batches):
        return None
    return spark.createDataFrame(pa.Table.from_batches(batches, schema=record.CHANGE_SCHEMA))
