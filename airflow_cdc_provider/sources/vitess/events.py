"""Messages of a VStream as events: rows before and after per table, in the order of the stream.

A transaction is what stands between BEGIN and COMMIT, also across messages. All its events have the VGTID
that stands before its COMMIT: the place that a reader has reached with it. What no COMMIT follows is not
shown: it comes again. An update that changes the key is a delete and a create.

Rows are columns of Arrow from here on; only events that tell how to read them (FIELD) and transactions are
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.event_columns import Cells
from airflow_cdc_provider.sources.vitess.event_tables import (
    EventForm,
    EventTable,
    comparable_fields,
    event_table,
)
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

_PLACE_BITS: Final = 32


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


@dataclass(frozen=True, eq=False)
class Transactions:
    """Transactions in the order of the stream.

    Args:
        data: The buffer that their VGTIDs stand in.
        vgtid_starts: First byte of the ``VGtid`` message of each.
        vgtid_ends: Byte after it.
        tables: Keyspaces and shards.
        numbers: Of each transaction, its number in ``tables``.
        begins: What BEGIN is sorted by.
        ends: What END is.
        begin_seconds: When it began, s since 1970; 0 where the stream doesn't tell.
        end_seconds: When it was committed, likewise.
    """

    data: Bytes
    vgtid_starts: Ints
    vgtid_ends: Ints
    tables: Sequence[wire.ShardTable]
    numbers: Ints
    begins: Ints
    ends: Ints
    begin_seconds: Ints
    end_seconds: Ints

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.begins)

    @property
    def shards(self) -> list[str]:
        """The name of each one's shard."""
        names = np.array([table.shard for table in self.tables], np.object_)
        found: list[str] = names[self.numbers].tolist()
        return found

    def with_shards(self) -> Iterator[tuple[bytes, str]]:
        """Yield the ``VGtid`` message of each, and its shard as ``keyspace/shard``."""
        names = [f"{table.keyspace}/{table.shard}" for table in self.tables]
        places = zip(self.vgtid_starts.tolist(), self.vgtid_ends.tolist(), self.numbers.tolist(), strict=True)
        for start, end, number in places:
            yield self.data[start:end].tobytes(), names[number]


@dataclass(frozen=True)
class Statement:
    """A DDL statement.

    Args:
        place: What it is sorted by.
        text: The statement as MySQL logged it.
        keyspace: Where it was run.
        shard: Likewise.
        seconds: When, s since 1970.
        vgtid: The ``VGtid`` message before it.
    """

    place: int
    text: str
    keyspace: str
    shard: str
    seconds: int
    vgtid: bytes


@dataclass(frozen=True, eq=False)
class StreamEvents:
    """What a stretch of a stream holds.

    Args:
        tables: Events of captured tables, by table and form.
        transactions: All transactions, also those without an event.
        statements: DDL.
        unread: Byte of the data where a row change stands that can't be read, and why.
    """

    tables: list[TableEvents]
    transactions: Transactions
    statements: list[Statement]
    unread: dict[int, str] = field(default_factory=dict)


def stretches(events: wire.Events, changes: int) -> Iterator[tuple[int, int]]:
    """Cut a stream behind transactions.

    Args:
        events: The stream.
        changes: How many row changes a stretch has, if its last transaction has no more.

    Yields:
        First and last (not included) number of the events of a stretch. What no COMMIT, DDL or OTHER follows
        is in none.
    """
    ends = np.flatnonzero(np.isin(events.types, (wire.COMMIT, wire.DDL, wire.OTHER))) + 1
    counts = np.searchsorted(events.changes.events, ends)
    begin, counted = 0, 0
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        if count - counted >= changes:
            yield begin, end
            begin, counted = end, count
    if len(ends) and begin < ends[-1]:
        yield begin, int(ends[-1])


def decode(
    events: wire.Events,
    first: int,
    last: int,
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode a stretch of a stream.

    Args:
        events: The stream, from a place before which no table was told of.
        first: First event, behind a transaction.
        last: The event after the last one, behind a transaction.
        form: How rows are shown.
        captured: Tells of a keyspace and table whether its events are wanted.

    Raises:
        CorruptInput: A row comes before the fields of its table, a COMMIT before any VGTID, or fields or
            statements can't be read.
    """
    types = events.types[first:last]
    commits = first + np.flatnonzero(types == wire.COMMIT)
    transactions = _transactions(events, first, commits, types)
    unread: dict[int, str] = {}
    changes = events.changes
    low, high = np.searchsorted(changes.events, (first, last))
    of_event = changes.events[low:high]
    numbers = np.arange(low, high)
    places = (of_event << _PLACE_BITS) + 2 * (numbers - np.searchsorted(changes.events, of_event))
    tables = [
        _table_events(events, table, numbers[rows], places[rows], commits, unread)
        for table, rows in _by_form(events, of_event, form, captured)
    ]
    statements = [_statement(events, int(first + n)) for n in np.flatnonzero(types == wire.DDL)]
    return StreamEvents(tables, transactions, statements, unread)


class _Form(NamedTuple):
    """A table by one form of its fields."""

    keyspace: str
    name: str
    fields: bytes


def _transactions(events: wire.Events, first: int, commits: Ints, types: Ints) -> Transactions:
    begins = first + np.flatnonzero(types == wire.BEGIN)
    previous = np.concatenate([[first - 1], commits[:-1]])[: len(commits)]
    # A second BEGIN in a transaction says nothing.
    which = np.searchsorted(begins, previous, "right")
    starts = np.where(which < len(begins), np.append(begins, -1)[which], commits)
    starts = np.where(starts > commits, commits, starts)
    vgtids = _vgtid_before(events, commits)
    return Transactions(
        events.data,
        events.body_starts[vgtids],
        events.body_ends[vgtids],
        events.tables,
        events.table_numbers[commits],
        starts << _PLACE_BITS,
        commits << _PLACE_BITS,
        events.timestamps[starts],
        events.timestamps[commits],
    )


def _vgtid_before(events: wire.Events, places: Ints) -> Ints:
    """Return the numbers of the last VGTIDs before some events."""
    vgtids = np.flatnonzero(events.types == wire.VGTID)
    which = np.searchsorted(vgtids, places) - 1
    if len(which) and which[0] < 0:
        raise CorruptInput(
            f"event {places[0]} of a VStream ends a transaction", expected="a VGTID before it", found="none"
        )
    found: Ints = vgtids[which]
    return found


def _by_form(
    events: wire.Events, of_event: Ints, form: EventForm, captured: Callable[[str, str], bool]
) -> Iterator[tuple[EventTable, Ints]]:
    """Group row changes by table and form; shards whose tables are equal share one."""
    fields = np.flatnonzero(events.types == wire.FIELD)
    table_of_field = events.table_numbers[fields]
    groups: dict[_Form, list[Ints]] = {}
    table_of_row = events.table_numbers[of_event]
    for number in np.unique(table_of_row).tolist():
        named = events.tables[number]
        if not captured(named.keyspace, named.table):
            continue
        rows = np.flatnonzero(table_of_row == number)
        own = fields[table_of_field == number]
        which = np.searchsorted(own, of_event[rows]) - 1
        if which[0] < 0:
            raise CorruptInput(
                f"event {of_event[rows[0]]} of a VStream is a row of {named.keyspace}.{named.table} in shard "
                f"{named.shard}",
                expected="the fields of the table before it",
                found="none",
            )
        for told in np.unique(which).tolist():
            key = _Form(named.keyspace, named.table, comparable_fields(events.body(int(own[told]))))
            groups.setdefault(key, []).append(rows[which == told])
    for key, parts in groups.items():
        yield event_table(key.fields, key.keyspace, key.name, form), np.sort(np.concatenate(parts))


def _table_events(
    events: wire.Events,
    table: EventTable,
    numbers: Ints,
    places: Ints,
    commits: Ints,
    unread: dict[int, str],
) -> TableEvents:
    """Decode row changes of one form.

    Args:
        events: The stream.
        table: The form.
        numbers: Their numbers among the row changes of the stream.
        places: What each is sorted by; the next number is free.
        commits: Numbers of the COMMIT events of the stretch.
        unread: Gets the rows that can't be read.
    """
    data = events.data
    changes = read_changes(data, events.changes.starts[numbers], events.changes.ends[numbers])
    before = read_rows(data, changes.before.starts, changes.before.ends, table.width)
    after = read_rows(data, changes.after.starts, changes.after.ends, table.width)
    reasons = _reasons(data, changes, before, after, table)
    _fill_in(data, changes, before, after)
    bad = np.zeros(len(numbers), np.bool_)
    images = [_image(data, table.columns, values, bad) for values in (before, after)]
    keys = [_image(data, table.key, values, bad) for values in (before, after)]
    for row in np.flatnonzero(bad).tolist():
        reasons.setdefault(row, "a value can't be read")
    if reasons:
        for row, reason in reasons.items():
            unread[int(events.changes.starts[numbers[row]])] = reason
        kept = np.setdiff1d(np.arange(len(numbers)), np.fromiter(reasons, np.int64))
        return _table_events(events, table, numbers[kept], places[kept], commits, unread)

    has_before, has_after = changes.before.starts >= 0, changes.after.starts >= 0
    moved = _moved(data, table, before, after) & has_before & has_after
    index = np.repeat(np.arange(len(numbers)), 1 + moved.astype(np.int64))
    second = np.concatenate([[False], index[1:] == index[:-1]])[: len(index)]
    of_two = moved[index]
    gone = np.where(of_two, ~second, ~has_after[index])
    made = np.where(of_two, second, ~has_before[index])
    event = events.changes.events[numbers][index]
    transactions = np.searchsorted(commits, event)
    if len(transactions) and transactions.max() >= len(commits):
        raise CorruptInput(
            f"a row of {table.keyspace}.{table.name} is part of no transaction", expected="COMMIT after it"
        )
    shards = pa.array([named.shard for named in events.tables], pa.utf8())
    rows = {
        "op": pa.array(np.where(gone, DELETE, np.where(made, CREATE, UPDATE)), pa.utf8()),
        "before": images[0].take(pa.array(index, mask=made)),
        "after": images[1].take(pa.array(index, mask=gone)),
        "key": pc.if_else(pa.array(gone), keys[0].take(pa.array(index)), keys[1].take(pa.array(index))),
        "new_key": keys[1].take(pa.array(index, mask=~(of_two & gone))),
        "old_key": keys[0].take(pa.array(index, mask=~(of_two & made))),
        "shard": shards.take(pa.array(events.table_numbers[event])),
        "seconds": pa.array(events.timestamps[event]),
    }
    return TableEvents(table, pa.record_batch(rows), places[index] + second, transactions)


def _reasons(
    data: Bytes, changes: Changes, before: Values, after: Values, table: EventTable
) -> dict[int, str]:
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


def _statement(events: wire.Events, number: int) -> Statement:
    named = events.table(number)
    vgtid = events.body(int(_vgtid_before(events, np.array([number]))[0]))
    try:
        text = events.body(number).decode()
    except UnicodeDecodeError as error:
        raise CorruptInput(f"event {number} of a VStream has a statement that is no UTF-8") from error
    return Statement(
        number << _PLACE_BITS, text, named.keyspace, named.shard, int(events.timestamps[number]), vgtid
    )
