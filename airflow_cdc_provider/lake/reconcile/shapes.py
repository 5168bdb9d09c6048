"""The tuples of arrays and numbers that pass between kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]
Int = Any
"""A number in a kernel. Numba sees int64; mypy would see int and NumPy's scalars, which don't mix."""


class Flat(NamedTuple):
    """A binary column: value ``i`` is ``data[starts[i]:ends[i]]``; a null is empty."""

    data: Bytes
    starts: Numbers
    ends: Numbers


class Batch(NamedTuple):
    """Contributions as flat arrays, each with a number.

    Args:
        state: All cell rows, checked.
        row: Where each begins.
        contents: ``HOLDS_*`` bits of each.
        scope: Its scope.
        generation: Its generation.
        clustering: Its clustering.
        clustering_end: The upper bound of its range.
        has_end: Whether it has one.
    """

    state: Bytes
    row: Numbers
    contents: Bytes
    scope: Bytes
    generation: Numbers
    clustering: Flat
    clustering_end: Flat
    has_end: Bytes


class Settings(NamedTuple):
    """What a merge is judged by.

    Args:
        now_seconds: The moment at which expiry is judged.
        purge_seconds: Tombstones and expired cells of before this second go.
        rules: ``RULES_*``.
    """

    now_seconds: Int
    purge_seconds: Int
    rules: Int


class Ranges(NamedTuple):
    """Room for the range deletions of one partition.

    Args:
        members: Those that count, by start.
        by_end: The same by end.
        spare: Room to sort them in.
        heap: Those that are open at a point, the strongest first.
        starts: Where each stretch of what they delete begins (a bound by number).
        ends: Where it ends.
        times: Write time of its deletion.
        seconds: Local deletion time.
    """

    members: Numbers
    by_end: Numbers
    spare: Numbers
    heap: Numbers
    starts: Numbers
    ends: Numbers
    times: Numbers
    seconds: Numbers


class Scratch(NamedTuple):
    """Room to work in, for the largest row and the largest partition.

    Args:
        cells: References to cells.
        spare: The same.
        runs: Where the cells of each contribution begin.
        covered: Per cell, whether a deletion covers it.
        covering_us: Write time of that deletion.
        explained: Per cell, whether a SELECT showed it.
        ranges: For range deletions.
    """

    cells: Numbers
    spare: Numbers
    runs: Numbers
    covered: Flags
    covering_us: Numbers
    explained: Flags
    ranges: Ranges


class Deletion(NamedTuple):
    """A deletion; without ``present`` the rest is meaningless."""

    present: Any
    time_us: Int
    seconds: Int


class Liveness(NamedTuple):
    """The liveness of a row; ``flag`` is ROW_LIVENESS, ROW_UNCERTAIN or 0 for none.

    With ROW_UNCERTAIN, ``time_us`` is that of the reading, ``expires`` the write time of the greatest known
    liveness before it, and ``ttl`` the end of that one in epoch seconds, as in a cell row's header.
    """

    flag: Int
    time_us: Int
    ttl: Int
    expires: Int


class Outcome(NamedTuple):
    """Room for what comes of a batch; ``counts`` tells how much was used.

    Args:
        live: Cell rows of live rows.
        live_at: Where each begins and the last ends; an empty one is a partition of which only statics live.
        live_member: A contribution that has the row's key and clustering.
        live_static: Number of the partition's static row on the side, NONE for none.
        live_expires: Next second at which something of the row expires, NEVER for none.
        live_static_expires: Likewise of the partition's static row.
        live_generation: Its generation.
        side: Cell rows of the side table.
        side_at: Where each begins and the last ends.
        side_scope: Scope of each.
        side_member: A contribution that has its key.
        side_start: Bound that is its clustering, NONE for an empty one.
        side_end: Bound that is its clustering_end, NONE for none.
        side_generation: Its generation.
        doubtful: A contribution that has the key, for each doubtful key.
        counts: Numbers of live rows, side rows, doubtful keys.
    """

    live: Bytes
    live_at: Numbers
    live_member: Numbers
    live_static: Numbers
    live_expires: Numbers
    live_static_expires: Numbers
    live_generation: Numbers
    side: Bytes
    side_at: Numbers
    side_scope: Bytes
    side_member: Numbers
    side_start: Numbers
    side_end: Numbers
    side_generation: Numbers
    doubtful: Numbers
    counts: Numbers
