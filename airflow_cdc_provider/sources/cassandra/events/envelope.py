"""Debezium's envelope of Cassandra events, with the changed cells of one row.

Fields, names and order are those of Debezium 3.4 for Cassandra 5 (``tests/fixtures/cassandra``); optionally
with the source block of its documentation, which DataStax's documentation uses under another namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events import envelopes
from airflow_cdc_provider.events.connect import (
    BOOLEAN,
    INT32,
    INT64,
    OPTIONAL_INT64,
    STRING,
    ConnectSchema,
    Member,
    Values,
    schema_of,
    struct,
    struct_values,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.envelopes import source_block, times_of
from airflow_cdc_provider.events.headers import node_headers
from airflow_cdc_provider.exceptions import ConfigurationError

DEBEZIUM: Final = "io.debezium.connector.cassandra"
DATASTAX: Final = "io.datastax.connector.cassandra"

_BOUND_VALUES: Final = ConnectSchema(
    "array",
    name="clustering_values",
    version=1,
    items=struct("clustering_value", ("name", STRING), ("value", STRING), ("type", STRING), version=1),
)
_COMMON_OPERATIONS: Final = {"i": "c", "u": "u", "d": "d", "r": "t"}


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions(envelopes.EnvelopeOptions):
    """Options of the envelope.

    Args:
        cluster: Name of the cluster.
        namespace: Prefix of schema names.
        source: Variant of the source block.
        common_operations: Whether operations are c, u, d, t instead of i, u, d, r.
        excluded: Paths of columns of this table to exclude from values.
        index: Whether a header has the event's index within its change.
        deletion_in_key: Whether deletions list key columns only, with the time of the deletion; all times of
            cells are in ms then, else in us.
        ranges: Whether values have the bounds of range deletions.
    """

    cluster: str
    namespace: str = DEBEZIUM
    source: Literal["current", "documented"] = "current"
    common_operations: bool = False
    excluded: Sequence[tuple[str, ...]] = field(default=())
    index: bool = False
    deletion_in_key: bool = False
    ranges: bool = True


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
    name = f"{options.namespace}.{options.topics.prefix}.{keyspace}.{table}"
    kind = events.schema.field("after").type
    key_schema = struct(f"{name}.Key", *((f.name, schema_of(f)) for f in events.schema.field("key").type))
    cells = zip(kind, _cells(events, options), strict=True)
    bounds = ("range_start", "range_end") if options.ranges else ()
    after = struct_values(
        f"{name}.Value" if options.source == "documented" else "after",
        *((f.name, _cell(f.type), cell) for f, cell in cells),
        *((f"_{bound}", _bound(f"_{bound}"), events[bound]) for bound in bounds),
        version=1,
    )
    before: list[Member] = []
    if "before" in events.schema.names:
        fields = ((f.name, _cell(f.type)) for f in kind)
        schema = struct("before", *fields, optional=True, version=1)
        before.append(("before", schema, _before(events["before"], options.excluded)))
    op = events["op"]
    if options.common_operations:
        codes = op.dictionary_encode()
        result = pa.array([_COMMON_OPERATIONS[code] for code in codes.dictionary.to_pylist()], pa.utf8())
        op = result.take(codes.indices)
    value_schema, value = struct_values(
        f"{name}.Envelope",
        ("ts_ms", INT64, options.now_ns // 1_000_000),
        ("op", STRING, op),
        ("source", *_source(events, keyspace, table, options)),
        *before,
        ("after", *after),
    )
    index = {"cdc.index": event_index(events["row"])} if options.index else {}
    topic = options.topics.topic(keyspace, table)
    return Envelope.of_topic(
        Destination(topic, key_schema, value_schema, table=f"{keyspace}.{table}"),
        events["key"],
        value,
        tombstone=options.tombstones_after(events),
        headers={**index, **node_headers(events)},
    )


def event_index(row: pa.Array) -> pa.Array:
    """Return the index of each event within its change, as text."""
    rows = row.to_numpy(zero_copy_only=False)
    places = np.arange(len(rows))
    new = np.concatenate([[True], rows[1:] != rows[:-1]])[: len(rows)]
    return pa.array(places - np.maximum.accumulate(np.where(new, places, 0))).cast(pa.utf8())


def _source(events: pa.RecordBatch, keyspace: str, table: str, options: EnvelopeOptions) -> Values:
    ts_us, in_snapshot = events["ts_us"], events["snapshot"]
    cluster = ("cluster", STRING, options.cluster)
    place = (("file", STRING, events["file"]), ("pos", INT32, events["pos"]))
    names = (("keyspace", STRING, keyspace), ("table", STRING, table))
    if options.source == "documented":
        return struct_values(
            "source",
            ("version", STRING, options.version),
            ("connector", STRING, "cassandra"),
            cluster,
            ("snapshot", BOOLEAN, in_snapshot),
            *names,
            *place,
            ("ts_ms", INT64, ts_us),
            version=1,
        )
    snapshot = pc.if_else(in_snapshot, "true", "false")
    own = (cluster, *place, *names)
    return source_block(
        "source",
        "cassandra",
        options,
        times_of(ts_us, 1000, options),
        *own,
        snapshot=snapshot,
        database="NULL",
    )


def _cells(events: pa.RecordBatch, options: EnvelopeOptions) -> list[pa.Array]:
    """Return the cells according to the options.

    As in Debezium, a deletion includes excluded columns, which have no value, but not excluded key columns,
    which have one.
    """
    key_names = {f.name for f in events.schema.field("key").type}
    written = pc.is_in(events["op"], value_set=pa.array(["i", "u"]))
    cells = _without(events["after"], options.excluded, lambda name: name in key_names or written)
    if not options.deletion_in_key:
        return cells
    deletes = pc.equal(events["op"], "d")
    keys = len(key_names)
    # All columns have the deletion time; a table with only key columns has the update time.
    times = cells[keys].field(1) if len(cells) > keys else events["ts_us"]
    times = pc.coalesce(times, events["ts_us"])
    result = []
    for number, cell in enumerate(cells):
        value, time, present = cell.flatten()
        is_key = number < keys
        time = pc.divide(pc.if_else(deletes, times, time) if is_key else time, 1000)
        mask = cell.is_null() if is_key else pc.or_(cell.is_null(), deletes)
        result.append(pa.StructArray.from_arrays([value, time, present], fields=list(cell.type), mask=mask))
    return result


def _without(
    rows: pa.StructArray, excluded: Sequence[tuple[str, ...]], cleared: Callable[[str], Any]
) -> list[pa.Array]:
    """Return the cells of rows without excluded columns.

    Args:
        rows: The rows.
        excluded: Paths of the columns, or of fields in them.
        cleared: Returns in which rows a column has no cell then.
    """
    cells = {f.name: cell for f, cell in zip(rows.type, rows.flatten(), strict=True)}
    for column, *path in excluded:
        cell = cells.get(column)
        if cell is None:
            raise ConfigurationError(
                f"excluded column {column} doesn't exist", expected=f"one of {', '.join(cells)}"
            )
        if path:
            parts = [_without_field(cell.field(0), path, column), *(cell.field(i) for i in range(1, 3))]
            mask = cell.is_null()
            cells[column] = pa.StructArray.from_arrays(parts, fields=list(cell.type), mask=mask)
        else:
            cells[column] = pc.if_else(cleared(column), pa.scalar(None, cell.type), cell)
    return list(cells.values())


def _before(rows: pa.StructArray, excluded: Sequence[tuple[str, ...]]) -> pa.StructArray:
    """Return the previous rows without excluded columns."""
    cells = _without(rows, excluded, lambda column: True)
    return pa.StructArray.from_arrays(cells, fields=list(rows.type), mask=rows.is_null())


def split_path(path: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Return a path, split at its dots, whose first part is the longest of the names that it starts with."""
    ends = (end for end in range(len(path), 1, -1) if ".".join(path[:end]) in names)
    end = next(ends, 1)
    return (".".join(path[:end]), *path[end:])


def _without_field(value: pa.Array, path: Sequence[str], where: str) -> pa.Array:
    """Set a field of a struct, or a nested field, to null."""
    fields = list(value.type) if pa.types.is_struct(value.type) else []
    names = [f.name for f in fields]
    name, *rest = split_path(path, names)
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
