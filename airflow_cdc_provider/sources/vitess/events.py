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
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.event_rows import RowChanges, TableEvents, table_events
from airflow_cdc_provider.sources.vitess.event_tables import (
    EventForm,
    EventTable,
    comparable_fields,
    event_table,
)

_PLACE_BITS: Final = 32
_ENDS: Final = (wire.COMMIT, wire.DDL, wire.OTHER)
"""Kinds of events with which a shard has reached the VGTID before them."""


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
        epochs: Epoch of its shard with it, where that is known; None where it is to be told from VGTIDs.
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
    epochs: Ints | None = None

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


@dataclass(frozen=True)
class Heartbeat:
    """A word of VTGate's in the silence of a stream.

    Args:
        place: What it is sorted by.
        vgtid: The ``VGtid`` message that was reached.
    """

    place: int
    vgtid: bytes


@dataclass(frozen=True, eq=False)
class StreamEvents:
    """What a stretch of a stream holds.

    Args:
        tables: Events of captured tables, by table and form.
        transactions: All transactions, also those without an event.
        statements: DDL.
        unread: Byte of the data where a row change stands that can't be read, and why.
        heartbeats: Heartbeats behind the first position.
    """

    tables: list[TableEvents]
    transactions: Transactions
    statements: list[Statement]
    unread: dict[int, str] = field(default_factory=dict)
    heartbeats: list[Heartbeat] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Stream:
    """A stream from a place before which no table was told of.

    Args:
        events: Its events.
    """

    events: wire.Events

    @cached_property
    def fields(self) -> Ints:
        """Numbers of the FIELD events."""
        return np.flatnonzero(self.events.types == wire.FIELD)


def stretches(events: wire.Events, changes: int) -> Iterator[tuple[int, int]]:
    """Cut a stream behind transactions.

    Args:
        events: The stream.
        changes: How many row changes a stretch has, if its last transaction has no more.

    Yields:
        First and last (not included) number of the events of a stretch. What no COMMIT, DDL or OTHER follows
        is in none.
    """
    ends = np.flatnonzero(np.isin(events.types, _ENDS)) + 1
    counts = np.searchsorted(events.changes.events, ends)
    begin, counted = 0, 0
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        if count - counted >= changes:
            yield begin, end
            begin, counted = end, count
    if len(ends) and begin < ends[-1]:
        yield begin, int(ends[-1])


def decode(
    stream: Stream,
    first: int,
    last: int,
    form: EventForm,
    captured: Callable[[str, str], bool],
) -> StreamEvents:
    """Decode a stretch of a stream.

    Args:
        stream: The stream.
        first: First event, behind a transaction.
        last: The event after the last one, behind a transaction.
        form: How rows are shown.
        captured: Tells of a keyspace and table whether its events are wanted.

    Raises:
        CorruptInput: A statement comes before any VGTID, or fields or statements can't be read.
    """
    events = stream.events
    types = events.types[first:last]
    ends = first + np.flatnonzero(types == wire.COMMIT)
    vgtids = first + np.flatnonzero(types == wire.VGTID)
    unread: dict[int, str] = {}
    commits = _with_own_vgtid(events, first, ends, vgtids, captured, unread)
    transactions = _transactions(events, first, commits, vgtids)
    rows, of_event = _rows(events, first, last, commits, transactions.begins >> _PLACE_BITS)
    tables = [
        table_events(table, rows.take(chosen), unread)
        for table, chosen in _by_form(stream, rows, of_event, form, captured, unread)
    ]
    statements = [_statement(events, int(first + n), vgtids) for n in np.flatnonzero(types == wire.DDL)]
    return StreamEvents(tables, transactions, statements, unread, heartbeats(events, first, last))


def heartbeats(events: wire.Events, first: int, last: int) -> list[Heartbeat]:
    """Find the heartbeats of a stretch, also behind its last transaction; none before the first position."""
    found = []
    for number in (first + np.flatnonzero(events.types[first:last] == wire.HEARTBEAT)).tolist():
        # A VGTID is reached with what follows it.
        ended = np.flatnonzero(np.isin(events.types[:number], _ENDS))
        told = np.flatnonzero(events.types[: ended[-1] if len(ended) else 0] == wire.VGTID)
        if len(told):
            # Inside of a transaction it comes before all that the transaction's COMMIT brings.
            found.append(Heartbeat((int(ended[-1]) << _PLACE_BITS) + 1, events.body(int(told[-1]))))
    return found


class _Form(NamedTuple):
    """A table by one form of its fields."""

    keyspace: str
    name: str
    fields: bytes


def _with_own_vgtid(
    events: wire.Events,
    first: int,
    commits: Ints,
    vgtids: Ints,
    captured: Callable[[str, str], bool],
    unread: dict[int, str],
) -> Ints:
    """Return the COMMITs that have a VGTID of their own, and tell of the rows of others.

    Where a message is missing from a stream, the VGTID may have been in it.
    """
    behind = np.concatenate([[first], commits[:-1] + 1])[: len(commits)]
    own = np.searchsorted(vgtids, behind) < np.searchsorted(vgtids, commits)
    changes = events.changes
    for number in np.flatnonzero(~own).tolist():
        low, high = np.searchsorted(changes.events, (behind[number], commits[number]))
        for row in range(low, high):
            table = events.table(changes.events[row])
            if captured(table.keyspace, table.table):
                unread[int(changes.starts[row])] = "its transaction has no VGTID"
    kept: Ints = commits[own]
    return kept


def _transactions(events: wire.Events, first: int, commits: Ints, vgtids: Ints) -> Transactions:
    """Find the transactions of a stretch. One that begins again in the middle counts from its last BEGIN."""
    begins = first + np.flatnonzero(
        events.types[first : commits[-1] if len(commits) else first] == wire.BEGIN
    )
    behind = np.concatenate([[first], commits[:-1] + 1])[: len(commits)]
    last = np.append(begins, first)[np.searchsorted(begins, commits) - 1]
    starts = np.maximum(last, behind)
    own = _last_before(vgtids, commits)
    return Transactions(
        events.data,
        events.body_starts[own],
        events.body_ends[own],
        events.tables,
        events.table_numbers[commits],
        starts << _PLACE_BITS,
        commits << _PLACE_BITS,
        events.timestamps[starts],
        events.timestamps[commits],
    )


def _rows(events: wire.Events, first: int, last: int, commits: Ints, begins: Ints) -> tuple[RowChanges, Ints]:
    """Return the row changes of a stretch that belong to its transactions, and the ROW event of each."""
    changes = events.changes
    low, high = np.searchsorted(changes.events, (first, last))
    numbers = np.arange(low, high)
    transactions = np.searchsorted(commits, changes.events[low:high])
    # What stands before the last BEGIN comes again behind it.
    inside = changes.events[low:high] >= np.append(begins, last)[transactions]
    numbers, transactions = numbers[inside], transactions[inside]
    of_event = changes.events[numbers]
    shards = pa.array([named.shard for named in events.tables], pa.utf8())
    return (
        RowChanges(
            events.data,
            changes.starts[numbers],
            changes.ends[numbers],
            (of_event << _PLACE_BITS) + 2 * (numbers - np.searchsorted(changes.events, of_event)),
            shards.take(pa.array(events.table_numbers[of_event])),
            # A long transaction's rows bear the times of their statements.
            events.timestamps[commits[transactions]],
            transactions,
        ),
        of_event,
    )


def _last_before(vgtids: Ints, places: Ints) -> Ints:
    """Return the last VGTID before each of some events."""
    which = np.searchsorted(vgtids, places) - 1
    if len(which) and which[0] < 0:
        raise CorruptInput(
            f"event {places[0]} of a VStream ends a transaction", expected="a VGTID before it", found="none"
        )
    found: Ints = vgtids[which]
    return found


def _by_form(
    stream: Stream,
    row_changes: RowChanges,
    of_event: Ints,
    form: EventForm,
    captured: Callable[[str, str], bool],
    unread: dict[int, str],
) -> Iterator[tuple[EventTable, Ints]]:
    """Group row changes by table and form; shards whose tables are equal share one.

    Rows whose fields the stream doesn't have are in no group.
    """
    events, fields = stream.events, stream.fields
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
        for row in rows[which < 0].tolist():
            unread[int(row_changes.starts[row])] = (
                f"the fields of {named.keyspace}.{named.table} in shard {named.shard} don't stand before it"
            )
        rows, which = rows[which >= 0], which[which >= 0]
        for told in np.unique(which).tolist():
            key = _Form(named.keyspace, named.table, comparable_fields(events.body(int(own[told]))))
            groups.setdefault(key, []).append(rows[which == told])
    for key, parts in groups.items():
        yield event_table(key.fields, key.keyspace, key.name, form), np.sort(np.concatenate(parts))


def _statement(events: wire.Events, number: int, vgtids: Ints) -> Statement:
    named = events.table(number)
    vgtid = events.body(int(_last_before(vgtids, np.array([number]))[0]))
    try:
        text = events.body(number).decode()
    except UnicodeDecodeError as error:
        raise CorruptInput(f"event {number} of a VStream has a statement that is no UTF-8") from error
    return Statement(
        number << _PLACE_BITS, text, named.keyspace, named.shard, int(events.timestamps[number]), vgtid
    )
