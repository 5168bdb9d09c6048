"""Row changes of one table and form as events: rows before and after, keys, and what is done.

An update that changes the key is a delete and a create. What the binlog leaves out of an update is what the
row had before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.sources.vitess.event_columns import Cells
from airflow_cdc_provider.sources.vitess.event_tables import EventTable
from airflow_cdc_provider.sources.vitess.event_types import EventColumn
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
    """Row changes of one table and form.

    Args:
        data: A buffer.
        starts: First byte of each ``RowChange`` message in it.
        ends: Byte after each.
        places: What each is sorted by, rising; the next number is free.
        shards: Name of the shard of each.
        seconds: When each was committed, s since 1970; 0 where that isn't told.
        transactions: Number of the transaction of each.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    places: Ints
    shards: pa.Array
    seconds: Ints
    transactions: Ints

    def take(self, rows: Ints) -> RowChanges:
        """Return some of them."""
        return RowChanges(
            self.data,
            self.starts[rows],
            self.ends[rows],
            self.places[rows],
            self.shards.take(pa.array(rows)),
            self.seconds[rows],
            self.transactions[rows],
        )


@dataclass(frozen=True, eq=False)
class TableEvents:
    """Events of a table whose rows have one form.

    Columns of ``rows``:

    ``op``                  ``c``, ``u`` or ``d``.
    ``before``, ``after``   Rows (struct), null for none.
    ``key``                 Keys (struct), null for a table without a key.
    ``new_key``             The key that the row gets, for a delete that is half of a change of keys.
    ``old_key``             The key that it had, for the create.
    ``shard``               Name of the shard.
    ``seconds``             When it was committed, s since 1970; 0 where the stream doesn't tell.

    Args:
        table: What it looks like.
        rows: The events.
        places: Per event what all events, BEGIN, END and statements are sorted by; rising.
        transactions: Per event the number of its transaction.
    """

    table: EventTable
    rows: pa.RecordBatch
    places: Ints
    transactions: Ints


def table_events(table: EventTable, rows: RowChanges, unread: dict[int, str]) -> TableEvents:
    """Decode row changes.

    Args:
        table: Their form.
        rows: The changes.
        unread: Gets why rows can't be read, by their first byte; they have no event.
    """
    data = rows.data
    changes = read_changes(data, rows.starts, rows.ends)
    before = read_rows(data, changes.before.starts, changes.before.ends, table.width)
    after = read_rows(data, changes.after.starts, changes.after.ends, table.width)
    reasons = _reasons(changes, before, after, table)
    _fill_in(data, changes, before, after)
    bad = np.zeros(len(rows.starts), np.bool_)
    images = [_image(data, table.columns, values, bad) for values in (before, after)]
    keys = [_image(data, table.key, values, bad) for values in (before, after)]
    for row in np.flatnonzero(bad).tolist():
        reasons.setdefault(row, "a value can't be read")
    if reasons:
        unread.update((int(rows.starts[row]), reason) for row, reason in reasons.items())
        sound = np.setdiff1d(np.arange(len(rows.starts)), np.fromiter(reasons, np.int64))
        return table_events(table, rows.take(sound), unread)

    has_before, has_after = changes.before.starts >= 0, changes.after.starts >= 0
    moved = _moved(data, table, before, after) & has_before & has_after
    index = np.repeat(np.arange(len(moved)), 1 + moved.astype(np.int64))
    second = np.concatenate([[False], index[1:] == index[:-1]])[: len(index)]
    of_two = moved[index]
    gone = np.where(of_two, ~second, ~has_after[index])
    made = np.where(of_two, second, ~has_before[index])
    events = {
        "op": pa.array(np.where(gone, DELETE, np.where(made, CREATE, UPDATE)), pa.utf8()),
        "before": images[0].take(pa.array(index, mask=made)),
        "after": images[1].take(pa.array(index, mask=gone)),
        "key": pc.if_else(pa.array(gone), keys[0].take(pa.array(index)), keys[1].take(pa.array(index))),
        "new_key": keys[1].take(pa.array(index, mask=~(of_two & gone))),
        "old_key": keys[0].take(pa.array(index, mask=~(of_two & made))),
        "shard": rows.shards.take(pa.array(index)),
        "seconds": pa.array(rows.seconds[index]),
    }
    return TableEvents(table, pa.record_batch(events), rows.places[index] + second, rows.transactions[index])


def _reasons(changes: Changes, before: Values, after: Values, table: EventTable) -> dict[int, str]:
    """Say of which row changes nothing can be shown, and why."""
    reasons: dict[int, str] = {}
    for faults in (changes.faults, before.faults, after.faults):
        for row in np.flatnonzero(faults).tolist():
            reasons.setdefault(row, FAULTS[faults[row]])
    for values, spans in ((before, changes.before), (after, changes.after)):
        for row in np.flatnonzero((spans.starts >= 0) & (values.counts != table.width)).tolist():
            reasons.setdefault(
                row,
                f"a row has {values.counts[row]} values, its table {table.keyspace}.{table.name} "
                f"{table.width} fields",
            )
    for row in np.flatnonzero((changes.before.starts < 0) & (changes.after.starts < 0)).tolist():
        reasons.setdefault(row, "a change has no row")
    for row in np.flatnonzero(changes.json_partial.present).tolist():
        reasons.setdefault(row, "a JSON value is told as a change of the old one (partial JSON)")
    return reasons


def _fill_in(data: Bytes, changes: Changes, before: Values, after: Values) -> None:
    """Show for values that the binlog leaves out of an update those that the row had before."""
    if mark_unknown(data, after, changes.data_columns).any():
        unknown = after.starts == UNKNOWN
        after.starts[unknown] = before.starts[unknown]
        after.ends[unknown] = before.ends[unknown]


def _image(
    data: Bytes, columns: Sequence[EventColumn], values: Values, bad: npt.NDArray[np.bool_]
) -> pa.Array:
    """Show rows, or keys, by their columns; a struct without columns is null."""
    if not columns:
        return pa.nulls(len(bad), pa.struct([]))
    shown = [c.read(Cells(data, values.starts[c.place], values.ends[c.place], bad)) for c in columns]
    return pa.StructArray.from_arrays(shown, fields=[c.field.with_nullable(True) for c in columns])


def _moved(data: Bytes, table: EventTable, before: Values, after: Values) -> npt.NDArray[np.bool_]:
    """Tell where a column of the key differs."""
    moved = np.zeros(before.starts.shape[1], np.bool_)
    for column in table.key:
        place = column.place
        _mark_different(
            data, before.starts[place], before.ends[place], after.starts[place], after.ends[place], moved
        )
    return moved


@walker
def _mark_different(data: Any, starts: Any, ends: Any, others: Any, other_ends: Any, different: Any) -> None:
    for row in range(len(starts)):
        size = ends[row] - starts[row]
        if (starts[row] < 0) != (others[row] < 0) or size != other_ends[row] - others[row]:
            different[row] = True
        elif starts[row] >= 0:
            for i in range(size):
                if data[starts[row] + i] != data[others[row] + i]:
                    different[row] = True
                    break
