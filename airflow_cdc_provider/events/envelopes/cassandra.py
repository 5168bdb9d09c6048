"""Debezium's envelope of Cassandra events: the cells of one row, as an update has them.

Fields, names and order as Debezium 3.4 for Cassandra 5 writes them (``tests/fixtures/cassandra``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.connect import (
    BOOLEAN,
    INT32,
    INT64,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    SNAPSHOT,
    STRING,
    ConnectSchema,
    schema_of,
    struct,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.topics import topic_name

_SOURCE: Final = struct(
    "source",
    ("version", STRING),
    ("connector", STRING),
    ("name", STRING),
    ("ts_ms", INT64),
    ("snapshot", SNAPSHOT),
    ("db", STRING),
    ("sequence", OPTIONAL_STRING),
    ("ts_us", OPTIONAL_INT64),
    ("ts_ns", OPTIONAL_INT64),
    ("cluster", STRING),
    ("file", STRING),
    ("pos", INT32),
    ("keyspace", STRING),
    ("table", STRING),
    version=1,
)
_BOUND_VALUES: Final = ConnectSchema(
    "array",
    name="clustering_values",
    version=1,
    items=struct("clustering_value", ("name", STRING), ("value", STRING), ("type", STRING), version=1),
)


@dataclass(frozen=True)
class EnvelopeOptions:
    """What an envelope takes from the connector and the moment.

    Args:
        topic_prefix: First part of topics, and ``source.name``.
        version: Text of ``source.version``.
        cluster: The cluster's name.
        tombstones: Whether a record without value follows each row or partition deletion.
        now_ns: When the events are built, ns since 1970.
    """

    topic_prefix: str
    version: str
    cluster: str
    tombstones: bool
    now_ns: int


def build(events: pa.RecordBatch, keyspace: str, table: str, options: EnvelopeOptions) -> Envelope:
    """Put decoded events of one table into their envelope.

    Args:
        events: Columns as :mod:`airflow_cdc_provider.sources.cassandra.debezium.events` describes them.
        keyspace: The table's keyspace.
        table: Its name.
        options: The rest.
    """
    count = events.num_rows
    topic = topic_name(options.topic_prefix, keyspace, table)
    name = f"io.debezium.connector.cassandra.{topic}"
    after = events["after"]
    key_schema = struct(f"{name}.Key", *((f.name, schema_of(f)) for f in events.schema.field("key").type))
    after_schema = struct(
        "after",
        *((f.name, _cell(f.type)) for f in after.type),
        ("_range_start", _bound("_range_start")),
        ("_range_end", _bound("_range_end")),
        version=1,
    )
    value_schema = struct(
        f"{name}.Envelope", ("ts_ms", INT64), ("op", STRING), ("source", _SOURCE), ("after", after_schema)
    )
    source = pa.StructArray.from_arrays(
        [
            pa.repeat(options.version, count),
            pa.repeat("cassandra", count),
            pa.repeat(options.topic_prefix, count),
            pa.array(events["ts_us"].to_numpy(zero_copy_only=False) // 1000),
            pa.repeat("false", count),
            pa.repeat("NULL", count),
            pa.nulls(count, pa.utf8()),
            events["ts_us"],
            pc.multiply(events["ts_us"], 1000),
            pa.repeat(options.cluster, count),
            events["file"],
            events["pos"],
            pa.repeat(keyspace, count),
            pa.repeat(table, count),
        ],
        [field for field, _ in _SOURCE.fields],
    )
    value = pa.StructArray.from_arrays(
        [
            pa.repeat(options.now_ns // 1_000_000, count),
            events["op"],
            source,
            pa.StructArray.from_arrays(
                [*after.flatten(), events["range_start"], events["range_end"]],
                [field for field, _ in after_schema.fields],
            ),
        ],
        ["ts_ms", "op", "source", "after"],
    )
    deletes = pc.equal(events["op"], "d").to_numpy(zero_copy_only=False)
    return Envelope(
        [Destination(topic, key_schema, value_schema)],
        np.zeros(count, np.int64),
        events["key"],
        value,
        deletes if options.tombstones else np.zeros(count, np.bool_),
    )


def _cell(kind: pa.StructType) -> ConnectSchema:
    return struct(
        "cell_value",
        ("value", schema_of(kind.field("value"))),
        ("deletion_ts", OPTIONAL_INT64),
        ("set", BOOLEAN),
        optional=True,
        version=1,
    )


def _bound(name: str) -> ConnectSchema:
    return struct(name, ("method", STRING), ("values", _BOUND_VALUES), optional=True, version=1)
