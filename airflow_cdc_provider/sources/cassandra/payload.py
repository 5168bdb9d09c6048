"""What the changes table holds of Cassandra: layouts of ``position`` and ``payload``, by kind.

``position`` is big-endian, so memcmp sorts it in the order of the node's log::

    0   u64   segment id
    8   u32   logical position in the segment: where the entry ends
    12  u32   ordinal of the update inside the entry; :data:`FENCE` for a truncation, :data:`DAMAGED` for a
              stretch that can't be read and begins there
    16  u64   of a truncation: its time, ms since 1970; two with no write between stand at the same place

A snapshot row stands right after the last truncation that its reading is known to come after: the position
of that one, or 24 zeros, then u64 us since 1970 of the look at the nodes, and u64 number of the row.

``payload`` begins with a tag:

============== ======== ==================================================================================
kind           tag      then
============== ======== ==================================================================================
``change``     6, 7, 8  one PartitionUpdate as it stands in a segment of that version (reference §5)
``snapshot``   ``S``    one row of a SELECT: :mod:`airflow_cdc_provider.sources.cql.snapshot_payload`
``schema``     6, 7, 8  one PartitionUpdate of a table of ``system_schema``, likewise
``schema``     ``O``    what was seen of a keyspace at the source, as deflated JSON: table of
                        ``system_schema`` -> its rows; ``committed_at`` says when
``truncate``   ``T``    u64 segment id, u32 position, u64 ms since 1970: the record in ``system.local``
``quarantine`` ``M``    u8 version, u16 ordinal of the first update that did not land, then the whole
                        mutation: ``commit_log.log_reader.retry_quarantined`` reads it again with a better
                        schema
``quarantine`` ``X``    u64 count of bytes that could not be read, then the first of them
============== ======== ==================================================================================

A quarantine record has its reason in ``reason``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_cdc_provider.sources.cql.buffers import binary_parts

VERSIONS: Final = (6, 7, 8)
"""Segment versions that can be read, which are also the tags of changes."""

OBSERVED_TAG: Final = ord("O")
TRUNCATION_TAG: Final = ord("T")
MUTATION_TAG: Final = ord("M")
DAMAGE_TAG: Final = ord("X")

FENCE: Final = 0xFFFFFFFF
"""Ordinal of a truncation's position: it comes after every update of the entry that ends there."""

DAMAGED: Final = 0xFFFFFFFE

_POSITION = struct.Struct(">QII")
_TRUNCATION = struct.Struct(">BQIQ")
_MUTATION = struct.Struct(">BBH")
_DAMAGE = struct.Struct(">BQ")

MUTATION_HEADER_BYTES: Final = _MUTATION.size


class Position(NamedTuple):
    """A place in one node's log: the first 16 bytes of every position."""

    segment: int
    end: int
    ordinal: int = 0

    def pack(self) -> bytes:
        """Write it as the column ``position`` holds it."""
        return _POSITION.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Position:
        """Read what :meth:`pack` wrote."""
        return cls(*_POSITION.unpack_from(data))


def segments_and_ends(positions: pa.Array) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return segment and end of many positions at once.

    Args:
        positions: Column ``position`` of changes, none null.
    """
    data, places, _ = binary_parts(pc.binary_slice(positions, 0, _POSITION.size))
    fields = data[places[0] : places[-1]].view([("segment", ">u8"), ("end", ">u4"), ("ordinal", ">u4")])
    return fields["segment"].astype(np.uint64), fields["end"].astype(np.int64)


class Truncation(NamedTuple):
    """What a node writes of a TRUNCATE: all of the table that it logged up to this place is gone."""

    segment: int
    end: int
    truncated_at_ms: int

    def pack(self) -> bytes:
        """Write it as the payload of a record of kind ``truncate``."""
        return _TRUNCATION.pack(TRUNCATION_TAG, *self)

    @property
    def fence(self) -> bytes:
        """The record's position: changes at or before it belong to an earlier generation."""
        place = Position(self.segment, self.end, FENCE).pack()
        return place + self.truncated_at_ms.to_bytes(8, "big")


def mutation_payload(version: int, ordinal: int, mutation: bytes) -> bytes:
    """Write a mutation that could not be split, from its update number ``ordinal`` on."""
    return _MUTATION.pack(MUTATION_TAG, version, ordinal) + mutation


def mutation_header(payload: bytes) -> tuple[int, int]:
    """Return version and ordinal of what :func:`mutation_payload` wrote."""
    _, version, ordinal = _MUTATION.unpack_from(payload)
    return version, ordinal


def damage_payload(length: int, sample: bytes) -> bytes:
    """Write bytes that could not be read: how many there are, and the first of them."""
    return _DAMAGE.pack(DAMAGE_TAG, length) + sample
