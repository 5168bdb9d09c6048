"""Current rows of the source in index of rows built from changes: the option ``reread``.

DataStax's connector reads the row of every mutation. Here each row that a command's changes touch has one
event, however often it changed, and each partition is read once. The event of a row that the source no longer
has is a delete without a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.cassandra.events.row_states import row_states
from airflow_cdc_provider.sources.cql.codec import CqlCodec

ReadAgain = Callable[[str, Sequence[bytes]], Iterator[pa.RecordBatch]]
"""Reads all rows of some partition keys of a table (``keyspace.table``), as snapshot changes."""


def last_of_each_row(states: pa.RecordBatch) -> np.ndarray:
    """Return the indexes of the last state of each row, and of each partition, in their order.

    Args:
        states: Has the column ``name`` of :data:`~.row_states.ROW_STATE_SCHEMA`.
    """
    names = states["name"].dictionary_encode().indices.to_numpy()
    last = np.full(int(names.max(initial=-1)) + 1, -1)
    np.maximum.at(last, names, np.arange(len(names)))
    return np.sort(last)


def as_read(
    states: pa.RecordBatch, codec: CqlCodec, read_again: ReadAgain, now_seconds: int
) -> pa.RecordBatch:
    """Return states of rows with the source's current values.

    Args:
        states: States of one table, with the columns of ``ROW_STATE_SCHEMA`` and any others.
        codec: The table's codec.
        read_again: Reads the table's partitions, each once.
        now_seconds: Epoch second at which expiry is evaluated.

    Returns:
        As many rows: ``state``, ``static_state`` and ``lives`` as read, with ``lives`` false for missing
        rows; the other columns are unchanged.

    Raises:
        TransientError: The source doesn't respond.
        CorruptInput: A row that the source returns can't be decoded.
    """
    found = _read(pc.unique(states["key"]).to_pylist(), codec, read_again, now_seconds)
    index = pc.index_in(states["name"], value_set=found["name"])
    current = {
        "state": found["state"].take(index),
        "static_state": found["static_state"].take(index),
        "lives": found["lives"].take(index).fill_null(False),
    }
    names = states.schema.names
    return pa.RecordBatch.from_pydict({name: current.get(name, states[name]) for name in names})


def _read(keys: Sequence[bytes], codec: CqlCodec, read_again: ReadAgain, now_seconds: int) -> pa.RecordBatch:
    """Read partitions, and return the states of their rows."""
    batches = list(read_again(codec.table, keys)) if keys else []
    (records,) = pa.Table.from_batches(batches, record.CHANGE_SCHEMA).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], record.CHANGE_SCHEMA)
    ]
    decoded = codec.decode(records, ())
    if decoded.undecodable:
        raise CorruptInput(f"{codec.table} can't be read again", found=decoded.reasons[0])
    contributions = pa.Table.from_batches([decoded.contributions], CONTRIBUTION_SCHEMA)
    # One change per partition: the states of rows have the partition's static columns.
    partitions = decoded.contributions["key"].dictionary_encode().indices.to_numpy().astype(np.int64)
    clustered = bool(codec.schema.clustering)
    return row_states(contributions, partitions, now_seconds, codec.rules, clustered=clustered)
