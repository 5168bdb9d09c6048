"""ScyllaDB's changes and rows of its snapshots to events, in the form of its source connector."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import STATIC
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.envelopes import cloud_events
from airflow_cdc_provider.events.envelopes import scylla as scylla_envelope
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.events.transforms.pieces import Piece, Rows
from airflow_cdc_provider.events.transforms.unwrap import Unwrapping, unwrap
from airflow_cdc_provider.jobs.events.damage import Damage
from airflow_cdc_provider.jobs.events.order import event_order
from airflow_cdc_provider.jobs.topics.settings import encoded_events, topics_of, without_skipped
from airflow_cdc_provider.sources.cql.buffers import binary_parts
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.cql.snapshot_payload import snapshot_columns
from airflow_cdc_provider.sources.scylla.event_tables import EventTable, LogSchemas
from airflow_cdc_provider.sources.scylla.events import EventDecoder
from airflow_cdc_provider.sources.scylla.payload import Position
from airflow_cdc_provider.sources.scylla.snapshot_events import SnapshotEventDecoder

_SCOPE_AT = 1
"""Place of the scope in the payload of a snapshot's row."""
_NO_POSTIMAGE = "an insert has no postimage: the table's option postimage was off"


@dataclass
class ScyllaRecords:
    """Makes records of events of changes.

    Args:
        connector: The declaration.
        now_ns: When records are made, ns since 1970.
        schemas: The logs' schemas.
        damage: Collects what is left out.
        registrar: Gives schemas their ids; None for none.
    """

    connector: Connector
    now_ns: int
    schemas: LogSchemas
    damage: Damage
    registrar: Registrar | None = None

    def made(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Make the records of changes and of rows of snapshots, in their order.

        Args:
            records: Batch of ``CHANGE_SCHEMA``, of kinds ``change`` and ``snapshot`` alone.

        Raises:
            CorruptInput: A record can't be decoded and ``damage`` is strict; a value breaks its format; or
                the schema of a log isn't recorded.
        """
        read = pc.equal(records["kind"], record.SNAPSHOT).to_numpy(zero_copy_only=False)
        changes, rows = np.flatnonzero(~read), np.flatnonzero(read)
        pieces: list[Piece] = []
        for (name, schema_id), places in _alike(records, changes):
            table = self.schemas.of_change(name, schema_id)
            pieces += self._of_changes(table, records.take(pa.array(places)), places)
        for (name, table_id), places in _alike(records, rows):
            pieces += self._of_snapshots(name, table_id, records.take(pa.array(places)), places)
        return encoded_events(self.connector, pieces, self.registrar)

    def _of_changes(self, table: EventTable, changes: pa.RecordBatch, places: np.ndarray) -> Iterator[Piece]:
        """Yield the records of changes of one table and schema, by their numbers."""
        found = EventDecoder(table, self._lead(table)).decode(changes["payload"])
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
        yield from self._enveloped(table, events, places)

    def _of_snapshots(
        self, name: str, table_id: str, rows: pa.RecordBatch, places: np.ndarray
    ) -> Iterator[Piece]:
        """Yield the records of rows of snapshots of one table; they name their columns, not their schema."""
        numbers, names = snapshot_columns(rows["payload"])
        data, starts, _ = binary_parts(rows["payload"])
        static = data[starts[:-1] + _SCOPE_AT] == STATIC
        for number, of_statics in np.unique(np.stack([numbers, static]), axis=1).T.tolist():
            chosen = np.flatnonzero((numbers == number) & (static == of_statics))
            part = rows.take(pa.array(chosen))
            read_us = pc.min(part["captured_at"].cast(pa.int64())).as_py()
            table = self.schemas.of_row(
                name, table_id, names[number], static=bool(of_statics), read_us=read_us
            )
            found = SnapshotEventDecoder(table, self._lead(table)).decode(part)
            for row, reason in sorted(found.undecodable.items()):
                key = part["key"][row].as_py()
                self.damage.add(f"{table.full_name}, snapshot, key {key.hex()}", reason)
            yield from self._enveloped(table, found.events, places[chosen])

    def of_rows(self, table: EventTable, states: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
        """Make the records of rows of a mirror, as a snapshot shows rows.

        Args:
            table: The table and its log.
            states: Columns ``key``, ``state`` and ``static_state``; where ``state`` is null, of statics; and
                ``op`` and ``ts_us``.
            schema: The table with the columns' ids that the states name.
        """
        decoder = SnapshotEventDecoder(table, self._lead(table))
        statics = states["state"].is_null()
        pieces: list[Piece] = []
        for static, chosen in ((False, pc.invert(statics)), (True, statics)):
            part = states.filter(chosen)
            if part.num_rows:
                events = decoder.of_states(part, schema, static=static)
                pieces += self._enveloped(table, events, np.flatnonzero(chosen))
        return encoded_events(self.connector, pieces, self.registrar)

    def _lead(self, table: EventTable) -> str:
        return scylla_envelope.schema_lead(self.connector.topic_prefix, table.log.keyspace, table.log.table)

    def _enveloped(self, table: EventTable, events: pa.RecordBatch, places: np.ndarray) -> Iterator[Piece]:
        """Yield the records of events of one table and schema; ``places`` number what they come from."""
        numbers = event_order(places[events["row"].to_numpy()])
        events = events.append_column("order", pa.array(numbers, pa.int64()))
        events = without_skipped(events, self.connector, self.damage.skipped)
        for static in (False, True):
            part = events.filter(pc.equal(events["static"], static))
            if part.num_rows:
                log = table.log
                own = part.drop_columns(["order"])
                envelope = scylla_envelope.build(
                    own, log.keyspace, log.table, log.partition_key, self._options
                )
                order = part["order"].to_numpy()
                if self.connector.publish.envelope == "cloudevents":
                    yield Piece(self._cloud_events(envelope, own), order)
                else:
                    yield from self._shaped(envelope, order)

    def _cloud_events(self, envelope: Envelope, events: pa.RecordBatch) -> Envelope:
        """Make CloudEvents.

        The stream, the change's time and its number in that name one of a change; a row that was read has
        its topic, key and time.
        """
        parts = {name: events[name] for name in ("stream", "time", "number")}
        if events["stream"].null_count:
            (destination,) = envelope.destinations
            topics = pa.repeat(destination.topic, events.num_rows)
            parts = {"topic": topics, "key": to_json(destination.key, envelope.key), "ts_us": events["ts_us"]}
        schemas = self.connector.publish.schemas
        return cloud_events.wrap(envelope, [("name", "name")], schemas=schemas, id_parts=parts)

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
            self.connector.event_version,
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


def _alike(records: pa.RecordBatch, places: np.ndarray) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """Yield records of one table and ``schema_id`` together: these, and the numbers of the records."""
    chosen = pa.array(places)
    names = records["source_table"].take(chosen)
    ids = records["schema_id"].take(chosen).fill_null("")
    both = pc.binary_join_element_wise(names, ids, "\n").dictionary_encode()
    for number, text in enumerate(both.dictionary.to_pylist()):
        table, _, schema_id = text.partition("\n")
        yield (table, schema_id), places[both.indices.to_numpy() == number]
