"""What a changes table holds of Cassandra to events: batch after batch, each node as in its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.events.cassandra.events import made_of_records
from airflow_cdc_provider.jobs.events.cassandra.records import EventSettings, Numbered, cluster_of
from airflow_cdc_provider.jobs.events.cassandra.rows_before import Known
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.sliced import Sliced, runs_of_batches
from airflow_cdc_provider.jobs.spark.read import Paced, Reader
from airflow_cdc_provider.sources.cassandra.source import CassandraSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KINDS: Final = (record.CHANGE, record.SNAPSHOT, record.TRUNCATE)
_ROWS_AT_ONCE: Final = 10_000
_ROWS_TOGETHER: Final = 200_000


def captured_records(context: JobContext, wanted: Wanted, damage: Damage) -> Iterator[Made]:
    """Make the records of batches, oldest first.

    Args:
        context: The job; with tables in its spec only theirs.
        wanted: Which.
        damage: Collects what is left out.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
        ConfigurationError: Whole rows are wanted of a part of the batches.
        TransientError: Rows are to be read again and the source doesn't answer.
    """
    after = wanted.after
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
        cluster_of(source),
        wanted.now_ns,
        read_again=partial(_read_again, context, source),
        by_batch=wanted.by_batch,
        registrar=wanted.registrar,
    )
    earlier: Iterator[pa.RecordBatch] = iter(())
    if publish.cassandra.before:
        earlier = (batch for _, batch in _records(context, 0, after))
        settings = replace(settings, known_of=partial(_known, context, after))
    yield from made_of_records(settings, _records(context, after, wanted.through), damage, earlier)


@dataclass(frozen=True)
class CassandraSlice:
    """Makes the events of a slice of Cassandra's records.

    Args:
        settings: How; without what reads rows again.
    """

    settings: EventSettings

    def __call__(self, rows: Iterator[pa.RecordBatch], wanted: Wanted, damage: Damage) -> Iterator[Made]:
        """Make them; see :class:`~.sliced.SliceMaker`."""
        settings = replace(self.settings, now_ns=wanted.now_ns, registrar=wanted.registrar)
        runs = (run for batch in rows for run in runs_of_batches(batch))
        numbered = ((number, run.drop_columns(["batch"])) for number, run in runs)
        return made_of_records(settings, numbered, damage)


def sliced_records(context: JobContext, after: int, through: int) -> Sliced:
    """Part records by their partition key, whichever node told them; a truncation is of a table."""
    from pyspark.sql import functions as f

    source = context.source
    assert isinstance(source, CassandraSource)
    context.learn()
    settings = EventSettings(
        context.connector, source.that_asks_nobody(), cluster_of(source), 0, by_batch=True
    )
    rows = _rows(context, after, through)
    return Sliced(
        rows,
        f.coalesce("key", f.encode("origin", "utf-8")),
        [f.col("batch"), f.col("origin"), f.col("position")],
        CassandraSlice(settings),
    )


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


def _rows(context: JobContext, after: int, through: int) -> DataFrame:
    tables = context.tables() if context.spec.tables else None
    rows = context.changes.pending(after, through, tables=tables, kinds=_KINDS)
    return rows.select(*record.TABLE_SCHEMA.names)


def _records(context: JobContext, after: int, through: int) -> Iterator[Numbered]:
    """Read batch after batch, small ones together: as much at once as fits a driver's memory."""
    rows = _rows(context, after, through)
    counts = sorted((row["batch"], row["count"]) for row in rows.groupBy("batch").count().collect())
    together: list[int] = []
    size = 0
    for batch, count in [*counts, (None, _ROWS_TOGETHER)]:
        if together and size + count > _ROWS_TOGETHER:
            part = rows.where(rows["batch"].between(together[0], together[-1]))
            ordered = part.orderBy("batch", "origin", "position")
            found = ordered.toArrow().cast(record.TABLE_SCHEMA)
            for piece in found.to_batches(max_chunksize=_ROWS_AT_ONCE):
                for number, run in runs_of_batches(piece):
                    yield number, run.drop_columns(["batch"])
            together, size = [], 0
        if batch is not None:
            together.append(batch)
            size += count
