"""Debezium's envelope of Vitess events (3.5); fields and order: ``docs/formats/vitess-events.md``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events import heartbeats
from airflow_cdc_provider.events.connect import (
    INT64,
    OPTIONAL_STRING,
    STRING,
    TRANSACTION,
    ConnectSchema,
    Values,
    schema_of,
    struct,
    struct_values,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.envelopes import (
    NO_TEXT,
    EnvelopeOptions,
    schema_changes,
    source_block,
    times_of,
)
from airflow_cdc_provider.events.json_converter import to_json
from airflow_cdc_provider.sources.vitess.events.tables import EventTable
from airflow_cdc_provider.sources.vitess.events.types import EventColumn

NEW_KEY_HEADER: Final = "__debezium.newkey"
"""Header of the delete event of a key change: the new key."""
OLD_KEY_HEADER: Final = "__debezium.oldkey"
"""Header of the create event of a key change: the old key."""

_CONNECTOR: Final = "io.debezium.connector.vitess"
ORDERED_TRANSACTION: Final = replace(
    TRANSACTION,
    fields=(
        *TRANSACTION.fields,
        ("transaction_epoch", INT64),
        (
            "transaction_rank",
            ConnectSchema(
                "bytes", name="org.apache.kafka.connect.data.Decimal", version=1, parameters={"scale": "0"}
            ),
        ),
    ),
)
"""Field ``transaction`` with epoch and rank, which order the transactions of a shard."""

_TABLE_CHANGES: Final = ConnectSchema(
    "array", items=struct("io.debezium.connector.schema.Change", ("type", STRING), ("id", STRING), version=1)
)


def build(
    events: pa.RecordBatch, table: EventTable, topic: str, options: EnvelopeOptions, *, ordered: bool
) -> Envelope:
    """Build the envelope of decoded events of one table.

    Args:
        events: Columns of :class:`airflow_cdc_provider.sources.vitess.events.table_events.TableEvents`, and
            ``vgtid``, the position after the event; optionally the field ``transaction``.
        table: The table.
        topic: Topic of its events.
        options: Options of the envelope.
        ordered: Whether transactions have epoch and rank.
    """
    count = events.num_rows
    key_schema = struct(f"{topic}.Key", *_members(table.key))
    row_schema = struct(f"{topic}.Value", *_members(table.columns), optional=True)
    transactions = events["transaction"] if "transaction" in events.schema.names else pa.nulls(count)
    value_schema, value = struct_values(
        f"{topic}.Envelope",
        ("before", row_schema, events["before"]),
        ("after", row_schema, events["after"]),
        ("source", *_source(events, table.keyspace, table.name, options)),
        ("transaction", ORDERED_TRANSACTION if ordered else TRANSACTION, transactions),
        ("op", STRING, events["op"]),
        *options.times,
        version=2,
    )
    headers = {
        name: pc.if_else(events[column].is_valid(), to_json(key_schema, events[column]), None)
        for name, column in ((NEW_KEY_HEADER, "new_key"), (OLD_KEY_HEADER, "old_key"))
        if events[column].null_count < count
    }
    destination = Destination(topic, key_schema, value_schema, table=f"{table.keyspace}.{table.name}")
    tombstones = options.tombstones_after(events)
    return Envelope.of_topic(destination, events["key"], value, tombstone=tombstones, headers=headers)


def build_schema_changes(statements: pa.RecordBatch, topic: str, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of DDL statements, without headers.

    The format is that of Debezium's relational connectors without the table structure, which the next row
    shows.

    Args:
        statements: Columns ``keyspace``, ``table`` (``<unknown>`` if the statement has none), ``type``
            (CREATE, ALTER, DROP ...; null if unknown), ``statement``, ``shard``,
            ``seconds`` and ``vgtid``.
        topic: Topic of schema changes.
        options: Options of the envelope.
    """
    known = statements["type"].is_valid()
    keyspaces, tables = statements["keyspace"], statements["table"]
    quoted = pc.binary_join_element_wise('"', keyspaces, '"."', tables, '"', "")
    changes = pa.StructArray.from_arrays(
        [statements["type"].drop_null(), quoted.filter(known)], ["type", "id"]
    )
    offsets = np.concatenate([[0], np.cumsum(known.to_numpy(zero_copy_only=False))])
    return schema_changes(
        _CONNECTOR,
        topic,
        options,
        keyspaces,
        _source(statements, keyspaces, tables, options),
        ("databaseName", OPTIONAL_STRING, keyspaces),
        ("schemaName", OPTIONAL_STRING, NO_TEXT),
        ("ddl", OPTIONAL_STRING, statements["statement"]),
        ("tableChanges", _TABLE_CHANGES, pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), changes)),
    )


def build_heartbeats(vgtids: pa.Array, topic: str, options: EnvelopeOptions) -> Envelope:
    """Build heartbeat records, for partition 0 and without headers.

    Args:
        vgtids: VGTID of each heartbeat, as text.
        topic: Topic of heartbeats.
        options: Options of the envelope.
    """
    now_ms = options.now_ns // 1_000_000
    fields = (("vgtid", STRING, vgtids), ("ts_ms", INT64, now_ms))
    values = struct_values(f"{_CONNECTOR}.Heartbeat", *fields, version=1)
    return heartbeats.build_of(topic, options.topics.prefix, values)


def _source(
    events: pa.RecordBatch, keyspaces: pa.Array | str, tables: pa.Array | str, options: EnvelopeOptions
) -> Values:
    return source_block(
        f"{_CONNECTOR}.Source",
        "vitess",
        options,
        times_of(events["seconds"], 1_000_000_000, options),
        ("keyspace", STRING, keyspaces),
        ("table", STRING, tables),
        ("shard", STRING, events["shard"]),
        ("vgtid", STRING, events["vgtid"]),
        database="",
    )


def _members(columns: Sequence[EventColumn]) -> list[tuple[str, ConnectSchema]]:
    return [(column.field.name, schema_of(column.field)) for column in columns]
