"""Change records of Vitess as events: what a changes table holds, in the order that it is read.

Rows of a transaction stand before its record of kind ``transaction``, which has the VGTID of all shards. Rows
of a snapshot have none: each run of them that was read up to one position counts as a transaction of its own,
as packets of a copy do, and its VGTID tells their shard alone, without a position. A statement (kind
``schema``, ``schema_id`` ``ddl``) has the VGTID in column ``transaction``, as JSON by ``keyspace/shard``; of
such as were captured before that was kept, it tells their shard alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.changes.spans import Bytes, Ints, binary_buffer
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.event_rows import RowChanges, table_events
from airflow_cdc_provider.sources.vitess.event_tables import (
    EventForm,
    EventTable,
    comparable_fields,
    event_table,
)
from airflow_cdc_provider.sources.vitess.events import Statement, StreamEvents, Transactions
from airflow_cdc_provider.sources.vitess.protocol import VGtid
from airflow_cdc_provider.sources.vitess.wire import ShardTable

_PLACE_BITS: Final = 32
_KEY_BYTES: Final = 12
"""Of a position: epoch and count of transactions."""
_SECOND_US: Final = 1_000_000


def whole_transactions(rows: pa.RecordBatch) -> int:
    """Return how many of some records, from the first on, are of transactions that end among them.

    Rows of a snapshot end with themselves, and so do statements.
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
        rows: Batch of ``CHANGE_SCHEMA``: whole transactions (:func:`whole_transactions`), those of a shard in
            the order of their positions.
        fields: Gives the ``FieldEvent`` message of a table (``keyspace.table``) by its ``schema_id``.
        form: How rows are shown.
        captured: Tells of a keyspace and table whether its events are wanted.

    Returns:
        The events; ``unread`` has numbers of records.

    Raises:
        CorruptInput: A row belongs to no transaction.
    """
    said = pc.equal(rows["kind"], record.SCHEMA)
    if pc.any(said).as_py():
        return _with_statements(rows, said, fields, form, captured)
    return _decode(rows, np.arange(rows.num_rows), fields, form, captured)


def _with_statements(
    rows: pa.RecordBatch,
    said: pa.Array,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode records among which statements stand."""
    is_statement = said.to_numpy(zero_copy_only=False)
    seconds = _seconds(rows["committed_at"])
    statements = [
        _statement(number, int(seconds[number]), rows.slice(number, 1).to_pylist()[0])
        for number in np.flatnonzero(is_statement).tolist()
    ]
    others = np.flatnonzero(~is_statement)
    decoded = _decode(rows.filter(pc.invert(said)), others, fields, form, captured)
    return StreamEvents(decoded.tables, decoded.transactions, statements, decoded.unread)


def _statement(number: int, seconds: int, one: Mapping[str, Any]) -> Statement:
    """Read the record of a statement.

    Raises:
        CorruptInput: It isn't UTF-8.
    """
    keyspace, _, shard = one["origin"].partition("/")
    try:
        text = one["payload"].decode()
    except UnicodeDecodeError as error:
        raise CorruptInput(f"a statement of {one['origin']} is no UTF-8") from error
    vgtid = VGtid()
    for name, gtid in json.loads(one["transaction"] or json.dumps({one["origin"]: ""})).items():
        of_keyspace, _, of_shard = name.partition("/")
        vgtid.shard_gtids.add(keyspace=of_keyspace, shard=of_shard, gtid=gtid)
    return Statement(number << _PLACE_BITS, text, keyspace, shard, seconds, vgtid.SerializeToString())


def _decode(
    rows: pa.RecordBatch,
    places: Ints,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode rows and transactions; ``places`` are the numbers that tell their order."""
    is_end = pc.equal(rows["kind"], record.TRANSACTION).to_numpy(zero_copy_only=False)
    copied = pc.equal(rows["kind"], record.SNAPSHOT).to_numpy(zero_copy_only=False)
    unnamed = rows["schema_id"].is_null().to_numpy(zero_copy_only=False)
    transactions, numbers = _transactions(rows, places, is_end, copied)
    data, starts, ends = binary_buffer(rows["payload"])
    all_rows = RowChanges(
        data,
        starts,
        ends,
        (places << _PLACE_BITS) + 2,
        pc.list_element(pc.split_pattern(rows["origin"], "/", max_splits=1), 1),
        _seconds(rows["committed_at"]),
        numbers,
    )
    unread: dict[int, str] = {}
    tables = [
        table_events(table, all_rows.take(chosen), unread)
        for table, chosen in _by_form(rows, np.flatnonzero(~is_end & ~unnamed), fields, form, captured)
    ]
    by_start = dict(zip(starts.tolist(), places.tolist(), strict=True)) if unread else {}
    by_number = {by_start[at]: why for at, why in unread.items()}
    for number in np.flatnonzero(~is_end & unnamed).tolist():
        if captured(*rows["source_table"][number].as_py().split(".", 1)):
            by_number[int(places[number])] = "the fields that the row came with aren't known"
    return StreamEvents(tables, transactions, [], by_number)


def _transactions(
    rows: pa.RecordBatch, places: Ints, is_end: np.ndarray, copied: np.ndarray
) -> tuple[Transactions, Ints]:
    """Find the transactions; return them, and the number of each record's."""
    count = rows.num_rows
    origins = rows["origin"].dictionary_encode()
    codes = origins.indices.to_numpy(zero_copy_only=False)
    keys = _keys(rows["position"])
    same = np.zeros(count, np.bool_)
    same[1:] = (codes[1:] == codes[:-1]) & (keys[1:] == keys[:-1]).all(axis=1) & (copied[1:] == copied[:-1])
    begins = ~same
    begins[1:] |= is_end[:-1]
    firsts = np.flatnonzero(begins)
    numbers = np.cumsum(begins) - 1
    lasts = np.append(firsts[1:], count) - 1 if len(firsts) else firsts
    broken = np.flatnonzero(~is_end[lasts] & ~copied[lasts])
    if len(broken):
        row = int(firsts[broken[0]])
        raise CorruptInput(
            f"a change of {rows['origin'][row]} at {rows['position'][row].as_py().hex()} has no transaction",
            expected="a record of kind transaction behind it",
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
            places[firsts] << _PLACE_BITS,
            (places[lasts] << _PLACE_BITS) + 4,
            seconds[lasts],
            seconds[lasts],
            _epochs(keys[lasts]),
        ),
        numbers,
    )


def _vgtids(
    rows: pa.RecordBatch, lasts: Ints, copied: np.ndarray, codes: np.ndarray, names: list[tuple[str, ...]]
) -> tuple[Bytes, Ints, Ints]:
    """Return the VGTIDs of transactions; of snapshots such as tell their shard alone."""
    data, starts, ends = binary_buffer(rows["payload"])
    starts, ends = starts[lasts], ends[lasts]
    of_copy = np.flatnonzero(copied[lasts])
    made: list[bytes] = []
    at = len(data)
    for code in np.unique(codes[lasts[of_copy]]).tolist():
        vgtid = VGtid()
        vgtid.shard_gtids.add(keyspace=names[code][0], shard=names[code][1])
        made.append(vgtid.SerializeToString())
        own = of_copy[codes[lasts[of_copy]] == code]
        starts[own], ends[own] = at, at + len(made[-1])
        at += len(made[-1])
    if made:
        data = np.concatenate([data, np.frombuffer(b"".join(made), np.uint8)])
    return data, starts, ends


def _by_form(
    rows: pa.RecordBatch,
    chosen: Ints,
    fields: Callable[[str, str], bytes],
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> Iterator[tuple[EventTable, Ints]]:
    """Group rows by table and form."""
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
    for (table, told), parts in groups.items():
        keyspace, _, name = table.partition(".")
        yield event_table(told, keyspace, name, form), np.sort(np.concatenate(parts))


def _keys(positions: pa.Array) -> np.ndarray:
    """Return epoch and count of positions as rows of bytes."""
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
