"""Decodes changes of one table to event columns, without any envelope.

Columns of the events:

``row``           Index of the change in the batch.
``op``            ``c``, ``u`` or ``d``; ``r`` for snapshot rows (:mod:`.snapshot_rows`).
``static``        Whether the event is of a partition's static columns, which have no clustering key.
``snapshot``      ``false``; for snapshot rows ``true`` or ``incremental``.
``ts_us``         When the change was written, from ``cdc$time``, us since 1970.
``time``          ``cdc$time`` itself.
``stream``        ``cdc$stream_id`` in hexadecimal.
``number``        ``cdc$batch_seq_no`` of its first log row.
``ttl``           TTL of the write in s, null for none.
``by_service``    Whether the server's expiry service issued the delete, not a statement.
``key``           The key columns (struct); clustering columns are null if ``static``.
``set``           The values that the change wrote to non-key columns (struct).
``modified``      Which of them it modifies (struct of booleans): written, set to null, or partly changed.
``before``        The preimage (struct), null for none.
``before_known``  Which columns the preimage contains (struct of booleans), with a value or as null.
``after``         The postimage (struct), null for none.
``collections``   Multi-cell columns (struct of structs): ``added`` (ids of list cells, with their values in
                  ``set``; null for other types), ``removed`` (elements of sets, keys of maps, ids of list
                  cells, names of fields) and ``replaced``: whether the previous content was deleted; null
                  if the change doesn't modify the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, column_of
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import freeze
from airflow_cdc_provider.sources.cql.value_columns import ValueColumns
from airflow_cdc_provider.sources.scylla.events.row_changes import (
    Grouped,
    LogRows,
    check_changes,
    count_others,
    group,
    read_rows,
)
from airflow_cdc_provider.sources.scylla.events.tables import EventColumn, EventTable
from airflow_cdc_provider.sources.scylla.events.types import LAKE, event_array, event_field, in_list_order
from airflow_cdc_provider.sources.scylla.payload import BATCH_SEQ_NO, STREAM_ID, TIME
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS

_UUID_BYTES: Final = 16
_INT_BYTES: Final = 4
_UUIDS: Final = ValueColumns((CqlType("uuid"),), LAKE)


@dataclass(frozen=True, eq=False)
class TableEvents:
    """The events of a table's changes.

    Args:
        events: The events; columns as above.
        undecodable: Reasons for undecodable changes, by the index of the change.
        left_out: Number of deletes without an event, by kind.
    """

    events: pa.RecordBatch
    undecodable: dict[int, str]
    left_out: dict[str, int]


@dataclass(frozen=True)
class EventDecoder:
    """Decodes the changes of one table and schema. Picklable.

    Args:
        table: The table and its log.
        lead: Prefix of the names of struct schemas nested in values of non-key columns.
    """

    table: EventTable
    lead: str = field(default="")

    def decode(self, payloads: pa.Array) -> TableEvents:
        """Decode payloads of changes.

        Args:
            payloads: The payloads (binary).

        Raises:
            CorruptInput: A value is malformed for its type.
        """
        rows, broken = read_rows(payloads, len(self.table.types))
        reasons = dict.fromkeys(broken.tolist(), "its payload is malformed")
        reasons.update(check_changes(rows, self.table))
        for row in np.flatnonzero(~self._has_position(rows)).tolist():
            reasons.setdefault(
                int(rows.records[row]), "its stream or time isn't 16 bytes, or its number not 4"
            )
        valid = ~np.isin(rows.records, np.fromiter(reasons, np.int64, len(reasons)))
        grouped = group(rows, self.table, valid)
        return TableEvents(self._events(rows, grouped), reasons, count_others(rows, self.table, valid))

    def _has_position(self, rows: LogRows) -> Any:
        """Return which rows have a stream, a time and a number."""
        sizes = ((STREAM_ID, _UUID_BYTES), (TIME, _UUID_BYTES), (BATCH_SEQ_NO, _INT_BYTES))
        return np.logical_and.reduce([rows.lengths[self.table.indexes[name]] == size for name, size in sizes])

    def _events(self, rows: LogRows, grouped: Grouped) -> pa.RecordBatch:
        first = grouped.first
        times = _bytes_at(rows, self.table.indexes[TIME], first)
        keys = self._struct(rows, self.table.key, [first] * len(self.table.key), len(first))
        cells = self.table.cells
        collections = [column for column in cells if column.type.multi_cell]
        values = [_row_with_value(rows, column.value, grouped.owner, len(first)) for column in cells]
        return pa.record_batch(
            {
                "row": pa.array(rows.records[first], pa.int64()),
                "op": pa.array(grouped.op, pa.utf8()),
                "static": pa.array(grouped.static),
                "snapshot": pa.repeat("false", len(first)),
                "ts_us": pa.array(_microseconds(times), pa.int64()),
                "time": self._array(rows, self.table.indexes[TIME], first),
                "stream": _hexadecimal(_bytes_at(rows, self.table.indexes[STREAM_ID], first)),
                "number": pa.array(rows.numbers(self.table.indexes[BATCH_SEQ_NO])[first], pa.int32()),
                "ttl": pa.array(grouped.ttl, pa.int64(), mask=grouped.ttl < 0),
                "by_service": pa.array(grouped.by_service),
                "key": keys,
                "set": self._struct(rows, cells, values, len(first)),
                "modified": flags_of(cells, [self._modified(rows, c, grouped) for c in cells], len(first)),
                "before": self._image(rows, grouped.before),
                "before_known": flags_of(
                    cells, [_known(rows, column, grouped.before) for column in cells], len(first)
                ),
                "after": self._image(rows, grouped.after),
                "collections": self._collections(rows, collections, grouped),
            }
        )

    @cached_property
    def _values(self) -> ValueColumns:
        """The log's columns as they are decoded, with ids of list cells as bytes."""
        types = list(self.table.types)
        for column in self.table.cells:
            if column.type.multi_cell and column.type.name == "list":
                element = column.type.parameters[0]
                types[column.value] = CqlType("map", (CqlType("blob"), element), frozen=True)
        return ValueColumns(tuple(types), LAKE)

    def field_of(self, column: EventColumn) -> pa.Field:
        """Return the event field of a column."""
        in_key = column.deleted < 0
        return event_field(column.name, freeze(column.type), "" if in_key else self.lead)

    def _struct(
        self,
        rows: LogRows,
        columns: Sequence[EventColumn],
        chosen: Sequence[Ints],
        count: int,
        mask: Any = None,
    ) -> pa.StructArray:
        """Build a struct of columns; ``chosen`` has the row of each value per column (-1: null)."""
        fields = [self.field_of(column) for column in columns]
        arrays = [
            self._column(rows, column, which, f.type)
            for column, which, f in zip(columns, chosen, fields, strict=True)
        ]
        if not fields:
            return pa.Array.from_buffers(pa.struct([]), count, [None])
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def _column(self, rows: LogRows, column: EventColumn, chosen: Ints, target: pa.DataType) -> pa.Array:
        values = self._array(rows, column.value, chosen)
        if column.type.multi_cell and column.type.name == "list":
            values = in_list_order(values, self._where(column.value))
            lake = pa.list_(pa.field("element", values.type.item_type))
            values = pa.Array.from_buffers(lake, len(values), values.buffers()[:2], children=[values.items])
        return event_array(values, freeze(column.type), target)

    def _array(self, rows: LogRows, number: int, chosen: Ints) -> pa.Array:
        starts, lengths = _at(rows, number, chosen)
        return self._values.array(number, rows.data, starts, lengths, self._where(number))

    def _where(self, number: int) -> str:
        return f"{self.table.full_name}, column {self.table.log.columns[number][0]} of its log,"

    def _image(self, rows: LogRows, chosen: Ints) -> pa.StructArray:
        cells = self.table.cells
        struct = self._struct(rows, cells, [chosen] * len(cells), len(chosen), pa.array(chosen < 0))
        if cells:
            return struct
        absent = pa.py_buffer(np.packbits(chosen >= 0, bitorder="little"))
        return pa.Array.from_buffers(pa.struct([]), len(chosen), [absent])

    def _modified(self, rows: LogRows, column: EventColumn, grouped: Grouped) -> Any:
        """Return which events modify a column."""
        count = len(grouped.first)
        found = _deleted(rows, column, grouped)
        removed = (
            np.full(count, -1)
            if column.removed < 0
            else _row_with_value(rows, column.removed, grouped.owner, count)
        )
        found |= removed >= 0
        if column.type.multi_cell and column.type.name == "udt":
            return found | self._has_fields(rows, column, grouped)
        return found | (_row_with_value(rows, column.value, grouped.owner, count) >= 0)

    def _has_fields(self, rows: LogRows, column: EventColumn, grouped: Grouped) -> Any:
        """Return where a non-frozen user-defined type has a field; a value without fields is no change."""
        chosen = _row_with_value(rows, column.value, grouped.owner, len(grouped.first))
        values = self._array(rows, column.value, chosen)
        present = np.zeros(len(values), np.bool_)
        for index in range(values.type.num_fields):
            present |= values.field(index).is_valid().to_numpy(zero_copy_only=False)
        return present & (chosen >= 0)

    def _collections(self, rows: LogRows, columns: Sequence[EventColumn], grouped: Grouped) -> pa.StructArray:
        """Build the changes of multi-cell columns."""
        count = len(grouped.first)
        structs = [self._collection_changes(rows, column, grouped) for column in columns]
        if not structs:
            return pa.Array.from_buffers(pa.struct([]), count, [None])
        return pa.StructArray.from_arrays(structs, [column.name for column in columns])

    def _collection_changes(self, rows: LogRows, column: EventColumn, grouped: Grouped) -> pa.StructArray:
        count = len(grouped.first)
        removed = np.full(count, -1)
        if column.removed >= 0:
            removed = _row_with_value(rows, column.removed, grouped.owner, count)
        removed_elements = self._removed(rows, column, removed)
        replaced = _deleted(rows, column, grouped)
        modified = self._modified(rows, column, grouped)
        added = pa.nulls(count, pa.list_(pa.utf8()))
        if column.type.name == "list":
            chosen = _row_with_value(rows, column.value, grouped.owner, count)
            cells = in_list_order(self._array(rows, column.value, chosen), self._where(column.value))
            ids = _uuid_texts(cells.keys)
            added = pa.Array.from_buffers(
                pa.list_(pa.field("element", pa.utf8())), count, cells.buffers()[:2], children=[ids]
            )
        return pa.StructArray.from_arrays(
            [added, removed_elements, pa.array(replaced)],
            ["added", "removed", "replaced"],
            mask=pa.array(~modified),
        )

    def _removed(self, rows: LogRows, column: EventColumn, chosen: Ints) -> pa.Array:
        """Return removed elements, keys, ids or fields."""
        if column.removed < 0:
            return pa.nulls(len(chosen), pa.list_(pa.utf8()))
        values = self._array(rows, column.removed, chosen)
        element = self.table.types[column.removed].parameters[0]
        if column.type.name != "udt":
            target = event_field("", element, self.lead)
            elements = event_array(values.values, element, target.type)
            kind = pa.list_(target.with_name("element"))
        else:
            elements = self._fields(column, values.values)
            kind = pa.list_(pa.field("element", pa.utf8()))
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], children=[elements])

    def _fields(self, column: EventColumn, numbers: pa.Array) -> pa.Array:
        """Return the names of fields of a user-defined type by their numbers."""
        names = pa.array(column.type.fields, pa.utf8())
        known = pa.array(range(len(names)), pa.int64())
        beyond = pc.index_in(numbers.cast(pa.int64()), value_set=known).is_null()
        if (first := beyond.index(True).as_py()) >= 0:
            raise CorruptInput(
                f"{self._where(column.removed)} removes a field that its type doesn't have",
                expected=f"the number of a field, below {len(names)}",
                found=str(numbers[first].as_py()),
            )
        return names.take(numbers)


def _at(rows: LogRows, number: int, chosen: Ints) -> tuple[Ints, Ints]:
    """Return offsets and lengths of a column's values in some rows; -1 is null."""
    if not len(rows.records):
        return np.zeros(len(chosen), np.int64), np.full(len(chosen), -1, np.int64)
    return rows.starts[number][chosen], np.where(chosen < 0, -1, rows.lengths[number][chosen])


def _row_with_value(rows: LogRows, number: int, owner: Ints, count: int) -> Ints:
    """Return, per event, the row that has a value in a column, -1 for none."""
    found = np.full(count, -1, np.int64)
    has = (owner >= 0) & (rows.lengths[number] >= 0)
    found[owner[has]] = np.flatnonzero(has)
    return found


def _deleted(rows: LogRows, column: EventColumn, grouped: Grouped) -> Any:
    """Return which events have a true ``cdc$deleted_`` of a column."""
    found = np.zeros(len(grouped.first), np.bool_)
    if column.deleted >= 0:
        flagged = (grouped.owner >= 0) & (rows.numbers(column.deleted) > 0)
        found[grouped.owner[flagged]] = True
    return found


def _known(rows: LogRows, column: EventColumn, images: Ints) -> Any:
    """Return which preimages contain a column, with a value or as null."""
    is_known = rows.lengths[column.value] >= 0
    if column.deleted >= 0:
        is_known = is_known | (rows.numbers(column.deleted) > 0)
    if not len(is_known):
        return np.zeros(len(images), np.bool_)
    return is_known[images] & (images >= 0)


def flags_of(columns: Sequence[EventColumn], flags: Sequence[Any], count: int) -> pa.StructArray:
    """Build a struct of flags per column, with ``count`` entries."""
    if not columns:
        return pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.StructArray.from_arrays([pa.array(f) for f in flags], [column.name for column in columns])


def _bytes_at(rows: LogRows, number: int, chosen: Ints) -> Any:
    """Copy the 16-byte values of a column into a matrix."""
    starts = rows.starts[number][chosen]
    return rows.data[starts[:, np.newaxis] + np.arange(_UUID_BYTES)]


def _microseconds(times: Any) -> Ints:
    """Return the time of UUIDs in us since 1970."""
    if not len(times):
        return np.zeros(0, np.int64)
    high = np.ascontiguousarray(times[:, :8]).view(">u8").ravel().astype(np.int64)
    ticks = ((high & 0xFFF) << 48) | (((high >> 16) & 0xFFFF) << 32) | ((high >> 32) & 0xFFFFFFFF)
    return (ticks - EPOCH_TICKS) // 10


def _uuid_texts(ids: pa.Array) -> pa.Array:
    """Format UUIDs in bytes as text."""
    data, starts, ends = binary_buffer(ids)
    return _UUIDS.array(0, data, starts, ends - starts, "an id of a list's cell")


def _hexadecimal(values: Any) -> pa.Array:
    """Format each row of a byte matrix as hexadecimal text."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    count, width = values.shape
    text = np.stack([digits[values >> 4], digits[values & 15]], axis=2).reshape(-1)
    return column_of(pa.utf8(), text, np.arange(count + 1, dtype=np.int32) * np.int32(2 * width))
