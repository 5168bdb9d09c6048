"""Where transactions lead, by their VGTIDs: the usual case, for many transactions by one kernel.

In the usual case a VGTID repeats the one before it but for the set of the shard that the transaction is of,
and that set has the same servers and more transactions than before: the shard's epoch stays. What is
otherwise (a new shard or server, tags, MariaDB's sets, a set that doesn't grow) is left to
:meth:`.position.Position.after`, which knows all cases.

The messages (``binlogdata.proto``; the sets' text: :mod:`.gtid`)::

    VGtid      1 ShardGtid ...
    ShardGtid  1 keyspace | 2 shard | 3 gtid | 4 last keys of a copy
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from airflow_cdc_provider.changes.kernels import walker
from airflow_cdc_provider.changes.spans import Bytes, Ints
from airflow_cdc_provider.sources.vitess.protobuf import LEN, next_field

_FLAVOR: Final = np.frombuffer(b"MySQL56/", np.uint8)
_UUID_BYTES: Final = 36
_MOST_DIGITS: Final = 15
"""Of a transaction's number: sums of such stay far from 2^63."""
_OTHERWISE: Final = -1


class Followed(NamedTuple):
    """Transactions from the first one on, as far as they are usual.

    Args:
        counts: How many transactions the shard's set has with each.
        starts: First byte of that set's text in the data.
        ends: Byte after it.
    """

    counts: Ints
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.counts)


def follow(before: bytes, data: Bytes, starts: Ints, ends: Ints, shards: Ints, names: list[str]) -> Followed:
    """Follow VGTIDs.

    Args:
        before: The ``VGtid`` message before the first; empty for none.
        data: A buffer.
        starts: First byte of the ``VGtid`` message of each transaction in it.
        ends: Byte after each.
        shards: Of each, the number of its shard.
        names: Of shards, ``keyspace/shard``.

    Returns:
        Those before the first that isn't usual.
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
    before: Any, data: Any, starts: Any, ends: Any, shards: Any, names: Any, name_places: Any, found: Any
) -> Any:
    """Fill counts and places of sets; return for how many."""
    for row in range(len(starts)):
        first, last = name_places[shards[row]], name_places[shards[row] + 1]
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
    before: Any, at: Any, end: Any, data: Any, new_at: Any, new_end: Any, names: Any, first: Any, last: Any
) -> Any:
    """Compare a VGTID with the one before it; return the count of the shard's set and the set's place."""
    none = np.int64(0)
    count = np.int64(_OTHERWISE)
    set_start = set_end = none
    while new_at < new_end:
        if at >= end:
            return np.int64(_OTHERWISE), none, none
        number, kind, _, content, at = next_field(before, at, end)
        new_number, new_kind, _, new_content, new_at = next_field(data, new_at, new_end)
        if number != 1 or kind != LEN or new_number != 1 or new_kind != LEN:
            return np.int64(_OTHERWISE), none, none
        if _equal(before, content, at, data, new_content, new_at):
            continue
        if count >= 0:
            return np.int64(_OTHERWISE), none, none
        gtid, gtid_end, name_end = _entry(before, content, at, names, first, last)
        set_start, set_end, new_name_end = _entry(data, new_content, new_at, names, first, last)
        if name_end < 0 or new_name_end < 0:
            return np.int64(_OTHERWISE), none, none
        count = _grown(before, gtid, gtid_end, data, set_start, set_end)
        if count < 0:
            return count, none, none
    if at < end:
        return np.int64(_OTHERWISE), none, none
    return count, set_start, set_end


@walker
def _entry(data: Any, at: Any, end: Any, names: Any, first: Any, last: Any) -> Any:
    """Find the set of an entry, which must be of the shard that is named; -1 as the last number if not."""
    none = np.int64(0)
    keyspace = keyspace_end = shard = shard_end = gtid = gtid_end = none
    while at < end:
        number, kind, _, content, at = next_field(data, at, end)
        if kind != LEN or number < 1 or number > 3:
            return none, none, np.int64(_OTHERWISE)
        if number == 1:
            keyspace, keyspace_end = content, at
        elif number == 2:
            shard, shard_end = content, at
        else:
            gtid, gtid_end = content, at
    middle = first + keyspace_end - keyspace
    if middle >= last or names[middle] != 47 or last - middle - 1 != shard_end - shard:
        return none, none, np.int64(_OTHERWISE)
    if not _equal(data, keyspace, keyspace_end, names, first, middle):
        return none, none, np.int64(_OTHERWISE)
    if not _equal(data, shard, shard_end, names, middle + 1, last):
        return none, none, np.int64(_OTHERWISE)
    return gtid, gtid_end, last


@walker
def _grown(before: Any, at: Any, end: Any, data: Any, new_at: Any, new_end: Any) -> Any:
    """Count the transactions of a set that has the servers of the one before it and more transactions."""
    none = np.int64(_OTHERWISE)
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
            return none  # one that stands twice would count twice
        previous = new_at
        count += some
        new_count += new_some
        at = after
        new_at = new_after
    return new_count if at == end and new_count > count else none


@walker
def _server(data: Any, at: Any, end: Any) -> Any:
    """Read a server of a set; return how many transactions it has (-1: none of the form), and the next."""
    none = np.int64(_OTHERWISE)
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
        # Numbers rise: runs that overlap would count twice.
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
def _number(data: Any, at: Any, end: Any) -> Any:
    """Read a number; 0 if there is none, or one of too many digits."""
    number = np.int64(0)
    start = at
    while at < end and 48 <= data[at] <= 57:
        if at - start == _MOST_DIGITS:
            return np.int64(0), at
        number = number * 10 + np.int64(data[at]) - 48
        at += 1
    return number, at


@walker
def _equal(data: Any, start: Any, end: Any, other: Any, first: Any, last: Any) -> Any:
    if end - start != last - first:
        return False
    place = np.uint64(start)
    other_place = np.uint64(first)
    for i in range(np.uint64(end - start)):  # noqa: SIM110  a generator is no kernel code
        if data[place + i] != other[other_place + i]:
            return False
    return True


@walker
def _less(data: Any, one: Any, other: Any) -> Any:
    for i in range(_UUID_BYTES):
        if data[one + i] != data[other + i]:
            return data[one + i] < data[other + i]
    return False
