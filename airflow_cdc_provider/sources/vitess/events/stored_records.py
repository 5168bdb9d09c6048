"""Decodes change records of Vitess to events, in the order of the changes table.

The rows of a transaction precede its record of kind ``transaction``, which has the VGTID of all shards.
Snapshot rows have no such record: consecutive snapshot rows with the same position form a transaction, like
the packets of a copy, and its VGTID contains only their shard, without a position. A DDL statement (kind
``schema``, ``schema_id`` ``ddl``) has the VGTID in column ``transaction``, as JSON by ``keyspace/shard``; in
records captured before the column was stored, the VGTID contains only their shard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess.events.decode import Statement, StreamEvents, Transactions
from airflow_cdc_provider.sources.vitess.events.table_events import RowChanges, table_events
from airflow_cdc_provider.sources.vitess.events.tables import (
    EventForm,
    EventTable,
    comparable_fields,
    event_table,
)
from airflow_cdc_provider.sources.vitess.protocol import VGtid
from airflow_cdc_provider.sources.vitess.wire import ShardTable

_SORT_KEY_BITS: Final = 32
_KEY_BYTES: Final = 12
"""Size of the key in a position: epoch and number of transactions."""
_SECOND_US: Final = 1_000_000


def whole_transactions(rows: pa.RecordBatch) -> int:
    """Return how many of the leading records belong to transactions that are complete in the batch.

    Snapshot rows and statements are always complete.
    """
    ends = pc.is_in(rows["kind"], pa.array([record.TRANSACTION, record.SNAPSHOT, record.SCHEMA]))
    found = np.flatnonzero(ends.to_numpy(zero_copy_only=False))
    return int(found[-1]) + 1 if len(found) else 0


def decode_records(
    rows: pa.RecordBatch,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode records of kinds ``change``, ``snapshot`` and ``transaction``, and statements.

    Args:
        rows: Batch of ``CHANGE_SCHEMA`` with whole transactions (:func:`whole_transactions`), ordered by
            position within a shard.
        fields: Returns the ``FieldEvent`` message of a table (``keyspace.table``) by its ``schema_id``.
        form: Format of the events.
        captured: Returns whether to include the events of a keyspace and table.

    Returns:
        The events; keys of ``unread`` are record numbers.

    Raises:
        CorruptInput: A row belongs to no transaction.
    """
    is_ddl = pc.equal(rows["kind"], record.SCHEMA)
    if pc.any(is_ddl).as_py():
        return _with_statements(rows, is_ddl, fields, form, captured)
    return _decode(rows, np.arange(rows.num_rows), fields, form, captured)


def _with_statements(
    rows: pa.RecordBatch,
    is_ddl: pa.Array,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode records that include statements."""
    is_statement = is_ddl.to_numpy(zero_copy_only=False)
    seconds = _seconds(rows["committed_at"])
    statements = [
        _statement(number, int(seconds[number]), rows.slice(number, 1).to_pylist()[0])
        for number in np.flatnonzero(is_statement).tolist()
    ]
    others = np.flatnonzero(~is_statement)
    decoded = _decode(rows.filter(pc.invert(is_ddl)), others, fields, form, captured)
    return StreamEvents(decoded.tables, decoded.transactions, statements, decoded.unread)


def _statement(number: int, seconds: int, one: Mapping[str, Any]) -> Statement:
    """Parse the record of a statement.

    Raises:
        CorruptInput: The statement isn't UTF-8.
    """
    keyspace, _, shard = one["origin"].partition("/")
    try:
        text = one["payload"].decode()
    except UnicodeDecodeError as error:
        raise CorruptInput(f"a statement of {one['origin']} isn't UTF-8") from error
    vgtid = VGtid()
    for name, gtid in json.loads(one["transaction"] or json.dumps({one["origin"]: ""})).items():
        of_keyspace, _, of_shard = name.partition("/")
        vgtid.shard_gtids.add(keyspace=of_keyspace, shard=of_shard, gtid=gtid)
    return Statement(number << _SORT_KEY_BITS, text, keyspace, shard, seconds, vgtid.SerializeToString())


def _decode(
    rows: pa.RecordBatch,
    order: Ints,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode rows and transactions; ``order`` contains their sort keys."""
    is_end = pc.equal(rows["kind"], record.TRANSACTION).to_numpy(zero_copy_only=False)
    copied = pc.equal(rows["kind"], record.SNAPSHOT).to_numpy(zero_copy_only=False)
    unnamed = rows["schema_id"].is_null().to_numpy(zero_copy_only=False)
    transactions, numbers = _transactions(rows, order, is_end, copied)
    data, starts, ends = binary_buffer(rows["payload"])
    all_rows = RowChanges(
        data,
        starts,
        ends,
        (order << _SORT_KEY_BITS) + 2,
        pc.list_element(pc.split_pattern(rows["origin"], "/", max_splits=1), 1),
        _seconds(rows["committed_at"]),
        numbers,
    )
    unread: dict[int, str] = {}
    tables = [
        table_events(table, all_rows.take(chosen), unread)
        for table, chosen in _by_schema(rows, np.flatnonzero(~is_end & ~unnamed), fields, form, captured)
    ]
    by_start = dict(zip(starts.tolist(), order.tolist(), strict=True)) if unread else {}
    by_number = {by_start[offset]: reason for offset, reason in unread.items()}
    for number in np.flatnonzero(~is_end & unnamed).tolist():
        if captured(*rows["source_table"][number].as_py().split(".", 1)):
            by_number[int(order[number])] = "the fields of the row aren't recorded"
    return StreamEvents(tables, transactions, [], by_number)


def _transactions(
    rows: pa.RecordBatch, order: Ints, is_end: np.ndarray, copied: np.ndarray
) -> tuple[Transactions, Ints]:
    """Return the transactions, and the transaction number of each record."""
    count = rows.num_rows
    origins = rows["origin"].dictionary_encode()
    codes = origins.indices.to_numpy(zero_copy_only=False)
    keys = _keys(rows["position"])
    same = np.zeros(count, np.bool_)
    same[1:] = (codes[1:] == codes[:-1]) & (keys[1:] == keys[:-1]).all(axis=1) & (copied[1:] == copied[:-1])
    starts_transaction = ~same
    starts_transaction[1:] |= is_end[:-1]
    firsts = np.flatnonzero(starts_transaction)
    numbers = np.cumsum(starts_transaction) - 1
    lasts = np.append(firsts[1:], count) - 1 if len(firsts) else firsts
    broken = np.flatnonzero(~is_end[lasts] & ~copied[lasts])
    if len(broken):
        row = int(firsts[broken[0]])
        raise CorruptInput(
            f"a change of {rows['origin'][row]} at {rows['position'][row].as_py().hex()} has no transaction",
            expected="a record of kind transaction after it",
        )
    names = [tuple(name.partition("/")[::2]) for name in origins.dictionary.to_pylist()]
    data, starts, ends = _vgtids(rows, lasts, copied, codes, names)
    seconds = _seconds(rows["committed_at"])
    return (
        Transactions(
            data,
            starts,
            ends,
            [ShardTable(keyspace, shard, "") for keyspace, shard in names],
            codes[lasts].astype(np.int64),
            order[firsts] << _SORT_KEY_BITS,
            (order[lasts] << _SORT_KEY_BITS) + 4,
            seconds[lasts],
            seconds[lasts],
            _epochs(keys[lasts]),
        ),
        numbers,
    )


def _vgtids(
    rows: pa.RecordBatch, lasts: Ints, copied: np.ndarray, codes: np.ndarray, names: list[tuple[str, ...]]
) -> tuple[Bytes, Ints, Ints]:
    """Return the VGTIDs of transactions; those of snapshots contain only their shard."""
    data, starts, ends = binary_buffer(rows["payload"])
    starts, ends = starts[lasts], ends[lasts]
    of_copy = np.flatnonzero(copied[lasts])
    built: list[bytes] = []
    offset = len(data)
    for code in np.unique(codes[lasts[of_copy]]).tolist():
        vgtid = VGtid()
        vgtid.shard_gtids.add(keyspace=names[code][0], shard=names[code][1])
        built.append(vgtid.SerializeToString())
        own = of_copy[codes[lasts[of_copy]] == code]
        starts[own], ends[own] = offset, offset + len(built[-1])
        offset += len(built[-1])
    if built:
        data = np.concatenate([data, np.frombuffer(b"".join(built), np.uint8)])
    return data, starts, ends


def _by_schema(
    rows: pa.RecordBatch,
    chosen: Ints,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> Iterator[tuple[EventTable, Ints]]:
    """Group rows by table and schema."""
    texts = pc.binary_join_element_wise(rows["source_table"], rows["schema_id"], "\n").dictionary_encode()
    codes = texts.indices.to_numpy(zero_copy_only=False)[chosen]
    groups: dict[tuple[str, bytes], list[Ints]] = {}
    for code, text in enumerate(texts.dictionary.to_pylist()):
        table, _, schema_id = text.partition("\n")
        keyspace, _, name = table.partition(".")
        of_code = chosen[codes == code]
        if len(of_code) and captured(keyspace, name):
            key = table, comparable_fields(fields(table, schema_id))
            groups.setdefault(key, []).append(of_code)
    for (table, message), parts in groups.items():
        keyspace, _, name = table.partition(".")
        yield event_table(message, keyspace, name, form), np.sort(np.concatenate(parts))


def _keys(positions: pa.Array) -> np.ndarray:
    """Return the epochs and transaction counts of positions as rows of bytes."""
    data, starts, ends = binary_buffer(positions)
    if len(positions) and (ends - starts).min() < _KEY_BYTES:
        raise CorruptInput("a record of Vitess has no position", expected=f"{_KEY_BYTES} bytes or more")
    keys: np.ndarray = data[starts[:, None] + np.arange(_KEY_BYTES)]
    return keys


def _epochs(keys: np.ndarray) -> Ints:
    return np.ascontiguousarray(keys[:, :4]).view(">u4")[:, 0].astype(np.int64)


def _seconds(moments: pa.Array) -> Ints:
    micros = moments.cast(pa.int64()).fill_null(0)
    seconds: Ints = micros.to_numpy(zero_copy_only=False) // _SECOND_US
    return seconds
