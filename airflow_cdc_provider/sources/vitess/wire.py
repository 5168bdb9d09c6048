"""Parses messages of a VStream in place: types and byte ranges of events, without an object per event.

The format (``vtgate.proto``, ``binlogdata.proto``; prefixed by field numbers; wire format in
:mod:`.protobuf`)::

    VStreamResponse   1 VEvent ...
    VEvent            1 type | 2 timestamp, s | 4 statement | 20 current_time, ns | 22 keyspace | 23 shard
                      24 throttled
                      5 RowEvent | 6 FieldEvent | 7 VGtid | 8 Journal      one of them, depending on the type
    RowEvent          1 table_name | 2 RowChange ... | 3 keyspace | 4 shard | 5 flags
    FieldEvent        1 table_name | 2 Field ... | 3 keyspace | 4 shard

Concatenated responses are one message with all events, because every field of VStreamResponse is repeated. So
any byte range from the key of one event to the end of another is a valid message, and a batch can be split by
copying bytes.

:func:`scan` parses down to the start of each ``RowChange``, but not its contents, nor those of ``VGtid``,
``Field`` and ``Journal``: their readers validate them. Unknown fields and fields with an unexpected wire type
are skipped, as in protobuf. A singular message field that occurs twice is rejected, while protobuf would
merge both: VTGate doesn't send it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.changes.names import number_names
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import FAULTS, LEN, TWICE, VARINT, next_field, read_varint

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
"""Types of events (``binlogdata.VEventType``) that a client of VTGate receives; all others are ignored."""

_KEYSPACE: Final = 0
_SHARD: Final = 2
_TABLE: Final = 4

_STATEMENT: Final = 4
_ROW_EVENT: Final = 5
_FIELD_EVENT: Final = 6
_VGTID: Final = 7
_JOURNAL: Final = 8


class BrokenMessage(CorruptInput):
    """Messages can't be parsed; the others may be valid.

    Args:
        numbers: Indices of the messages.
    """

    numbers: Ints = np.zeros(1, np.int64)


class ShardTable(NamedTuple):
    """Keyspace, shard and table of an event.

    Args:
        keyspace: Empty for HEARTBEAT, and for the COPY_COMPLETED of all shards.
        shard: Likewise.
        table: Without the keyspace; only for ROW and FIELD.
    """

    keyspace: str
    shard: str
    table: str


@dataclass(frozen=True)
class RowChanges:
    """Row changes in stream order.

    Args:
        events: Number of the ROW event of each.
        starts: First byte of the ``RowChange``, after key and length.
        ends: Byte after it.
    """

    events: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        """Return the number of row changes."""
        return len(self.events)


@dataclass(frozen=True)
class Events:
    """The events of some messages, one item each; offsets refer to :attr:`data`.

    Args:
        data: The bytes of the messages.
        messages: Index of the message of each event.
        types: ``VEventType``; a number may be unknown.
        timestamps: Time in the binlog, seconds since 1970; 0 if unknown.
        current_times: The tablet's clock, ns since 1970; 0 if unknown.
        throttled: Whether the tablet is throttled.
        flags: MySQL's flags of a ROW event, 0 for others.
        keys: Offset of the event's key, at which a split before the event must be made.
        starts: First byte of the ``VEvent``.
        ends: Byte after it.
        body_starts: First byte of the body of the event's type: ``RowEvent``, ``FieldEvent``, ``VGtid``,
            ``Journal``, or the statement of others; -1 for none.
        body_ends: Byte after it; -1 for none.
        table_numbers: Index in :attr:`tables` of each event.
        tables: All distinct keyspaces, shards and tables, in the order of their first event.
        changes: The row changes of all ROW events.
    """

    data: Bytes
    messages: Ints
    types: Ints
    timestamps: Ints
    current_times: Ints
    throttled: Flags
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
        """Return the number of events."""
        return len(self.types)

    def event(self, number: int) -> bytes:
        """Return the ``VEvent`` message of an event."""
        return self.data[self.starts[number] : self.ends[number]].tobytes()

    def body(self, number: int) -> bytes:
        """Return the body of an event; empty if it has none."""
        if self.body_starts[number] < 0:
            return b""
        return self.data[self.body_starts[number] : self.body_ends[number]].tobytes()

    def table(self, number: int) -> ShardTable:
        """Return keyspace, shard and table of an event."""
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
        keyspace_in_names: Whether table names are prefixed by the keyspace, as without the flag
            ``exclude_keyspace_from_table_name``.

    Raises:
        BrokenMessage: The first message with invalid bytes, or all messages with a name that isn't UTF-8.
    """
    view = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if starts is None or ends is None:
        starts, ends = np.zeros(1, np.int64), np.full(1, len(view), np.int64)
    if len(starts) and not ((starts >= 0) & (starts <= ends) & (ends <= len(view))).all():
        raise ValueError(f"the offsets of {len(starts)} messages exceed {len(view)} bytes")
    capacities = np.array([len(view) // 48 + 16, len(view) // 32 + 16])
    while True:
        columns = np.zeros((len(_COLUMNS), capacities[0]), np.int64)
        names = np.zeros((6, capacities[0]), np.int64)
        changes = np.zeros((3, capacities[1]), np.int64)
        events, found, fault, message, fault_offset = _scan(view, starts, ends, columns, names, changes)
        if fault:
            raise _broken(
                np.array([message]),
                f"Message {message} of a VStream is broken at byte {fault_offset - starts[message]}",
                f"a VStreamResponse of {ends[message] - starts[message]} bytes",
                FAULTS[fault],
            )
        if events <= capacities[0] and found <= capacities[1]:
            break
        capacities = np.array([events, found])
    column = dict(zip(_COLUMNS, columns[:, :events], strict=True))
    names = names[:, :events]
    numbers, firsts = number_names(view, names)
    texts = [_texts(view, names[:, first]) for first in firsts]
    if invalid := [number for number, found in enumerate(texts) if not _are_utf8(found)]:
        raise _broken(
            np.unique(column["messages"][np.isin(numbers, invalid)]),
            "A name in a message of a VStream is broken",
            "UTF-8",
            b" ".join(texts[invalid[0]]).hex(" "),
        )
    return Events(
        data=view,
        throttled=column.pop("throttled") != 0,
        table_numbers=numbers,
        tables=tuple(_table(found, keyspace_in_names) for found in texts),
        changes=RowChanges(*changes[:, :found]),
        **column,
    )


def split_recording(data: bytes | memoryview | Bytes) -> tuple[Bytes, Ints, Ints]:
    """Split a recording, in which each message is preceded by its length as a varint.

    Returns:
        Its bytes, the first byte of each message and the byte after each, for :func:`scan`.

    Raises:
        CorruptInput: A length exceeds the recording.
    """
    view, starts, ends, broken = split_valid_prefix(data)
    if broken is not None:
        offset, found = broken
        raise CorruptInput(
            f"A recording of a VStream is broken at byte {offset}, after {len(starts)} messages",
            expected="the length of a message as a varint, and that many bytes",
            found=found,
        )
    return view, starts, ends


def split_valid_prefix(data: bytes | memoryview | Bytes) -> tuple[Bytes, Ints, Ints, tuple[int, str] | None]:
    """Split the valid prefix of a recording as :func:`split_recording` does.

    Returns:
        Its bytes, the first byte of each message, the byte after each, and the offset and description of the
        first invalid length; None if the whole recording is valid.
    """
    view = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    capacity = len(view) // 64 + 16
    while True:
        offsets = np.zeros((2, capacity), np.int64)
        count, broken, length, start = _split(view, offsets)
        if count <= capacity:
            found = FAULTS[-start] if start < 0 else f"a length of {length}, and {len(view) - start} bytes"
            end = (int(broken), found) if broken >= 0 else None
            return view, offsets[0, :count], offsets[1, :count], end
        capacity = count


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


def _broken(numbers: Ints, message: str, expected: str, found: str) -> BrokenMessage:
    error = BrokenMessage(message, expected=expected, found=found)
    error.numbers = numbers
    return error


def _texts(data: Bytes, offsets: Ints) -> list[bytes]:
    return [data[offsets[i] : offsets[i + 1]].tobytes() for i in (_KEYSPACE, _SHARD, _TABLE)]


def _are_utf8(texts: list[bytes]) -> bool:
    try:
        b"\0".join(texts).decode()
    except UnicodeDecodeError:
        return False
    return True


def _table(texts: list[bytes], keyspace_in_names: bool) -> ShardTable:
    keyspace, shard, table = (text.decode() for text in texts)
    return ShardTable(keyspace, shard, table.removeprefix(f"{keyspace}.") if keyspace_in_names else table)


@walker
def _split(data: Bytes, offsets: Ints) -> tuple[Int, Int, Int, Int]:
    """Fill in the offsets of messages up to the capacity, and count all messages.

    Returns:
        The number of messages; -1, or the offset of a length that exceeds the recording, with that length and
        the offset after it.
    """
    count = np.int64(0)
    at = np.int64(0)
    while at < len(data):
        length, start = read_varint(data, at, len(data))
        if start < 0 or length < 0 or length > len(data) - start:
            return count, at, length, start
        at = start + length
        if count < offsets.shape[1]:
            offsets[0, count] = start
            offsets[1, count] = at
        count += 1
    return count, np.int64(-1), np.int64(0), np.int64(0)


@walker
def _scan(
    data: Bytes, starts: Ints, ends: Ints, columns: Ints, names: Ints, changes: Ints
) -> tuple[Int, Int, Int, Int, Int]:
    """Fill in columns, offsets of names and row changes up to the capacity, and count all events.

    Returns:
        The number of events and of row changes; a fault or 0, and its message and offset.
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
                added, fault, fault_offset = _event(
                    data, at, content, after, events, found, columns, names, changes
                )
                if fault:
                    return events, found, fault, message, fault_offset
                if events < columns.shape[1]:
                    columns[_MESSAGES, events] = message
                events += 1
                found += added
            at = after
    return events, found, np.int64(0), np.int64(0), np.int64(0)


@walker
def _event(
    data: Bytes,
    key: Int,
    start: Int,
    end: Int,
    event: Int,
    found: Int,
    columns: Ints,
    names: Ints,
    changes: Ints,
) -> tuple[Int, Int, Int]:
    """Parse one VEvent; return its number of row changes, and a fault or 0 with its offset."""
    none = np.int64(0)
    fits = event < columns.shape[1]
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
    if fits:
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
            elif fits and kind == LEN and number == 1:
                names[_TABLE, event] = content
                names[_TABLE + 1, event] = after
            elif fits and kind == LEN and number == 3 and keyspace_start == keyspace_end:
                names[_KEYSPACE, event] = content
                names[_KEYSPACE + 1, event] = after
            elif fits and kind == LEN and number == 4 and shard_start == shard_end:
                names[_SHARD, event] = content
                names[_SHARD + 1, event] = after
            elif fits and kind == VARINT and number == 5 and type_ == ROW:
                columns[_FLAGS, event] = value & 0xFFFF_FFFF
            at = after
    elif type_ == VGTID:
        body_start, body_end = vgtid_start, vgtid_end
    elif type_ == JOURNAL:
        body_start, body_end = journal_start, journal_end
    if fits:
        columns[_BODY_STARTS, event] = body_start
        columns[_BODY_ENDS, event] = body_end
    return added, none, none
