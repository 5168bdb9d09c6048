"""Layouts of ``position`` and ``payload`` in the changes table, by kind.

``position`` is big-endian, so memcmp sorts it in the order of the node's log::

    0   u64   segment id
    8   u32   logical position in the segment: the end of the entry
    12  u32   ordinal of the update inside the entry; :data:`FENCE` for a truncation, :data:`DAMAGED` for a
              corrupt range that starts there
    16  u64   of a truncation: its time, ms since 1970; two without a write in between have the same position

The position of a snapshot row follows the last truncation that its read is known to follow: the position of
that one, or 24 zeros, then u64 us since 1970 of the query of the nodes, and u64 number of the row.

``payload`` starts with a tag:

============== ======== ==================================================================================
kind           tag      then
============== ======== ==================================================================================
``change``     6, 7, 8  one PartitionUpdate, verbatim from a segment of that version (reference §5)
``snapshot``   ``S``    one row of a SELECT: :mod:`airflow_cdc_provider.sources.cql.snapshot_payload`
``schema``     6, 7, 8  one PartitionUpdate of a table of ``system_schema``, likewise
``schema``     ``O``    a keyspace's schema read from the source, as deflated JSON: table of
                        ``system_schema`` -> its rows; ``committed_at`` is the time of the read
``schema``     ``N``    nothing: from its position on, updates of the keyspace's schema in a slice of the log
                        are not recorded, because there are too many
``truncate``   ``T``    u64 segment id, u32 position, u64 ms since 1970: the record in ``system.local``
``quarantine`` ``M``    u8 version, u16 ordinal of the first update that was not captured, then the whole
                        mutation: :mod:`.quarantine` reads it again with a later schema
``quarantine`` ``X``    u64 count of unreadable bytes, then the first of them
============== ======== ==================================================================================

A quarantine record has its reason in ``reason``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.arrow_bytes import binary_parts
from airflow_cdc_provider.formats.kernels import Ints, Words

VERSIONS: Final = (6, 7, 8)
"""Supported segment versions, which are also the tags of changes."""

OBSERVED_TAG: Final = ord("O")
SKIPPED_TAG: Final = ord("N")
TRUNCATION_TAG: Final = ord("T")
MUTATION_TAG: Final = ord("M")
DAMAGE_TAG: Final = ord("X")

FENCE: Final = 0xFFFFFFFF
"""Ordinal of a truncation's position, after every update of the entry that ends there."""

DAMAGED: Final = 0xFFFFFFFE

_POSITION = struct.Struct(">QII")
_TRUNCATION = struct.Struct(">BQIQ")
_MUTATION = struct.Struct(">BBH")
_DAMAGE = struct.Struct(">BQ")

MUTATION_HEADER_BYTES: Final = _MUTATION.size


class Position(NamedTuple):
    """A position in one node's log: the first 16 bytes of every ``position``."""

    segment: int
    end: int
    ordinal: int = 0

    def pack(self) -> bytes:
        """Encode it for the column ``position``."""
        return _POSITION.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Position:
        """Decode the output of :meth:`pack`."""
        return cls(*_POSITION.unpack_from(data))


def segments_and_ends(positions: pa.Array) -> tuple[Words, Ints]:
    """Return segment and end of many positions at once.

    Args:
        positions: Column ``position`` of changes, none null.

    Returns:
        Segment ids and logical positions.
    """
    data, offsets, _ = binary_parts(pc.binary_slice(positions, 0, _POSITION.size))
    fields = data[offsets[0] : offsets[-1]].view([("segment", ">u8"), ("end", ">u4"), ("ordinal", ">u4")])
    return fields["segment"].astype(np.uint64), fields["end"].astype(np.int64)


class Truncation(NamedTuple):
    """A node's record of a TRUNCATE: it removed all data of the table that it had logged up to here."""

    segment: int
    end: int
    truncated_at_ms: int

    def pack(self) -> bytes:
        """Encode it as the payload of a record of kind ``truncate``."""
        return _TRUNCATION.pack(TRUNCATION_TAG, *self)

    @property
    def fence(self) -> bytes:
        """The record's position: changes at or before it belong to an earlier generation."""
        position = Position(self.segment, self.end, FENCE).pack()
        return position + self.truncated_at_ms.to_bytes(8, "big")


def mutation_payload(version: int, ordinal: int, mutation: bytes) -> bytes:
    """Encode a mutation that could not be split from its update number ``ordinal`` on."""
    return _MUTATION.pack(MUTATION_TAG, version, ordinal) + mutation


def mutation_header(payload: bytes) -> tuple[int, int]:
    """Return version and ordinal from the output of :func:`mutation_payload`."""
    _, version, ordinal = _MUTATION.unpack_from(payload)
    return version, ordinal


def damage_payload(length: int, sample: bytes) -> bytes:
    """Encode unreadable bytes: their number, and the first of them."""
    return _DAMAGE.pack(DAMAGE_TAG, length) + sample
