"""Records of decoded MongoDB events: envelope, transactions, transforms and converters of ``publish``.

For recordings and for publishing: takes rows of Arrow columns, returns records in publishing order. The state
between batches is a value (:class:`.transactions.OpenTransaction`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events import cloud_events, transactions
from airflow_cdc_provider.events.encoder import Envelope
from airflow_cdc_provider.events.envelopes import EnvelopeOptions
from airflow_cdc_provider.events.field_paths import field_rules
from airflow_cdc_provider.events.framing import Registrar
from airflow_cdc_provider.events.transactions import OpenTransaction
from airflow_cdc_provider.events.transforms import outbox
from airflow_cdc_provider.events.transforms.pieces import BEFORE, Piece, Rows, rows_of
from airflow_cdc_provider.events.transforms.row_options import OutboxOptions
from airflow_cdc_provider.events.transforms.unwrap import clash, unwrap
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.bson import DOCUMENT
from airflow_cdc_provider.formats.extended_json import LINES, write_values
from airflow_cdc_provider.patterns import matches_any
from airflow_cdc_provider.sources.encoding import encoded_events, envelope_options, without_skipped
from airflow_cdc_provider.sources.mongodb.events import envelope as mongodb_envelope
from airflow_cdc_provider.sources.mongodb.events.decode import EventForm
from airflow_cdc_provider.sources.mongodb.events.field_rules import FieldRules
from airflow_cdc_provider.sources.mongodb.events.raw_values import chosen_members, member_of, with_id
from airflow_cdc_provider.sources.mongodb.events.shapes import TypedDocuments, typed_documents
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions
from airflow_cdc_provider.sources.own_topics import schema_changes_topic, transactions_topic

UNCHANGED = "unchanged"
"""Kind of skipped updates that changed nothing."""
OUTBOX_UPDATE = "outbox update"
"""Kind of skipped updates in an outbox."""

_EVENT_ID = (("name", "name"), ("ts", "ts_ms"), ("ord", "ord"))
"""Parts of a CloudEvent's id, and the fields of the source block that provide them."""


@dataclass
class MongodbRecords:
    """Builds records of decoded events, batch by batch.

    Args:
        connector: The declaration.
        now_ns: Build time of records, ns since 1970.
        skipped: Counts events that are skipped on purpose, by kind.
        open: The open transaction after the last events.
        registrar: Assigns ids to schemas; None for none.
        owners: By adjusted name of a topic the collection that has it.
    """

    connector: Connector
    now_ns: int
    skipped: Counter[str] = field(default_factory=Counter)
    open: OpenTransaction = OpenTransaction()  # noqa: RUF009  frozen
    registrar: Registrar | None = None
    owners: dict[str, str] = field(default_factory=dict)

    def form(self, database: str = "", collection: str = "") -> EventForm:
        """Return the form in which events must be decoded.

        Args:
            database: Database of the collection that a snapshot reads; not needed for change events.
            collection: The collection; not needed for change events.
        """
        publish = self.connector.publish
        own = publish.mongodb
        shard_key = own.shard_keys.get(f"{database}.{collection}", "")
        return EventForm(
            own.json,
            own.key == "document_key",
            tuple(name.strip() for name in shard_key.split(",") if name.strip()),
            FieldRules(field_rules(own.exclude_fields, own.rename_fields)),
            publish.unwrap.enabled or publish.outbox.enabled,
            own.resume_token_header or own.resume_token_field,
        )

    def records(
        self,
        events: pa.RecordBatch,
        *,
        last_of_snapshot: bool = False,
        incremental: bool = False,
        schema_changes: pa.RecordBatch | None = None,
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Build the records of decoded events, which are all captured.

        Args:
            events: Columns of :meth:`form`.
            last_of_snapshot: Whether the batch's last row ends the whole snapshot.
            incremental: Whether rows of snapshots are of an incremental one.
            schema_changes: Schema changes of the same input
                (:func:`~airflow_cdc_provider.sources.mongodb.events.schema_changes.decode_schema_changes`).

        Returns:
            Records in publishing order, whose ``row`` is the index of the event (for a schema change, of the
            next event, or the number of all); and the reasons why events, by their ``row`` in the input, have
            none.

        Raises:
            ConfigurationError: An outbox was updated and ``publish.outbox.updates`` is fatal.
        """
        publish = self.connector.publish
        events = self._selected(events)
        pieces: list[Piece] = []
        if schema_changes is not None and schema_changes.num_rows:
            pieces.append(self._schema_changes(schema_changes, events))
        blocks = None
        if publish.transactions:
            tracked = self._track(events)
            topic = transactions_topic(self.connector)
            pieces.append(Piece(transactions.build(tracked, topic), tracked.before, BEFORE))
            blocks = tracked.blocks
        if not events.num_rows:
            return encoded_events(self.connector, pieces, self.registrar), {}
        envelope = mongodb_envelope.build(
            events,
            self._options,
            last_of_snapshot=last_of_snapshot,
            transactions=blocks,
            publish=publish.mongodb,
            incremental=incremental,
        )
        rows = np.arange(events.num_rows)
        reasons: dict[int, str] = {}
        if publish.outbox.enabled:
            routed = self._in_outbox(events)
            found, reasons = self._route(events, np.flatnonzero(routed), envelope)
            pieces += found
            rows = np.flatnonzero(~routed)
        if publish.unwrap.enabled:
            found, more = self._unwrap(events, rows, envelope)
            pieces += found
            reasons |= more
        else:
            pieces.append(self._enveloped(events, rows, envelope))
        records = encoded_events(self.connector, pieces, self.registrar, self.owners)
        inputs = events["row"]
        return records, {int(inputs[row].as_py()): reason for row, reason in reasons.items()}

    def _enveloped(self, events: pa.RecordBatch, rows: np.ndarray, envelope: Envelope) -> Piece:
        """Build the records of some events in the declared envelope."""
        publish = self.connector.publish
        if publish.envelope == "document":
            piece = mongodb_envelope.build_documents(
                _only_batch(events, rows), _only(envelope, rows), tombstones=self.connector.tombstones
            )
            return Piece(piece.envelope, rows[piece.rows])
        chosen = _only(envelope, rows)
        if publish.envelope == "cloudevents":
            chosen = cloud_events.wrap(chosen, _EVENT_ID, schemas=publish.schemas)
        return Piece(chosen, rows)

    def skip(self, events: pa.RecordBatch) -> None:
        """Track the transaction that decoded events leave open, without building records."""
        self._track(self._selected(events))

    def _selected(self, events: pa.RecordBatch) -> pa.RecordBatch:
        events = without_skipped(events, self.connector, self.skipped)
        return self._changed(events) if self.connector.publish.skip_unchanged else events

    @cached_property
    def _options(self) -> EnvelopeOptions:
        return envelope_options(self.connector, self.now_ns)

    def _schema_changes(self, changes: pa.RecordBatch, events: pa.RecordBatch) -> Piece:
        topic = schema_changes_topic(self.connector)
        envelope = mongodb_envelope.build_schema_changes(changes, topic, self._options)
        return Piece(envelope, np.searchsorted(events["row"].to_numpy(), changes["row"].to_numpy()), BEFORE)

    def _changed(self, events: pa.RecordBatch) -> pa.RecordBatch:
        same = pc.and_(pc.equal(events["op"], "u"), pc.equal(events["before"], events["after"]))
        same = same.fill_null(False)
        if count := pc.sum(same).as_py():
            self.skipped[UNCHANGED] += count
            events = events.filter(pc.invert(same))
        return events

    def _track(self, events: pa.RecordBatch) -> transactions.Tracked:
        number = events["txn_number"].cast(pa.utf8())
        ids = pc.coalesce(
            pc.binary_join_element_wise(events["lsid"], number, ":"), events["lsid"].cast(pa.utf8()), number
        )
        names = mongodb_envelope.join_names(events["database"], events["collection"])
        times = events["source_ms"].fill_null(self.now_ns // 1_000_000)
        tracked = transactions.track(ids, names, times, self.open)
        self.open = tracked.open
        return tracked

    def _in_outbox(self, events: pa.RecordBatch) -> np.ndarray:
        names = mongodb_envelope.join_names(events["database"], events["collection"]).dictionary_encode()
        patterns = self.connector.publish.outbox.tables
        chosen = [matches_any(patterns, name) for name in names.dictionary.to_pylist()]
        return np.array(chosen, np.bool_)[names.indices.to_numpy(zero_copy_only=False)]

    def _route(
        self, events: pa.RecordBatch, rows: np.ndarray, envelope: Envelope
    ) -> tuple[list[Piece], dict[int, str]]:
        options = self.connector.publish.outbox
        ops = events["op"].take(pa.array(rows))
        updates = int(pc.sum(pc.equal(ops, "u")).as_py() or 0)
        if updates:
            if options.updates == "fatal":
                raise ConfigurationError(
                    f"{updates} documents of an outbox were updated",
                    expected="only inserts and deletes",
                    remedy="correct the application, or set publish.outbox.updates: warn",
                )
            self.skipped[OUTBOX_UPDATE] += updates
        inserts = rows[pc.is_in(ops, pa.array(["c", "r"])).to_numpy(zero_copy_only=False)]
        documents = events["after_bson"].take(pa.array(inserts))
        groups, unread = _outbox_rows(documents, options)
        headers = {name: texts.take(pa.array(inserts)) for name, texts in envelope.headers.items()}
        pieces, reasons = outbox.route(groups, options, headers, self.now_ns // 1_000_000)
        return (
            [Piece(piece.envelope, inserts[piece.rows]) for piece in pieces],
            {int(inserts[row]): reason for row, reason in {**unread, **reasons}.items()},
        )

    def _unwrap(
        self, events: pa.RecordBatch, rows: np.ndarray, envelope: Envelope
    ) -> tuple[list[Piece], dict[int, str]]:
        options = self.connector.publish.unwrap
        arrays = options.array_encoding
        events, envelope = _only_batch(events, rows), _only(envelope, rows)
        ids, documents = events["id_bson"], events["after_bson"]
        without_document = pc.and_(pc.equal(events["op"], "u"), documents.is_null())
        partial = with_id(pc.if_else(without_document, events["updated_bson"], _NO_DOCUMENT), ids)
        if options.deletes.startswith("rewrite"):
            documents = pc.if_else(pc.equal(events["op"], "d"), events["before_bson"], documents)
        keys, unkeyed = typed_documents(ids, arrays)
        groups, reasons = typed_documents(documents, arrays)
        partial_groups, more = typed_documents(partial, arrays)
        if options.flatten:
            partial_groups = [_without_dots(group, options.delimiter) for group in partial_groups]
        for group in (*groups, *partial_groups):
            if reason := clash(group.documents.type, options):
                more |= dict.fromkeys(map(int, group.rows), reason)
        reasons |= more | unkeyed
        undecodable = np.array(sorted(reasons), np.int64)
        kept = np.setdiff1d(np.arange(len(rows)), undecodable)
        pieces = unwrap(
            _only(envelope, kept),
            _renumbered(keys, kept),
            _renumbered([*groups, *partial_groups], kept),
            options,
        )
        of_batch = rows[kept]
        return (
            [Piece(p.envelope, of_batch[p.rows], p.turn, p.field_names) for p in pieces],
            {int(rows[row]): reason for row, reason in reasons.items()},
        )


_NO_DOCUMENT = pa.scalar(None, pa.large_binary())


def _outbox_rows(documents: pa.Array, routing: OutboxOptions) -> tuple[list[Rows], dict[int, str]]:
    """Read the fields of outbox documents that the routing needs.

    A payload that is a document becomes text, unless it is expanded.
    """
    names = [name for name in outbox.fields_of(routing) if name != routing.payload]
    data, kinds, starts, ends = member_of(documents, routing.payload)
    as_text = (kinds == DOCUMENT) & (not routing.expand_json)
    lines = write_values(data, np.where(as_text, kinds, 0), starts, ends, LINES).column.cast(pa.utf8())
    groups: list[Rows] = []
    reasons: dict[int, str] = {}
    for rows, fields_of_rows in (
        (np.flatnonzero(as_text), names),
        (np.flatnonzero(~as_text), [*names, routing.payload]),
    ):
        some = chosen_members(documents.take(pa.array(rows)), fields_of_rows)
        typed, unread = typed_documents(some)
        reasons |= {int(rows[row]): reason for row, reason in unread.items()}
        for group in typed:
            own = rows[group.rows]
            values = group.documents
            if len(fields_of_rows) == len(names):
                fields = [*values.type, pa.field(routing.payload, pa.utf8())]
                arrays = [values.field(n) for n in range(values.type.num_fields)]
                values = pa.StructArray.from_arrays([*arrays, lines.take(pa.array(own))], fields=fields)
            groups.append(Rows(own, values))
    return groups, reasons


def _without_dots(group: TypedDocuments, delimiter: str) -> TypedDocuments:
    """Name fields of partial documents, which are paths, as flattened ones."""
    values = group.documents
    fields = [f.with_name(f.name.replace(".", delimiter)) for f in values.type]
    arrays = [values.field(n) for n in range(len(fields))]
    return TypedDocuments(group.rows, pa.StructArray.from_arrays(arrays, fields=fields))


def _renumbered(groups: Sequence[TypedDocuments], kept: np.ndarray) -> list[Rows]:
    """Number the rows of groups by their indexes among the kept ones, and drop the others."""
    rows = rows_of([Rows(group.rows, group.documents) for group in groups], kept)
    return [Rows(np.searchsorted(kept, group.rows), group.values) for group in rows]


def _only_batch(events: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    return events if len(rows) == events.num_rows else events.take(pa.array(rows))


def _only(envelope: Envelope, rows: np.ndarray) -> Envelope:
    """Keep some rows of an envelope."""
    if len(rows) == len(envelope.key):
        return envelope
    index = pa.array(rows)
    return replace(
        envelope,
        destination=envelope.destination[rows],
        key=envelope.key.take(index),
        value=envelope.value.take(index),
        tombstone=envelope.tombstone[rows],
        headers={name: texts.take(index) for name, texts in envelope.headers.items()},
    )


def selector(connector: Connector, options: MongodbOptions) -> Callable[[str], bool]:
    """Return a predicate: the declaration selects a collection and its scope includes it."""
    return partial(_selects, connector, options)


def _selects(connector: Connector, options: MongodbOptions, table: str) -> bool:
    scope = {"deployment": "", "database": table.partition(".")[0], "collection": table}[options.scope]
    return connector.selects(table) and (options.scope == "deployment" or scope == options.target)
