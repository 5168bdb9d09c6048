"""Decodes messages of a VStream to events: row images per table, in the order of the stream.

A transaction consists of the events between BEGIN and COMMIT, which may span messages. All its events have
the VGTID that precedes the COMMIT: a reader's position after the transaction. Events without a COMMIT are
ignored, because VTGate sends them again. An update of the key becomes a delete and a create.

Rows are Arrow columns; only FIELD events and transactions are objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Ints
from airflow_cdc_provider.sources.vitess import wire
from airflow_cdc_provider.sources.vitess.events.table_events import RowChanges, TableEvents, table_events
from airflow_cdc_provider.sources.vitess.events.tables import (
    EventForm,
    EventTable,
    comparable_fields,
    event_table,
)

_SORT_KEY_BITS: Final = 32
_ENDS: Final = (wire.COMMIT, wire.DDL, wire.OTHER)
"""Types of events that complete the VGTID before them."""


@dataclass(frozen=True, eq=False)
class Transactions:
    """Transactions in the order of the stream.

    Args:
        data: The buffer of their VGTIDs.
        vgtid_starts: First byte of the ``VGtid`` message of each.
        vgtid_ends: Byte after it.
        tables: Keyspaces and shards.
        numbers: Index in ``tables`` of each transaction.
        begins: Sort key of BEGIN.
        ends: Sort key of END.
        begin_seconds: When it began, in seconds since 1970; 0 if unknown.
        end_seconds: When it was committed, likewise.
        epochs: Epoch of its shard after it, if known; None to derive it from VGTIDs.
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
        """Return the number of transactions."""
        return len(self.begins)

    @property
    def shards(self) -> list[str]:
        """The shard name of each transaction."""
        names = np.array([table.shard for table in self.tables], np.object_)
        found: list[str] = names[self.numbers].tolist()
        return found

    def with_shards(self) -> Iterator[tuple[bytes, str]]:
        """Yield the ``VGtid`` message of each transaction, and its shard as ``keyspace/shard``."""
        names = [f"{table.keyspace}/{table.shard}" for table in self.tables]
        spans = zip(self.vgtid_starts.tolist(), self.vgtid_ends.tolist(), self.numbers.tolist(), strict=True)
        for start, end, number in spans:
            yield self.data[start:end].tobytes(), names[number]


@dataclass(frozen=True)
class Statement:
    """A DDL statement.

    Args:
        sort_key: Its sort key.
        text: The statement as MySQL logged it.
        keyspace: Keyspace in which it ran.
        shard: Shard in which it ran.
        seconds: When it ran, in seconds since 1970.
        vgtid: The ``VGtid`` message before it.
    """

    sort_key: int
    text: str
    keyspace: str
    shard: str
    seconds: int
    vgtid: bytes


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat of VTGate in an idle stream.

    Args:
        sort_key: Its sort key.
        vgtid: The ``VGtid`` message of the current position.
    """

    sort_key: int
    vgtid: bytes


@dataclass(frozen=True, eq=False)
class StreamEvents:
    """Events of a part of a stream.

    Args:
        tables: Events of captured tables, by table and schema.
        transactions: All transactions, including those without an event.
        statements: DDL statements.
        unread: Reasons for row changes that can't be decoded, by their first byte in the data.
        heartbeats: Heartbeats after the first position.
    """

    tables: list[TableEvents]
    transactions: Transactions
    statements: list[Statement]
    unread: dict[int, str] = field(default_factory=dict)
    heartbeats: list[Heartbeat] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Stream:
    """A stream from a position before its first FIELD event.

    Args:
        events: Its events.
    """

    events: wire.Events

    @cached_property
    def fields(self) -> Ints:
        """Numbers of the FIELD events."""
        return np.flatnonzero(self.events.types == wire.FIELD)


def split_stream(events: wire.Events, changes: int) -> Iterator[tuple[int, int]]:
    """Split a stream into parts of whole transactions.

    Args:
        events: The stream.
        changes: Number of row changes at which a part ends; its last transaction may exceed it.

    Yields:
        First event number of a part, and the number after its last event. Events that aren't followed by a
        COMMIT, DDL or OTHER event belong to no part.
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
    stream: Stream, first: int, last: int, form: EventForm, captured: Callable[[str, str], bool]
) -> StreamEvents:
    """Decode a part of a stream.

    Args:
        stream: The stream.
        first: First event, at a transaction boundary.
        last: The event after the last one, at a transaction boundary.
        form: Format of the events.
        captured: Returns whether to include the events of a keyspace and table.

    Returns:
        The events.

    Raises:
        CorruptInput: A statement has no VGTID before it, or fields or statements can't be parsed.
    """
    events = stream.events
    types = events.types[first:last]
    ends = first + np.flatnonzero(types == wire.COMMIT)
    vgtids = first + np.flatnonzero(types == wire.VGTID)
    unread: dict[int, str] = {}
    commits = _with_own_vgtid(events, first, ends, vgtids, captured, unread)
    transactions = _transactions(events, first, commits, vgtids)
    rows, of_event = _rows(events, first, last, commits, transactions.begins >> _SORT_KEY_BITS)
    tables = [
        table_events(table, rows.take(chosen), unread)
        for table, chosen in _by_schema(stream, rows, of_event, form, captured, unread)
    ]
    statements = [_statement(events, int(first + n), vgtids) for n in np.flatnonzero(types == wire.DDL)]
    return StreamEvents(tables, transactions, statements, unread, heartbeats(events, first, last))


def heartbeats(events: wire.Events, first: int, last: int) -> list[Heartbeat]:
    """Return the heartbeats of a part and after its last transaction; none before the first position."""
    found = []
    for number in (first + np.flatnonzero(events.types[first:last] == wire.HEARTBEAT)).tolist():
        # A VGTID takes effect with the event that completes it.
        ended = np.flatnonzero(np.isin(events.types[:number], _ENDS))
        vgtids = np.flatnonzero(events.types[: ended[-1] if len(ended) else 0] == wire.VGTID)
        if len(vgtids):
            # A heartbeat inside a transaction sorts before all events of the transaction.
            found.append(Heartbeat((int(ended[-1]) << _SORT_KEY_BITS) + 1, events.body(int(vgtids[-1]))))
    return found


class _TableSchema(NamedTuple):
    """A table with one version of its fields."""

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
    """Return the COMMITs that have their own VGTID, and mark the rows of the others as unread.

    A message that is missing from the stream may have contained the VGTID.
    """
    after_previous = np.concatenate([[first], commits[:-1] + 1])[: len(commits)]
    own = np.searchsorted(vgtids, after_previous) < np.searchsorted(vgtids, commits)
    changes = events.changes
    for number in np.flatnonzero(~own).tolist():
        low, high = np.searchsorted(changes.events, (after_previous[number], commits[number]))
        for row in range(low, high):
            table = events.table(changes.events[row])
            if captured(table.keyspace, table.table):
                unread[int(changes.starts[row])] = "its transaction has no VGTID"
    kept: Ints = commits[own]
    return kept


def _transactions(events: wire.Events, first: int, commits: Ints, vgtids: Ints) -> Transactions:
    """Return the transactions of a part. A transaction that VTGate restarts starts at its last BEGIN."""
    begins = first + np.flatnonzero(
        events.types[first : commits[-1] if len(commits) else first] == wire.BEGIN
    )
    after_previous = np.concatenate([[first], commits[:-1] + 1])[: len(commits)]
    last = np.append(begins, first)[np.searchsorted(begins, commits) - 1]
    starts = np.maximum(last, after_previous)
    own = _last_before(vgtids, commits)
    return Transactions(
        events.data,
        events.body_starts[own],
        events.body_ends[own],
        events.tables,
        events.table_numbers[commits],
        starts << _SORT_KEY_BITS,
        commits << _SORT_KEY_BITS,
        events.timestamps[starts],
        events.timestamps[commits],
    )


def _rows(events: wire.Events, first: int, last: int, commits: Ints, begins: Ints) -> tuple[RowChanges, Ints]:
    """Return the row changes of the transactions of a part, and the ROW event of each."""
    changes = events.changes
    low, high = np.searchsorted(changes.events, (first, last))
    numbers = np.arange(low, high)
    transactions = np.searchsorted(commits, changes.events[low:high])
    # Rows before the last BEGIN are sent again after it.
    inside = changes.events[low:high] >= np.append(begins, last)[transactions]
    numbers, transactions = numbers[inside], transactions[inside]
    of_event = changes.events[numbers]
    shards = pa.array([named.shard for named in events.tables], pa.utf8())
    return (
        RowChanges(
            events.data,
            changes.starts[numbers],
            changes.ends[numbers],
            (of_event << _SORT_KEY_BITS) + 2 * (numbers - np.searchsorted(changes.events, of_event)),
            shards.take(pa.array(events.table_numbers[of_event])),
            # The rows of a long transaction have the times of their statements.
            events.timestamps[commits[transactions]],
            transactions,
        ),
        of_event,
    )


def _last_before(vgtids: Ints, numbers: Ints) -> Ints:
    """Return the last VGTID before each of some events."""
    which = np.searchsorted(vgtids, numbers) - 1
    if len(which) and which[0] < 0:
        raise CorruptInput(
            f"event {numbers[0]} of a VStream ends a transaction", expected="a VGTID before it", found="none"
        )
    found: Ints = vgtids[which]
    return found


def _by_schema(
    stream: Stream,
    row_changes: RowChanges,
    of_event: Ints,
    form: EventForm,
    captured: Callable[[str, str], bool],
    unread: dict[int, str],
) -> Iterator[tuple[EventTable, Ints]]:
    """Group row changes by table and schema; shards with equal tables share a group.

    Rows without fields in the stream belong to no group.
    """
    events, fields = stream.events, stream.fields
    table_of_field = events.table_numbers[fields]
    groups: dict[_TableSchema, list[Ints]] = {}
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
                f"there are no fields of {named.keyspace}.{named.table} in shard {named.shard} before it"
            )
        rows, which = rows[which >= 0], which[which >= 0]
        for field_event in np.unique(which).tolist():
            key = _TableSchema(
                named.keyspace, named.table, comparable_fields(events.body(int(own[field_event])))
            )
            groups.setdefault(key, []).append(rows[which == field_event])
    for key, parts in groups.items():
        yield event_table(key.fields, key.keyspace, key.name, form), np.sort(np.concatenate(parts))


def _statement(events: wire.Events, number: int, vgtids: Ints) -> Statement:
    named = events.table(number)
    vgtid = events.body(int(_last_before(vgtids, np.array([number]))[0]))
    try:
        text = events.body(number).decode()
    except UnicodeDecodeError as error:
        raise CorruptInput(f"the statement of event {number} of a VStream isn't UTF-8") from error
    return Statement(
        number << _SORT_KEY_BITS, text, named.keyspace, named.shard, int(events.timestamps[number]), vgtid
    )
