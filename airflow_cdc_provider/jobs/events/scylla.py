"""What a changes table holds of ScyllaDB to lines of events, in the form of its source connector.

Batch after batch; in each the rows of a snapshot, then each group of streams in the order of its log. Groups
come one after the other: a row's changes are in one group, so they stay in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Envelope, to_lines
from airflow_cdc_provider.events.envelopes import scylla as scylla_envelope
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.events.transforms.pieces import Piece, Rows, encode_pieces
from airflow_cdc_provider.events.transforms.unwrap import Unwrapping, unwrap
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.jobs.context import JobContext
from airflow_cdc_provider.jobs.events.settings import converters_of, topics_of, without_skipped
from airflow_cdc_provider.jobs.offline.recordings import Damage
from airflow_cdc_provider.sources.scylla.event_tables import EventTable, event_table
from airflow_cdc_provider.sources.scylla.events import EventDecoder
from airflow_cdc_provider.sources.scylla.payload import Position

SchemaOf = Callable[[str, str], EventTable]
"""Gives a table's log by the table's name and the ``schema_id`` of its changes."""

_ROWS_AT_ONCE = 10_000
_EVENTS_OF_A_CHANGE = 1 << 32
_NO_POSTIMAGE = "an insert has no postimage: the table's option postimage was off"


@dataclass
class ScyllaRecords:
    """Makes records of events of changes.

    Args:
        connector: The declaration.
        now_ns: When records are made, ns since 1970.
        schema_of: Gives the logs' schemas.
        damage: Collects what is left out.
    """

    connector: Connector
    now_ns: int
    schema_of: SchemaOf
    damage: Damage

    def made(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Make the records of changes, in their order.

        Args:
            changes: Batch of ``CHANGE_SCHEMA``, of kind ``change`` alone.

        Raises:
            CorruptInput: A change can't be decoded and ``damage`` is strict; a value breaks its format; or
                the schema of a log isn't recorded.
        """
        names, schemas = changes["source_table"], changes["schema_id"]
        both = pc.binary_join_element_wise(names, schemas, "\n").dictionary_encode()
        pieces: list[Piece] = []
        for number, text in enumerate(both.dictionary.to_pylist()):
            table, _, schema_id = text.partition("\n")
            places = np.flatnonzero(both.indices.to_numpy() == number)
            pieces += self._pieces(self.schema_of(table, schema_id), changes.take(pa.array(places)), places)
        return encode_pieces(pieces, converters_of(self.connector))

    def _pieces(self, table: EventTable, changes: pa.RecordBatch, places: np.ndarray) -> Iterator[Piece]:
        """Yield the records of one table and schema, by the numbers of its changes."""
        lead = scylla_envelope.schema_lead(self.connector.topic_prefix, table.log.keyspace, table.log.table)
        found = EventDecoder(table, lead).decode(changes["payload"])
        reasons = {**found.undecodable, **self._without_postimages(found.events)}
        for number, reason in sorted(reasons.items()):
            place = Position.unpack(changes["position"][number].as_py())
            self.damage.add(
                f"{table.full_name}, stream {place.stream.hex()}, time {uuid.UUID(bytes=place.time)}", reason
            )
        self.damage.skipped.update(found.left_out)
        events = found.events
        if reasons:
            kept = pc.invert(pc.is_in(events["row"], value_set=pa.array(sorted(reasons), pa.int64())))
            events = events.filter(kept)
        rows = events["row"].to_numpy()
        order = places[rows] * _EVENTS_OF_A_CHANGE + np.arange(len(rows))
        events = events.append_column("order", pa.array(order, pa.int64()))
        events = without_skipped(events, self.connector, self.damage.skipped)
        for static in (False, True):
            part = events.filter(pc.equal(events["static"], static))
            if part.num_rows:
                log = table.log
                own = part.drop_columns(["order"])
                envelope = scylla_envelope.build(
                    own, log.keyspace, log.table, log.partition_key, self._options
                )
                yield from self._shaped(envelope, part["order"].to_numpy())

    def _without_postimages(self, events: pa.RecordBatch) -> dict[int, str]:
        """Tell of changes that inserted rows and have no postimages though events are to show these.

        A row that the same change deletes has none.
        """
        options = self._options
        if options.form == "legacy" or options.after == "none":
            return {}
        deleting = events["row"].filter(pc.equal(events["op"], "d"))
        missing = pc.and_(pc.equal(events["op"], "c"), events["after"].is_null())
        missing = pc.and_(missing, pc.invert(pc.is_in(events["row"], value_set=deleting)))
        return dict.fromkeys(events["row"].filter(missing).to_pylist(), _NO_POSTIMAGE)

    def _shaped(self, envelope: Envelope, order: np.ndarray) -> Iterator[Piece]:
        """Yield events as they are, or as rows."""
        choices = self.connector.publish.unwrap
        if not choices.enabled:
            yield Piece(envelope, order)
            return
        cells = self.connector.publish.scylla.rows_of_cells
        before, after = scylla_envelope.rows_of(envelope, cells=cells)
        everything = np.arange(len(envelope.key))
        documents = []
        deleted = pc.equal(envelope.value.field("op"), "d").to_numpy(zero_copy_only=False)
        for rows, wanted in ((after, ~deleted), (before, deleted)):
            there = np.flatnonzero(wanted & rows.is_valid().to_numpy(zero_copy_only=False))
            if len(there):
                documents.append(Rows(there, rows.take(pa.array(there))))
        options = Unwrapping(
            choices.deletes,
            choices.rewrite_id,
            choices.flatten,
            choices.delimiter,
            choices.add_fields,
            choices.add_fields_prefix,
            choices.add_headers,
            choices.add_headers_prefix,
            choices.field_names,
        )
        for piece in unwrap(envelope, [Rows(everything, envelope.key)], documents, options):
            (own,) = piece.envelope.destinations
            if own.value is not envelope.destinations[0].value:
                side = "Before" if deleted[piece.rows[0]] else "After"
                own = replace(own, value=own.value.named(f"{own.value.name}.{side}"))
            shown = replace(piece.envelope, destinations=[own])
            yield replace(piece, envelope=shown, rows=order[piece.rows])

    @cached_property
    def _options(self) -> scylla_envelope.EnvelopeOptions:
        publish = self.connector.publish
        own = publish.scylla
        return scylla_envelope.EnvelopeOptions(
            topics_of(self.connector),
            publish.version,
            publish.tombstones,
            self.now_ns,
            own.format,
            own.before,
            own.after,
            own.preimages,
            own.key_placement,
            own.payload_key_name,
            own.all_types,
            own.flatten_columns,
            own.collection_changes,
            own.source_details,
            own.static_keys,
        )


def captured_lines(
    context: JobContext, after: int, through: int, now_ns: int, damage: Damage
) -> Iterator[pa.LargeStringArray]:
    """Write the events of batches, oldest first.

    Args:
        context: The job; with tables in its spec only theirs.
        after: Batches up to this one are left out.
        through: The last batch.
        now_ns: When events are built, ns since 1970.
        damage: Collects what is left out; rows of snapshots are counted there, events of them aren't made.

    Yields:
        Lines, some thousands at a time.

    Raises:
        CorruptInput: A record can't be decoded and ``damage`` is strict.
    """
    publish = context.connector.publish
    maker = ScyllaRecords(context.connector, now_ns, schemas_of(context, through), damage)
    headers = context_headers(context.connector.topic_prefix, publish.task_id, "scylla", str(uuid.uuid4()))
    tables = context.tables() if context.spec.tables else None
    rows = context.changes.pending(after, through, tables=tables, kinds=(record.SNAPSHOT,))
    damage.skipped["snapshot"] += rows.count()
    rows = context.changes.pending(after, through, tables=tables, kinds=(record.CHANGE,))
    for number in sorted(row["batch"] for row in rows.select("batch").distinct().collect()):
        ordered = rows.where(rows["batch"] == number).orderBy("origin", "position")
        found = ordered.select(*record.CHANGE_SCHEMA.names).toArrow().cast(record.CHANGE_SCHEMA)
        for batch in found.to_batches(max_chunksize=_ROWS_AT_ONCE):
            records = maker.made(batch)
            if records.num_rows:
                yield to_lines(records, headers if publish.headers else ())


def schemas_of(context: JobContext, through: int) -> SchemaOf:
    """Return what gives the logs' schemas as they were recorded."""
    rows = context.changes.pending(0, through, kinds=(record.SCHEMA,))
    told = rows.select("source_table", "schema_id", "payload").collect()
    payloads = {(row["source_table"], row["schema_id"]): bytes(row["payload"]) for row in told}
    known: dict[tuple[str, str], EventTable] = {}

    def schema_of(table: str, schema_id: str) -> EventTable:
        name = table, schema_id
        if name not in payloads:
            raise CorruptInput(f"the schema {schema_id} of the log of {table} is not among the records")
        if name not in known:
            known[name] = event_table(payloads[name])
        return known[name]

    return schema_of
