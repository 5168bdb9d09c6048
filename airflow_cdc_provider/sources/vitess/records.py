"""Builds columns of change records from events of a VStream, without an object per row.

Positions, 16 bytes that sort (docs/design/vitess.md)::

    epoch u32 | transactions in the shard's GTID set u64 | number of the row in its transaction u32    change
    epoch u32 | transactions in the shard's GTID set u64 | FFFFFFFF                     end of the transaction

Snapshot rows sort after the end of the transaction up to which they were read, by the time at which the
snapshot was planned (u64) and the row number (u32). This is also their version, so fences can compare both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.record import (
    CHANGE,
    CHANGE_SCHEMA,
    SCHEMA,
    SNAPSHOT,
    TRANSACTION,
    change_batch,
)
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import fixed_width_binary, span_column
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess.position import LAST_ROW, copy_key
from airflow_cdc_provider.sources.vitess.wire import Events, ShardTable

_TIMESTAMP: Final = CHANGE_SCHEMA.field("committed_at").type
_SECOND_US: Final = 1_000_000
_NO_FIELDS: Final = -1


@dataclass(frozen=True, eq=False)
class Transactions:
    """Transactions, DDL statements and other steps of shards in stream order, one item each.

    Args:
        names: Shard names, ``keyspace/shard``.
        shards: Index of the shard in ``names``.
        epochs: The shard's epoch after the transaction.
        counts: Number of transactions in the shard's GTID set after it.
        gtid_starts: First byte of that set's text in the slice.
        gtid_ends: Byte after it.
        firsts: Number of its first event in the slice.
        vgtids: Number of its VGTID event.
        lasts: Number of its last event.
    """

    names: Sequence[str]
    shards: Ints
    epochs: Ints
    counts: Ints
    gtid_starts: Ints
    gtid_ends: Ints
    firsts: Ints
    vgtids: Ints
    lasts: Ints

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.lasts)


@dataclass(frozen=True)
class StreamSlice:
    """Whole transactions of a stream.

    Args:
        data: Their events, a ``VStreamResponse`` message.
        transactions: The complete transactions; events between them are incomplete or duplicates.
        initial_schema_ids: Schema id of each table of a shard before the first event.
        field_events: Number and schema id of each FIELD event.
        captured_us: When they were read, in µs since 1970.
        json_columns: Number of columns, and indexes of those of type JSON, by schema id; without others.
    """

    data: bytes
    transactions: Transactions
    initial_schema_ids: Mapping[ShardTable, str]
    field_events: tuple[tuple[int, str], ...]
    captured_us: int
    json_columns: Mapping[str, tuple[int, Sequence[int]]]


def transactions_of_changes(events: Events, transactions: Transactions) -> Ints:
    """Return the transaction index of each row change; -1 for an incomplete transaction."""
    owners = np.searchsorted(transactions.lasts, events.changes.events, side="left").astype(np.int64)
    outside = owners == len(transactions)
    owners[outside] = 0
    if len(transactions):
        outside |= events.changes.events < transactions.firsts[owners]
    owners[outside] = -1
    return owners


def require_own_shard(events: Events, transactions: Transactions, owners: Ints, rows: Ints) -> None:
    """Require that each row belongs to the shard of its transaction.

    Raises:
        CorruptInput: A row belongs to another shard.
    """
    numbers = {shard: number for number, shard in enumerate(transactions.names)}
    of_table = np.array([numbers.get(f"{t.keyspace}/{t.shard}", -1) for t in events.tables], np.int64)
    tables = events.table_numbers[events.changes.events[rows]]
    wrong = np.flatnonzero(of_table[tables] != transactions.shards[owners[rows]]) if len(rows) else rows
    if len(wrong):
        own = int(transactions.shards[owners[rows[wrong[0]]]])
        raise CorruptInput(
            "a transaction contains a row of another shard",
            expected=transactions.names[own],
            found=str(events.tables[tables[wrong[0]]]),
        )


def change_records(events: Events, stream_slice: StreamSlice, owners: Ints, rows: Ints) -> pa.RecordBatch:
    """Create the records of row changes, each at its number in its transaction."""
    transactions = stream_slice.transactions
    owner = owners[rows]
    of_event = events.changes.events[rows]
    tables = events.table_numbers[of_event]
    position = fixed_width_binary(_positions(transactions, owner, _numbers_inside(owners)[rows]))
    ids, schema_numbers = _schema_ids(events, stream_slice, of_event, tables)
    # Time of the COMMIT: the rows of a long transaction have the times of their statements.
    seconds = events.timestamps[transactions.lasts[owner]]
    return change_batch(
        len(rows),
        source_table=_named(tables, [f"{t.keyspace}.{t.table}" for t in events.tables]),
        kind=CHANGE,
        origin=_named(transactions.shards[owner], transactions.names),
        position=position,
        version=position,
        committed_at=pa.array(seconds * _SECOND_US, mask=seconds == 0),
        captured_at=stream_slice.captured_us,
        transaction=_gtids(events, transactions, owner),
        schema_id=_named(schema_numbers, ids),
        payload=span_column(pa.binary(), events.data, events.changes.starts[rows], events.changes.ends[rows]),
    )


def transaction_records(events: Events, stream_slice: StreamSlice, kept: Ints) -> pa.RecordBatch:
    """Create the records of kind ``transaction``, each with the VGTID of all shards."""
    transactions = stream_slice.transactions
    count = len(kept)
    vgtids = transactions.vgtids[kept]
    # VGTID events have no time; the event after it does.
    seconds = events.timestamps[transactions.lasts[kept]]
    position = fixed_width_binary(_positions(transactions, kept, np.full(count, LAST_ROW, np.int64)))
    return change_batch(
        count,
        kind=TRANSACTION,
        origin=_named(transactions.shards[kept], transactions.names),
        position=position,
        version=position,
        committed_at=pa.array(seconds * _SECOND_US, mask=seconds == 0),
        captured_at=stream_slice.captured_us,
        transaction=_gtids(events, transactions, kept),
        payload=span_column(pa.binary(), events.data, events.body_starts[vgtids], events.body_ends[vgtids]),
    )


def schema_record(
    payload: bytes,
    schema_id: str | None,
    *,
    table: str | None,
    origin: str,
    position: bytes,
    committed_us: int,
    captured_us: int,
    kind: str = SCHEMA,
    reason: str | None = None,
) -> dict[str, Any]:
    """Create a record of a ``FieldEvent``, a statement, or the ancestors of a shard."""
    return {
        "source_table": table,
        "kind": kind,
        "origin": origin,
        "position": position,
        "generation": 0,
        "version": position,
        "committed_at": pa.scalar(committed_us, _TIMESTAMP).as_py() if committed_us else None,
        "captured_at": pa.scalar(captured_us, _TIMESTAMP).as_py(),
        "schema_id": schema_id,
        "reason": reason,
        "payload": payload,
    }


def snapshot_records(
    events: Events,
    rows: Ints,
    *,
    table: str,
    origin: str,
    key: bytes,
    schema_id: str,
    planned_us: int,
    first_row: int,
    captured_us: int,
) -> pa.RecordBatch:
    """Convert rows of a copy to records.

    Args:
        events: The events of the rows.
        rows: Numbers of their row changes.
        table: ``keyspace.table``.
        origin: ``keyspace/shard``.
        key: Epoch and count of the position up to which they were read.
        schema_id: Id of their fields.
        planned_us: When the snapshot was planned, in µs since 1970.
        first_row: Number of the first row in the range.
        captured_us: When they were read, in µs since 1970.

    Returns:
        A batch of ``CHANGE_SCHEMA``.
    """
    count = len(rows)
    position_bytes = np.empty((count, 28), np.uint8)
    position_bytes[:, :24] = np.frombuffer(copy_key(key, planned_us), np.uint8)
    ordinals = np.arange(first_row, first_row + count, dtype=np.int64)
    position_bytes[:, 24:] = ordinals.astype(">u4").view(np.uint8).reshape(-1, 4)
    position = fixed_width_binary(position_bytes)
    return change_batch(
        count,
        source_table=table,
        kind=SNAPSHOT,
        origin=origin,
        position=position,
        version=position,
        captured_at=captured_us,
        schema_id=schema_id,
        payload=span_column(pa.binary(), events.data, events.changes.starts[rows], events.changes.ends[rows]),
    )


def _numbers_inside(owners: Ints) -> Ints:
    """Number the rows of each transaction from 0; rows of a transaction are consecutive."""
    rows = np.arange(len(owners))
    begins = np.r_[True, owners[1:] != owners[:-1]] if len(owners) else np.zeros(0, np.bool_)
    return rows - np.maximum.accumulate(np.where(begins, rows, 0)) if len(owners) else rows


def _gtids(events: Events, transactions: Transactions, which: Ints) -> pa.Array:
    """Return the GTID sets of transactions as text."""
    starts, ends = transactions.gtid_starts[which], transactions.gtid_ends[which]
    return span_column(pa.string(), events.data, starts, ends)


def _positions(transactions: Transactions, owner: Ints, numbers: Ints) -> Bytes:
    keys = np.empty((len(transactions), 12), np.uint8)
    keys[:, :4] = transactions.epochs.astype(">u4").view(np.uint8).reshape(-1, 4)
    keys[:, 4:] = transactions.counts.astype(">u8").view(np.uint8).reshape(-1, 8)
    out = np.empty((len(owner), 16), np.uint8)
    out[:, :12] = keys[owner]
    out[:, 12:] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return out


def _schema_ids(
    events: Events, stream_slice: StreamSlice, of_event: Ints, tables: Ints
) -> tuple[list[str], Ints]:
    """Return schema ids, and the index of each row's id: that of the table's last FIELD event before it.

    The index is -1 if there is none.
    """
    ids = [name for _, name in stream_slice.field_events]
    numbers = np.full(len(of_event), _NO_FIELDS, np.int64)
    field_events = np.array([event for event, _ in stream_slice.field_events], np.int64)
    of_table = events.table_numbers[field_events] if len(field_events) else field_events
    for table in np.unique(tables):
        rows = np.flatnonzero(tables == table)
        own = np.flatnonzero(of_table == table)
        before = np.searchsorted(field_events[own], of_event[rows], side="left") - 1
        known = stream_slice.initial_schema_ids.get(events.tables[table])
        initial = _NO_FIELDS
        if known is not None:
            initial = len(ids)
            ids.append(known)
        numbers[rows] = np.where(before >= 0, own[before], initial) if len(own) else initial
    return ids, numbers


def _named(numbers: npt.NDArray[Any], names: Sequence[str]) -> pa.Array:
    indices = pa.array(numbers, mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).cast(pa.string())
