"""Debezium's envelope of Vitess events (3.5); fields and order: ``docs/formats/vitess-events.md``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import (
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    SNAPSHOT,
    STRING,
    TRANSACTION,
    ConnectSchema,
    schema_of,
    struct,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.heartbeats import KEY_SCHEMA as HEARTBEAT_KEY
from airflow_cdc_provider.events.json_converter import to_json

NEW_KEY_HEADER: Final = "__debezium.newkey"
"""Header of the delete event of a key change: the new key."""
OLD_KEY_HEADER: Final = "__debezium.oldkey"
"""Header of the create event of a key change: the old key."""

SOURCE: Final = struct(
    "io.debezium.connector.vitess.Source",
    ("version", STRING),
    ("connector", STRING),
    ("name", STRING),
    ("ts_ms", INT64),
    ("snapshot", SNAPSHOT),
    ("db", STRING),
    ("sequence", OPTIONAL_STRING),
    ("ts_us", OPTIONAL_INT64),
    ("ts_ns", OPTIONAL_INT64),
    ("keyspace", STRING),
    ("table", STRING),
    ("shard", STRING),
    ("vgtid", STRING),
    version=1,
)
ORDERED_TRANSACTION: Final = replace(
    TRANSACTION,
    fields=(
        *TRANSACTION.fields,
        ("transaction_epoch", INT64),
        (
            "transaction_rank",
            ConnectSchema(
                "bytes",
                name="org.apache.kafka.connect.data.Decimal",
                version=1,
                parameters={"scale": "0"},
            ),
        ),
    ),
)
"""Field ``transaction`` with epoch and rank, which order the transactions of a shard."""

HEARTBEAT_VALUE: Final = struct(
    "io.debezium.connector.vitess.Heartbeat", ("vgtid", STRING), ("ts_ms", INT64), version=1
)


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """Options of the envelope.

    Args:
        name: Value of ``source.name``.
        version: Value of ``source.version``.
        tombstones: Whether a tombstone follows each delete.
        now_ns: Current time, ns since 1970.
        ordered: Whether transactions have epoch and rank.
    """

    name: str
    version: str
    tombstones: bool
    now_ns: int
    ordered: bool = False


@dataclass(frozen=True)
class Shape:
    """A table with one schema.

    Args:
        keyspace: Keyspace of the table.
        table: Name of the table.
        topic: Topic of its events.
        key: Fields of keys, none for a table without a key; Connect names as metadata.
        value: Fields of rows.
    """

    keyspace: str
    table: str
    topic: str
    key: Sequence[pa.Field]
    value: Sequence[pa.Field]


def build(events: pa.RecordBatch, shape: Shape, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of decoded events of one table.

    Args:
        events: Columns of :class:`airflow_cdc_provider.sources.vitess.events.table_events.TableEvents`, and
            ``vgtid``, the position after the event; optionally the field ``transaction``.
        shape: Schema of rows and keys.
        options: Options of the envelope.
    """
    count = events.num_rows
    topic = shape.topic
    key_schema = struct(f"{topic}.Key", *_members(shape.key))
    value_schema = struct(
        f"{topic}.Envelope",
        ("before", struct(f"{topic}.Value", *_members(shape.value), optional=True)),
        ("after", struct(f"{topic}.Value", *_members(shape.value), optional=True)),
        ("source", SOURCE),
        ("transaction", ORDERED_TRANSACTION if options.ordered else TRANSACTION),
        ("op", STRING),
        ("ts_ms", OPTIONAL_INT64),
        ("ts_us", OPTIONAL_INT64),
        ("ts_ns", OPTIONAL_INT64),
        version=2,
    )
    value = pa.StructArray.from_arrays(
        [
            events["before"],
            events["after"],
            _source(events, pa.repeat(shape.keyspace, count), pa.repeat(shape.table, count), options),
            events["transaction"] if "transaction" in events.schema.names else pa.nulls(count),
            events["op"],
            *(pa.repeat(options.now_ns // unit, count) for unit in (1_000_000, 1000, 1)),
        ],
        [name for name, _ in value_schema.fields],
    )
    deletes = pc.equal(events["op"], "d").to_numpy(zero_copy_only=False)
    headers = {
        name: pc.if_else(events[column].is_valid(), to_json(key_schema, events[column]), None)
        for name, column in ((NEW_KEY_HEADER, "new_key"), (OLD_KEY_HEADER, "old_key"))
        if events[column].null_count < count
    }
    return Envelope(
        [Destination(topic, key_schema, value_schema)],
        np.zeros(count, np.int64),
        events["key"],
        value,
        deletes if options.tombstones else np.zeros(count, np.bool_),
        headers,
    )


SCHEMA_KEY: Final = struct(
    "io.debezium.connector.vitess.SchemaChangeKey", ("databaseName", STRING), version=1
)
SCHEMA_VALUE: Final = struct(
    "io.debezium.connector.vitess.SchemaChangeValue",
    ("source", SOURCE),
    ("ts_ms", INT64),
    ("databaseName", OPTIONAL_STRING),
    ("schemaName", OPTIONAL_STRING),
    ("ddl", OPTIONAL_STRING),
    (
        "tableChanges",
        ConnectSchema(
            "array",
            items=struct("io.debezium.connector.schema.Change", ("type", STRING), ("id", STRING), version=1),
        ),
    ),
    version=1,
)
"""Format of Debezium's relational connectors without the table structure, which the next row shows."""


def build_schema_changes(statements: pa.RecordBatch, topic: str, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of DDL statements, without headers.

    Args:
        statements: Columns ``keyspace``, ``table`` (``<unknown>`` if the statement has none), ``type``
            (CREATE, ALTER, DROP ...; null if unknown), ``statement``, ``shard``,
            ``seconds`` and ``vgtid``.
        topic: Topic of schema changes.
        options: Options of the envelope.
    """
    count = statements.num_rows
    known = statements["type"].is_valid()
    quoted = pc.binary_join_element_wise('"', statements["keyspace"], '"."', statements["table"], '"', "")
    changes = pa.StructArray.from_arrays(
        [statements["type"].drop_null(), quoted.filter(known)], ["type", "id"]
    )
    offsets = np.concatenate([[0], np.cumsum(known.to_numpy(zero_copy_only=False))])
    value = pa.StructArray.from_arrays(
        [
            _source(statements, statements["keyspace"], statements["table"], options),
            pa.repeat(options.now_ns // 1_000_000, count),
            statements["keyspace"],
            pa.nulls(count, pa.utf8()),
            statements["statement"],
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), changes),
        ],
        [name for name, _ in SCHEMA_VALUE.fields],
    )
    return Envelope(
        [Destination(topic, SCHEMA_KEY, SCHEMA_VALUE)],
        np.zeros(count, np.int64),
        pa.StructArray.from_arrays([statements["keyspace"]], ["databaseName"]),
        value,
        np.zeros(count, np.bool_),
        bare=True,
    )


def build_heartbeats(vgtids: pa.Array, topic: str, options: EnvelopeOptions) -> Envelope:
    """Build heartbeat records, for partition 0 and without headers.

    Args:
        vgtids: VGTID of each heartbeat, as text.
        topic: Topic of heartbeats.
        options: Options of the envelope.
    """
    count = len(vgtids)
    return Envelope(
        [Destination(topic, HEARTBEAT_KEY, HEARTBEAT_VALUE)],
        np.zeros(count, np.int64),
        pa.StructArray.from_arrays([pa.repeat(options.name, count)], ["serverName"]),
        pa.StructArray.from_arrays(
            [vgtids, pa.repeat(options.now_ns // 1_000_000, count)], ["vgtid", "ts_ms"]
        ),
        np.zeros(count, np.bool_),
        partition=pa.repeat(pa.scalar(0, pa.int32()), count),
        bare=True,
    )


def _source(
    events: pa.RecordBatch, keyspaces: pa.Array, tables: pa.Array, options: EnvelopeOptions
) -> pa.StructArray:
    count = events.num_rows
    seconds = events["seconds"]
    return pa.StructArray.from_arrays(
        [
            pa.repeat(options.version, count),
            pa.repeat("vitess", count),
            pa.repeat(options.name, count),
            pc.multiply(seconds, 1000),
            pa.repeat("false", count),
            pa.repeat("", count),
            pa.nulls(count, pa.utf8()),
            pc.multiply(seconds, 1_000_000),
            pc.multiply(seconds, 1_000_000_000),
            keyspaces,
            tables,
            events["shard"],
            events["vgtid"],
        ],
        [name for name, _ in SOURCE.fields],
    )


def _members(fields: Sequence[pa.Field]) -> list[tuple[str, ConnectSchema]]:
    return [(field.name, schema_of(field)) for field in fields]
