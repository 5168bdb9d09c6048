"""Messages of a VStream walked in place: what events they hold and where, without an object per event.

What VTGate sends (``vtgate.proto``, ``binlogdata.proto``; field numbers in front, wire format in
:mod:`.protobuf`)::

    VStreamResponse   1 VEvent ...
    VEvent            1 type | 2 timestamp, s | 4 statement | 20 current_time, ns | 22 keyspace | 23 shard
                      24 throttled
                      5 RowEvent | 6 FieldEvent | 7 VGtid | 8 Journal      one of them, as its type says
    RowEvent          1 table_name | 2 RowChange ... | 3 keyspace | 4 shard | 5 flags
    FieldEvent        1 table_name | 2 Field ... | 3 keyspace | 4 shard

All responses of a stream one behind the other are one message with all events, as every field of
VStreamResponse is repeated. So any stretch of bytes from the key of one event to the end of another, in whole
messages, is a message again, and a batch is cut by copying bytes.

:func:`scan` goes down to the start of each ``RowChange`` and looks at nothing inside it, nor inside
``VGtid``, ``Field`` and ``Journal``: who reads these checks them. Fields that aren't known are skipped, and
those of another wire type than theirs are unknown, as in protobuf. A message that stands twice where one can
be is refused, while protobuf would merge the two: VTGate sends none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.names import number_names
from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.sources.vitess.protobuf import (
    FAULTS,
    LEN,
    TWICE,
    VARINT,
    next_field,
    read_varint,
)

BEGIN: Final = 2
COMMIT: Final = 3
ROLLBACK: Final = 4
DDL: Final = 5
OTHER: Final = 11
ROW: Final = 12
FIELD: Final = 13
HEARTBEAT: Final = 14
VGTID: Final = 15
JOURNAL: Final = 16
COPY_COMPLETED: Final = 20
"""Types of events (``binlogdata.VEventType``) that a client of VTGate sees; all others say nothing."""

_KEYSPACE: Final = 0
_SHARD: Final = 2
_TABLE: Final = 4

_STATEMENT: Final = 4
_ROW_EVENT: Final = 5
_FIELD_EVENT: Final = 6
_VGTID: Final = 7
_JOURNAL: Final = 8


class BrokenMessage(CorruptInput):
    """A message can't be read; the others may be.

    Args:
        number: The message's number among those that were read.
    """

    number: int = 0


class ShardTable(NamedTuple):
    """Whom an event is of.

    Args:
        keyspace: Empty for HEARTBEAT, and for the COPY_COMPLETED of all shards.
        shard: Likewise.
        table: Without the keyspace before it; only of ROW and FIELD.
    """

    keyspace: str
    shard: str
    table: str


@dataclass(frozen=True)
class RowChanges:
    """Row changes in stream order.

    Args:
        events: Number of the ROW event that each is of.
        starts: First byte of the ``RowChange``, behind key and length.
        ends: Byte after.
    """

    events: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.events)


@dataclass(frozen=True)
class Events:
    """The events of some messages, an item each; places are in :attr:`data`.

    Args:
        data: The bytes of the messages.
        messages: Number of the message that each event is in.
        types: ``VEventType``; a number may be unknown.
        timestamps: Time of the binlog, seconds since 1970; 0 where it isn't told.
        current_times: The tablet's clock, ns since 1970; 0 where it isn't told.
        throttled: Whether the tablet says that it is.
        flags: MySQL's flags of a ROW, 0 for others.
        keys: Where the event's key stands: a cut before the event is here.
        starts: First byte of the ``VEvent``.
        ends: Byte after.
        body_starts: First byte of what an event of its type carries: ``RowEvent``, ``FieldEvent``, ``VGtid``,
            ``Journal``, the statement of others; -1 for none.
        body_ends: Byte after; -1 for none.
        table_numbers: Whom each is of, a number in :attr:`tables`.
        tables: All keyspaces, shards and tables, each once, in the order of their first event.
        changes: The row changes of all ROW events.
    """

    data: Bytes
    messages: Ints
    types: Ints
    timestamps: Ints
    current_times: Ints
    throttled: npt.NDArray[np.bool_]
    flags: Ints
    keys: Ints
    starts: Ints
    ends: Ints
    body_starts: Ints
    body_ends: Ints
    table_numbers: Ints
    tables: tuple[ShardTable, ...]
    changes: RowChanges

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.types)

    def event(self, number: int) -> bytes:
        """Return the ``VEvent`` message of an event."""
        return self.data[self.starts[number] : self.ends[number]].tobytes()

    def body(self, number: int) -> bytes:
        """Return what an event carries; empty where it carries nothing."""
        if self.body_starts[number] < 0:
            return b""
        return self.data[self.body_starts[number] : self.body_ends[number]].tobytes()

    def table(self, number: int) -> ShardTable:
        """Return whom an event is of."""
        return self.tables[self.table_numbers[number]]


def scan(
    data: bytes | memoryview | Bytes,
    starts: Ints | None = None,
    ends: Ints | None = None,
    *,
    keyspace_in_names: bool = True,
) -> Events:
    """Find the events of VStreamResponse messages.

    Args:
        data: The messages' bytes.
        starts: First byte of each message. None: all bytes are one message.
        ends: Byte after each.
        keyspace_in_names: Whether names of tables have their keyspace before them, as they have without the
            flag ``exclude_keyspace_from_table_name``.

    Raises:
        BrokenMessage: With the message and the byte where the format is broken.
    """
    view = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if starts is None or ends is None:
        starts, ends = np.zeros(1, np.int64), np.full(1, len(view), np.int64)
    if len(starts) and not ((starts >= 0) & (starts <= ends) & (ends <= len(view))).all():
        raise ValueError(f"the places of {len(starts)} messages don't lie in {len(view)} bytes")
    rooms = np.array([len(view) // 48 + 16, len(view) // 32 + 16])
    while True:
        columns = np.zeros((len(_COLUMNS), rooms[0]), np.int64)
        names = np.zeros((6, rooms[0]), np.int64)
        changes = np.zeros((3, rooms[1]), np.int64)
        events, found, fault, message, place = _scan(view, starts, ends, columns, names, changes)
        if fault:
            raise _broken(
                int(message),
                f"Message {message} of a VStream is broken at byte {place - starts[message]}",
                f"a VStreamResponse of {ends[message] - starts[message]} bytes",
                FAULTS[fault],
            )
        if events <= rooms[0] and found <= rooms[1]:
            break
        rooms = np.array([events, found])
    column = dict(zip(_COLUMNS, columns[:, :events], strict=True))
    names = names[:, :events]
    numbers, firsts = number_names(view, names)
    return Events(
        data=view,
        throttled=column.pop("throttled") != 0,
        table_numbers=numbers,
        tables=tuple(
            _table(view, names[:, first], keyspace_in_names, int(column["messages"][first]))
            for first in firsts
        ),
        changes=RowChanges(*changes[:, :found]),
        **column,
    )


def split_recording(data: bytes | memoryview | Bytes) -> tuple[Bytes, Ints, Ints]:
    """Cut a recording, in which the length of each message stands before it as a varint.

    Returns:
        Its bytes, the first byte of each message and the byte after each, for :func:`scan`.

    Raises:
        CorruptInput: A length leads out of the recording.
    """
    view, starts, ends, broken = cut_recording(data)
    if broken is not None:
        place, found = broken
        raise CorruptInput(
            f"A recording of a VStream is broken at byte {place}, behind {len(starts)} messages",
            expected="the length of a message as a varint, and so many bytes",
            found=found,
        )
    return view, starts, ends


def cut_recording(
    data: bytes | memoryview | Bytes,
) -> tuple[Bytes, Ints, Ints, tuple[int, str] | None]:
    """Cut a recording as :func:`split_recording` does, as far as its lengths lead.

    Returns:
        Its bytes, the first byte of each message, the byte after each, and the byte from which on there are
        no messages with what was found there; None if they fill it.
    """
    view = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    room = len(view) // 64 + 16
    while True:
        places = np.zeros((2, room), np.int64)
        count, broken, length, start = _split(view, places)
        if count <= room:
            found = FAULTS[-start] if start < 0 else f"a length of {length}, and {len(view) - start} bytes"
            end = (int(broken), found) if broken >= 0 else None
            return view, places[0, :count], places[1, :count], end
        room = count


_COLUMNS: Final = (
    "messages",
    "types",
    "timestamps",
    "current_times",
    "throttled",
    "flags",
    "keys",
    "starts",
    "ends",
    "body_starts",
    "body_ends",
)
_MESSAGES: Final = 0
_TYPES: Final = 1
_TIMESTAMPS: Final = 2
_CURRENT_TIMES: Final = 3
_THROTTLED: Final = 4
_FLAGS: Final = 5
_KEYS: Final = 6
_STARTS: Final = 7
_ENDS: Final = 8
_BODY_STARTS: Final = 9
_BODY_ENDS: Final = 10


def _broken(number: int, message: str, expected: str, found: str) -> BrokenMessage:
    error = BrokenMessage(message, expected=expected, found=found)
    error.number = number
    return error


def _table(data: Bytes, places: Ints, keyspace_in_names: bool, message: int) -> ShardTable:
    texts = [data[places[i] : places[i + 1]].tobytes() for i in (_KEYSPACE, _SHARD, _TABLE)]
    try:
        keyspace, shard, table = (text.decode() for text in texts)
    except UnicodeDecodeError as error:
        raise _broken(
            message,
            f"A name in message {message} of a VStream is broken",
            "UTF-8",
            b" ".join(texts).hex(" "),
        ) from error
    return ShardTable(keyspace, shard, table.removeprefix(f"{keyspace}.") if keyspace_in_names else table)


@walker
def _split(data: Any, places: Any) -> Any:
    """Fill the places of messages as far as there is room, and count on.

    Returns:
        How many messages there are; -1, or the place of a length that leads out of the recording, with that
        length and the place after it.
    """
    count = np.int64(0)
    at = np.int64(0)
    while at < len(data):
        length, start = read_varint(data, at, len(data))
        if start < 0 or length < 0 or length > len(data) - start:
            return count, at, length, start
        at = start + length
        if count < places.shape[1]:
            places[0, count] = start
            places[1, count] = at
        count += 1
    return count, np.int64(-1), np.int64(0), np.int64(0)


@walker
def _scan(data: Any, starts: Any, ends: Any, columns: Any, names: Any, changes: Any) -> Any:
    """Fill columns, places of names and row changes as far as there is room, and count on.

    Returns:
        The number of events and of row changes; a fault or 0, and its message and place.
    """
    events = np.int64(0)
    found = np.int64(0)
    for message in range(len(starts)):
        at = starts[message]
        while at < ends[message]:
            number, kind, _, content, after = next_field(data, at, ends[message])
            if number < 0:
                return events, found, -number, message, at
            if number == 1 and kind == LEN:
                added, fault, place = _event(data, at, content, after, events, found, columns, names, changes)
                if fault:
                    return events, found, fault, message, place
                if events < columns.shape[1]:
                    columns[_MESSAGES, events] = message
                events += 1
                found += added
            at = after
    return events, found, np.int64(0), np.int64(0), np.int64(0)


@walker
def _event(
    data: Any, key: Any, start: Any, end: Any, event: Any, found: Any, columns: Any, names: Any, changes: Any
) -> Any:
    """Read one VEvent; return how many row changes it has, and a fault or 0 with its place."""
    none = np.int64(0)
    roomy = event < columns.shape[1]
    type_ = time = clock = throttled = none
    keyspace_start = keyspace_end = shard_start = shard_end = none
    statement_start = statement_end = np.int64(-1)
    row_start = row_end = field_start = field_end = np.int64(-1)
    vgtid_start = vgtid_end = journal_start = journal_end = np.int64(-1)
    at = start
    while at < end:
        number, kind, value, content, after = next_field(data, at, end)
        if number < 0:
            return none, -number, at
        if kind == VARINT:
            if number == 1:
                type_ = np.int64(np.int32(value))
            elif number == 2:
                time = value
            elif number == 20:
                clock = value
            elif number == 24:
                throttled = np.int64(value != 0)
        elif kind == LEN:
            if number == _STATEMENT:
                statement_start, statement_end = content, after
            elif number == 22:
                keyspace_start, keyspace_end = content, after
            elif number == 23:
                shard_start, shard_end = content, after
            elif number == _ROW_EVENT:
                if row_start >= 0:
                    return none, np.int64(TWICE), at
                row_start, row_end = content, after
            elif number == _FIELD_EVENT:
                if field_start >= 0:
                    return none, np.int64(TWICE), at
                field_start, field_end = content, after
            elif number == _VGTID:
                if vgtid_start >= 0:
                    return none, np.int64(TWICE), at
                vgtid_start, vgtid_end = content, after
            elif number == _JOURNAL:
                if journal_start >= 0:
                    return none, np.int64(TWICE), at
                journal_start, journal_end = content, after
        at = after
    if roomy:
        columns[_TYPES, event] = type_
        columns[_TIMESTAMPS, event] = time
        columns[_CURRENT_TIMES, event] = clock
        columns[_THROTTLED, event] = throttled
        columns[_FLAGS, event] = 0
        columns[_KEYS, event] = key
        columns[_STARTS, event] = start
        columns[_ENDS, event] = end
        names[_KEYSPACE, event] = keyspace_start
        names[_KEYSPACE + 1, event] = keyspace_end
        names[_SHARD, event] = shard_start
        names[_SHARD + 1, event] = shard_end
        names[_TABLE, event] = none
        names[_TABLE + 1, event] = none
    body_start, body_end = statement_start, statement_end
    added = none
    if type_ in (ROW, FIELD):
        body_start, body_end = field_start, field_end
        if type_ == ROW:
            body_start, body_end = row_start, row_end
        at = max(body_start, none)
        while at < body_end:
            number, kind, value, content, after = next_field(data, at, body_end)
            if number < 0:
                return added, -number, at
            if kind == LEN and number == 2 and type_ == ROW:
                if found + added < changes.shape[1]:
                    changes[0, found + added] = event
                    changes[1, found + added] = content
                    changes[2, found + added] = after
                added += 1
            elif roomy and kind == LEN and number == 1:
                names[_TABLE, event] = content
                names[_TABLE + 1, event] = after
            elif roomy and kind == LEN and number == 3 and keyspace_start == keyspace_end:
                names[_KEYSPACE, event] = content
                names[_KEYSPACE + 1, event] = after
            elif roomy and kind == LEN and number == 4 and shard_start == shard_end:
                names[_SHARD, event] = content
                names[_SHARD + 1, event] = after
            elif roomy and kind == VARINT and number == 5 and type_ == ROW:
                columns[_FLAGS, event] = value & 0xFFFF_FFFF
            at = after
    elif type_ == VGTID:
        body_start, body_end = vgtid_start, vgtid_end
    elif type_ == JOURNAL:
        body_start, body_end = journal_start, journal_end
    if roomy:
        columns[_BODY_STARTS, event] = body_start
        columns[_BODY_ENDS, event] = body_end
    return added, none, none
