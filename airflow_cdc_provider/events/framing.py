"""What stands before a key or value whose schema a registry knows, in Confluent's wire format.

=====  ====================================================================================
bytes  meaning
=====  ====================================================================================
1      0
4      the schema's id, the highest byte first
1..    of Protobuf: which message of the file it is, outermost first: how many numbers, then
       each, as zig-zag varints; the first message of a file is a single 0
rest   what the converter wrote
=====  ====================================================================================

Ids come from a :class:`Registrar`, so that nothing here speaks with a registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.byte_kernels import Bytes, copy
from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.text_kernels import binary_slices, text_array

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True)
class TopicSchema:
    """A schema in use.

    Args:
        topic: Topic of the records.
        side: Which part of them it describes.
        record: Full name of the record or message that it describes, empty for none.
        type: What it is written in.
        text: The schema.
    """

    topic: str
    side: Literal["key", "value"]
    record: str
    type: SchemaType
    text: str


class Registrar(Protocol):
    """Gives schemas their ids."""

    def schema_id(self, schema: TopicSchema) -> int:
        """Return the id that readers find a schema by.

        Asked once per topic and batch; called in every process that encodes.

        Raises:
            ConfigurationError: The registry refuses the schema, or doesn't know it and may not be told.
            TransientError: The registry doesn't answer.
        """
        ...


def lead(schema_id: int, indexes: Sequence[int] = ()) -> bytes:
    """Return what stands before the bytes of one schema.

    Args:
        schema_id: Its id.
        indexes: Of Protobuf, which message of the file; otherwise empty.
    """
    first = b"\0" + schema_id.to_bytes(4, "big")
    if not indexes:
        return first
    numbers = [0] if tuple(indexes) == (0,) else [len(indexes), *indexes]
    return first + b"".join(map(_zig_zag, numbers))


def frame(leads: Sequence[bytes], which: np.ndarray, payload: pa.Array) -> pa.LargeBinaryArray:
    """Put before each row what belongs there.

    Args:
        leads: What :func:`lead` made.
        which: Per row, the number of one of them.
        payload: Bytes or text; null stays null.
    """
    data, starts, ends, valid = binary_slices(payload)
    if not len(payload):
        return pa.array([], pa.large_binary())
    texts = np.frombuffer(b"".join(leads), np.uint8)
    bounds = np.cumsum([0, *map(len, leads)])
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
    leads: Bytes,
    bounds: Bytes,
    which: Bytes,
    data: Bytes,
    starts: Bytes,
    ends: Bytes,
    valid: Bytes,
    out: Bytes,
) -> None:
    at = np.int64(0)
    for row in range(len(which)):
        if valid[row]:
            first = bounds[which[row]]
            at = copy(leads, first, bounds[which[row] + 1] - first, out, at)
            at = copy(data, starts[row], ends[row] - starts[row], out, at)
