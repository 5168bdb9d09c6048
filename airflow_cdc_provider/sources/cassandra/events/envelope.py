"""Debezium's envelope of Cassandra events, with the changed cells of one row.

Fields, names and order are those of Debezium 3.4 for Cassandra 5 (``tests/fixtures/cassandra``); optionally
with the source block of its documentation, which DataStax's documentation uses under another namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

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
from airflow_cdc_provider.events.headers import node_headers
from airflow_cdc_provider.events.topics import TopicNaming
from airflow_cdc_provider.exceptions import ConfigurationError

DEBEZIUM: Final = "io.debezium.connector.cassandra"
DATASTAX: Final = "io.datastax.connector.cassandra"

_CURRENT_SOURCE: Final = struct(
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
_DOCUMENTED_SOURCE: Final = struct(
    "source",
    ("version", STRING),
    ("connector", STRING),
    ("cluster", STRING),
    ("snapshot", BOOLEAN),
    ("keyspace", STRING),
    ("table", STRING),
    ("file", STRING),
    ("pos", INT32),
    ("ts_ms", INT64),
    version=1,
)
_BOUND_VALUES: Final = ConnectSchema(
    "array",
    name="clustering_values",
    version=1,
    items=struct("clustering_value", ("name", STRING), ("value", STRING), ("type", STRING), version=1),
)
_COMMON_OPERATIONS: Final = {"i": "c", "u": "u", "d": "d", "r": "t"}


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """Options of the envelope.

    Args:
        topics: Topic names; the prefix is also ``source.name`` and part of schema names.
        version: Value of ``source.version``.
        cluster: Name of the cluster.
        tombstones: Whether a tombstone follows each row or partition deletion.
        now_ns: Current time, ns since 1970.
        namespace: Prefix of schema names.
        source: Variant of the source block.
        common_operations: Whether operations are c, u, d, t instead of i, u, d, r.
        excluded: Paths of columns of this table to exclude from values.
        index: Whether a header has the event's index within its change.
        deletion_in_key: Whether deletions list key columns only, with the time of the deletion.
    """

    topics: TopicNaming
    version: str
    cluster: str
    tombstones: bool
    now_ns: int
    namespace: str = DEBEZIUM
    source: Literal["current", "documented"] = "current"
    common_operations: bool = False
    excluded: Sequence[tuple[str, ...]] = field(default=())
    index: bool = False
    deletion_in_key: bool = False


def build(events: pa.RecordBatch, keyspace: str, table: str, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of decoded events of one table.

    Args:
        events: Columns of :mod:`airflow_cdc_provider.sources.cassandra.events.decode`; optionally
            ``before``, of the type of ``after``, and ``node``, which becomes a header.
        keyspace: Keyspace of the table.
        table: Name of the table.
        options: Options of the envelope.

    Raises:
        ConfigurationError: An excluded column doesn't exist.
    """
    count = events.num_rows
    name = f"{options.namespace}.{options.topics.prefix}.{keyspace}.{table}"
    kind = events.schema.field("after").type
    key_schema = struct(f"{name}.Key", *((f.name, schema_of(f)) for f in events.schema.field("key").type))
    after_schema = struct(
        "after",
        *((f.name, _cell(f.type)) for f in kind),
        ("_range_start", _bound("_range_start")),
        ("_range_end", _bound("_range_end")),
        version=1,
    )
    source_schema = _CURRENT_SOURCE if options.source == "current" else _DOCUMENTED_SOURCE
    has_before = "before" in events.schema.names
    before_schema = struct("before", *((f.name, _cell(f.type)) for f in kind), optional=True, version=1)
    value_schema = struct(
        f"{name}.Envelope",
        ("ts_ms", INT64),
        ("op", STRING),
        ("source", source_schema),
        *([("before", before_schema)] if has_before else []),
        ("after", after_schema),
    )
    op = events["op"]
    if options.common_operations:
        codes = op.dictionary_encode()
        result = pa.array([_COMMON_OPERATIONS[code] for code in codes.dictionary.to_pylist()], pa.utf8())
        op = result.take(codes.indices)
    value = pa.StructArray.from_arrays(
        [
            pa.repeat(options.now_ns // 1_000_000, count),
            op,
            _source(events, keyspace, table, source_schema, options),
            *([_before(events, options.excluded)] if has_before else []),
            pa.StructArray.from_arrays(
                [*_cells(events, options), events["range_start"], events["range_end"]],
                [field for field, _ in after_schema.fields],
            ),
        ],
        [field for field, _ in value_schema.fields],
    )
    deletes = pc.equal(events["op"], "d").to_numpy(zero_copy_only=False)
    return Envelope(
        [Destination(options.topics.topic(keyspace, table), key_schema, value_schema)],
        np.zeros(count, np.int64),
        events["key"],
        value,
        deletes if options.tombstones else np.zeros(count, np.bool_),
        {**({"cdc.index": event_index(events["row"])} if options.index else {}), **node_headers(events)},
    )


def event_index(row: pa.Array) -> pa.Array:
    """Return the index of each event within its change, as text."""
    rows = row.to_numpy(zero_copy_only=False)
    places = np.arange(len(rows))
    new = np.concatenate([[True], rows[1:] != rows[:-1]])[: len(rows)]
    return pa.array(places - np.maximum.accumulate(np.where(new, places, 0))).cast(pa.utf8())


def _source(
    events: pa.RecordBatch, keyspace: str, table: str, schema: ConnectSchema, options: EnvelopeOptions
) -> pa.StructArray:
    count = events.num_rows
    current = schema is _CURRENT_SOURCE
    values = {
        "version": pa.repeat(options.version, count),
        "connector": pa.repeat("cassandra", count),
        "name": pa.repeat(options.topics.prefix, count),
        "ts_ms": pa.array(events["ts_us"].to_numpy(zero_copy_only=False) // 1000)
        if current
        else events["ts_us"],
        "snapshot": pc.if_else(events["snapshot"], "true", "false") if current else events["snapshot"],
        "db": pa.repeat("NULL", count),
        "sequence": pa.nulls(count, pa.utf8()),
        "ts_us": events["ts_us"],
        "ts_ns": pc.multiply(events["ts_us"], 1000),
        "cluster": pa.repeat(options.cluster, count),
        "file": events["file"],
        "pos": events["pos"],
        "keyspace": pa.repeat(keyspace, count),
        "table": pa.repeat(table, count),
    }
    names = [name for name, _ in schema.fields]
    return pa.StructArray.from_arrays([values[name] for name in names], names)


def _cells(events: pa.RecordBatch, options: EnvelopeOptions) -> list[pa.Array]:
    """Return the cells according to the options."""
    cells = _without(events, options.excluded)
    if not options.deletion_in_key:
        return cells
    deletes = pc.equal(events["op"], "d")
    keys = len(events.schema.field("key").type)
    # All columns have the deletion time; a table with only key columns has the update time.
    times = cells[keys].field(1) if len(cells) > keys else events["ts_us"]
    times = pc.coalesce(times, events["ts_us"])
    result = []
    for number, cell in enumerate(cells):
        if number < keys:
            value, time, present = cell.flatten()
            parts = [value, pc.if_else(deletes, times, time), present]
            result.append(pa.StructArray.from_arrays(parts, fields=list(cell.type), mask=cell.is_null()))
        else:
            result.append(pc.if_else(deletes, pa.scalar(None, cell.type), cell))
    return result


def _without(events: pa.RecordBatch, excluded: Sequence[tuple[str, ...]]) -> list[pa.Array]:
    """Return the cells without excluded columns.

    As in Debezium, a deletion includes excluded columns, which have no value, but not excluded key columns,
    which have one.
    """
    after = events["after"]
    names = [f.name for f in after.type]
    cells = dict(zip(names, after.flatten(), strict=True))
    keys = {f.name for f in events.schema.field("key").type}
    says = pc.is_in(events["op"], value_set=pa.array(["i", "u"]))
    for column, *path in excluded:
        cell = cells.get(column)
        if cell is None:
            raise ConfigurationError(
                f"excluded column {column} doesn't exist", expected=f"one of {', '.join(names)}"
            )
        if path:
            parts = [_without_field(cell.field(0), path, column), *(cell.field(i) for i in range(1, 3))]
            mask = cell.is_null()
            cells[column] = pa.StructArray.from_arrays(parts, fields=list(cell.type), mask=mask)
        else:
            leave = pa.scalar(True) if column in keys else says
            cells[column] = pc.if_else(leave, pa.scalar(None, cell.type), cell)
    return list(cells.values())


def _before(events: pa.RecordBatch, excluded: Sequence[tuple[str, ...]]) -> pa.StructArray:
    """Return the previous rows without excluded columns."""
    before = events["before"]
    cells = {f.name: before.field(at) for at, f in enumerate(before.type)}
    for column, *path in excluded:
        cell = cells[column]
        if path:
            parts = [_without_field(cell.field(0), path, column), *(cell.field(i) for i in range(1, 3))]
            cells[column] = pa.StructArray.from_arrays(parts, fields=list(cell.type), mask=cell.is_null())
        else:
            cells[column] = pa.nulls(len(cell), cell.type)
    return pa.StructArray.from_arrays(list(cells.values()), fields=list(before.type), mask=before.is_null())


def _without_field(value: pa.Array, path: Sequence[str], where: str) -> pa.Array:
    """Set a field of a struct, or a nested field, to null."""
    name, *rest = path
    fields = list(value.type) if pa.types.is_struct(value.type) else []
    names = [f.name for f in fields]
    if name not in names:
        raise ConfigurationError(
            f"excluded field {where}.{name} doesn't exist", expected=f"one of {', '.join(names) or 'none'}"
        )
    parts = value.flatten()
    at = names.index(name)
    parts[at] = (
        _without_field(parts[at], rest, f"{where}.{name}") if rest else pa.nulls(len(value), fields[at].type)
    )
    return pa.StructArray.from_arrays(parts, fields=fields, mask=value.is_null())


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
