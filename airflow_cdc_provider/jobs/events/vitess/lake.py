"""What a changes table holds of Vitess to events: the decoder and encoder of recordings.

Batch after batch; in each the rows of a snapshot, then each shard's changes in the order of its stream.
Shards come one after the other: their transactions can't be ordered against each other, but for those that a
reshard made, which come after those that they were made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.made import Made, Wanted
from airflow_cdc_provider.jobs.events.sliced import Sliced, runs_of_batches
from airflow_cdc_provider.jobs.events.vitess.records import VitessRecords
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.sources.vitess.event_records import decode_records, whole_transactions
from airflow_cdc_provider.sources.vitess.events import Heartbeat
from airflow_cdc_provider.sources.vitess.position import Position, epoch_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN: Final = (record.CHANGE, record.SNAPSHOT, record.TRANSACTION)
_ROWS_AT_ONCE: Final = 10_000
ORDER: Final = ("batch", f"kind <> '{record.SNAPSHOT}'", "substring(`position`, 1, 4)", "origin", "position")
"""Expressions by which records are sorted. A position begins with the epoch, which is above its parents' in a
shard that a reshard made: so a row that came with the reshard keeps its order."""


def captured_records(context: JobContext, wanted: Wanted, damage: Damage) -> Iterator[Made]:
    """Make the records of batches, oldest first; a capture commits whole transactions.

    Args:
        context: The job; with tables in its spec only theirs.
        wanted: Which.
        damage: Collects what is left out.

    Yields:
        Some thousands of events' at a time.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
        ConfigurationError: Two tables would share a name, or a mask or converter doesn't fit its column.
    """
    rows = _shown(context, wanted.after, wanted.through)
    make = VitessSlice(
        context.connector, frozenset(context.spec.tables), recorded_schema(context, wanted.through)
    )
    return make.of_batches(_batches(rows), wanted, damage)


@dataclass(frozen=True)
class RecordedSchema:
    """What the changes table keeps of the schema and of shards.

    Args:
        fields: The fields that rows came with, by table and ``schema_id``.
        births: First epochs of the shards that reshards made.
        reshards: Batches in which such shards begin.
    """

    fields: dict[tuple[str, str], bytes]
    births: dict[str, set[int]]
    reshards: frozenset[int] = frozenset()

    def fields_of(self, table: str, schema_id: str) -> bytes:
        """Return the fields that rows came with.

        Raises:
            CorruptInput: They aren't kept.
        """
        if (table, schema_id) not in self.fields:
            raise CorruptInput(f"the fields {schema_id} of {table} are not among the schema's records")
        return self.fields[table, schema_id]


@dataclass(frozen=True)
class VitessSlice:
    """Makes the events of Vitess's records: of a slice, or of all.

    Args:
        connector: The declaration.
        tables: Only these; none for all.
        schema: What is kept of the schema.
    """

    connector: Connector
    tables: frozenset[str]
    schema: RecordedSchema

    def __call__(self, rows: Iterator[pa.RecordBatch], wanted: Wanted, damage: Damage) -> Iterator[Made]:
        """Make them; see :class:`~.sliced.SliceMaker`."""
        runs = (run for batch in rows for run in runs_of_batches(batch))
        batches = (
            (number, (run.drop_columns(["batch"]) for _, run in found))
            for number, found in groupby(runs, itemgetter(0))
        )
        return self.of_batches(batches, wanted, damage)

    def of_batches(
        self, batches: Iterator[tuple[int, Iterator[pa.RecordBatch]]], wanted: Wanted, damage: Damage
    ) -> Iterator[Made]:
        """Make the events of batches of ``CHANGE_SCHEMA``, given with the number of their batch."""
        schema = self.schema
        maker = VitessRecords(
            self.connector, wanted.now_ns, self._captured, damage.skipped, schema.births, wanted.registrar
        )
        for number, found in batches:
            for rows in record_pieces(found):
                decoded = decode_records(rows, schema.fields_of, maker.form, self._captured)
                for row, reason in sorted(decoded.unread.items()):
                    table, position = (rows[name][row].as_py() for name in ("source_table", "position"))
                    damage.add(f"{table} at {position.hex()}", reason)
                yield Made(number, maker.made(decoded))

    def _captured(self, keyspace: str, table: str) -> bool:
        name = f"{keyspace}.{table}"
        return self.connector.selects(name) and (not self.tables or name in self.tables)


def sliced_records(context: JobContext, after: int, through: int) -> Sliced:
    """Part records by their shard: rows belong to its transactions."""
    from pyspark.sql import functions as f

    schema = recorded_schema(context, through)
    return Sliced(
        _shown(context, after, through).select(*record.TABLE_SCHEMA.names),
        f.expr(part_by(schema.reshards)),
        [f.expr(key) for key in ORDER],
        VitessSlice(context.connector, frozenset(), schema),
        schema.reshards,
    )


def part_by(reshards: frozenset[int]) -> str:
    """Return the expression of what is the same for all records of a row: the shard.

    Args:
        reshards: Batches in which rows change theirs; the records of such a batch are all in one slice.
    """
    if not reshards:
        return "origin"
    return f"CASE WHEN batch IN ({', '.join(map(str, sorted(reshards)))}) THEN '' ELSE origin END"


def reached_records(
    context: JobContext, now_ns: int, registrar: Registrar | None = None, published: int | None = None
) -> pa.RecordBatch:
    """Make a heartbeat of the stored offset: it stands for those of the stream, which nothing keeps.

    Args:
        context: The job.
        now_ns: When it is made, ns since 1970.
        registrar: Gives schemas their ids; None for none.
        published: The batch through which events are published: there is no heartbeat of an offset beyond
            it. None: whatever is published.
    """
    maker = VitessRecords(context.connector, now_ns, lambda keyspace, table: True, registrar=registrar)
    return maker.heartbeats(_reached(context, published))


def _reached(context: JobContext, published: int | None) -> list[Heartbeat]:
    """Return the stored offset, if there is one and its batch is published."""
    state = context.changes.state()
    progress = Progress.from_offset(state.offset)
    if progress.source is None or (published is not None and published < state.batch):
        return []
    return [Heartbeat(0, Position.from_offset(progress.source).to_vgtid().SerializeToString())]


def record_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut records behind whole transactions.

    Args:
        batches: Batches of ``CHANGE_SCHEMA`` that follow each other.
    """
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        whole = whole_transactions(batch)
        if whole:
            yield _joined([*waiting, batch.slice(0, whole)])
            waiting = []
        if whole < batch.num_rows:
            waiting.append(batch.slice(whole))
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def recorded_schema(context: JobContext, through: int) -> RecordedSchema:
    """Read what the changes table keeps of the schema and of shards up to a batch."""
    rows = context.changes.pending(0, through, kinds=(record.SCHEMA,))
    names = ("batch", "source_table", "schema_id", "payload", "origin", "position")
    told = rows.select(*names).collect()
    births: dict[str, set[int]] = {}
    reshards: set[int] = set()
    for row in told:
        if row["schema_id"] == LINEAGE:
            births.setdefault(row["origin"], set()).add(epoch_of(bytes(row["position"])))
            reshards.add(row["batch"])
    fields = {(row["source_table"], row["schema_id"]): bytes(row["payload"]) for row in told}
    return RecordedSchema(fields, births, frozenset(reshards))


def _shown(context: JobContext, after: int, through: int) -> DataFrame:
    """Read what becomes events."""
    from pyspark.sql import functions as f

    rows = context.changes.pending(after, through, kinds=(*_SHOWN, record.SCHEMA))
    told = f.col("schema_id") == DDL if context.connector.publish.schema_changes else f.lit(False)
    return rows.where((f.col("kind") != record.SCHEMA) | told)


def _batches(rows: DataFrame) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Read batch after batch of the changes table."""
    from pyspark.sql import functions as f

    numbers = sorted(row["batch"] for row in rows.select("batch").distinct().collect())
    for number in numbers:
        ordered = rows.where(f.col("batch") == number).orderBy(*(f.expr(key) for key in ORDER))
        table = ordered.select(*record.CHANGE_SCHEMA.names).toArrow().cast(record.CHANGE_SCHEMA)
        yield number, iter(table.to_batches(max_chunksize=_ROWS_AT_ONCE))
