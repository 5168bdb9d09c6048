"""Debezium's envelope of MongoDB events; fields and order: ``docs/formats/mongodb-events.md``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import (
    INT32,
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    SNAPSHOT,
    STRING,
    TRANSACTION,
    ConnectSchema,
    struct,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.json_converter import quote
from airflow_cdc_provider.events.topics import TopicNaming
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
_SOURCE: Final = struct(
    "io.debezium.connector.mongo.Source",
    ("version", STRING),
    ("connector", STRING),
    ("name", STRING),
    ("ts_ms", INT64),
    ("snapshot", SNAPSHOT),
    ("db", STRING),
    ("sequence", OPTIONAL_STRING),
    ("ts_us", OPTIONAL_INT64),
    ("ts_ns", OPTIONAL_INT64),
    ("collection", STRING),
    ("ord", INT32),
    ("lsid", OPTIONAL_STRING),
    ("txnNumber", OPTIONAL_INT64),
    ("wallTime", OPTIONAL_INT64),
    version=1,
)
KEY_SCHEMA: Final = struct("Key", ("id", STRING))
VALUE_SCHEMA: Final = struct(
    "Envelope",
    ("before", _JSON),
    ("after", _JSON),
    ("updateDescription", _UPDATE_DESCRIPTION),
    ("source", _SOURCE),
    ("op", OPTIONAL_STRING),
    ("ts_ms", OPTIONAL_INT64),
    ("transaction", TRANSACTION),
)


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """Options of the envelope.

    Args:
        topics: Topic names; the prefix is also ``source.name``.
        version: Value of ``source.version``.
        tombstones: Whether a tombstone follows each delete.
        now_ns: Current time, ns since 1970.
        last_of_snapshot: Whether the batch's last row is the last row of the snapshot.
        transactions: Field ``transaction`` of each event; null by default.
        times: Whether to add ``ts_us`` and ``ts_ns`` to ``ts_ms``.
        incremental: Whether reads are part of an incremental snapshot.
    """

    topics: TopicNaming
    version: str
    tombstones: bool
    now_ns: int
    last_of_snapshot: bool = False
    transactions: pa.StructArray | None = None
    times: bool = False
    incremental: bool = False


def build(events: pa.RecordBatch, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of decoded events.

    Args:
        events: Columns of :mod:`airflow_cdc_provider.sources.mongodb.events.decode`; the
            optional ``token`` becomes a header.
        options: Options of the envelope.
    """
    count = events.num_rows
    value_schema = _with_times(VALUE_SCHEMA) if options.times else VALUE_SCHEMA
    pairs = pa.StructArray.from_arrays([events["database"], events["collection"]], ["db", "coll"])
    names = join_names(events["database"], events["collection"]).dictionary_encode()
    first = [int(names.indices.index(number).as_py()) for number in range(len(names.dictionary))]
    destinations = []
    for row in first:
        pair = pairs[row].as_py()
        topic = options.topics.topic(pair["db"], pair["coll"])
        destinations.append(
            Destination(topic, KEY_SCHEMA.named(f"{topic}.Key"), value_schema.named(f"{topic}.Envelope"))
        )
    now_ms = options.now_ns // 1_000_000
    reads = pc.equal(events["op"], "r").to_numpy(zero_copy_only=False)
    snapshot = np.where(reads, "incremental" if options.incremental else "true", "false").astype(object)
    if options.last_of_snapshot and count:
        snapshot[-1] = "last"
    known_ms = events["source_ms"]
    in_session = pc.and_(events["lsid"].is_valid(), events["txn_number"].is_valid())
    source = pa.StructArray.from_arrays(
        [
            pa.repeat(options.version, count),
            pa.repeat("mongodb", count),
            pa.repeat(options.topics.prefix, count),
            known_ms.fill_null(now_ms),
            pa.array(snapshot, pa.utf8()),
            events["database"],
            pa.nulls(count, pa.utf8()),
            pc.multiply(known_ms, 1000).fill_null(options.now_ns // 1000),
            pc.multiply(known_ms, 1_000_000).fill_null(options.now_ns),
            events["collection"],
            events["ord"],
            pc.if_else(in_session, events["lsid"], None),
            pc.if_else(in_session, events["txn_number"], None),
            events["wall_ms"],
        ],
        [name for name, _ in _SOURCE.fields],
    )
    times = [now_ms, options.now_ns // 1000, options.now_ns] if options.times else [now_ms]
    value = pa.StructArray.from_arrays(
        [
            events["before"],
            events["after"],
            events["update_description"],
            source,
            events["op"],
            *(pa.repeat(time, count) for time in times),
            pa.nulls(count) if options.transactions is None else options.transactions,
        ],
        [name for name, _ in value_schema.fields],
    )
    deletes = pc.equal(events["op"], "d").to_numpy(zero_copy_only=False)
    return Envelope(
        destinations,
        names.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        pa.StructArray.from_arrays([events["id"]], ["id"]),
        value,
        deletes if options.tombstones else np.zeros(count, np.bool_),
        {TOKEN_HEADER: quote(events["token"])} if "token" in events.schema.names else {},
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


SCHEMA_KEY: Final = struct(
    "io.debezium.connector.mongodb.SchemaChangeKey", ("databaseName", STRING), version=1
)
SCHEMA_VALUE: Final = struct(
    "io.debezium.connector.mongodb.SchemaChangeValue",
    ("source", _SOURCE),
    ("ts_ms", INT64),
    ("databaseName", STRING),
    ("collectionName", OPTIONAL_STRING),
    ("type", STRING),
    ("event", replace(_JSON, optional=False)),
    version=1,
)
"""Debezium has no such records for MongoDB: members are named as in its other connectors."""


def build_schema_changes(changes: pa.RecordBatch, topic: str, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of schema changes, without headers.

    Args:
        changes: Columns of :mod:`airflow_cdc_provider.sources.mongodb.events.schema_changes`.
        topic: Topic of schema changes.
        options: Options of the envelope.
    """
    count = changes.num_rows
    known_ms = changes["source_ms"]
    source = pa.StructArray.from_arrays(
        [
            pa.repeat(options.version, count),
            pa.repeat("mongodb", count),
            pa.repeat(options.topics.prefix, count),
            known_ms,
            pa.repeat("false", count),
            changes["database"],
            pa.nulls(count, pa.utf8()),
            pc.multiply(known_ms, 1000),
            pc.multiply(known_ms, 1_000_000),
            changes["collection"].fill_null(""),
            changes["ord"],
            pa.nulls(count, pa.utf8()),
            pa.nulls(count, pa.int64()),
            known_ms,
        ],
        [name for name, _ in _SOURCE.fields],
    )
    value = pa.StructArray.from_arrays(
        [
            source,
            pa.repeat(options.now_ns // 1_000_000, count),
            *(changes[name] for name in ("database", "collection", "type", "event")),
        ],
        [name for name, _ in SCHEMA_VALUE.fields],
    )
    return Envelope(
        [Destination(topic, SCHEMA_KEY, SCHEMA_VALUE)],
        np.zeros(count, np.int64),
        pa.StructArray.from_arrays([changes["database"]], ["databaseName"]),
        value,
        np.zeros(count, np.bool_),
        bare=True,
    )


def _with_times(schema: ConnectSchema) -> ConnectSchema:
    """Add ``ts_us`` and ``ts_ns`` after ``ts_ms``."""
    place = [name for name, _ in schema.fields].index("ts_ms") + 1
    more = (("ts_us", OPTIONAL_INT64), ("ts_ns", OPTIONAL_INT64))
    return replace(schema, fields=(*schema.fields[:place], *more, *schema.fields[place:]))


def join_names(database: pa.Array, collection: pa.Array) -> pa.Array:
    """Return ``database.collection`` per row."""
    return pc.binary_join_element_wise(database, collection, ".")
