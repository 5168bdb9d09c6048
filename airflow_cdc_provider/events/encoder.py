"""The encoder: envelopes to the bytes that a producer sends.

One for all sources: an envelope says what key and value are (Connect schemas, Arrow columns), the encoder
names nothing and decodes nothing. Used by the command line and by Spark alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.events.connect import ConnectSchema
from airflow_cdc_provider.events.json_converter import join, quote, to_json

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("topic", pa.large_utf8()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.large_utf8()),
        pa.field("value", pa.large_utf8()),
    ]
)
"""Columns of encoded records, in publishing order.

``row``        the decoded event that it comes from.
``topic``      its destination.
``partition``  null: the producer chooses by the key.
``key``        the converter's text, null for none.
``value``      likewise; null for a tombstone.
"""


@dataclass(frozen=True)
class Destination:
    """One topic and what its records are called.

    Args:
        topic: Its name.
        key: Schema of the keys.
        value: Schema of the values. Destinations of one envelope differ in names only.
    """

    topic: str
    key: ConnectSchema
    value: ConnectSchema


@dataclass(frozen=True)
class Envelope:
    """Events in the form that their readers expect, one row each.

    Args:
        destinations: The topics.
        destination: Per row, which of them (int array).
        key: Keys (struct array, fields as in the schema).
        value: Values, likewise.
        tombstone: Per row, whether a record with the same key and no value follows.
    """

    destinations: Sequence[Destination]
    destination: np.ndarray
    key: pa.StructArray
    value: pa.StructArray
    tombstone: np.ndarray


def encode(envelope: Envelope, *, schemas: bool) -> pa.RecordBatch:
    """Write keys and values.

    Args:
        envelope: The events.
        schemas: Whether the schema stands beside each payload.

    Returns:
        Batch of :data:`RECORD_SCHEMA`; a tombstone comes right after its event.
    """
    count = len(envelope.key)
    if not count:
        return pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)
    key = to_json(envelope.destinations[0].key, envelope.key)
    value = to_json(envelope.destinations[0].value, envelope.value)
    if schemas:
        key = _framed([d.key for d in envelope.destinations], envelope.destination, key)
        value = _framed([d.value for d in envelope.destinations], envelope.destination, value)
    topics = pa.array([d.topic for d in envelope.destinations], pa.large_utf8())
    order = np.repeat(np.arange(count), 1 + envelope.tombstone.astype(np.int64))
    last = np.concatenate([order[1:] != order[:-1], [True]])
    is_tombstone = last & envelope.tombstone[order]
    index = pa.array(order)
    return pa.record_batch(
        [
            index,
            topics.take(pa.array(envelope.destination[order])),
            pa.nulls(len(order), pa.int32()),
            key.take(index),
            value.take(pa.array(order, mask=is_tombstone)),
        ],
        schema=RECORD_SCHEMA,
    )


def _framed(schemas: Sequence[ConnectSchema], which: np.ndarray, payload: pa.Array) -> pa.Array:
    leads = pa.array(['{"schema":' + schema.to_json() + ',"payload":' for schema in schemas], pa.large_utf8())
    return join(leads.take(pa.array(which)), payload, "}")


def to_lines(records: pa.RecordBatch, headers: Sequence[tuple[str, str]]) -> pa.LargeStringArray:
    """Write records as lines of JSON for people: topic, partition, key, value, headers.

    Args:
        records: Batch of :data:`RECORD_SCHEMA`.
        headers: Of all of them; empty for none.
    """
    constant = ",".join(
        "[" + ",".join(quote(pa.array([name, value])).to_pylist()) + "]" for name, value in headers
    )
    null = pa.scalar("null", pa.large_utf8())
    return join(
        '{"topic":',
        quote(records["topic"]),
        ',"partition":',
        records["partition"].cast(pa.large_utf8()).fill_null(null),
        ',"key":',
        quote(records["key"]).fill_null(null),
        ',"value":',
        quote(records["value"]).fill_null(null),
        f',"headers":[{constant}]}}\n',
    )
