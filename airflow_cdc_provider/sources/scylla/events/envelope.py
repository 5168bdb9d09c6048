"""Envelope of ScyllaDB's source connector (2.0) in its formats legacy and advanced.

====================== ======================================== =======================================
what                   legacy                                   advanced
====================== ======================================== =======================================
non-key columns        struct with one field ``value``; null    plain values
                       if unchanged
collections, tuples,   omitted unless ``all_types`` is set      included
user-defined types
before                 none, or preimages; key of a delete      according to ``before``
after                  columns set by the change                according to ``after``
key                    Kafka key, before, after                 according to ``key_placement``
order in the key       all columns by name                      partition key before clustering, by name
====================== ======================================== =======================================

Intentional differences of format advanced from the connector: without postimages, ``after`` has the columns
set by the change (null in the connector, despite its documentation); changes without a preimage are not
dropped; and a change has one event per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.connector.publish.scylla import KEY_PLACEMENTS, ScyllaPublishOptions
from airflow_cdc_provider.events.connect import (
    BOOLEAN,
    OPTIONAL_INT32,
    OPTIONAL_INT64,
    OPTIONAL_STRING,
    STRING,
    TRANSACTION,
    ConnectSchema,
    Member,
    Values,
    schema_of,
    struct,
    struct_values,
)
from airflow_cdc_provider.events.encoder import Destination, Envelope
from airflow_cdc_provider.events.envelopes import EnvelopeOptions, source_block, times_of
from airflow_cdc_provider.events.json_converter import base64, quote

_CELL: Final = "value"
_NO_TRANSACTION: Final = pa.scalar(
    None, pa.struct([("id", pa.utf8()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])
)


def schema_name_prefix(prefix: str, keyspace: str, table: str) -> str:
    """Return the prefix of schema names of a table."""
    return f"{prefix}.{keyspace}.{table}."


def build(
    events: pa.RecordBatch,
    keyspace: str,
    table: str,
    partition: Sequence[str],
    options: EnvelopeOptions,
    own: ScyllaPublishOptions,
) -> Envelope:
    """Build the envelope of decoded events of one table.

    Args:
        events: Columns of :mod:`airflow_cdc_provider.sources.scylla.events.decode`; either all or
            none are events of static columns.
        keyspace: Keyspace of the table.
        table: Name of the table.
        partition: Names of its partition key columns.
        options: Options of the envelope; only deletes with a key have tombstones.
        own: The declared options of ScyllaDB's events.
    """
    shape = _Shape(events, schema_name_prefix(options.topics.prefix, keyspace, table), partition, own)
    deletes = pc.equal(events["op"], "d").to_numpy(zero_copy_only=False)
    before, before_image = shape.before(deletes)
    after, after_image = shape.after(deletes)
    details = _details(events, before_image, after_image) if own.source_details else ()
    fields: list[Member] = [
        ("source", *_source(events, keyspace, table, options, details)),
        ("before", shape.row_schema("Before"), before),
        ("after", shape.row_schema("After"), after),
    ]
    if shape.has("payload-key"):
        fields.append((own.payload_key_name, shape.key_schema(), shape.key()))
    if own.collection_changes and events.schema.field("collections").type.num_fields:
        fields.append(("collections", shape.collections_schema(), events["collections"]))
    ts_ms, *finer_times = options.times
    fields += [("op", OPTIONAL_STRING, events["op"]), ts_ms, ("transaction", TRANSACTION, _NO_TRANSACTION)]
    value_schema, value = struct_values(f"{shape.prefix}Envelope", *fields, *finer_times)
    topic = options.topics.topic(keyspace, table)
    return Envelope.of_topic(
        Destination(topic, shape.record_key_schema(), value_schema, table=f"{keyspace}.{table}"),
        shape.record_key(),
        value,
        tombstone=options.tombstones_after(events) & shape.has("kafka-key"),
        headers=shape.headers() if shape.has("kafka-headers") else {},
    )


def rows_of(envelope: Envelope, *, cells: bool = False) -> tuple[pa.StructArray, pa.StructArray]:
    """Return the rows before and after of an envelope, for unwrapping.

    Args:
        envelope: The envelope.
        cells: Whether values keep their structs, which distinguish unknown from null values.
    """
    schemas = dict(envelope.destinations[0].value.fields)
    names = [name for name, _ in envelope.destinations[0].value.fields]
    before, after = (
        _named(envelope.value.field(names.index(name)), schemas[name], cells=cells)
        for name in ("before", "after")
    )
    return before, after


def _named(rows: pa.StructArray, schema: ConnectSchema, *, cells: bool) -> pa.StructArray:
    """Remove the structs of values, or name them according to the schema."""
    fields, arrays = [], []
    for own, (_, member), values in zip(rows.type, schema.fields, rows.flatten(), strict=True):
        if member.name.endswith(".Cell") and cells:
            fields.append(own.with_metadata({b"connect.name": member.name.encode()}))
            arrays.append(values)
        elif member.name.endswith(".Cell"):
            inner = own.type.field(0)
            fields.append(inner.with_name(own.name))
            arrays.append(values.flatten()[0])
        else:
            fields.append(own)
            arrays.append(values)
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=rows.is_null())


@dataclass(frozen=True, eq=False)
class _Shape:
    """Parts of an envelope that depend on the format."""

    events: pa.RecordBatch
    prefix: str
    partition: Sequence[str]
    own: ScyllaPublishOptions

    @property
    def legacy(self) -> bool:
        return self.own.format == "legacy"

    def has(self, place: str) -> bool:
        """Return whether key columns are in a location, which is fixed in format legacy."""
        return place in (KEY_PLACEMENTS[:3] if self.legacy else self.own.key_placement)

    def before(self, deletes: Any) -> tuple[pa.StructArray, pa.Array]:
        """Return the rows before, and which of them are preimages."""
        images = self.events["before"]
        known = images.is_valid()
        if self.legacy:
            selected = known if self.own.preimages else pc.and_(known, False)
            keys_only = pc.and_(pa.array(deletes), pc.invert(selected))
            cells = self._cells(images, "before_known", selected)
            return self._row("Before", cells, pc.or_(selected, keys_only)), selected
        mode = self.own.before
        selected = known if mode != "none" else pc.and_(known, False)
        if mode == "full":
            cells = self._completed(images)
        elif mode == "only-updated":
            cells = self._only_modified(images)
        else:
            cells = _fields(images)
        return self._row("Before", cells, selected), selected

    def after(self, deletes: Any) -> tuple[pa.StructArray, pa.Array]:
        """Return the rows after, and which of them are postimages."""
        there = pa.array(~deletes)
        values_set = self.events["set"]
        if self.legacy:
            return self._row("After", self._cells(values_set, "modified", there), there), pc.and_(
                there, False
            )
        mode = self.own.after
        images = self.events["after"]
        image = images.is_valid() if mode != "none" else pc.and_(there, False)
        included = self._only_modified(images) if mode == "only-updated" else _fields(images)
        cells = {
            name: pc.if_else(image, values, own)
            for (name, values), own in zip(included.items(), _fields(values_set).values(), strict=True)
        }
        return self._row("After", cells, there), pc.and_(image, there)

    def row_schema(self, name: str) -> ConnectSchema:
        """Return the schema of rows in before or after."""
        fields = [*self._key_fields(f"payload-{name.lower()}"), *self._cell_fields()]
        members = []
        for own in sorted(fields, key=lambda f: f.name):
            schema = schema_of(own)
            if self._in_struct(own.name):
                schema = struct(f"{self.prefix}{own.name}.Cell", (_CELL, schema), optional=True)
            members.append((own.name, schema))
        return struct(f"{self.prefix}{name}", *members, optional=True)

    def collections_schema(self) -> ConnectSchema:
        """Return the schema of collection changes."""
        members = []
        for own in self.events.schema.field("collections").type:
            parts = [(part.name, schema_of(part)) for part in own.type]
            parts[-1] = ("replaced", BOOLEAN)
            members.append((own.name, struct(f"{self.prefix}{own.name}.Changes", *parts, optional=True)))
        return struct(f"{self.prefix}Collections", *members)

    def key_schema(self) -> ConnectSchema:
        """Return the schema of row keys."""
        return struct(f"{self.prefix}Key", *((f.name, schema_of(f)) for f in self._shown_key()))

    def key(self) -> pa.StructArray:
        """Return the keys."""
        return _chosen(self.events["key"], [f.name for f in self._shown_key()])

    def record_key_schema(self) -> ConnectSchema:
        """Return the schema of record keys, which for static columns may be a subset of row keys."""
        schema = self.key_schema()
        if not self._partition_only:
            return schema
        fields = tuple((name, member) for name, member in schema.fields if name in self.partition)
        return replace(schema, name=f"{self.prefix}PartitionKey", fields=fields)

    def record_key(self) -> pa.StructArray:
        """Return the record keys, null for records without a key."""
        names = [name for name, _ in self.record_key_schema().fields]
        key = _chosen(self.events["key"], names)
        return key if self.has("kafka-key") else pa.nulls(len(key), key.type)

    def headers(self) -> Mapping[str, pa.Array]:
        """Return the key columns as text headers."""
        found = {}
        for own in self.events.schema.field("key").type:
            prefix = "pk." if own.name in self.partition else "ck."
            values = self.events["key"].field(own.name)
            binary = pa.types.is_binary(own.type)
            found[prefix + own.name] = base64(values) if binary else quote(_texts(values))
        return found

    @property
    def _partition_only(self) -> bool:
        static = bool(self.events.num_rows and self.events["static"][0].as_py())
        return static and self.own.static_keys == "partition"

    def _shown_key(self) -> list[pa.Field]:
        fields = list(self.events.schema.field("key").type)
        if not self.legacy:
            return fields
        return sorted((f for f in fields if self._shows(f)), key=lambda f: f.name)

    def _key_fields(self, place: str) -> list[pa.Field]:
        return self._shown_key() if self.has(place) else []

    def _cell_fields(self) -> list[pa.Field]:
        return [f for f in self.events.schema.field("set").type if self._shows(f)]

    def _shows(self, own: pa.Field) -> bool:
        return not self.legacy or self.own.all_types or not pa.types.is_nested(own.type)

    def _in_struct(self, name: str) -> bool:
        """Return whether values of a column are structs."""
        keys = {f.name for f in self.events.schema.field("key").type}
        return self.legacy and not self.own.flatten_columns and name not in keys

    def _row(self, name: str, cells: Mapping[str, pa.Array], there: pa.Array) -> pa.StructArray:
        keys = self.events["key"]
        columns = {f.name: (f, keys.field(f.name)) for f in self._key_fields(f"payload-{name.lower()}")}
        for own in self._cell_fields():
            values = cells[own.name]
            included = own if values.type == own.type else pa.field(own.name, values.type)
            columns[own.name] = included, values
        names = sorted(columns)
        if not names:
            absent = np.packbits(there.to_numpy(zero_copy_only=False), bitorder="little")
            return pa.Array.from_buffers(pa.struct([]), len(there), [pa.py_buffer(absent)])
        fields, arrays = [columns[n][0] for n in names], [columns[n][1] for n in names]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pc.invert(there))

    def _cells(self, rows: pa.StructArray, flags: str, selected: pa.Array) -> dict[str, pa.Array]:
        """Wrap values in structs, null for unchanged columns."""
        values_set = self.events[flags]
        cells = {}
        for (name, values), own in zip(_fields(rows).items(), rows.type, strict=True):
            is_set = pc.and_(values_set.field(name), selected)
            if self._in_struct(name):
                inner = own.with_name(_CELL)
                cells[name] = pa.StructArray.from_arrays([values], fields=[inner], mask=pc.invert(is_set))
            else:
                cells[name] = pc.if_else(is_set, values, pa.scalar(None, values.type))
        return cells

    def _only_modified(self, images: pa.StructArray) -> dict[str, pa.Array]:
        """Keep only updated columns of updates."""
        updates = pc.equal(self.events["op"], "u")
        modified = self.events["modified"]
        return {
            name: pc.if_else(
                pc.or_(pc.invert(updates), modified.field(name)), values, pa.scalar(None, values.type)
            )
            for name, values in _fields(images).items()
        }

    def _completed(self, images: pa.StructArray) -> dict[str, pa.Array]:
        """Complete preimages with unchanged columns from the postimage."""
        post = self.events["after"]
        later = _fields(post)
        cells = {}
        for name, values in _fields(images).items():
            own = pc.or_(self.events["before_known"].field(name), self.events["modified"].field(name))
            cells[name] = pc.if_else(pc.or_(own, post.is_null()), values, later[name])
        return cells


def _source(
    events: pa.RecordBatch, keyspace: str, table: str, options: EnvelopeOptions, details: Sequence[Member]
) -> Values:
    return source_block(
        "com.scylladb.cdc.debezium.connector",
        "scylla",
        options,
        times_of(events["ts_us"], 1000, options),
        ("keyspace_name", STRING, keyspace),
        ("table_name", STRING, table),
        *details,
        snapshot=events["snapshot"],
        database=keyspace,
        version=None,
    )


def _details(events: pa.RecordBatch, before_image: pa.Array, after_image: pa.Array) -> list[Member]:
    """Return the fields of the source block that the connector doesn't have."""
    return [
        ("stream_id", OPTIONAL_STRING, events["stream"]),
        ("time", OPTIONAL_STRING, events["time"]),
        ("batch_seq_no", OPTIONAL_INT32, events["number"]),
        ("ttl", OPTIONAL_INT64, events["ttl"]),
        ("by_service", BOOLEAN, events["by_service"]),
        ("before_is_image", BOOLEAN, before_image),
        ("after_is_image", BOOLEAN, after_image),
    ]


def _fields(rows: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of rows, null for null rows."""
    return dict(zip((f.name for f in rows.type), rows.flatten(), strict=True))


def _chosen(rows: pa.StructArray, names: Sequence[str]) -> pa.StructArray:
    """Select columns of non-null rows."""
    if not names:
        return pa.Array.from_buffers(pa.struct([]), len(rows), [None])
    fields = [rows.type.field(name) for name in names]
    return pa.StructArray.from_arrays([rows.field(name) for name in names], fields=fields)


def _texts(values: pa.Array) -> pa.Array:
    """Write key values as text, nested ones in their printed form."""
    if pa.types.is_nested(values.type):
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.utf8())
    return values.cast(pa.utf8())
