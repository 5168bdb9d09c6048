"""DataStax's format of Cassandra events: the key, and the row after the change or null if it is deleted.

Names, types and order are those of the data topic of DataStax CDC for Apache Cassandra 2.3; the message
property ``writetime`` is a header. A change of a partition has null clustering columns in its key, and in
JSON only static columns in its value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.avro_schema import avro_of_struct
from airflow_cdc_provider.events.connect import ConnectSchema, schema_of
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.headers import node_headers
from airflow_cdc_provider.events.topics import TopicNaming
from airflow_cdc_provider.exceptions import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """Options of the envelope.

    Args:
        topics: Topic names.
        json: Whether values are written as JSON.
        key_in_value: Whether values include key columns, and deleted rows are ``{}``.
        excluded: Columns of this table to exclude from values.
        static: Static columns of this table.
        index: Whether a header has the event's index within its change.
    """

    topics: TopicNaming
    json: bool
    key_in_value: bool = False
    excluded: Collection[str] = ()
    static: Collection[str] = ()
    index: bool = False


def build(states: pa.RecordBatch, keyspace: str, table: str, options: EnvelopeOptions) -> Envelope:
    """Build the envelope of row states of one table.

    Args:
        states: ``key`` and ``value`` of :mod:`airflow_cdc_provider.sources.cassandra.events.datastax_decode`;
            ``written_at`` (us); ``index`` (text); ``of_partition``, which must be equal in all rows;
            optionally ``node``, which becomes a header.
        keyspace: Keyspace of the table.
        table: Name of the table.
        options: Options of the envelope.

    Raises:
        ConfigurationError: An excluded column doesn't exist.
    """
    key, value = states["key"], states["value"]
    names = [f.name for f in value.type]
    for column in options.excluded:
        if column not in (*names, *(f.name for f in key.type)):
            raise ConfigurationError(
                f"excluded column {column} doesn't exist", expected=f"one of {', '.join(names)}"
            )
    chosen = [name for name in names if name not in options.excluded]
    if options.json and states.num_rows and states["of_partition"][0].as_py():
        chosen = [name for name in chosen if name in options.static]
    value = _chosen(value, chosen)
    name, doc = f"{keyspace}.{table}", f"Table {keyspace}.{table}"
    destination = Destination(
        options.topics.topic(keyspace, table),
        _connect(name, key.type),
        _connect(name, value.type),
        avro_of_struct(name, doc, key.type),
        avro_of_struct(name, doc, value.type),
        table=name,
    )
    quoted = pc.binary_join_element_wise('"', states["written_at"].cast(pa.utf8()), '"', "")
    index = {"cdc.index": states["index"]} if options.index else {}
    return Envelope.of_topic(
        destination,
        key,
        value,
        headers={"writetime": quoted, **index, **node_headers(states)},
        absent="{}" if options.key_in_value else "",
    )


def _chosen(rows: pa.StructArray, names: Sequence[str]) -> pa.StructArray:
    places = [rows.type.get_field_index(name) for name in names]
    return pa.StructArray.from_arrays(
        [rows.field(at) for at in places],
        fields=[rows.type.field(at) for at in places],
        mask=rows.is_null() if rows.null_count else None,
    )


def _connect(name: str, kind: pa.StructType) -> ConnectSchema:
    """Return the schema of a struct for JSON, in which user-defined types omit null fields."""
    fields = tuple((f.name, _as_json(schema_of(f), f)) for f in kind)
    return ConnectSchema("struct", name=name, fields=fields)


def _as_json(schema: ConnectSchema, field: pa.Field) -> ConnectSchema:
    kind = field.type
    if pa.types.is_map(kind):
        return replace(schema, items=schema.items and _as_json(schema.items, kind.item_field))
    if pa.types.is_list(kind):
        return replace(schema, items=schema.items and _as_json(schema.items, kind.value_field))
    if not pa.types.is_struct(kind):
        return schema
    inner = tuple((n, _as_json(s, kind.field(at))) for at, (n, s) in enumerate(schema.fields))
    metadata = field.metadata or {}
    is_udt = b"avro.logical" not in metadata and b".Tuple_" not in metadata[b"avro.name"]
    return replace(schema, fields=inner, omit_nulls=is_udt)
