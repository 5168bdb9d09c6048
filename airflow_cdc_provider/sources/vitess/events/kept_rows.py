"""Stored rows of a Vitess mirror as snapshot records, for the decoder of snapshot events."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.formats.arrow_bytes import without_first_bytes
from airflow_cdc_provider.formats.protobuf_wire import varint
from airflow_cdc_provider.sources.vitess.states import HEAD_BYTES

_POSITION_BYTES: Final = 28
_BEFORE: Final = b"\x0a"
"""Leads the field ``before`` of a RowChange message."""
_AFTER: Final = b"\x12"
"""Leads the field ``after``."""


def kept_rows(table: str, origins: pa.Array, states: pa.Array, deleted: pa.Array) -> pa.RecordBatch:
    """Return records of kind ``snapshot``, all at one position.

    Args:
        table: ``keyspace.table``.
        origins: The shard of each row, ``keyspace/shard``.
        states: The mirror's state of each row (:mod:`airflow_cdc_provider.sources.vitess.states`).
        deleted: Whether each row is deleted: then it is the row before a change, else the row after.

    Returns:
        Batch of ``CHANGE_SCHEMA``.
    """
    names = pc.binary_slice(states, 1, HEAD_BYTES).dictionary_encode()
    schema_ids = pa.array([name.hex() for name in names.dictionary.to_pylist()], pa.string())
    return record.change_batch(
        len(states),
        source_table=table,
        kind=record.SNAPSHOT,
        origin=origins,
        position=bytes(_POSITION_BYTES),
        version=bytes(_POSITION_BYTES),
        schema_id=schema_ids.take(names.indices),
        payload=_row_changes(without_first_bytes(states, HEAD_BYTES), deleted),
    )


def everything(keyspace: str, table: str) -> bool:
    """Select every table."""
    return True


def _row_changes(rows: pa.Array, deleted: pa.Array) -> pa.Array:
    """Wrap Row messages in changes that have them after, as in a copy, or before."""
    sizes = pc.binary_length(rows).dictionary_encode()
    lengths = pa.array([varint(size) for size in sizes.dictionary.to_pylist()], pa.binary())
    sides = pc.if_else(deleted, pa.scalar(_BEFORE, pa.binary()), pa.scalar(_AFTER, pa.binary()))
    return pc.binary_join_element_wise(sides, lengths.take(sizes.indices), rows, pa.scalar(b"", pa.binary()))
