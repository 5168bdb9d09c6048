"""Fast path for VGTIDs: one kernel advances the position over many transactions of the common case.

In the common case a VGTID equals the previous one except for the GTID set of the transaction's shard, and
that set has the same servers and more transactions than before, so the shard's epoch doesn't change. All
other cases (a new shard or server, tags, MariaDB's sets, a set that doesn't grow) are left to
:meth:`.position.Position.after`.

The messages (``binlogdata.proto``; the sets' text: :mod:`.gtid`)::

    VGtid      1 ShardGtid ...
    ShardGtid  1 keyspace | 2 shard | 3 gtid | 4 last keys of a copy
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.formats.protobuf_wire import LEN, next_field

_FLAVOR: Final = np.frombuffer(b"MySQL56/", np.uint8)
_UUID_BYTES: Final = 36
_MOST_DIGITS: Final = 15
"""Maximum length of a transaction number, so that sums can't overflow 64 bits."""
_UNSUPPORTED: Final = -1


class Followed(NamedTuple):
    """The leading transactions that the fast path supports.

    Args:
        counts: Number of transactions in the shard's GTID set after each.
        starts: First byte of that set's text in the data.
        ends: Byte after it.
    """

    counts: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        """Return the number of transactions."""
        return len(self.counts)


def follow(before: bytes, data: Bytes, starts: Ints, ends: Ints, shards: Ints, names: list[str]) -> Followed:
    """Follow VGTIDs as far as the fast path supports them.

    Args:
        before: The ``VGtid`` message before the first; empty for none.
        data: A buffer.
        starts: First byte of the ``VGtid`` message of each transaction in it.
        ends: Byte after each.
        shards: Shard number of each transaction.
        names: Shard names, ``keyspace/shard``.

    Returns:
        The transactions before the first that the fast path doesn't support.
    """
    coded = [name.encode() for name in names]
    name_ends = np.cumsum([len(name) for name in coded], dtype=np.int64)
    found = np.zeros((3, len(starts)), np.int64)
    count = _follow(
        np.frombuffer(before, np.uint8),
        data,
        starts,
        ends,
        shards,
        np.frombuffer(b"".join(coded), np.uint8),
        np.concatenate([[0], name_ends]),
        found,
    )
    return Followed(*found[:, :count])


@walker
def _follow(
    before: Bytes,
    data: Bytes,
    starts: Ints,
    ends: Ints,
    shards: Ints,
    names: Ints,
    name_offsets: Ints,
    found: Ints,
) -> Int:
    """Fill in the counts and offsets of the sets; return for how many transactions."""
    for row in range(len(starts)):
        first, last = name_offsets[shards[row]], name_offsets[shards[row] + 1]
        if row == 0:
            count, start, end = _step(
                before, np.int64(0), np.int64(len(before)), data, starts[row], ends[row], names, first, last
            )
        else:
            count, start, end = _step(
                data, starts[row - 1], ends[row - 1], data, starts[row], ends[row], names, first, last
            )
        if count < 0:
            return row
        found[0, row] = count
        found[1, row] = start
        found[2, row] = end
    return len(starts)


@walker
def _step(
    before: Bytes,
    at: Int,
    end: Int,
    data: Bytes,
    new_at: Int,
    new_end: Int,
    names: Ints,
    first: Int,
    last: Int,
) -> tuple[Int, Int, Int]:
    """Compare a VGTID with the previous one; return the count and the byte range of the shard's set."""
    none = np.int64(0)
    count = np.int64(_UNSUPPORTED)
    set_start = set_end = none
    while new_at < new_end:
        if at >= end:
            return np.int64(_UNSUPPORTED), none, none
        number, kind, _, content, at = next_field(before, at, end)
        new_number, new_kind, _, new_content, new_at = next_field(data, new_at, new_end)
        if number != 1 or kind != LEN or new_number != 1 or new_kind != LEN:
            return np.int64(_UNSUPPORTED), none, none
        if _equal(before, content, at, data, new_content, new_at):
            continue
        if count >= 0:
            return np.int64(_UNSUPPORTED), none, none
        gtid, gtid_end, name_end = _entry(before, content, at, names, first, last)
        set_start, set_end, new_name_end = _entry(data, new_content, new_at, names, first, last)
        if name_end < 0 or new_name_end < 0:
            return np.int64(_UNSUPPORTED), none, none
        count = _grown(before, gtid, gtid_end, data, set_start, set_end)
        if count < 0:
            return count, none, none
    if at < end:
        return np.int64(_UNSUPPORTED), none, none
    return count, set_start, set_end


@walker
def _entry(data: Bytes, at: Int, end: Int, names: Ints, first: Int, last: Int) -> tuple[Int, Int, Int]:
    """Find the set of an entry of the named shard; the last number is -1 if it is of another shard."""
    none = np.int64(0)
    keyspace = keyspace_end = shard = shard_end = gtid = gtid_end = none
    while at < end:
        number, kind, _, content, at = next_field(data, at, end)
        if kind != LEN or number < 1 or number > 3:
            return none, none, np.int64(_UNSUPPORTED)
        if number == 1:
            keyspace, keyspace_end = content, at
        elif number == 2:
            shard, shard_end = content, at
        else:
            gtid, gtid_end = content, at
    middle = first + keyspace_end - keyspace
    if middle >= last or names[middle] != 47 or last - middle - 1 != shard_end - shard:
        return none, none, np.int64(_UNSUPPORTED)
    if not _equal(data, keyspace, keyspace_end, names, first, middle):
        return none, none, np.int64(_UNSUPPORTED)
    if not _equal(data, shard, shard_end, names, middle + 1, last):
        return none, none, np.int64(_UNSUPPORTED)
    return gtid, gtid_end, last


@walker
def _grown(before: Bytes, at: Int, end: Int, data: Bytes, new_at: Int, new_end: Int) -> Int:
    """Count the transactions of a set that has the same servers as the previous one and more transactions."""
    none = np.int64(_UNSUPPORTED)
    size = len(_FLAVOR)
    if not _equal(before, at, min(at + size, end), _FLAVOR, 0, size):
        return none
    if not _equal(data, new_at, min(new_at + size, new_end), _FLAVOR, 0, size):
        return none
    at += size
    new_at += size
    count = new_count = np.int64(0)
    previous = none
    while new_at < new_end:
        some, after = _server(before, at, end)
        new_some, new_after = _server(data, new_at, new_end)
        if some < 0 or new_some < 0:
            return none
        if not _equal(before, at, at + _UUID_BYTES, data, new_at, new_at + _UUID_BYTES):
            return none
        if previous >= 0 and not _less(data, previous, new_at):
            return none  # a duplicate would count twice
        previous = new_at
        count += some
        new_count += new_some
        at = after
        new_at = new_after
    return new_count if at == end and new_count > count else none


@walker
def _server(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Parse a server of a set; return its number of transactions (-1: invalid), and the offset after it."""
    none = np.int64(_UNSUPPORTED)
    if end - at <= _UUID_BYTES:
        return none, at
    for i in range(_UUID_BYTES):
        byte = data[at + i]
        if i in (8, 13, 18, 23):
            if byte != 45:
                return none, at
        elif not (48 <= byte <= 57 or 97 <= byte <= 102):
            return none, at
    at += _UUID_BYTES
    count = np.int64(0)
    last = np.int64(0)
    while at < end and data[at] == 58:
        begin, at = _number(data, at + 1, end)
        stop = begin
        if at < end and data[at] == 45:
            stop, at = _number(data, at + 1, end)
        # Numbers must rise: overlapping intervals would count twice.
        if begin <= last or stop < begin:
            return none, at
        count += stop - begin + 1
        last = stop
    if count == 0:
        return none, at
    if at < end:
        if data[at] != 44 or at + 1 == end:
            return none, at
        at += 1
    return count, at


@walker
def _number(data: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """Parse a number; 0 if there is none, or if it has too many digits."""
    number = np.int64(0)
    start = at
    while at < end and 48 <= data[at] <= 57:
        if at - start == _MOST_DIGITS:
            return np.int64(0), at
        number = number * 10 + np.int64(data[at]) - 48
        at += 1
    return number, at


@walker
def _equal(data: Bytes, start: Int, end: Int, other: Bytes, first: Int, last: Int) -> bool:
    if end - start != last - first:
        return False
    offset = np.uint64(start)
    other_offset = np.uint64(first)
    for i in range(np.uint64(end - start)):  # noqa: SIM110  kernels can't contain generators
        if data[offset + i] != other[other_offset + i]:
            return False
    return True


@walker
def _less(data: Bytes, one: Int, other: Int) -> bool:
    for i in range(_UUID_BYTES):
        if data[one + i] != data[other + i]:
            return data[one + i] < data[other + i]
    return False
