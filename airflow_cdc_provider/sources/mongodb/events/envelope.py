"""Debezium's envelope of MongoDB events; fields and order: ``docs/formats/mongodb-events.md``."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector.publish.mongodb import MongodbPublishOptions
from airflow_cdc_provider.events.connect import (
    INT32,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    STRING,
    TRANSACTION,
    ConnectSchema,
    Member,
    Values,
    struct,
    struct_values,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.envelopes import (
    NO_INTEGER,
    NO_TEXT,
    EnvelopeOptions,
    schema_changes,
    source_block,
    times_of,
)
from airflow_cdc_provider.events.json_converter import quote
from airflow_cdc_provider.events.transforms.pieces import Piece

TOKEN_HEADER: Final = "cdc.token"  # noqa: S105  a stream position
"""Header: the resume token of the change event, equal for duplicates."""

_JSON: Final = ConnectSchema("string", optional=True, name="io.debezium.data.Json", version=1)
_CHANGES: Final = "io.debezium.connector.mongodb.changestream"
_UPDATE_DESCRIPTION: Final = struct(
    f"{_CHANGES}.updatedescription",
    ("removedFields", ConnectSchema("array", optional=True, items=STRING)),
    ("updatedFields", _JSON),
    (
        "truncatedArrays",
        ConnectSchema(
            "array",
            optional=True,
            items=struct(f"{_CHANGES}.truncatedarray", ("field", STRING), ("size", INT32), version=1),
        ),
    ),
    optional=True,
    version=1,
)
_PLAIN: Final = MongodbPublishOptions()


def build(
    events: pa.RecordBatch,
    options: EnvelopeOptions,
    *,
    last_of_snapshot: bool = False,
    transactions: pa.StructArray | None = None,
    publish: MongodbPublishOptions = _PLAIN,
    incremental: bool = False,
) -> Envelope:
    """Build the envelope of decoded events.

    Args:
        events: Columns of :mod:`airflow_cdc_provider.sources.mongodb.events.decode`; the
            optional ``token`` becomes a header or a field of the source block.
        options: Options of the envelope.
        last_of_snapshot: Whether the batch's last row is the last row of the snapshot.
        transactions: Field ``transaction`` of each event; null by default.
        publish: Which additional members the events have.
        incremental: Whether reads are part of an incremental snapshot.
    """
    count = events.num_rows
    reads = pc.equal(events["op"], "r").to_numpy(zero_copy_only=False)
    snapshot = np.where(reads, "incremental" if incremental else "true", "false").astype(object)
    if last_of_snapshot and count:
        snapshot[-1] = "last"
    in_session = pc.and_(events["lsid"].is_valid(), events["txn_number"].is_valid())
    source = _source(
        events,
        options,
        events["collection"],
        ("lsid", OPTIONAL_STRING, pc.if_else(in_session, events["lsid"], None)),
        ("txnNumber", OPTIONAL_INT64, pc.if_else(in_session, events["txn_number"], None)),
        ("wallTime", OPTIONAL_INT64, events["wall_ms"]),
        *([("resume_token", OPTIONAL_STRING, events["token"])] if publish.resume_token_field else []),
        snapshot=pa.array(snapshot, pa.utf8()),
    )
    schema, value = struct_values(
        "Envelope",
        ("before", _JSON, events["before"]),
        ("after", _JSON, events["after"]),
        ("updateDescription", _UPDATE_DESCRIPTION, events["update_description"]),
        ("source", *source),
        ("op", OPTIONAL_STRING, events["op"]),
        *options.times[: 3 if publish.envelope_times else 1],
        ("transaction", TRANSACTION, pa.nulls(count) if transactions is None else transactions),
    )
    key_schema, key = struct_values("Key", ("id", STRING, events["id"]))
    names = join_names(events["database"], events["collection"]).dictionary_encode()
    destinations = []
    for number in range(len(names.dictionary)):
        first = names.indices.index(number).as_py()
        database, collection = (events[name][first].as_py() for name in ("database", "collection"))
        topic = options.topics.topic(database, collection)
        own = (key_schema.named(f"{topic}.Key"), schema.named(f"{topic}.Envelope"))
        destinations.append(Destination(topic, *own, table=f"{database}.{collection}"))
    return Envelope(
        destinations,
        names.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        key,
        value,
        options.tombstones_after(events),
        {TOKEN_HEADER: quote(events["token"])} if publish.resume_token_header else {},
    )


def build_documents(events: pa.RecordBatch, envelope: Envelope, *, tombstones: bool) -> Piece:
    """Convert events to the documents after the change, without an envelope.

    Args:
        events: Decoded events. Updates without a document have no record.
        envelope: Envelope of the events.
        tombstones: Whether deletes have tombstones; otherwise they have no record.
    """
    deletes = pc.equal(events["op"], "d").to_numpy(zero_copy_only=False)
    has_document = events["after"].is_valid().to_numpy(zero_copy_only=False) & ~deletes
    rows = np.flatnonzero(has_document | deletes if tombstones else has_document)
    index = pa.array(rows)
    destinations = [replace(d, value=OPTIONAL_STRING) for d in envelope.destinations]
    documents = pc.if_else(pa.array(deletes), pa.scalar(None, pa.utf8()), events["after"])
    return Piece(
        Envelope(
            destinations,
            envelope.destination[rows],
            envelope.key.take(index),
            documents.take(index),
            np.zeros(len(rows), np.bool_),
            {name: texts.take(index) for name, texts in envelope.headers.items()},
            verbatim=True,
        ),
        rows,
    )


def build_schema_changes(changes: pa.RecordBatch, topic: str, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of schema changes, without headers.

    Debezium has no such records for MongoDB: members are named as in its other connectors.

    Args:
        changes: Columns of :mod:`airflow_cdc_provider.sources.mongodb.events.schema_changes`.
        topic: Topic of schema changes.
        options: Options of the envelope.
    """
    source = _source(
        changes,
        options,
        changes["collection"].fill_null(""),
        ("lsid", OPTIONAL_STRING, NO_TEXT),
        ("txnNumber", OPTIONAL_INT64, NO_INTEGER),
        ("wallTime", OPTIONAL_INT64, changes["source_ms"]),
    )
    return schema_changes(
        "io.debezium.connector.mongodb",
        topic,
        options,
        changes["database"],
        source,
        ("databaseName", STRING, changes["database"]),
        ("collectionName", OPTIONAL_STRING, changes["collection"]),
        ("type", STRING, changes["type"]),
        ("event", replace(_JSON, optional=False), changes["event"]),
    )


def _source(
    events: pa.RecordBatch,
    options: EnvelopeOptions,
    collections: pa.Array,
    *own: Member,
    snapshot: pa.Array | str = "false",
) -> Values:
    known_ms = events["source_ms"]
    return source_block(
        "io.debezium.connector.mongo.Source",
        "mongodb",
        options,
        [
            pc.if_else(known_ms.is_null(), now, known)
            for (_, _, now), known in zip(options.times, times_of(known_ms, 1_000_000, options), strict=True)
        ],
        ("collection", STRING, collections),
        ("ord", INT32, events["ord"]),
        *own,
        snapshot=snapshot,
        database=events["database"],
    )


def join_names(database: pa.Array, collection: pa.Array) -> pa.Array:
    """Return ``database.collection`` per row."""
    return pc.binary_join_element_wise(database, collection, ".")
