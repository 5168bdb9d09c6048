"""The events stage: writes what the changes table holds as events, one JSON object a line, to a file.

It is for looking at captured changes and rows of snapshots in the form that ``publish`` asks for: the same
decoder and encoder as for recordings, on the records that a capture or a snapshot committed. It changes
nothing in the lake.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.events import mongodb_lake, scylla, vitess_lake
from airflow_cdc_provider.jobs.events.cassandra import EventSettings, lines_of_records
from airflow_cdc_provider.jobs.events.rows_before import Known
from airflow_cdc_provider.jobs.offline.cassandra import cluster_name
from airflow_cdc_provider.jobs.offline.recordings import Damage, text_of
from airflow_cdc_provider.jobs.read import Paced, Reader
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

_KINDS: Final = (record.CHANGE, record.SNAPSHOT, record.TRUNCATE)
_ROWS_AT_ONCE: Final = 10_000
_ROWS_TOGETHER: Final = 200_000


def events(context: JobContext) -> JobResult:
    """Write the events of batches, oldest first: of a batch each feed's in the order of its log or stream.

    Options of the spec: ``path`` (the file, on the driver's machine), ``after_batch`` (events of batches up
    to this one are left out; default 0), ``now_ns`` (when events are built and TTLs are judged). With tables
    in the spec only theirs. A write that several nodes logged has an event from each of them.

    Returns:
        A result whose findings name what was left out and why.

    Raises:
        ConfigurationError: Nothing was captured.
        CorruptInput: A record can't be decoded and the source is strict.
        TransientError: Rows are to be read again and the source doesn't answer; there is no file then.
    """
    if not context.changes.table.exists():
        raise ConfigurationError(
            f"there is no table {context.connector.changes_table} to show events of",
            remedy="run a capture or sync first",
        )
    after = int(context.spec.options.get("after_batch", 0))
    through = context.changes.state().batch
    now_ns = int(context.spec.options.get("now_ns", time.time_ns()))
    damage = Damage(strict=_is_strict(context))
    lines_of = _cassandras_lines
    if isinstance(context.connector.source, MongodbOptions):
        lines_of = mongodb_lake.captured_lines
    elif isinstance(context.connector.source, ScyllaOptions):
        lines_of = scylla.captured_lines
    elif isinstance(context.connector.source, VitessOptions):
        lines_of = vitess_lake.captured_lines
    target = Path(context.spec.options["path"])
    unfinished = target.with_name(target.name + ".part")
    with unfinished.open("wb") as file:
        for lines in lines_of(context, after, through, now_ns, damage):
            file.write(text_of(lines))
    unfinished.replace(target)
    log.info("%s: events of batches %d to %d", context.connector.name, after + 1, through)
    return JobResult(ok=True, findings=tuple(damage.told()))


def _is_strict(context: JobContext) -> bool:
    """Tell whether what can't be decoded ends the job; logs of ScyllaDB have no option for that."""
    source = context.connector.source
    return not isinstance(source, ScyllaOptions) and source.advanced.strict


def _cassandras_lines(
    context: JobContext, after: int, through: int, now_ns: int, damage: Damage
) -> Iterator[pa.LargeStringArray]:
    source = context.source
    assert isinstance(source, CassandraSource)
    context.learn()
    publish = context.connector.publish
    if after and publish.envelope == "datastax" and not publish.cassandra.reread:
        raise ConfigurationError(
            "events with whole rows need all batches that there are",
            expected="no --after-batch in envelope datastax",
            found=str(after),
            remedy="or publish.cassandra.reread, which needs no more than the rows' names",
        )
    settings = EventSettings(
        context.connector,
        source,
        source.options.cluster or cluster_name(Path(source.options.cdc_raw)) or source.cluster_name(),
        now_ns,
        read_again=partial(_read_again, context, source),
    )
    earlier: Iterator[pa.RecordBatch] = iter(())
    if publish.cassandra.before:
        earlier = _records(context, 0, after)
        settings = replace(settings, known_of=partial(_known, context, after))
    yield from lines_of_records(settings, _records(context, after, through), damage, earlier)


def _read_again(
    context: JobContext, source: CassandraSource, table: str, keys: Sequence[bytes]
) -> Iterator[pa.RecordBatch]:
    """Read partitions of a table, no faster than a snapshot may."""
    log.info("%s: reading %d keys again for events", table, len(keys))
    reader: Reader = partial(source.read_keys, table)
    if limit := context.connector.snapshot.rows_per_second:
        reader = Paced(reader, limit)
    return reader(keys)


def _known(context: JobContext, after: int, table: str, keys: pa.Array) -> Known | None:
    """Return what the mirror of a table holds of some keys, if it has merged no batch after a certain one."""
    from pyspark.sql import functions as f

    mirror = context.mirror(table)
    state = mirror.state()
    if not 0 <= state.merged_through <= after:
        return None
    frame = context.spark.createDataFrame(pa.table({"key": keys.cast(pa.binary())}))
    wanted = f.broadcast(frame)
    names = CONTRIBUTION_SCHEMA.names
    both = (
        mirror.rows(state)
        .where("state IS NOT NULL")
        .select(*names)
        .unionByName(mirror.remembered().select(*names))
    )
    found = both.join(wanted, "key", "left_semi").select(*names).toArrow().cast(CONTRIBUTION_SCHEMA)
    return Known(found, state.fences, state.memory)


def _records(context: JobContext, after: int, through: int) -> Iterator[pa.RecordBatch]:
    """Read batch after batch, small ones together: as much at once as fits a driver's memory."""
    tables = context.tables() if context.spec.tables else None
    rows = context.changes.pending(after, through, tables=tables, kinds=_KINDS)
    counts = sorted((row["batch"], row["count"]) for row in rows.groupBy("batch").count().collect())
    together: list[int] = []
    size = 0
    for batch, count in [*counts, (None, _ROWS_TOGETHER)]:
        if together and size + count > _ROWS_TOGETHER:
            part = rows.where(rows["batch"].between(together[0], together[-1]))
            ordered = part.orderBy("batch", "origin", "position").select(*record.CHANGE_SCHEMA.names)
            yield from ordered.toArrow().cast(record.CHANGE_SCHEMA).to_batches(max_chunksize=_ROWS_AT_ONCE)
            together, size = [], 0
        if batch is not None:
            together.append(batch)
            size += count
