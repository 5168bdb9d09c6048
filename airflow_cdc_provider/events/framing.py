"""Confluent's wire format: the prefix of keys and values whose schema is in a registry.

=====  ====================================================================================
bytes  meaning
=====  ====================================================================================
1      0
4      the schema ID, big-endian
1..    Protobuf: message indexes, outermost first: their count, then each index, as
       zig-zag varints; a single 0 for the first message of the file
rest   output of the converter
=====  ====================================================================================

A :class:`Registrar` returns the IDs; this module doesn't access a registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.formats.arrow_bytes import binary_slices, text_array
from airflow_cdc_provider.formats.byte_kernels import copy
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True)
class TopicSchema:
    """A schema in use.

    Args:
        topic: Topic of the records.
        side: Whether it describes keys or values.
        record: Full name of the record or message, empty for none.
        type: Schema language.
        text: The schema.
    """

    topic: str
    side: Literal["key", "value"]
    record: str
    type: SchemaType
    text: str


class Registrar(Protocol):
    """Returns schema IDs."""

    def schema_id(self, schema: TopicSchema) -> int:
        """Return the ID of a schema.

        Called once per topic and batch, in every process that encodes.

        Raises:
            SchemaRejected: The registry rejects the schema, or doesn't have it and registration is disabled.
            ConfigurationError: The registry can't be used.
            TransientError: The registry is unavailable.
        """
        ...


def wire_prefix(schema_id: int, indexes: Sequence[int] = ()) -> bytes:
    """Return the prefix of records with a schema.

    Args:
        schema_id: ID of the schema.
        indexes: Protobuf: message indexes; otherwise empty.
    """
    first = b"\0" + schema_id.to_bytes(4, "big")
    if not indexes:
        return first
    numbers = [0] if tuple(indexes) == (0,) else [len(indexes), *indexes]
    return first + b"".join(map(_zig_zag, numbers))


def frame(prefixes: Sequence[bytes], which: np.ndarray, payload: pa.Array) -> pa.LargeBinaryArray:
    """Prefix each row.

    Args:
        prefixes: Prefixes from :func:`wire_prefix`.
        which: Index of the prefix of each row.
        payload: Bytes or text; nulls stay null.
    """
    data, starts, ends, valid = binary_slices(payload)
    if not len(payload):
        return pa.array([], pa.large_binary())
    texts = np.frombuffer(b"".join(prefixes), np.uint8)
    bounds = np.cumsum([0, *map(len, prefixes)])
    sizes = np.diff(bounds)[which] + ends - starts
    offsets = np.zeros(len(payload) + 1, np.int64)
    np.cumsum(np.where(valid, sizes, 0), out=offsets[1:])
    out = np.frombuffer(pa.allocate_buffer(int(offsets[-1])), np.uint8)
    _write_framed(texts, bounds, which.astype(np.int64), data, starts, ends, valid, out)
    return text_array(out, offsets, valid, binary=True, wide=True)


def _zig_zag(number: int) -> bytes:
    rest = number << 1
    written = bytearray()
    while rest >= 128:
        written.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*written, rest])


@walker
def _write_framed(
    prefixes: Bytes,
    bounds: Bytes,
    which: Bytes,
    data: Bytes,
    starts: Ints,
    ends: Ints,
    valid: Flags,
    out: Bytes,
) -> None:
    at = np.int64(0)
    for row in range(len(which)):
        if valid[row]:
            first = bounds[which[row]]
            at = copy(prefixes, first, bounds[which[row] + 1] - first, out, at)
            at = copy(data, starts[row], ends[row] - starts[row], out, at)
