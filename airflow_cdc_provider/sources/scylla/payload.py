"""The layouts of ``position`` and ``payload`` in the changes table for ScyllaDB, by kind.

``position`` is big-endian, so memcmp sorts it in read order: by generation, then by time::

    0   u64   generation: ms since 1970 (of tablets: of the set of streams)
    8   u64   ``cdc$time``: the 60 bits of its time
    16  8     its other eight bytes, each with the sign bit flipped: the order of timeuuids
    24  16    stream id

``payload`` begins with a tag:

============== ======= =====================================================================================
kind           tag     then
============== ======= =====================================================================================
``change``     ``L``   the log rows of one stream and ``cdc$time``, in the order of ``cdc$batch_seq_no``: per
                       row u32 little-endian its length, then per column i32 big-endian length (-1: null) and
                       bytes, as the native protocol has them
``snapshot``   ``S``   one row of a SELECT: :mod:`airflow_cdc_provider.sources.cql.snapshot_payload`
``schema``     ``{``   the columns of the log: :mod:`.log_table`
``quarantine`` ``Q``   16 bytes of the schema's name, then the payload of the change
============== ======= =====================================================================================

``schema_id`` of a change is the digest of its schema record (:func:`schema_digest`).
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS

CHANGE_TAG: Final = ord("L")

STREAM_ID: Final = "cdc$stream_id"
TIME: Final = "cdc$time"
BATCH_SEQ_NO: Final = "cdc$batch_seq_no"
OPERATION: Final = "cdc$operation"
TTL: Final = "cdc$ttl"
END_OF_BATCH: Final = "cdc$end_of_batch"
LOG_ROW_TTL: Final = "ttl(cdc$operation)"
"""Remaining TTL of the log row when it is read, from ``TTL("cdc$operation")``."""

LOG_SUFFIX: Final = "_scylla_cdc_log"
"""Suffix of a log's table name, after the base table's name."""

META_COLUMNS: Final = (STREAM_ID, TIME, BATCH_SEQ_NO, OPERATION, TTL, END_OF_BATCH, LOG_ROW_TTL)
"""The first columns of each row of a payload, in this order; the others follow by name."""

DELETED: Final = "cdc$deleted_"
"""Prefix of a column's name: true if the column was set to null, cleared or overwritten."""
DELETED_ELEMENTS: Final = "cdc$deleted_elements_"
"""Prefix of a multi-cell column's name: the removed elements."""

_POSITION = struct.Struct(">QQ8s16s")
_FLIP: Final = bytes(byte ^ 0x80 for byte in range(256))


class Position(NamedTuple):
    """The position of a change.

    Args:
        generation_ms: Start of its generation of streams.
        time: ``cdc$time``, 16 bytes.
        stream: Stream id, 16 bytes.
    """

    generation_ms: int
    time: bytes
    stream: bytes

    def pack(self) -> bytes:
        """Encode it for the column ``position``."""
        return _POSITION.pack(
            self.generation_ms, time_bits(self.time), self.time[8:].translate(_FLIP), self.stream
        )

    @classmethod
    def unpack(cls, data: bytes) -> Position:
        """Decode the result of :meth:`pack`; the version of the timeuuid is 1."""
        generation_ms, bits, rest, stream = _POSITION.unpack(data)
        low, middle, high = bits & 0xFFFFFFFF, bits >> 32 & 0xFFFF, bits >> 48 | 0x1000
        return cls(generation_ms, struct.pack(">IHH", low, middle, high) + rest.translate(_FLIP), stream)


def time_bits(timeuuid: bytes) -> int:
    """Return the 60 bits of a timeuuid's time: 100 ns since 1582."""
    low, middle, high = struct.unpack_from(">IHH", timeuuid)
    return int((high & 0x0FFF) << 48 | middle << 32 | low)


def time_us(timeuuid: bytes) -> int:
    """Return the write time in ``cdc$time``, in us since 1970."""
    return (time_bits(timeuuid) - EPOCH_TICKS) // 10


def schema_digest(payload: bytes) -> str:
    """Return the name of a schema record: the digest of its payload, as 32 hex digits."""
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
