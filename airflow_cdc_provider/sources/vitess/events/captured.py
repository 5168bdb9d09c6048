"""Events from the Vitess records of a changes table, with the decoder and encoder of recordings.

Events come batch by batch; in each the rows of a snapshot, then each shard's changes in stream order. Shards
come in sequence, since their transactions have no common order; only the shards that a reshard created come
after their parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.event_batches import EventBatch, EventRequest
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import Sliced, runs_of_batches
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.sources.vitess.events.decode import Heartbeat
from airflow_cdc_provider.sources.vitess.events.kept_rows import everything
from airflow_cdc_provider.sources.vitess.events.records import VitessRecords
from airflow_cdc_provider.sources.vitess.events.stored_records import decode_records, whole_transactions
from airflow_cdc_provider.sources.vitess.position import Position, epoch_of
from airflow_cdc_provider.sources.vitess.schema_ids import DDL, LINEAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KINDS_WITH_EVENTS: Final = (record.CHANGE, record.SNAPSHOT, record.TRANSACTION)
_ROWS_AT_ONCE: Final = 10_000
ORDER: Final = ("batch", f"kind <> '{record.SNAPSHOT}'", "substring(`position`, 1, 4)", "origin", "position")
"""Sort expressions of records. A position starts with the epoch, which in a shard created by a reshard is
greater than its parents': so the changes of a row that moved with the reshard stay in order."""


def captured_records(
    connector: Connector, changes: ChangesTable, request: EventRequest, skipped: SkippedRecords
) -> Iterator[EventBatch]:
    """Build the records of some thousands of events at a time; see :class:`.event_source.SourceEvents`.

    Raises:
        ConfigurationError: Two tables would share a name, or a mask or converter doesn't support its column.
    """
    rows = _with_events(connector, changes, request.after, request.through)
    build = VitessSlice(connector, frozenset(request.tables), recorded_schema(changes, request.through))
    return build.of_batches(_batches(rows), request, skipped)


@dataclass(frozen=True)
class RecordedSchema:
    """The recorded schema and shards in the changes table.

    Args:
        fields: The field definitions of rows, by table and ``schema_id``.
        first_epochs: First epochs of the shards that reshards created.
        reshards: Batches in which such shards start.
    """

    fields: dict[tuple[str, str], bytes]
    first_epochs: dict[str, set[int]]
    reshards: frozenset[int] = frozenset()

    def fields_of(self, table: str, schema_id: str) -> bytes:
        """Return the field definitions of rows.

        Raises:
            CorruptInput: They aren't recorded.
        """
        if (table, schema_id) not in self.fields:
            raise CorruptInput(f"the schema records don't have the fields {schema_id} of {table}")
        return self.fields[table, schema_id]

    def only(self, table: str) -> RecordedSchema:
        """Return a copy with the field definitions of one table."""
        own = {name: message for name, message in self.fields.items() if name[0] == table}
        return replace(self, fields=own)


@dataclass(frozen=True)
class VitessSlice:
    """Builds the events of Vitess's records, of a slice or of all.

    Args:
        connector: The declaration.
        tables: Only these tables; empty for all.
        schema: The recorded schema.
    """

    connector: Connector
    tables: frozenset[str]
    schema: RecordedSchema

    def __call__(
        self, rows: Iterator[pa.RecordBatch], request: EventRequest, skipped: SkippedRecords
    ) -> Iterator[EventBatch]:
        """Build the events; see :class:`~airflow_cdc_provider.events.sliced.SliceBuilder`."""
        runs = (run for batch in rows for run in runs_of_batches(batch))
        batches = (
            (number, (run.drop_columns(["batch"]) for _, run in found))
            for number, found in groupby(runs, itemgetter(0))
        )
        return self.of_batches(batches, request, skipped)

    def of_batches(
        self,
        batches: Iterator[tuple[int, Iterator[pa.RecordBatch]]],
        request: EventRequest,
        skipped: SkippedRecords,
    ) -> Iterator[EventBatch]:
        """Build the events of batches of ``CHANGE_SCHEMA``, each with the number of its batch."""
        schema = self.schema
        builder = VitessRecords(
            self.connector,
            request.now_ns,
            self._captured,
            skipped.by_kind,
            schema.first_epochs,
            request.registrar,
            dict(request.owners),
        )
        for number, found in batches:
            for rows in record_pieces(found):
                decoded = decode_records(rows, schema.fields_of, builder.form, self._captured)
                for row, reason in sorted(decoded.unread.items()):
                    table, position = (rows[name][row].as_py() for name in ("source_table", "position"))
                    skipped.add(f"{table} at {position.hex()}", reason)
                yield EventBatch(number, builder.build(decoded))

    def _captured(self, keyspace: str, table: str) -> bool:
        name = f"{keyspace}.{table}"
        return self.connector.selects(name) and (not self.tables or name in self.tables)


def sliced_records(connector: Connector, changes: ChangesTable, after: int, through: int) -> Sliced:
    """Partition records by their shard: a transaction is of one shard."""
    from pyspark.sql import functions as f

    schema = recorded_schema(changes, through)
    return Sliced(
        _with_events(connector, changes, after, through).select(*record.TABLE_SCHEMA.names),
        f.expr(partition_by(schema.reshards)),
        [f.expr(key) for key in ORDER],
        VitessSlice(connector, frozenset(), schema),
        schema.reshards,
    )


def partition_by(reshards: frozenset[int]) -> str:
    """Return the SQL expression to partition records by: the shard.

    Args:
        reshards: Batches in which rows change their shard; all records of such a batch are in one slice.
    """
    if not reshards:
        return "origin"
    return f"CASE WHEN batch IN ({', '.join(map(str, sorted(reshards)))}) THEN '' ELSE origin END"


def heartbeat_records(
    connector: Connector, offset: Mapping[str, Any] | None, now_ns: int, registrar: Registrar | None
) -> pa.RecordBatch:
    """Build a heartbeat of a stored offset, if there is one and heartbeats are enabled.

    Args:
        connector: The declaration.
        offset: The offset.
        now_ns: Build time, ns since 1970.
        registrar: Assigns ids to schemas; None for none.
    """
    builder = VitessRecords(connector, now_ns, everything, registrar=registrar)
    if offset is None:
        return builder.heartbeats([])
    return builder.heartbeats([Heartbeat(0, Position.from_offset(offset).to_vgtid().SerializeToString())])


def record_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split records after whole transactions.

    Args:
        batches: Successive batches of ``CHANGE_SCHEMA``.
    """
    incomplete: list[pa.RecordBatch] = []
    for batch in batches:
        whole = whole_transactions(batch)
        if whole:
            yield _joined([*incomplete, batch.slice(0, whole)])
            incomplete = []
        if whole < batch.num_rows:
            incomplete.append(batch.slice(whole))
    if incomplete:
        yield _joined(incomplete)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def recorded_schema(changes: ChangesTable, through: int) -> RecordedSchema:
    """Read the recorded schema and shards up to a batch."""
    rows = changes.pending(0, through, kinds=(record.SCHEMA,))
    names = ("batch", "source_table", "schema_id", "payload", "origin", "position")
    recorded = rows.select(*names).collect()
    first_epochs: dict[str, set[int]] = {}
    reshards: set[int] = set()
    for row in recorded:
        if row["schema_id"] == LINEAGE:
            first_epochs.setdefault(row["origin"], set()).add(epoch_of(bytes(row["position"])))
            reshards.add(row["batch"])
    fields = {(row["source_table"], row["schema_id"]): bytes(row["payload"]) for row in recorded}
    return RecordedSchema(fields, first_epochs, frozenset(reshards))


def _with_events(connector: Connector, changes: ChangesTable, after: int, through: int) -> DataFrame:
    """Read the records that have events."""
    from pyspark.sql import functions as f

    rows = changes.pending(after, through, kinds=(*_KINDS_WITH_EVENTS, record.SCHEMA))
    is_ddl = f.col("schema_id") == DDL if connector.publish.schema_changes else f.lit(False)
    return rows.where((f.col("kind") != record.SCHEMA) | is_ddl)


def _batches(rows: DataFrame) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Read the changes table batch by batch."""
    from pyspark.sql import functions as f

    numbers = sorted(row["batch"] for row in rows.select("batch").distinct().collect())
    for number in numbers:
        ordered = rows.where(f.col("batch") == number).orderBy(*(f.expr(key) for key in ORDER))
        table = ordered.select(*record.CHANGE_SCHEMA.names).toArrow().cast(record.CHANGE_SCHEMA)
        yield number, iter(table.to_batches(max_chunksize=_ROWS_AT_ONCE))
