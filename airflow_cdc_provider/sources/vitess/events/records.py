"""Records of decoded Vitess events: envelope, transactions and converters of ``publish``.

For recordings and for publishing: takes a section of a stream, returns records in publishing order. The state
between sections is a value: the epochs of shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.connector.publish.vitess import split_expressions
from airflow_cdc_provider.events import cloud_events, transactions
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.envelopes import EnvelopeOptions
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.transforms.fields import change_fields
from airflow_cdc_provider.events.transforms.pieces import Piece
from airflow_cdc_provider.sources.converters import load_converters
from airflow_cdc_provider.sources.encoding import (
    converters_of,
    encoded,
    encoded_events,
    envelope_options,
    topic_of_table,
    without_skipped,
)
from airflow_cdc_provider.sources.own_topics import heartbeats_topic, schema_changes_topic, transactions_topic
from airflow_cdc_provider.sources.vitess.ddl import read_statement
from airflow_cdc_provider.sources.vitess.events import envelope as vitess_envelope
from airflow_cdc_provider.sources.vitess.events.decode import (
    Heartbeat,
    Statement,
    Stream,
    StreamEvents,
    Transactions,
    decode,
)
from airflow_cdc_provider.sources.vitess.events.table_events import TableEvents
from airflow_cdc_provider.sources.vitess.events.tables import EventForm
from airflow_cdc_provider.sources.vitess.events.types import EventTypes
from airflow_cdc_provider.sources.vitess.transaction_order import TransactionOrder
from airflow_cdc_provider.sources.vitess.vgtid_text import vgtid_text, vgtid_texts

UNCHANGED = "unchanged"
"""Kind of skipped updates that changed no field of the event."""

_EVENT_ID = (("name", "name"), ("vgtid", "vgtid"))
"""Parts of a CloudEvent's id, and the fields of the source block that provide them."""


@dataclass
class VitessRecords:
    """Builds records of a stream, section by section.

    Args:
        connector: The declaration.
        now_ns: Build time of records, ns since 1970.
        captured: Returns whether a keyspace's table is selected.
        skipped: Counts events that are skipped on purpose, by kind.
        first_epochs: First epochs of the shards that a reshard created, if recorded.
        registrar: Assigns ids to schemas; None for none.
        owners: By adjusted name of a topic the table that has it.
    """

    connector: Connector
    now_ns: int
    captured: Callable[[str, str], bool]
    skipped: Counter[str] = field(default_factory=Counter)
    first_epochs: dict[str, set[int]] = field(default_factory=dict)
    registrar: Registrar | None = None
    owners: dict[str, str] = field(default_factory=dict)

    def records(self, stream: Stream, first: int, last: int) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Build the records of a section of a stream.

        Args:
            stream: The stream.
            first: First event, after the end of a transaction.
            last: The event after the last one, after the end of a transaction.

        Returns:
            Records in publishing order, and the reasons of row changes without records, by the offset of
            their first byte in the stream.

        Raises:
            CorruptInput: The stream is corrupt.
            ConfigurationError: Two tables would share a name, or a mask or converter doesn't support its
                column.
        """
        decoded = decode(stream, first, last, self.form, self.captured)
        return self.build(decoded), decoded.unread

    def build(self, decoded: StreamEvents) -> pa.RecordBatch:
        """Build the records of decoded events, in publishing order.

        Raises:
            CorruptInput: A VGTID can't be read.
            ConfigurationError: Two tables would share a name.
        """
        publish = self.connector.publish
        read_transactions = decoded.transactions
        tables = [self._selected(table) for table in decoded.tables]
        tables = [table for table in tables if table.rows.num_rows]
        texts = self._vgtids(read_transactions)
        pieces = [*self._schema_changes(decoded.statements), *self._heartbeats(decoded.heartbeats)]
        blocks: list[pa.StructArray] = []
        if publish.transactions:
            bounded = self._bound(tables, read_transactions, texts)
            if publish.vitess.transaction_records:
                topic = transactions_topic(self.connector)
                sort_keys = np.concatenate([read_transactions.begins, read_transactions.ends])
                pieces.append(Piece(self._changed_fields(transactions.build(bounded, topic)), sort_keys))
            blocks = self._blocks(tables, read_transactions, bounded.blocks)
        for number, table in enumerate(tables):
            rows = table.rows.append_column("vgtid", texts.take(pa.array(table.transactions)))
            if blocks:
                rows = rows.append_column("transaction", blocks[number])
            pieces.append(Piece(self._envelope(table, rows), table.sort_keys))
        return encoded_events(self.connector, pieces, self.registrar, self.owners)

    @cached_property
    def order(self) -> TransactionOrder:
        """Epochs and ranks of the shards' transactions that were read."""
        inherits = self.connector.publish.vitess.inherit_epochs
        return TransactionOrder(inherits=inherits, first_epochs=self.first_epochs)

    @cached_property
    def form(self) -> EventForm:
        """The form of rows in events."""
        own = self.connector.publish.vitess
        return EventForm(
            EventTypes(
                temporal=own.temporal,
                decimals=own.decimals,
                unsigned_bigints=own.unsigned_bigints,
                binary=own.binary,
                nullable_dates=own.nullable_dates,
                include_unknown_types=own.include_unknown_types,
                bits=own.bits,
                geometries=own.geometries,
                vectors=own.vectors,
                charsets=own.charsets,
                timestamps=own.timestamps,
                wraps=self.connector.publish.times_beyond_64_bits == "wrap",
            ),
            include_columns=own.include_columns,
            exclude_columns=own.exclude_columns,
            key_columns=tuple(
                (table, column)
                for table, columns in own.key_columns.items()
                for column in split_expressions(columns)
            ),
            masks=tuple(own.masks.items()),
            source_types_of_columns=own.source_types_of_columns,
            source_types=own.source_types,
            converters=tuple(load_converters(own.converters)),
        )

    def _schema_changes(self, statements: list[Statement]) -> list[Piece]:
        """Build records of DDL for captured tables, or for tables that can't be parsed from it."""
        if not self.connector.publish.schema_changes:
            return []
        changes = [
            (statement, change.table if change else "<unknown>", change and change.kind.upper())
            for statement in statements
            for change in read_statement(statement.text) or (None,)
            if change is None or self.captured(statement.keyspace, change.table)
        ]
        if not changes:
            return []
        selected = [statement for statement, _, _ in changes]
        local = self.connector.publish.vitess.local_vgtid
        columns = {
            "keyspace": pa.array([statement.keyspace for statement in selected], pa.utf8()),
            "table": pa.array([table for _, table, _ in changes], pa.utf8()),
            "type": pa.array([kind for _, _, kind in changes], pa.utf8()),
            "statement": pa.array([statement.text for statement in selected], pa.utf8()),
            "shard": pa.array([statement.shard for statement in selected], pa.utf8()),
            "seconds": pa.array([statement.seconds for statement in selected], pa.int64()),
            "vgtid": pa.array([vgtid_text(s.vgtid, s.shard if local else "") for s in selected], pa.utf8()),
        }
        topic = schema_changes_topic(self.connector)
        envelope = vitess_envelope.build_schema_changes(pa.record_batch(columns), topic, self._options)
        return [
            Piece(self._changed_fields(envelope), np.array([statement.sort_key for statement in selected]))
        ]

    def heartbeats(self, beats: Sequence[Heartbeat]) -> pa.RecordBatch:
        """Build the records of heartbeats; none if they aren't enabled."""
        converters = converters_of(self.connector, self.registrar)
        return encoded(self.connector, self._heartbeats(beats), converters)

    def _heartbeats(self, beats: Sequence[Heartbeat]) -> list[Piece]:
        publish = self.connector.publish
        if not beats or not (publish.vitess.heartbeats or publish.heartbeat_interval_seconds):
            return []
        topic = heartbeats_topic(self.connector)
        vgtids = pa.array([vgtid_text(one.vgtid) for one in beats], pa.utf8())
        envelope = vitess_envelope.build_heartbeats(vgtids, topic, self._options)
        return [Piece(envelope, np.array([one.sort_key for one in beats]))]

    def _changed_fields(self, envelope: Envelope) -> Envelope:
        own = self.connector.publish.vitess
        return change_fields(envelope, own.remove_fields, own.replace_fields)

    @cached_property
    def _options(self) -> EnvelopeOptions:
        return envelope_options(self.connector, self.now_ns)

    def _selected(self, table: TableEvents) -> TableEvents:
        """Drop events that aren't published; transactions don't count them either."""
        publish = self.connector.publish
        if not publish.skipped_operations and not publish.skip_unchanged:
            return table
        numbers = pa.array(np.arange(table.rows.num_rows))
        rows = table.rows.append_column("number", numbers)
        rows = without_skipped(rows, self.connector, self.skipped)
        if publish.skip_unchanged:
            rows = self._changed(rows)
        kept = rows["number"].to_numpy()
        rows = rows.drop_columns(["number"])
        return TableEvents(table.table, rows, table.sort_keys[kept], table.transactions[kept])

    def _changed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        updates = pc.equal(rows["op"], "u").to_numpy(zero_copy_only=False)
        same = updates & _equal_rows(rows["before"], rows["after"])
        self.skipped[UNCHANGED] += int(same.sum())
        return rows.filter(pa.array(~same))

    def _vgtids(self, read_transactions: Transactions) -> pa.Array:
        local = self.connector.publish.vitess.local_vgtid
        return vgtid_texts(
            read_transactions.data,
            read_transactions.vgtid_starts,
            read_transactions.vgtid_ends,
            read_transactions.shards if local else (),
        )

    def _bound(
        self, tables: list[TableEvents], read_transactions: Transactions, texts: pa.Array
    ) -> transactions.Bounded:
        sort = _publishing_order(tables)
        numbers = np.concatenate([np.empty(0, np.int64), *(table.transactions for table in tables)])[sort]
        names = [
            self._collection(table.rows["shard"], f"{table.table.keyspace}.{table.table.name}")
            for table in tables
        ]
        collections = pa.concat_arrays([pa.array([], pa.utf8()), *names]).take(pa.array(sort))
        return transactions.bound(
            texts,
            read_transactions.begin_seconds * 1000,
            read_transactions.end_seconds * 1000,
            numbers,
            collections,
        )

    def _collection(self, shards: pa.Array, table: str) -> pa.Array:
        """Return the name of a table in transactions, per row."""
        if not self.connector.publish.vitess.shards_in_transactions:
            return pa.repeat(table, len(shards))
        return pc.binary_join_element_wise(shards, table, ".")

    def _blocks(
        self, tables: list[TableEvents], read_transactions: Transactions, blocks: pa.StructArray
    ) -> list[pa.StructArray]:
        """Return the field ``transaction`` of each table's events."""
        sort = _publishing_order(tables)
        sort_key = np.empty(len(sort), np.int64)
        sort_key[sort] = np.arange(len(sort))
        of_tables = []
        start = 0
        order = None
        if self.connector.publish.vitess.ordered_transactions:
            shards = read_transactions.with_shards()
            known = read_transactions.epochs
            order = self.order.next(shards) if known is None else self.order.known(shards, known)
        for table in tables:
            own = blocks.take(pa.array(sort_key[start : start + table.rows.num_rows]))
            start += table.rows.num_rows
            if order is not None:
                which = pa.array(table.transactions)
                own = pa.StructArray.from_arrays(
                    [*own.flatten(), order.epochs.take(which), order.ranks.take(which)],
                    [name for name, _ in vitess_envelope.ORDERED_TRANSACTION.fields],
                )
            of_tables.append(own)
        return of_tables

    def _envelope(self, table: TableEvents, rows: pa.RecordBatch) -> Envelope:
        publish = self.connector.publish
        topic = topic_of_table(self.connector, f"{table.table.keyspace}.{table.table.name}")
        ordered = publish.vitess.ordered_transactions
        envelope = vitess_envelope.build(rows, table.table, topic, self._options, ordered=ordered)
        if publish.envelope == "cloudevents":
            return cloud_events.wrap(envelope, _EVENT_ID, schemas=publish.schemas)
        return self._changed_fields(envelope)


def _publishing_order(tables: list[TableEvents]) -> np.ndarray:
    """Return the indexes that sort the concatenated events of all tables in stream order."""
    sort_keys = np.concatenate([np.empty(0, np.int64), *(table.sort_keys for table in tables)])
    return np.argsort(sort_keys, kind="stable")


def _equal_rows(before: pa.StructArray, after: pa.StructArray) -> np.ndarray:
    """Return which rows are equal in all columns; nulls count as equal."""
    equal = np.ones(len(before), np.bool_)
    for old, new in zip(before.flatten(), after.flatten(), strict=True):
        same = pc.equal(old, new).fill_null(False)
        both_null = pc.and_(old.is_null(), new.is_null())
        equal &= pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    return equal
