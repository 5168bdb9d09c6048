"""Changes of one table as the columns of events, before any envelope.

Columns of the events:

``row``           Number of the change in the batch.
``op``            ``c``, ``u`` or ``d``; ``r`` of rows of snapshots (:mod:`.snapshot_events`).
``static``        Whether it is of the static columns of a partition, which have no clustering key.
``snapshot``      ``false``; of rows of snapshots ``true`` or ``incremental``.
``ts_us``         When the change was written, from ``cdc$time``, us since 1970.
``time``          ``cdc$time`` itself.
``stream``        ``cdc$stream_id`` in hexadecimal.
``number``        ``cdc$batch_seq_no`` of its first log row.
``ttl``           TTL of what was written in s, null for none.
``by_service``    Whether the server's expiry service did it, and no statement.
``key``           The key's columns (struct); clustering columns are null where ``static``.
``set``           The other columns as the change set them (struct).
``modified``      Which of them it says something of (struct of booleans): set, set to null, changed in part.
``before``        The preimage (struct), null for none.
``before_known``  Which columns it shows (struct of booleans): those that have a value or are said to be null.
``after``         The postimage (struct), null for none.
``collections``   Of columns with a cell per element (struct of structs): ``added`` (ids of a list's cells,
                  whose values stand in ``set``; null for other types), ``removed`` (elements of sets, keys of
                  maps, ids of a list's cells, names of fields) and ``replaced``: whether all that was there
                  before is gone; null where the change says nothing of the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.spans import Ints, binary_buffer, column_of
from airflow_cdc_provider.sources.cql.schema import CqlType
from airflow_cdc_provider.sources.cql.types import freeze
from airflow_cdc_provider.sources.cql.value_columns import ValueColumns
from airflow_cdc_provider.sources.scylla.event_rows import (
    Grouped,
    LogRows,
    check_changes,
    count_others,
    group,
    read_rows,
)
from airflow_cdc_provider.sources.scylla.event_tables import EventColumn, EventTable
from airflow_cdc_provider.sources.scylla.event_types import LAKE, event_field, in_list_order, shown
from airflow_cdc_provider.sources.scylla.payload import BATCH_SEQ_NO, STREAM_ID, TIME
from airflow_cdc_provider.sources.scylla.stream_ids import EPOCH_TICKS

_UUID_BYTES: Final = 16
_UUIDS: Final = ValueColumns((CqlType("uuid"),), LAKE)


@dataclass(frozen=True, eq=False)
class TableEvents:
    """What the changes of a table became.

    Args:
        events: The events; see above.
        undecodable: Why changes have none, by their numbers.
        left_out: Number of deletes that no event can show, by kind.
    """

    events: pa.RecordBatch
    undecodable: dict[int, str]
    left_out: dict[str, int]


@dataclass(frozen=True)
class EventDecoder:
    """Decodes the changes of one table and schema. Picklable.

    Args:
        table: The table and its log.
        lead: Begins the names of schemas of structs inside the values of columns that are in no key.
    """

    table: EventTable
    lead: str = field(default="")

    def decode(self, payloads: pa.Array) -> TableEvents:
        """Decode payloads of changes.

        Args:
            payloads: The payloads (binary).

        Raises:
            CorruptInput: A value breaks its type's format.
        """
        rows, broken = read_rows(payloads, len(self.table.types))
        reasons = dict.fromkeys(broken.tolist(), "its payload breaks its format")
        reasons.update(check_changes(rows, self.table))
        for row in np.flatnonzero(~self._named(rows)).tolist():
            reasons.setdefault(int(rows.records[row]), "its stream or time isn't 16 bytes")
        wanted = ~np.isin(rows.records, np.fromiter(reasons, np.int64, len(reasons)))
        grouped = group(rows, self.table, wanted)
        return TableEvents(self._events(rows, grouped), reasons, count_others(rows, self.table, wanted))

    def _named(self, rows: LogRows) -> Any:
        """Tell which rows have a stream and a time."""
        places = (self.table.places[name] for name in (STREAM_ID, TIME))
        return np.logical_and.reduce([rows.lengths[place] == _UUID_BYTES for place in places])

    def _events(self, rows: LogRows, grouped: Grouped) -> pa.RecordBatch:
        first = grouped.first
        times = _bytes_at(rows, self.table.places[TIME], first)
        keys = self._struct(rows, self.table.key, [first] * len(self.table.key), len(first))
        cells = self.table.cells
        collections = [column for column in cells if column.type.multi_cell]
        values = [_told(rows, column.value, grouped.owner, len(first)) for column in cells]
        return pa.record_batch(
            {
                "row": pa.array(rows.records[first], pa.int64()),
                "op": pa.array(grouped.op, pa.utf8()),
                "static": pa.array(grouped.static),
                "snapshot": pa.repeat("false", len(first)),
                "ts_us": pa.array(_microseconds(times), pa.int64()),
                "time": self._array(rows, self.table.places[TIME], first),
                "stream": _hexadecimal(_bytes_at(rows, self.table.places[STREAM_ID], first)),
                "number": pa.array(rows.numbers(self.table.places[BATCH_SEQ_NO])[first], pa.int32()),
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
        """The log's columns as they are read: ids of lists' cells as bytes."""
        types = list(self.table.types)
        for column in self.table.cells:
            if column.type.multi_cell and column.type.name == "list":
                element = column.type.parameters[0]
                types[column.value] = CqlType("map", (CqlType("blob"), element), frozen=True)
        return ValueColumns(tuple(types), LAKE)

    def field_of(self, column: EventColumn) -> pa.Field:
        """Return the field that shows a column."""
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
        """Show columns, of each the values of some rows (-1: null), as many as are counted."""
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
            values = in_list_order(values)
            lake = pa.list_(pa.field("element", values.type.item_type))
            values = pa.Array.from_buffers(lake, len(values), values.buffers()[:2], children=[values.items])
        return shown(values, freeze(column.type), target)

    def _array(self, rows: LogRows, number: int, chosen: Ints) -> pa.Array:
        starts, lengths = _at(rows, number, chosen)
        where = f"{self.table.full_name}, column {self.table.log.columns[number][0]} of its log,"
        return self._values.array(number, rows.data, starts, lengths, where)

    def _image(self, rows: LogRows, chosen: Ints) -> pa.StructArray:
        cells = self.table.cells
        struct = self._struct(rows, cells, [chosen] * len(cells), len(chosen), pa.array(chosen < 0))
        if cells:
            return struct
        absent = pa.py_buffer(np.packbits(chosen >= 0, bitorder="little"))
        return pa.Array.from_buffers(pa.struct([]), len(chosen), [absent])

    def _modified(self, rows: LogRows, column: EventColumn, grouped: Grouped) -> Any:
        """Tell which events say something of a column."""
        count = len(grouped.first)
        found = _deleted(rows, column, grouped)
        removed = (
            np.full(count, -1) if column.removed < 0 else _told(rows, column.removed, grouped.owner, count)
        )
        found |= removed >= 0
        if column.type.multi_cell and column.type.name == "udt":
            return found | self._has_fields(rows, column, grouped)
        return found | (_told(rows, column.value, grouped.owner, count) >= 0)

    def _has_fields(self, rows: LogRows, column: EventColumn, grouped: Grouped) -> Any:
        """Tell where a user-defined type that isn't frozen has a field: its value alone says nothing."""
        chosen = _told(rows, column.value, grouped.owner, len(grouped.first))
        values = self._array(rows, column.value, chosen)
        present = np.zeros(len(values), np.bool_)
        for place in range(values.type.num_fields):
            present |= values.field(place).is_valid().to_numpy(zero_copy_only=False)
        return present & (chosen >= 0)

    def _collections(self, rows: LogRows, columns: Sequence[EventColumn], grouped: Grouped) -> pa.StructArray:
        """Show what changed in columns with a cell per element."""
        count = len(grouped.first)
        structs = [self._changed(rows, column, grouped) for column in columns]
        if not structs:
            return pa.Array.from_buffers(pa.struct([]), count, [None])
        return pa.StructArray.from_arrays(structs, [column.name for column in columns])

    def _changed(self, rows: LogRows, column: EventColumn, grouped: Grouped) -> pa.StructArray:
        count = len(grouped.first)
        removed = np.full(count, -1)
        if column.removed >= 0:
            removed = _told(rows, column.removed, grouped.owner, count)
        gone = self._removed(rows, column, removed)
        replaced = _deleted(rows, column, grouped)
        modified = self._modified(rows, column, grouped)
        added = pa.nulls(count, pa.list_(pa.utf8()))
        if column.type.name == "list":
            chosen = _told(rows, column.value, grouped.owner, count)
            cells = in_list_order(self._array(rows, column.value, chosen))
            ids = _uuid_texts(cells.keys)
            added = pa.Array.from_buffers(
                pa.list_(pa.field("element", pa.utf8())), count, cells.buffers()[:2], children=[ids]
            )
        return pa.StructArray.from_arrays(
            [added, gone, pa.array(replaced)], ["added", "removed", "replaced"], mask=pa.array(~modified)
        )

    def _removed(self, rows: LogRows, column: EventColumn, chosen: Ints) -> pa.Array:
        """Show removed elements, keys, ids or fields."""
        if column.removed < 0:
            return pa.nulls(len(chosen), pa.list_(pa.utf8()))
        values = self._array(rows, column.removed, chosen)
        element = self.table.types[column.removed].parameters[0]
        if column.type.name != "udt":
            target = event_field("", element, self.lead)
            elements = shown(values.values, element, target.type)
            kind = pa.list_(target.with_name("element"))
        else:
            names = pa.array(column.type.fields, pa.utf8())
            elements = names.take(values.values.cast(pa.int64()))
            kind = pa.list_(pa.field("element", pa.utf8()))
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], children=[elements])


def _at(rows: LogRows, number: int, chosen: Ints) -> tuple[Ints, Ints]:
    """Return where a column's values of some rows are; -1 stands for null."""
    if not len(rows.records):
        return np.zeros(len(chosen), np.int64), np.full(len(chosen), -1, np.int64)
    return rows.starts[number][chosen], np.where(chosen < 0, -1, rows.lengths[number][chosen])


def _told(rows: LogRows, number: int, owner: Ints, count: int) -> Ints:
    """Return per event the row that has a value in a column, -1 for none."""
    found = np.full(count, -1, np.int64)
    has = (owner >= 0) & (rows.lengths[number] >= 0)
    found[owner[has]] = np.flatnonzero(has)
    return found


def _deleted(rows: LogRows, column: EventColumn, grouped: Grouped) -> Any:
    """Tell of which events a column's ``cdc$deleted_`` is true."""
    found = np.zeros(len(grouped.first), np.bool_)
    if column.deleted >= 0:
        flagged = (grouped.owner >= 0) & (rows.numbers(column.deleted) > 0)
        found[grouped.owner[flagged]] = True
    return found


def _known(rows: LogRows, column: EventColumn, images: Ints) -> Any:
    """Tell which preimages show a column: it has a value, or is said to have been null."""
    shows = rows.lengths[column.value] >= 0
    if column.deleted >= 0:
        shows = shows | (rows.numbers(column.deleted) > 0)
    if not len(shows):
        return np.zeros(len(images), np.bool_)
    return shows[images] & (images >= 0)


def flags_of(columns: Sequence[EventColumn], flags: Sequence[Any], count: int) -> pa.StructArray:
    """Put flags of columns together, as many lines as are counted."""
    if not columns:
        return pa.Array.from_buffers(pa.struct([]), count, [None])
    return pa.StructArray.from_arrays([pa.array(f) for f in flags], [column.name for column in columns])


def _bytes_at(rows: LogRows, number: int, chosen: Ints) -> Any:
    """Copy values of 16 bytes of a column into a matrix."""
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
    """Write UUIDs, given as bytes, as text."""
    data, starts, ends = binary_buffer(ids)
    return _UUIDS.array(0, data, starts, ends - starts, "an id of a list's cell")


def _hexadecimal(values: Any) -> pa.Array:
    """Write a matrix of bytes as text, a row each."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    count, width = values.shape
    text = np.stack([digits[values >> 4], digits[values & 15]], axis=2).reshape(-1)
    return column_of(pa.utf8(), text, np.arange(count + 1, dtype=np.int32) * np.int32(2 * width), None)
