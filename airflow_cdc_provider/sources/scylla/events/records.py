"""Events of ScyllaDB's changes and snapshot rows, in the form of its source connector."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events import cloud_events
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.envelopes import EnvelopeOptions
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.order import event_order
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.transforms.pieces import Piece, Rows
from airflow_cdc_provider.events.transforms.unwrap import clash, unwrap
from airflow_cdc_provider.exceptions import SchemaRejected
from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_columns
from airflow_cdc_provider.sources.encoding import encoded_events, envelope_options, without_skipped
from airflow_cdc_provider.sources.scylla.events import envelope as scylla_envelope
from airflow_cdc_provider.sources.scylla.events.decode import EventDecoder
from airflow_cdc_provider.sources.scylla.events.snapshot_rows import SnapshotEventDecoder
from airflow_cdc_provider.sources.scylla.events.tables import EventTable, LogSchemas
from airflow_cdc_provider.sources.scylla.payload import Position

_SCOPE_AT = 1
"""Offset of the scope in the payload of a snapshot's row."""
_NO_POSTIMAGE = "an insert has no postimage: the table's option postimage was off"


@dataclass
class ScyllaRecords:
    """Builds records of events of changes.

    Args:
        connector: The declaration.
        now_ns: Build time of records, ns since 1970.
        schemas: The logs' schemas.
        skipped: Collects skipped records.
        registrar: Assigns ids to schemas; None for none.
        owners: By adjusted name of a topic the table that has it.
    """

    connector: Connector
    now_ns: int
    schemas: LogSchemas
    skipped: SkippedRecords
    registrar: Registrar | None = None
    owners: dict[str, str] = field(default_factory=dict)

    def build(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Build the records of changes and of rows of snapshots, in their order.

        Args:
            records: Batch of ``CHANGE_SCHEMA`` with only the kinds ``change`` and ``snapshot``.

        Raises:
            CorruptInput: A record can't be decoded and ``skipped`` is strict; a value has an invalid format;
                or the schema of a log isn't recorded.
        """
        read = pc.equal(records["kind"], record.SNAPSHOT).to_numpy(zero_copy_only=False)
        changes, rows = np.flatnonzero(~read), np.flatnonzero(read)
        pieces: list[Piece] = []
        for (name, schema_id), indexes in _group_by_schema(records, changes):
            table = self.schemas.of_change(name, schema_id)
            pieces += self._of_changes(table, records.take(pa.array(indexes)), indexes)
        for (name, table_id), indexes in _group_by_schema(records, rows):
            pieces += self._of_snapshots(name, table_id, records.take(pa.array(indexes)), indexes)
        return encoded_events(self.connector, pieces, self.registrar, self.owners)

    def _of_changes(self, table: EventTable, changes: pa.RecordBatch, indexes: np.ndarray) -> Iterator[Piece]:
        """Yield the records of changes of one table and schema, with their indexes."""
        found = EventDecoder(table, self._lead(table)).decode(changes["payload"])
        reasons = {**found.undecodable, **self._without_postimages(found.events)}
        for number, reason in sorted(reasons.items()):
            position = Position.unpack(changes["position"][number].as_py())
            self.skipped.add(
                f"{table.full_name}, stream {position.stream.hex()}, time {uuid.UUID(bytes=position.time)}",
                reason,
            )
        self.skipped.by_kind.update(found.left_out)
        events = found.events
        if reasons:
            kept = pc.invert(pc.is_in(events["row"], value_set=pa.array(sorted(reasons), pa.int64())))
            events = events.filter(kept)
        yield from self._enveloped(table, events, indexes)

    def _of_snapshots(
        self, name: str, table_id: str, rows: pa.RecordBatch, indexes: np.ndarray
    ) -> Iterator[Piece]:
        """Yield the records of snapshot rows of one table; they have column names, not a schema id."""
        numbers, names = snapshot_columns(rows["payload"])
        data, starts, _ = binary_parts(rows["payload"])
        static = data[starts[:-1] + _SCOPE_AT] == STATIC
        for number, of_static in np.unique(np.stack([numbers, static]), axis=1).T.tolist():
            chosen = np.flatnonzero((numbers == number) & (static == of_static))
            part = rows.take(pa.array(chosen))
            read_us = pc.min(part["captured_at"].cast(pa.int64())).as_py()
            table = self.schemas.of_row(
                name, table_id, names[number], static=bool(of_static), read_us=read_us
            )
            found = SnapshotEventDecoder(table, self._lead(table)).decode(part)
            for row, reason in sorted(found.undecodable.items()):
                key = part["key"][row].as_py()
                self.skipped.add(f"{table.full_name}, snapshot, key {key.hex()}", reason)
            yield from self._enveloped(table, found.events, indexes[chosen])

    def of_rows(self, table: EventTable, states: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
        """Build the records of a mirror's rows, in the form of snapshot rows.

        Args:
            table: The table and its log.
            states: Columns ``key``, ``state`` (null for static columns), ``static_state``, ``op`` and
                ``ts_us``.
            schema: The table with the column ids of the states.
        """
        decoder = SnapshotEventDecoder(table, self._lead(table))
        is_static = states["state"].is_null()
        pieces: list[Piece] = []
        for static, chosen in ((False, pc.invert(is_static)), (True, is_static)):
            part = states.filter(chosen)
            if part.num_rows:
                events = decoder.of_states(part, schema, static=static)
                pieces += self._enveloped(table, events, np.flatnonzero(chosen))
        return encoded_events(self.connector, pieces, self.registrar, self.owners)

    def _lead(self, table: EventTable) -> str:
        return scylla_envelope.schema_name_prefix(
            self.connector.topic_prefix, table.log.keyspace, table.log.table
        )

    def _enveloped(self, table: EventTable, events: pa.RecordBatch, indexes: np.ndarray) -> Iterator[Piece]:
        """Yield the records of events of one table and schema; ``indexes`` are indexes of source records."""
        numbers = event_order(indexes[events["row"].to_numpy()])
        events = events.append_column("order", pa.array(numbers, pa.int64()))
        events = without_skipped(events, self.connector, self.skipped.by_kind)
        for static in (False, True):
            part = events.filter(pc.equal(events["static"], static))
            if part.num_rows:
                log = table.log
                own = part.drop_columns(["order"])
                options, choices = self._options, self.connector.publish.scylla
                envelope = scylla_envelope.build(
                    own, log.keyspace, log.table, log.partition_key, options, choices
                )
                order = part["order"].to_numpy()
                if self.connector.publish.envelope == "cloudevents":
                    yield Piece(self._cloud_events(envelope, own), order)
                else:
                    yield from self._shaped(envelope, order)

    def _cloud_events(self, envelope: Envelope, events: pa.RecordBatch) -> Envelope:
        """Wrap events in CloudEvents.

        The id of a change's event has the stream, the change's time and the number within the change; that
        of a snapshot row has its topic, key and time.
        """
        parts = {name: events[name] for name in ("stream", "time", "number")}
        if events["stream"].null_count:
            (destination,) = envelope.destinations
            topics = pa.repeat(destination.topic, events.num_rows)
            parts = {"topic": topics, "key": to_json(destination.key, envelope.key), "ts_us": events["ts_us"]}
        schemas = self.connector.publish.schemas
        return cloud_events.wrap(envelope, [("name", "name")], schemas=schemas, id_parts=parts)

    def _without_postimages(self, events: pa.RecordBatch) -> dict[int, str]:
        """Return changes that inserted rows and lack the postimages that events need.

        A row that the same change deletes has no postimage.
        """
        own = self.connector.publish.scylla
        if own.format == "legacy" or own.after == "none":
            return {}
        deleting = events["row"].filter(pc.equal(events["op"], "d"))
        missing = pc.and_(pc.equal(events["op"], "c"), events["after"].is_null())
        missing = pc.and_(missing, pc.invert(pc.is_in(events["row"], value_set=deleting)))
        return dict.fromkeys(events["row"].filter(missing).to_pylist(), _NO_POSTIMAGE)

    def _shaped(self, envelope: Envelope, order: np.ndarray) -> Iterator[Piece]:
        """Yield events unchanged, or unwrapped to rows."""
        choices = self.connector.publish.unwrap
        if not choices.enabled:
            yield Piece(envelope, order)
            return
        cells = self.connector.publish.scylla.keep_cell_structs
        before, after = scylla_envelope.rows_of(envelope, cells=cells)
        everything = np.arange(len(envelope.key))
        documents = []
        deleted = pc.equal(envelope.value.field("op"), "d").to_numpy(zero_copy_only=False)
        for rows, selected in ((after, ~deleted), (before, deleted)):
            present = np.flatnonzero(selected & rows.is_valid().to_numpy(zero_copy_only=False))
            if len(present):
                documents.append(Rows(present, rows.take(pa.array(present))))
        if reason := next(filter(None, (clash(rows.values.type, choices) for rows in documents)), ""):
            (destination,) = envelope.destinations
            remedy = "set another publish.unwrap.add_fields_prefix"
            error = SchemaRejected(f"{reason}, in topic {destination.topic}", remedy=remedy)
            yield Piece(envelope, order, faults=dict.fromkeys(order.tolist(), error))
            return
        for piece in unwrap(envelope, [Rows(everything, envelope.key)], documents, choices):
            (own,) = piece.envelope.destinations
            if own.value is not envelope.destinations[0].value:
                side = "Before" if deleted[piece.rows[0]] else "After"
                own = replace(own, value=own.value.named(f"{own.value.name}.{side}"))
            named = replace(piece.envelope, destinations=[own])
            yield replace(piece, envelope=named, rows=order[piece.rows])

    @cached_property
    def _options(self) -> EnvelopeOptions:
        return envelope_options(self.connector, self.now_ns)


def _group_by_schema(
    records: pa.RecordBatch, indexes: np.ndarray
) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """Group records by table and ``schema_id``: yields both, and the indexes of the records."""
    chosen = pa.array(indexes)
    names = records["source_table"].take(chosen)
    ids = records["schema_id"].take(chosen).fill_null("")
    both = pc.binary_join_element_wise(names, ids, "\n").dictionary_encode()
    for number, text in enumerate(both.dictionary.to_pylist()):
        table, _, schema_id = text.partition("\n")
        yield (table, schema_id), indexes[both.indices.to_numpy() == number]
