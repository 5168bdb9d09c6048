"""The encoder: envelopes to the bytes that a producer sends.

One for all sources: an envelope says what key and value are (schemas, Arrow columns), the encoder names
nothing and decodes nothing. Used by the command line and by Spark alike. Where a registry takes part, its
client puts before Avro's bytes what it wants there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_kernels import join
from airflow_cdc_provider.events.avro_converter import to_avro
from airflow_cdc_provider.events.avro_schema import AvroSchema, avro_of_connect, check_names
from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.json_converter import base64, quote, to_json
from airflow_cdc_provider.events.names import Adjustment, adjust_avro_names, adjust_names

ConverterName = Literal["json", "avro"]


@dataclass(frozen=True)
class Converters:
    """How keys and values are written.

    Args:
        key: Converter of keys.
        value: Converter of values.
        schemas: Whether the schema stands beside what it describes: in the text with JSON, in a column of its
            own with Avro.
        schema_names: How names of schemas are made fit for Avro; ``auto``: ``avro`` where Avro is written.
        field_names: Likewise for names of fields.
    """

    key: ConverterName = "json"
    value: ConverterName = "json"
    schemas: bool = False
    schema_names: Literal["auto"] | Adjustment = "auto"
    field_names: Literal["auto"] | Adjustment = "auto"

    def adjustments(self) -> tuple[Adjustment, Adjustment]:
        """Return what names of schemas and of fields undergo."""
        auto: Adjustment = "avro" if "avro" in (self.key, self.value) else "none"
        schemas, fields = self.schema_names, self.field_names
        return auto if schemas == "auto" else schemas, auto if fields == "auto" else fields

    @property
    def record_schema(self) -> pa.Schema:
        """Columns of encoded records, in publishing order.

        ``row``           the decoded event that it comes from.
        ``topic``         its destination.
        ``partition``     null: the producer chooses by the key.
        ``timestamp``     time of the record, ms since 1970; null: the producer's.
        ``bare``          whether the headers that all data records have are none of its.
        ``key``           what the converter makes: text (JSON) or bytes (Avro).
        ``value``         likewise; null for a tombstone.
        ``headers``       members of a JSON list of name and JSON text, empty for none.
        ``key_schema``, ``value_schema``  with ``schemas`` and Avro: its schema as JSON.
        """
        types = {"json": pa.large_utf8(), "avro": pa.large_binary()}
        sides: tuple[tuple[str, ConverterName], ...] = (("key", self.key), ("value", self.value))
        return pa.schema(
            [
                pa.field("row", pa.int64()),
                pa.field("topic", pa.large_utf8()),
                pa.field("partition", pa.int32()),
                pa.field("timestamp", pa.int64()),
                pa.field("bare", pa.bool_()),
                *(pa.field(side, types[name]) for side, name in sides),
                pa.field("headers", pa.large_utf8()),
                *(
                    pa.field(f"{side}_schema", pa.large_utf8())
                    for side, name in sides
                    if self.schemas and name == "avro"
                ),
            ]
        )


@dataclass(frozen=True)
class Destination:
    """One topic and what its records are called.

    Args:
        topic: Its name.
        key: Schema of the keys.
        value: Schema of the values. Destinations of one envelope differ in names only.
        avro_key: Schema of the keys in Avro; by default made of ``key``.
        avro_value: Schema of the values in Avro, likewise.
    """

    topic: str
    key: ConnectSchema
    value: ConnectSchema
    avro_key: AvroSchema | None = None
    avro_value: AvroSchema | None = None


@dataclass(frozen=True)
class Envelope:
    """Events in the form that their readers expect, one row each.

    Args:
        destinations: The topics.
        destination: Per row, which of them (int array).
        key: Keys (as a rule a struct array, fields as in the schema).
        value: Values, likewise; null for an event without value.
        tombstone: Per row, whether a record with the same key and no value follows.
        headers: Headers of each row by name: JSON texts, null for none.
        absent: Text for the value of an event without value; by default it has none.
        partition: Partition of each record (int32); by default, and where null, the producer chooses.
        timestamp: Time of each record in ms since 1970 (int64); by default, and where null, the producer's.
        bare: Whether the records have none of the headers that all data records have.
        verbatim: Values are JSON texts that are written as they are, where there is no schema beside them.
        self_described: With ``verbatim``: the texts hold what schema they have, so none stands beside them.
        nulls: A null key or value is written as one (``null`` in JSON) instead of being none at all.
    """

    destinations: Sequence[Destination]
    destination: np.ndarray
    key: pa.Array
    value: pa.Array
    tombstone: np.ndarray
    headers: Mapping[str, pa.Array] = field(default_factory=dict)
    absent: str = ""
    partition: pa.Array | None = None
    timestamp: pa.Array | None = None
    bare: bool = False
    verbatim: bool = False
    self_described: bool = False
    nulls: bool = False


def encode(envelope: Envelope, converters: Converters) -> pa.RecordBatch:
    """Write keys and values.

    Args:
        envelope: The events.
        converters: How they are written.

    Returns:
        Batch of ``converters.record_schema``; a tombstone comes right after its event.
    """
    count = len(envelope.key)
    record_schema = converters.record_schema
    if not count:
        return pa.RecordBatch.from_pylist([], schema=record_schema)
    key = _Side([(d.key, d.avro_key) for d in envelope.destinations], converters.key, converters)
    value = _Side([(d.value, d.avro_value) for d in envelope.destinations], converters.value, converters)
    topics = pa.array([d.topic for d in envelope.destinations], pa.large_utf8())
    order = np.repeat(np.arange(count), 1 + envelope.tombstone.astype(np.int64))
    last = np.concatenate([order[1:] != order[:-1], [True]])
    is_tombstone = last & envelope.tombstone[order]
    index = pa.array(order)
    destination = pa.array(envelope.destination[order])
    described = envelope.self_described or not converters.schemas
    if envelope.verbatim and converters.value == "json" and described:
        written = envelope.value.cast(pa.large_utf8())
    else:
        written = value.write(envelope.value, envelope.destination, nulls=envelope.nulls)
    if envelope.absent and converters.value == "json":
        written = pc.fill_null(written, pa.scalar(envelope.absent, written.type))
    keys = key.write(envelope.key, envelope.destination, nulls=envelope.nulls)
    if len(order) > count:
        keys, written = keys.take(index), written.take(pa.array(order, mask=is_tombstone))
    columns = [
        index,
        topics.take(destination),
        pa.nulls(len(order), pa.int32()) if envelope.partition is None else envelope.partition.take(index),
        pa.nulls(len(order), pa.int64()) if envelope.timestamp is None else envelope.timestamp.take(index),
        pa.repeat(envelope.bare, len(order)),
        keys,
        written,
        _headers(envelope).take(index),
        *(side.texts.take(destination) for side in (key, value) if side.texts is not None),
    ]
    return pa.record_batch(columns, schema=record_schema)


def in_order(batches: Sequence[pa.RecordBatch], places: np.ndarray) -> pa.RecordBatch:
    """Put records of several envelopes into one order.

    Args:
        batches: Batches that :func:`encode` made with the same converters, at least one.
        places: Per record, in the order of the batches, what it is sorted by; equals stay as they are.
    """
    if len(batches) == 1 and (places[1:] >= places[:-1]).all():
        return batches[0]
    table = pa.Table.from_batches(batches).take(pa.array(np.argsort(places, kind="stable")))
    return table.combine_chunks().to_batches()[0] if table.num_rows else batches[0]


class _Side:
    """Keys or values of an envelope.

    Args:
        forms: Per destination its schema for JSON, and for Avro if that isn't made of it.
        converter: How they are written.
        converters: The rest.
    """

    def __init__(
        self,
        forms: Sequence[tuple[ConnectSchema, AvroSchema | None]],
        converter: ConverterName,
        converters: Converters,
    ) -> None:
        modes = converters.adjustments()
        self._connect = [adjust_names(connect, *modes) for connect, _ in forms]
        self._converter = converter
        self._framed = converters.schemas and converter == "json"
        self.texts: pa.Array | None = None
        if converter == "avro":
            self._avro = [
                adjust_avro_names(avro, *modes) if avro else avro_of_connect(connect)
                for (_, avro), connect in zip(forms, self._connect, strict=True)
            ]
            for schema in self._avro:
                check_names(schema)
            if converters.schemas:
                self.texts = pa.array([schema.to_json() for schema in self._avro], pa.large_utf8())

    def write(self, column: pa.Array, destination: np.ndarray, *, nulls: bool) -> pa.Array:
        """Write rows; null stays null, unless ``nulls`` are to be written."""
        if column.null_count and not nulls:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            written = self.write(column.filter(pa.array(valid)), destination[valid], nulls=nulls)
            return written.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
        if self._converter == "avro":
            return to_avro(self._avro[0], column)
        text = to_json(self._connect[0], column)
        return _framed(self._connect, destination, text) if self._framed else text


def _headers(envelope: Envelope) -> pa.Array:
    """Write the headers of each row as members of a list."""
    empty = pa.scalar("", pa.large_utf8())
    parts = [
        pc.fill_null(join(f"[{quote(pa.array([name]))[0].as_py()},", quote(texts), "],"), empty)
        for name, texts in envelope.headers.items()
    ]
    if not parts:
        return pa.repeat(empty, len(envelope.key))
    return pc.utf8_rtrim(join(*parts), ",")


def _framed(schemas: Sequence[ConnectSchema], which: np.ndarray, payload: pa.Array) -> pa.Array:
    leads = pa.array(['{"schema":' + schema.to_json() + ',"payload":' for schema in schemas], pa.large_utf8())
    return join(leads.take(pa.array(which)), payload, "}")


def to_lines(records: pa.RecordBatch, headers: Sequence[tuple[str, str]]) -> pa.LargeStringArray:
    """Write records as lines of JSON for people: topic, partition, key, value, headers.

    Bytes are shown in base64. A record's timestamp, where it has one, follows as ``timestamp``, schemas of
    Avro as ``key_schema`` and ``value_schema``.

    Args:
        records: Batch that :func:`encode` made.
        headers: Of all of them, before each record's own; empty for none.
    """
    constant = ",".join(
        "[" + ",".join(quote(pa.array([name, value])).to_pylist()) + "]" for name, value in headers
    )
    null = pa.scalar("null", pa.large_utf8())
    own = records["headers"]
    if constant:
        bare = pc.or_(records["bare"], pc.equal(own, ""))
        shared = pc.if_else(records["bare"], pa.scalar("", pa.large_utf8()), pa.scalar(constant, own.type))
        own = pc.if_else(bare, join(shared, own), join(shared, ",", own))
    schemas: list[pa.Array | str] = []
    if records["timestamp"].null_count < records.num_rows:
        times = join(',"timestamp":', records["timestamp"].cast(pa.large_utf8()))
        schemas.append(times.fill_null(pa.scalar("", pa.large_utf8())))
    for side in ("key_schema", "value_schema"):
        if side in records.schema.names:
            schemas += [f',"{side}":', records[side]]
    return join(
        '{"topic":',
        quote(records["topic"]),
        ',"partition":',
        records["partition"].cast(pa.large_utf8()).fill_null(null),
        ',"key":',
        _shown(records["key"]).fill_null(null),
        ',"value":',
        _shown(records["value"]).fill_null(null),
        ',"headers":[',
        own,
        "]",
        *schemas,
        "}\n",
    )


def _shown(column: pa.Array) -> pa.Array:
    return base64(column) if pa.types.is_large_binary(column.type) else quote(column)
