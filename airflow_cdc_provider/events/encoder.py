"""The encoder: envelopes to the bytes that a producer sends.

One for all sources: an envelope says what key and value are (schemas, Arrow columns), the encoder names
nothing and decodes nothing. Used by the command line and by Spark alike. Where a registry takes part, a
registrar that is handed in gives schemas their ids, which come before the bytes (:mod:`.framing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.text_kernels import binary_slices, join
from airflow_cdc_provider.events.avro_converter import to_avro
from airflow_cdc_provider.events.avro_schema import AvroSchema, avro_of_connect, check_names
from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.framing import Registrar, SchemaType, TopicSchema, frame, lead
from airflow_cdc_provider.events.json_converter import base64, quote, to_json
from airflow_cdc_provider.events.json_schema import json_schema_of_connect, with_entry_objects
from airflow_cdc_provider.events.names import Adjustment, adjust_avro_names, adjust_names
from airflow_cdc_provider.events.protobuf_converter import to_protobuf
from airflow_cdc_provider.events.protobuf_schema import Nullables, ProtobufSchema, protobuf_of_connect
from airflow_cdc_provider.events.string_converter import to_text
from airflow_cdc_provider.exceptions import ConfigurationError

ConverterName = Literal["json", "avro", "protobuf", "json_schema", "string", "bytes"]

_REGISTERED: Final[Mapping[ConverterName, SchemaType]] = {
    "avro": "AVRO",
    "protobuf": "PROTOBUF",
    "json_schema": "JSON",
}
"""Converters whose schemas a registry can hold."""
_FIT_FOR_AVRO: Final = frozenset({"avro", "protobuf"})
"""Converters that know letters, digits and _ in names."""


@dataclass(frozen=True)
class Converters:
    """How keys and values are written.

    Args:
        key: Converter of keys.
        value: Converter of values.
        schemas: Whether the schema stands beside what it describes: in the text with JSON, in a column of its
            own with Avro and Protobuf.
        schema_names: How names of schemas are made fit for Avro; ``auto``: ``avro`` where Avro or Protobuf is
            written.
        field_names: Likewise for names of fields.
        nullables: How Protobuf declares fields that may be null.
        registrar: Gives schemas their ids; None where no registry takes part.
    """

    key: ConverterName = "json"
    value: ConverterName = "json"
    schemas: bool = False
    schema_names: Literal["auto"] | Adjustment = "auto"
    field_names: Literal["auto"] | Adjustment = "auto"
    nullables: Nullables = "optional"
    registrar: Registrar | None = field(default=None, compare=False)

    def adjustments(self) -> tuple[Adjustment, Adjustment]:
        """Return what names of schemas and of fields undergo."""
        auto: Adjustment = "avro" if {self.key, self.value} & _FIT_FOR_AVRO else "none"
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
        ``key``           what the converter makes: text (JSON, string) or bytes.
        ``value``         likewise; null for a tombstone.
        ``headers``       members of a JSON list of name and JSON text, empty for none.
        ``fault``         why the record can't be made as it should be, null if it can. One that can't is
            shown in JSON, and never sent (:mod:`.transforms.faults`).
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
    key = _Side("key", envelope.destinations, converters)
    value = _Side("value", envelope.destinations, converters)
    topics = pa.array([d.topic for d in envelope.destinations], pa.large_utf8())
    order = np.repeat(np.arange(count), 1 + envelope.tombstone.astype(np.int64))
    last = np.concatenate([order[1:] != order[:-1], [True]])
    is_tombstone = last & envelope.tombstone[order]
    index = pa.array(order)
    destination = pa.array(envelope.destination[order])
    keys = key.write(envelope.key, envelope.destination, nulls=envelope.nulls)
    described = envelope.self_described or not converters.schemas
    if envelope.verbatim and (converters.value == "string" or (converters.value == "json" and described)):
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
        self._forms = [
            (d.key, d.avro_key) if side == "key" else (d.value, d.avro_value) for d in destinations
        ]
        self._framed = converters.schemas and self._converter == "json"

    @cached_property
    def _connect(self) -> list[ConnectSchema]:
        modes = self._converters.adjustments()
        return [adjust_names(connect, *modes) for connect, _ in self._forms]

    @cached_property
    def _avro(self) -> list[AvroSchema]:
        modes = self._converters.adjustments()
        schemas = [
            adjust_avro_names(avro, *modes) if avro else avro_of_connect(connect)
            for (_, avro), connect in zip(self._forms, self._connect, strict=True)
        ]
        for schema in schemas:
            check_names(schema)
        return schemas

    @cached_property
    def _protobuf(self) -> list[ProtobufSchema]:
        return [protobuf_of_connect(schema, self._converters.nullables) for schema in self._connect]

    @property
    def texts(self) -> pa.Array | None:
        """Per destination its schema, where it is to stand in a column."""
        if not self._converters.schemas or self._converter not in _REGISTERED:
            return None
        described = [self._described(number).text for number in range(len(self._topics))]
        texts = pa.array(described, pa.large_utf8())
        return quote(texts) if self._converter == "protobuf" else texts

    def write(self, column: pa.Array, destination: np.ndarray, *, nulls: bool) -> pa.Array:
        """Write rows; null stays null, unless ``nulls`` are to be written and the converter can."""
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
        """Put the ids of their schemas before rows; only of topics that get a row here."""
        registrar = self._converters.registrar
        if registrar is None:
            return written
        used, which = np.unique(destination, return_inverse=True)
        leads = []
        for number in used:
            indexes = self._protobuf[number].indexes if self._converter == "protobuf" else ()
            leads.append(lead(registrar.schema_id(self._described(number)), indexes))
        return frame(leads, which, written)

    def _described(self, number: int) -> TopicSchema:
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
        """Let bytes be what they are, as Kafka's ByteArrayConverter does."""
        kind = self._connect[0].type
        if kind != "bytes":
            raise ConfigurationError(
                f"converter bytes writes bytes alone, not the {self._side} of topic {self._topics[0]}",
                expected=f"another publish.{self._side}",
                found=f"a {kind}",
            )
        return column.cast(pa.large_binary())


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
    Avro as ``key_schema`` and ``value_schema``, why it can't be sent as ``fault``.

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
    """Return the bytes of an array of texts, one after the other."""
    data, starts, ends, _ = binary_slices(lines)
    return bytes(data[starts[0] : ends[-1]].data) if len(starts) else b""
