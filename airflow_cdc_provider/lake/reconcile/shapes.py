"""Named tuples of arrays and numbers that kernels take and return."""

from __future__ import annotations

from typing import Any, NamedTuple

from airflow_cdc_provider.formats.kernels import Bytes, Flags, Int, Ints


class Flat(NamedTuple):
    """A binary column: value ``i`` is ``data[starts[i]:ends[i]]``; a null is empty."""

    data: Bytes
    starts: Ints
    ends: Ints


class Batch(NamedTuple):
    """Contributions as flat arrays, numbered from 0.

    Args:
        state: All cell rows, checked.
        row: Start of each.
        contents: ``HOLDS_*`` bits of each.
        scope: Its scope.
        generation: Its generation.
        clustering: Its clustering.
        clustering_end: The upper bound of its range.
        has_end: Whether it has one.
    """

    state: Bytes
    row: Ints
    contents: Bytes
    scope: Bytes
    generation: Ints
    clustering: Flat
    clustering_end: Flat
    has_end: Bytes


class Settings(NamedTuple):
    """Parameters of a merge.

    Args:
        now_seconds: Epoch second at which expiry is judged.
        purge_seconds: Tombstones and expired cells older than this second are purged.
        rules: ``RULES_*``.
    """

    now_seconds: Int
    purge_seconds: Int
    rules: Int


class Ranges(NamedTuple):
    """Buffers for the range deletions of one partition.

    Args:
        members: The effective ones, by start.
        by_end: The same by end.
        spare: Buffer for sorting.
        heap: Those that are open at a point, the strongest first.
        starts: Start of each disjoint interval (a bound by number).
        ends: End of each interval.
        times: Write time of its deletion.
        seconds: Local deletion time.
    """

    members: Ints
    by_end: Ints
    spare: Ints
    heap: Ints
    starts: Ints
    ends: Ints
    times: Ints
    seconds: Ints


class Scratch(NamedTuple):
    """Scratch buffers, sized for the largest row and the largest partition.

    Args:
        cells: References to cells.
        spare: The same.
        runs: Start of the cells of each contribution.
        covered: Per cell, whether a deletion covers it.
        covering_us: Write time of that deletion.
        confirmed: Per cell, whether a SELECT returned it.
        ranges: For range deletions.
    """

    cells: Ints
    spare: Ints
    runs: Ints
    covered: Flags
    covering_us: Ints
    confirmed: Flags
    ranges: Ranges


class Deletion(NamedTuple):
    """A deletion; without ``present`` the other fields are unused."""

    present: Any
    time_us: Int
    seconds: Int


class Liveness(NamedTuple):
    """The liveness of a row; ``flag`` is ROW_LIVENESS, ROW_UNCERTAIN or 0 for none.

    With ROW_UNCERTAIN, ``time_us`` is the time of the reading, ``expires`` the write time of the greatest
    known liveness before it, and ``ttl`` its expiry in epoch seconds, as in a cell row's header.
    """

    flag: Int
    time_us: Int
    ttl: Int
    expires: Int


class Outcome(NamedTuple):
    """Output buffers of a batch; ``counts`` holds how much of them is used.

    Args:
        live: Cell rows of live rows.
        live_at: Start of each and end of the last; an empty one is a partition with only static columns.
        live_member: A contribution that has the row's key and clustering.
        live_static: Number of the partition's static row in the tombstone table, NONE for none.
        live_expires: Next second at which data of the row expires, NEVER for none.
        live_static_expires: The same for the partition's static row.
        live_generation: Its generation.
        tombstones: Cell rows of the tombstone table.
        tombstone_at: Start of each and end of the last.
        tombstone_scope: Scope of each.
        tombstone_member: A contribution that has its key.
        tombstone_start: Bound that is its clustering, NONE for an empty one.
        tombstone_end: Bound that is its clustering_end, NONE for none.
        tombstone_generation: Its generation.
        unresolved: A contribution that has the key, for each unresolved key.
        counts: Numbers of live rows, tombstones, unresolved keys.
    """

    live: Bytes
    live_at: Ints
    live_member: Ints
    live_static: Ints
    live_expires: Ints
    live_static_expires: Ints
    live_generation: Ints
    tombstones: Bytes
    tombstone_at: Ints
    tombstone_scope: Bytes
    tombstone_member: Ints
    tombstone_start: Ints
    tombstone_end: Ints
    tombstone_generation: Ints
    unresolved: Ints
    counts: Ints
