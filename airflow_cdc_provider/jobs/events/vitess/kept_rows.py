"""Rows that a mirror of Vitess keeps, as the records of a snapshot: what decodes these makes their events."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.record import CHANGE_SCHEMA
from airflow_cdc_provider.changes.spans import without_first_bytes
from airflow_cdc_provider.sources.vitess.states import HEAD_BYTES

_POSITION_BYTES: Final = 28
_BEFORE: Final = b"\x0a"
"""Leads the field ``before`` of a RowChange message."""
_AFTER: Final = b"\x12"
"""Leads the field ``after``."""


def kept_rows(table: str, origins: pa.Array, states: pa.Array, gone: pa.Array) -> pa.RecordBatch:
    """Write records of kind ``snapshot``, all at one place.

    Args:
        table: ``keyspace.table``.
        origins: Of each row its shard, ``keyspace/shard``.
        states: What the mirror keeps of it (:mod:`airflow_cdc_provider.sources.vitess.states`).
        gone: Whether the row is gone: then it is one before a change, else one after.

    Returns:
        Batch of ``CHANGE_SCHEMA``.
    """
    count = len(states)
    names = pc.binary_slice(states, 1, HEAD_BYTES).dictionary_encode()
    told = pa.array([name.hex() for name in names.dictionary.to_pylist()], pa.string())
    place = pa.repeat(pa.scalar(bytes(_POSITION_BYTES), pa.binary()), count)
    values = {
        "source_table": pa.repeat(pa.scalar(table), count),
        "kind": pa.repeat(pa.scalar(record.SNAPSHOT), count),
        "origin": origins,
        "position": place,
        "generation": pa.array(np.zeros(count, np.int64)),
        "version": place,
        "schema_id": told.take(names.indices),
        "payload": _row_changes(without_first_bytes(states, HEAD_BYTES), gone),
    }
    arrays = [values.get(one.name, pa.nulls(count, one.type)) for one in CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def everything(keyspace: str, table: str) -> bool:
    """Tell of any table that its rows are wanted."""
    del keyspace, table
    return True


def _row_changes(rows: pa.Array, gone: pa.Array) -> pa.Array:
    """Write Row messages as the changes that have them after, which is what a copy gives, or before."""
    sizes = pc.binary_length(rows).dictionary_encode()
    lengths = pa.array([_varint(size) for size in sizes.dictionary.to_pylist()], pa.binary())
    sides = pc.if_else(gone, pa.scalar(_BEFORE, pa.binary()), pa.scalar(_AFTER, pa.binary()))
    return pc.binary_join_element_wise(sides, lengths.take(sizes.indices), rows, pa.scalar(b"", pa.binary()))


def _varint(number: int) -> bytes:
    """Write a number as Protobuf does: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
