"""Encoding of envelopes to the keys and values that a producer sends.

The encoder serves all sources: an envelope has the schemas and Arrow columns of keys and values. The command
line and Spark jobs use the same encoder. With a schema registry, a registrar returns schema IDs, which
precede the bytes (:mod:`.framing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.events.avro_converter import to_avro
from airflow_cdc_provider.events.avro_schema import AvroSchema, avro_of_connect, check_names
from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.framing import Registrar, SchemaType, TopicSchema, frame, wire_prefix
from airflow_cdc_provider.events.json_converter import base64, quote, to_json
from airflow_cdc_provider.events.json_schema import json_schema_of_connect, with_entry_objects
from airflow_cdc_provider.events.names import Adjustment, adjust_avro_names, adjust_names
from airflow_cdc_provider.events.protobuf_converter import to_protobuf
from airflow_cdc_provider.events.protobuf_schema import Nullables, ProtobufSchema, protobuf_of_connect
from airflow_cdc_provider.events.string_converter import to_text
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_slices, join

ConverterName = Literal["json", "avro", "protobuf", "json_schema", "string", "bytes"]

_REGISTERED: Final[Mapping[ConverterName, SchemaType]] = {
    "avro": "AVRO",
    "protobuf": "PROTOBUF",
    "json_schema": "JSON",
}
"""Converters with schemas in a registry."""
_AVRO_NAMES: Final = frozenset({"avro", "protobuf"})
"""Converters that allow only letters, digits and _ in names."""


@dataclass(frozen=True)
class Converters:
    """Converters of keys and values.

    Args:
        key: Converter of keys.
        value: Converter of values.
        schemas: Whether to include schemas: in the payload with JSON, in separate columns with Avro and
            Protobuf.
        schema_names: Adjustment of schema names for Avro; ``auto``: ``avro`` with Avro or Protobuf.
        field_names: Adjustment of field names for Avro.
        nullables: Protobuf declaration of nullable fields.
        registrar: Returns schema IDs; None without a registry.
    """

    key: ConverterName = "json"
    value: ConverterName = "json"
    schemas: bool = False
    schema_names: Literal["auto"] | Adjustment = "auto"
    field_names: Literal["auto"] | Adjustment = "auto"
    nullables: Nullables = "optional"
    registrar: Registrar | None = field(default=None, compare=False)

    def adjustments(self) -> tuple[Adjustment, Adjustment]:
        """Return the adjustments of schema names and field names."""
        auto: Adjustment = "avro" if {self.key, self.value} & _AVRO_NAMES else "none"
        schemas, fields = self.schema_names, self.field_names
        return auto if schemas == "auto" else schemas, auto if fields == "auto" else fields

    @property
    def record_schema(self) -> pa.Schema:
        """Columns of encoded records, in publishing order.

        ``row``           index of the decoded event.
        ``topic``         topic.
        ``partition``     null: the partitioner decides by the key.
        ``timestamp``     time of the record, ms since 1970; null: the producer's.
        ``bare``          whether the common headers of data records are omitted.
        ``key``           output of the converter: text (JSON, string) or bytes.
        ``value``         output of the converter; null for a tombstone.
        ``headers``       members of a JSON array of names and JSON values, empty for none.
        ``fault``         why the record can't be built, null if it can. A faulty record is written as JSON
        for
            inspection and never sent (:mod:`.transforms.faults`).
        ``key_schema``, ``value_schema``  with ``schemas`` and Avro or JSON Schema: its schema, which is JSON;
            with Protobuf its text as a JSON string.
        """
        types = {"json": pa.large_utf8(), "string": pa.large_utf8()}
        sides: tuple[tuple[str, ConverterName], ...] = (("key", self.key), ("value", self.value))
        return pa.schema(
            [
                pa.field("row", pa.int64()),
                pa.field("topic", pa.large_utf8()),
                pa.field("partition", pa.int32()),
                pa.field("timestamp", pa.int64()),
                pa.field("bare", pa.bool_()),
                *(pa.field(side, types.get(name, pa.large_binary())) for side, name in sides),
                pa.field("headers", pa.large_utf8()),
                pa.field("fault", pa.large_utf8()),
                *(
                    pa.field(f"{side}_schema", pa.large_utf8())
                    for side, name in sides
                    if self.schemas and name in _REGISTERED
                ),
            ]
        )


@dataclass(frozen=True)
class Destination:
    """A topic with its schemas.

    Args:
        topic: Its name.
        key: Schema of the keys.
        value: Schema of the values. Destinations of one envelope differ in names only.
        avro_key: Avro schema of the keys; by default derived from ``key``.
        avro_value: Avro schema of the values; by default derived from ``value``.
        table: The table whose topic it is by its name; empty for topics of other names.
    """

    topic: str
    key: ConnectSchema
    value: ConnectSchema
    avro_key: AvroSchema | None = None
    avro_value: AvroSchema | None = None
    table: str = ""


@dataclass(frozen=True)
class Envelope:
    """Events in the format that consumers expect, one per row.

    Args:
        destinations: The topics.
        destination: Per row, index of its destination (int array).
        key: Keys (as a rule a struct array, fields as in the schema).
        value: Values; null for an event without value.
        tombstone: Per row, whether a record with the same key and no value follows.
        headers: Headers of each row by name: JSON texts, null for none.
        absent: Text to write for an event without value; empty for a null value.
        partition: Partition of each record (int32); by default, and for nulls, the partitioner decides.
        timestamp: Time of each record in ms since 1970 (int64); by default, and for nulls, the producer's
            time.
        bare: Whether the common headers of data records are omitted.
        verbatim: Whether values are JSON texts that are written unchanged, unless schemas are included.
        self_described: With ``verbatim``: whether the texts contain their schema, so none is added.
        nulls: Whether a null key or value is written as ``null`` in JSON instead of omitted.
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

    @classmethod
    def of_topic(cls, destination: Destination, key: pa.Array, value: pa.Array, **more: Any) -> Envelope:
        """Return events of one topic, without tombstones unless ``more`` has them."""
        none = np.zeros(len(key), np.bool_)
        return cls([destination], np.zeros(len(key), np.int64), key, value, **{"tombstone": none, **more})


def encode(envelope: Envelope, converters: Converters) -> pa.RecordBatch:
    """Encode keys and values.

    Args:
        envelope: The events.
        converters: Converters of keys and values.

    Returns:
        Batch of ``converters.record_schema``; a tombstone follows its event.
    """
    count = len(envelope.key)
    record_schema = converters.record_schema
    if not count:
        return pa.RecordBatch.from_pylist([], schema=record_schema)
    key = _Side("key", envelope.destinations, converters)
    value = _Side("value", envelope.destinations, converters)
    topics = pa.array([d.topic for d in envelope.destinations], pa.large_utf8())
    order = np.repeat(np.arange(count), 1 + envelope.tombstone.astype(np.int64))
    last = np.concatenate([order[1:] != order[:-1], [True]])
    is_tombstone = last & envelope.tombstone[order]
    index = pa.array(order)
    destination = pa.array(envelope.destination[order])
    keys = key.write(envelope.key, envelope.destination, nulls=envelope.nulls)
    self_contained = envelope.self_described or not converters.schemas
    if envelope.verbatim and (
        converters.value == "string" or (converters.value == "json" and self_contained)
    ):
        written = envelope.value.cast(pa.large_utf8())
    else:
        written = value.write(envelope.value, envelope.destination, nulls=envelope.nulls)
    if envelope.absent and converters.value == "json":
        written = pc.fill_null(written, pa.scalar(envelope.absent, written.type))
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
        pa.nulls(len(order), pa.large_utf8()),
        *(side.texts.take(destination) for side in (key, value) if side.texts is not None),
    ]
    return pa.record_batch(columns, schema=record_schema)


def in_order(batches: Sequence[pa.RecordBatch], sort_keys: np.ndarray) -> pa.RecordBatch:
    """Merge records of several envelopes in order.

    Args:
        batches: Batches of :func:`encode` with the same converters, at least one.
        sort_keys: Sort key per record, in the order of the batches; the sort is stable.
    """
    if len(batches) == 1 and (sort_keys[1:] >= sort_keys[:-1]).all():
        return batches[0]
    table = pa.Table.from_batches(batches).take(pa.array(np.argsort(sort_keys, kind="stable")))
    return table.combine_chunks().to_batches()[0] if table.num_rows else batches[0]


class _Side:
    """Keys or values of an envelope.

    Args:
        side: Which of the two.
        destinations: The topics, with their schemas.
        converters: How they are written.
    """

    def __init__(
        self, side: Literal["key", "value"], destinations: Sequence[Destination], converters: Converters
    ) -> None:
        self._side = side
        self._converter = converters.key if side == "key" else converters.value
        self._converters = converters
        self._topics = [d.topic for d in destinations]
        self._schemas = [
            (d.key, d.avro_key) if side == "key" else (d.value, d.avro_value) for d in destinations
        ]
        self._framed = converters.schemas and self._converter == "json"

    @cached_property
    def _connect(self) -> list[ConnectSchema]:
        modes = self._converters.adjustments()
        return [adjust_names(connect, *modes) for connect, _ in self._schemas]

    @cached_property
    def _avro(self) -> list[AvroSchema]:
        modes = self._converters.adjustments()
        schemas = [
            adjust_avro_names(avro, *modes) if avro else avro_of_connect(connect)
            for (_, avro), connect in zip(self._schemas, self._connect, strict=True)
        ]
        for schema in schemas:
            check_names(schema)
        return schemas

    @cached_property
    def _protobuf(self) -> list[ProtobufSchema]:
        return [protobuf_of_connect(schema, self._converters.nullables) for schema in self._connect]

    @property
    def texts(self) -> pa.Array | None:
        """Schema of each destination if schemas are written to a column."""
        if not self._converters.schemas or self._converter not in _REGISTERED:
            return None
        schemas = [self._topic_schema(number).text for number in range(len(self._topics))]
        texts = pa.array(schemas, pa.large_utf8())
        return quote(texts) if self._converter == "protobuf" else texts

    def write(self, column: pa.Array, destination: np.ndarray, *, nulls: bool) -> pa.Array:
        """Encode rows; nulls stay null, unless ``nulls`` is set and the converter can write them."""
        nulls = nulls and self._converter in ("json", "avro")
        if column.null_count and not nulls:
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            written = self.write(column.filter(pa.array(valid)), destination[valid], nulls=nulls)
            return written.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
        if self._converter == "string":
            return to_text(self._connect[0], column)
        if self._converter == "bytes":
            return self._bytes(column)
        if self._converter == "json":
            text = to_json(self._connect[0], column)
            return _framed(self._connect, destination, text) if self._framed else text
        if self._converter == "json_schema":
            text = to_json(with_entry_objects(self._connect[0]), column)
            return self._registered(text.cast(pa.large_binary()), destination)
        avro = self._converter == "avro"
        written = to_avro(self._avro[0], column) if avro else to_protobuf(self._protobuf[0], column)
        return self._registered(written, destination)

    def _registered(self, written: pa.Array, destination: np.ndarray) -> pa.Array:
        """Prefix rows with schema IDs; only schemas of topics with rows are registered."""
        registrar = self._converters.registrar
        if registrar is None:
            return written
        used, which = np.unique(destination, return_inverse=True)
        prefixes = []
        for number in used:
            indexes = self._protobuf[number].indexes if self._converter == "protobuf" else ()
            prefixes.append(wire_prefix(registrar.schema_id(self._topic_schema(number)), indexes))
        return frame(prefixes, which, written)

    def _topic_schema(self, number: int) -> TopicSchema:
        kind = _REGISTERED[self._converter]
        if self._converter == "avro":
            avro = self._avro[number]
            name = ".".join(filter(None, (avro.namespace, avro.name)))
            return TopicSchema(self._topics[number], self._side, name, kind, avro.to_json())
        if self._converter == "json_schema":
            connect = self._connect[number]
            text = json_schema_of_connect(connect)
            return TopicSchema(self._topics[number], self._side, connect.name, kind, text)
        schema = self._protobuf[number]
        return TopicSchema(self._topics[number], self._side, schema.full_name, kind, schema.text)

    def _bytes(self, column: pa.Array) -> pa.Array:
        """Pass bytes through, like Kafka's ByteArrayConverter."""
        kind = self._connect[0].type
        if kind != "bytes":
            raise ConfigurationError(
                f"converter bytes supports only bytes, not the {self._side} of topic {self._topics[0]}",
                expected=f"another publish.{self._side}",
                found=f"a {kind}",
            )
        return column.cast(pa.large_binary())


def _headers(envelope: Envelope) -> pa.Array:
    """Write the headers of each row as members of a JSON array."""
    empty = pa.scalar("", pa.large_utf8())
    parts = [
        pc.fill_null(join(f"[{quote(pa.array([name]))[0].as_py()},", quote(texts), "],"), empty)
        for name, texts in envelope.headers.items()
    ]
    if not parts:
        return pa.repeat(empty, len(envelope.key))
    return pc.utf8_rtrim(join(*parts), ",")


def _framed(schemas: Sequence[ConnectSchema], which: np.ndarray, payload: pa.Array) -> pa.Array:
    prefixes = pa.array(
        ['{"schema":' + schema.to_json() + ',"payload":' for schema in schemas], pa.large_utf8()
    )
    return join(prefixes.take(pa.array(which)), payload, "}")


def to_lines(records: pa.RecordBatch, headers: Sequence[tuple[str, str]]) -> pa.LargeStringArray:
    """Write records as JSON lines with topic, partition, key, value and headers.

    Bytes are written in base64. Optional members: ``timestamp``; schemas as ``key_schema`` and
    ``value_schema``; the reason why a record can't be sent as ``fault``.

    Args:
        records: Batch of :func:`encode`.
        headers: Common headers, before those of each record; empty for none.
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
            schemas += [f',"{side}":', records[side].fill_null(null)]
    if records["fault"].null_count < records.num_rows:
        faults = join(',"fault":', quote(records["fault"]))
        schemas.append(faults.fill_null(pa.scalar("", pa.large_utf8())))
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


def text_of(lines: pa.LargeStringArray) -> bytes:
    """Return the concatenated bytes of an array of texts."""
    data, starts, ends, _ = binary_slices(lines)
    return bytes(data[starts[0] : ends[-1]].data) if len(starts) else b""
