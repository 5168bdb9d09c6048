"""Converts row changes of one table to events: before-images, after-images, keys and operations.

An update of the key becomes a delete and a create. Columns that the binlog omits from an update keep the
value of the before-image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.formats.kernels import Bytes, Flags, Ints, walker
from airflow_cdc_provider.sources.vitess.events.columns import Cells
from airflow_cdc_provider.sources.vitess.events.tables import EventTable
from airflow_cdc_provider.sources.vitess.events.types import EventColumn
from airflow_cdc_provider.sources.vitess.rows import (
    FAULTS,
    UNKNOWN,
    Changes,
    Values,
    mark_unknown,
    read_changes,
    read_rows,
)

CREATE: Final = "c"
UPDATE: Final = "u"
DELETE: Final = "d"


@dataclass(frozen=True, eq=False)
class RowChanges:
    """Row changes of one table with the same schema.

    Args:
        data: A buffer.
        starts: First byte of each ``RowChange`` message in it.
        ends: Byte after each.
        sort_keys: Sort key of each, ascending; the number after each is unused.
        shards: Shard name of each.
        seconds: Commit time of each, in seconds since 1970; 0 if unknown.
        transactions: Transaction number of each.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    sort_keys: Ints
    shards: pa.Array
    seconds: Ints
    transactions: Ints

    def take(self, rows: Ints) -> RowChanges:
        """Return the changes at some indexes."""
        return RowChanges(
            self.data,
            self.starts[rows],
            self.ends[rows],
            self.sort_keys[rows],
            self.shards.take(pa.array(rows)),
            self.seconds[rows],
            self.transactions[rows],
        )


@dataclass(frozen=True, eq=False)
class TableEvents:
    """Events of a table whose rows have the same schema.

    Columns of ``rows``:

    ``op``                  ``c``, ``u`` or ``d``.
    ``before``, ``after``   Row images (struct), null for none.
    ``key``                 Keys (struct), null for a table without a key.
    ``new_key``             The new key, for the delete of a key update.
    ``old_key``             The old key, for the create of a key update.
    ``shard``               Name of the shard.
    ``seconds``             Commit time, in seconds since 1970; 0 if unknown.

    Args:
        table: The table.
        rows: The events.
        sort_keys: Sort key of each event among all events, BEGIN, END and statements; ascending.
        transactions: Transaction number of each event.
    """

    table: EventTable
    rows: pa.RecordBatch
    sort_keys: Ints
    transactions: Ints


def table_events(table: EventTable, rows: RowChanges, unread: dict[int, str]) -> TableEvents:
    """Decode row changes.

    Args:
        table: Their table.
        rows: The changes.
        unread: Receives the reasons for rows that can't be decoded, by first byte; they have no event.

    Returns:
        The events.
    """
    data = rows.data
    changes = read_changes(data, rows.starts, rows.ends)
    before = read_rows(data, changes.before.starts, changes.before.ends, table.width)
    after = read_rows(data, changes.after.starts, changes.after.ends, table.width)
    reasons = _reasons(changes, before, after, table)
    _fill_in(data, changes, before, after)
    unread_rows = np.zeros(len(rows.starts), np.bool_)
    images = [_image(data, table.columns, values, unread_rows) for values in (before, after)]
    keyless = pa.nulls(len(unread_rows), pa.struct([]))
    keys = [_image(data, table.key, v, unread_rows) if table.key else keyless for v in (before, after)]
    for row in np.flatnonzero(unread_rows).tolist():
        reasons.setdefault(row, "a value can't be parsed")
    if reasons:
        unread.update((int(rows.starts[row]), reason) for row, reason in reasons.items())
        sound = np.setdiff1d(np.arange(len(rows.starts)), np.fromiter(reasons, np.int64))
        return table_events(table, rows.take(sound), unread)

    has_before, has_after = changes.before.starts >= 0, changes.after.starts >= 0
    key_differs = _key_differs(data, table, before, after) & has_before & has_after
    index = np.repeat(np.arange(len(key_differs)), 1 + key_differs.astype(np.int64))
    second = np.concatenate([[False], index[1:] == index[:-1]])[: len(index)]
    is_key_update = key_differs[index]
    is_delete = np.where(is_key_update, ~second, ~has_after[index])
    is_create = np.where(is_key_update, second, ~has_before[index])
    events = {
        "op": pa.array(np.where(is_delete, DELETE, np.where(is_create, CREATE, UPDATE)), pa.utf8()),
        "before": images[0].take(pa.array(index, mask=is_create)),
        "after": images[1].take(pa.array(index, mask=is_delete)),
        "key": pc.if_else(pa.array(is_delete), keys[0].take(pa.array(index)), keys[1].take(pa.array(index))),
        "new_key": keys[1].take(pa.array(index, mask=~(is_key_update & is_delete))),
        "old_key": keys[0].take(pa.array(index, mask=~(is_key_update & is_create))),
        "shard": rows.shards.take(pa.array(index)),
        "seconds": pa.array(rows.seconds[index]),
    }
    return TableEvents(
        table, pa.record_batch(events), rows.sort_keys[index] + second, rows.transactions[index]
    )


def _reasons(changes: Changes, before: Values, after: Values, table: EventTable) -> dict[int, str]:
    """Return why row changes can't be converted, by index."""
    reasons: dict[int, str] = {}
    for faults in (changes.faults, before.faults, after.faults):
        for row in np.flatnonzero(faults).tolist():
            reasons.setdefault(row, FAULTS[faults[row]])
    for values, spans in ((before, changes.before), (after, changes.after)):
        for row in np.flatnonzero((spans.starts >= 0) & (values.counts != table.width)).tolist():
            reasons.setdefault(
                row,
                f"a row has {values.counts[row]} values, but its table {table.keyspace}.{table.name} has "
                f"{table.width} fields",
            )
    for row in np.flatnonzero((changes.before.starts < 0) & (changes.after.starts < 0)).tolist():
        reasons.setdefault(row, "a change has neither a before-image nor an after-image")
    for row in np.flatnonzero(changes.json_partial.present).tolist():
        reasons.setdefault(row, "a JSON value is stored as an update of the old one (partial JSON)")
    return reasons


def _fill_in(data: Bytes, changes: Changes, before: Values, after: Values) -> None:
    """Replace values that the binlog omits from an update with those of the before-image."""
    if mark_unknown(data, after, changes.data_columns).any():
        unknown = after.starts == UNKNOWN
        after.starts[unknown] = before.starts[unknown]
        after.ends[unknown] = before.ends[unknown]


def _image(data: Bytes, columns: Sequence[EventColumn], values: Values, unread_rows: Flags) -> pa.Array:
    """Convert rows or keys to structs."""
    if not columns:
        return pa.Array.from_buffers(pa.struct([]), len(unread_rows), [None])
    arrays = [c.read(Cells(data, values.starts[c.index], values.ends[c.index], unread_rows)) for c in columns]
    return pa.StructArray.from_arrays(arrays, fields=[c.field.with_nullable(True) for c in columns])


def _key_differs(data: Bytes, table: EventTable, before: Values, after: Values) -> Flags:
    """Return which rows have different keys in their images."""
    key_differs = np.zeros(before.starts.shape[1], np.bool_)
    for column in table.key:
        index = column.index
        _mark_different(
            data,
            before.starts[index],
            before.ends[index],
            after.starts[index],
            after.ends[index],
            key_differs,
        )
    return key_differs


@walker
def _mark_different(
    data: Bytes, starts: Ints, ends: Ints, others: Ints, other_ends: Ints, different: Flags
) -> None:
    for row in range(len(starts)):
        size = ends[row] - starts[row]
        if (starts[row] < 0) != (others[row] < 0) or size != other_ends[row] - others[row]:
            different[row] = True
        elif starts[row] >= 0:
            for i in range(size):
                if data[starts[row] + i] != data[others[row] + i]:
                    different[row] = True
                    break
