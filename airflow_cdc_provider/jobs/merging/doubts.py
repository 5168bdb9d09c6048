"""Reading again at the source what a merge could not decide, and merging what was seen."""

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
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.lake.doubts import settle, unseen_keys
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Asked, Mirror, MirrorState
from airflow_cdc_provider.sources.abilities import Rereads
from airflow_cdc_provider.sources.base import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYS_AT_ONCE: Final = 20_000
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
_KEY_SCHEMA: Final = pa.schema([pa.field("key", pa.binary())])


class Reread(NamedTuple):
    """A second reading of one table that is committed.

    Args:
        asked: What the mirror had in doubt then.
        unread: Keys of it that could not be read; they stay in doubt.
    """

    asked: Asked
    unread: Sequence[bytes]


def read_doubts_again(context: JobContext, tables: Sequence[str]) -> Mapping[str, Reread]:
    """Commit a second reading of all keys in doubt, as snapshot changes; several batches of them if need be.

    The changes captured before it are merged already, so what the source shows now and the mirror doesn't, or
    the reverse, is either newer than the capture or the answer to the doubt; see
    :mod:`airflow_cdc_provider.lake.doubts`.

    Args:
        context: The job.
        tables: Tables to look at.

    Returns:
        What was read, by table; the next merge settles it. A table of which nothing can be read now is left
        out: its keys stay in doubt.
    """
    source = context.source
    if not isinstance(source, Rereads):
        return {}
    read: dict[str, Reread] = {}
    for table in tables:
        mirror = context.mirror(table)
        state = mirror.state()
        if not (state.doubts or state.unseen_before_us):
            continue
        try:
            unread = _read_table(context, source, table, mirror, state)
        except TransientError as error:
            # They stay in doubt, which is told at the end of the run; the next one asks again.
            log.warning("%s: keys in doubt can't be read now: %s", table, error)
            continue
        if unread is not None:
            read[table] = Reread(state.asked, unread)
    return read


def _read_table(
    context: JobContext, source: Rereads, table: str, mirror: Mirror, state: MirrorState
) -> Sequence[bytes] | None:
    """Read the keys in doubt of one table.

    Returns:
        Those that could not be read, or were left when the job was asked to stop; None if none was read.

    Raises:
        TransientError: None can be read.
    """
    found = mirror.doubtful_keys(state)
    if state.unseen_before_us:
        found = found.union(unseen_keys(mirror, state))
    keys = found.distinct().toArrow()["key"].to_pylist()
    # So that one which can't be read doesn't always stand before the same others.
    random.shuffle(keys)
    log.info("%s: reading %d keys in doubt again", table, len(keys))
    codec = source.codec(table, state.memory)
    started = time.monotonic()
    done = 0
    try:
        for some, changes in _portions(source.read_keys(table, keys), keys):
            if context.stopping():
                break
            settlements = list(_settlements(source, mirror, codec, state, some, changes))
            changes_state = context.changes.state()
            offset = Progress.from_offset(changes_state.offset).to_offset()
            context.changes.append_batch(_frame(context, [*changes, *settlements]), offset, changes_state)
            done += len(some)
            seconds = time.monotonic() - started
            log.info(
                "%s: %d of %d keys in doubt read, %d rows settled otherwise, %.0f keys/s, about %.0f s left",
                table,
                done,
                len(keys),
                sum(batch.num_rows for batch in settlements),
                done / seconds,
                (len(keys) - done) * seconds / done,
            )
    except TransientError as error:
        if not done:
            raise
        log.warning("%s: %d keys in doubt can't be read now: %s", table, len(keys) - done, error)
    return keys[done:] if done or not keys else None


def _portions(
    read: Iterator[pa.RecordBatch], keys: Sequence[bytes]
) -> Iterator[tuple[Sequence[bytes], list[pa.RecordBatch]]]:
    """Cut a reading of keys into portions of whole keys that fit a commit.

    Args:
        read: What was read, in the order of the keys; of one that is gone, nothing. Each batch is of one key.
        keys: What was asked for.

    Raises:
        TransientError: One key can't be read; those before it were yielded.
    """
    places = {key: place for place, key in enumerate(keys)}
    begin, place, size = 0, 0, 0
    changes: list[pa.RecordBatch] = []
    of_last: list[pa.RecordBatch] = []
    try:
        for batch in read:
            if (now := places[batch.column("key")[0].as_py()]) != place:
                place, changes, of_last = now, [*changes, *of_last], []
                while place - begin >= _KEYS_AT_ONCE:
                    yield keys[begin : begin + _KEYS_AT_ONCE], changes
                    begin, changes, size = begin + _KEYS_AT_ONCE, [], 0
                if place > begin and size >= _BYTES_AT_ONCE:
                    yield keys[begin:place], changes
                    begin, changes, size = place, [], 0
            of_last.append(batch)
            size += batch.nbytes
    except TransientError:
        if place > begin:  # of the last key there may be more, and what lies after it is not known
            yield keys[begin:place], changes
        raise
    changes += of_last
    while begin < len(keys):
        yield keys[begin : begin + _KEYS_AT_ONCE], changes
        begin, changes = begin + _KEYS_AT_ONCE, []


def _settlements(
    source: Rereads,
    mirror: Mirror,
    codec: Codec,
    state: MirrorState,
    keys: Sequence[bytes],
    changes: Sequence[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    if codec.model == "row":
        return  # the greatest version wins whole: what was read needs no help against what the mirror holds
    from pyspark.sql import functions as f

    spark = mirror.lake.spark
    wanted = f.broadcast(spark.createDataFrame(pa.table([pa.array(keys, pa.binary())], schema=_KEY_SCHEMA)))
    rows = mirror.table.read(state.head).select(f"{CDC_COLUMN}.*").join(wanted, "key", "left_semi")
    held = rows.select("key", "clustering", "state").toArrow()
    side = mirror.remembered().join(wanted, "key", "left_semi")
    remembered = side.select("key", "scope", "clustering", "clustering_end", "state").toArrow()
    shown = [codec.decode(batch, state.fences).contributions for batch in changes]
    newest = newest_generation(state.fences)
    if any(part.num_rows and pc.min(part["generation"]).as_py() < newest for part in shown):
        # It would not count in the merge, and what it settles would.
        raise TransientError(
            f"what was read of {codec.table} can't be told to follow its last TRUNCATE",
            remedy="run again: ten minutes after it that is certain",
        )
    origin, position, schema_id = _place(changes)
    values = {
        "source_table": codec.table,
        "kind": record.SNAPSHOT,
        "origin": origin,
        "position": position,
        "schema_id": schema_id,
        # It speaks of the rows that the mirror holds, whose generation is the newest.
        "generation": newest,
        "captured_at": datetime.now(UTC),
    }
    found = [
        {**values, "key": settlement.key, "payload": source.state_payload(codec, settlement.state)}
        for settlement in settle(held, remembered, shown, int(time.time()))
    ]
    if found:
        yield pa.RecordBatch.from_pylist(found, schema=record.CHANGE_SCHEMA)


def _place(changes: Sequence[pa.RecordBatch]) -> tuple[str, bytes, str | None]:
    """Return feed, position and schema of a reading; a settlement stands where its reading does.

    It is of the same table, which may be dropped and made anew before it is merged, or merged again.
    """
    for batch in changes:
        if batch.num_rows:
            origin, position, schema_id = (
                batch.column(name)[0].as_py() for name in ("origin", "position", "schema_id")
            )
            return origin, position, schema_id
    return "", b"\xff" * 16, None


def _frame(context: JobContext, batches: Sequence[pa.RecordBatch]) -> DataFrame | None:
    if not any(batch.num_rows for batch in batches):
        return None
    return context.spark.createDataFrame(pa.Table.from_batches(batches, schema=record.CHANGE_SCHEMA))
