"""Reading again at the source what a merge could not decide, and merging what was seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.fence import newest_generation
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.progress import Progress
from airflow_cdc_provider.lake.doubts import settle
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Mirror
from airflow_cdc_provider.sources.base import Codec, Rereads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_doubts_again(context: JobContext, tables: Sequence[str]) -> dict[str, frozenset[bytes]]:
    """Commit a second reading of all keys in doubt, as snapshot changes.

    The changes captured before it are merged already, so what the source shows now and the mirror doesn't, or
    the reverse, is either newer than the capture or the answer to the doubt; see
    :mod:`airflow_cdc_provider.lake.doubts`.

    Args:
        context: The job.
        tables: Tables to look at.

    Returns:
        Per table the keys that were read; the next merge of these tables settles them. A table that can't be
        read now is left out: its keys stay in doubt.
    """
    source = context.source
    if not isinstance(source, Rereads):
        return {}
    read: dict[str, frozenset[bytes]] = {}
    for table in tables:
        mirror = context.mirror(table)
        state = mirror.state()
        if not state.doubts:
            continue
        log.info("%s: reading %d keys in doubt again", table, len(state.doubts))
        codec = source.codec(table, state.memory)
        try:
            changes = list(source.read_keys(table, state.doubts))
        except TransientError as error:
            # They stay in doubt, which is told at the end of the run; the next one asks again.
            log.warning("%s: keys in doubt can't be read now: %s", table, error)
            continue
        settlements = list(_settlements(context, source, mirror, codec, changes))
        changes_state = context.changes.state()
        offset = Progress.from_offset(changes_state.offset).to_offset()
        rows = _frame(context, [*changes, *settlements])
        context.changes.append_batch(rows, offset, changes_state)
        read[table] = frozenset(state.doubts)
    return read


def _settlements(
    context: JobContext, source: Rereads, mirror: Mirror, codec: Codec, changes: Sequence[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from pyspark.sql import functions as f

    state = mirror.state()
    keys = context.spark.createDataFrame([(bytearray(key),) for key in state.doubts], "key binary")
    rows = mirror.table.read(state.head).select(f"{CDC_COLUMN}.*").join(f.broadcast(keys), "key", "left_semi")
    held = rows.select("key", "clustering", "state").toArrow()
    shown = [codec.decode(batch, ()).contributions for batch in changes]
    origin, position, schema_id = _place(changes)
    now = int(time.time())
    values = {
        "source_table": codec.table,
        "kind": record.SNAPSHOT,
        "origin": origin,
        "position": position,
        "schema_id": schema_id,
        # It speaks of the rows that the mirror holds, whose generation is the newest.
        "generation": newest_generation(state.fences),
        "captured_at": datetime.now(UTC),
    }
    for settlement in settle(held, shown, now):
        row = {**values, "key": settlement.key, "payload": source.state_payload(codec, settlement.state)}
        yield pa.RecordBatch.from_pylist([row], schema=record.CHANGE_SCHEMA)


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
