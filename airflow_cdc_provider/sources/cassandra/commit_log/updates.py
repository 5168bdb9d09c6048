"""Split entries into updates: find the table, start and end of each update."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, Ints, walker
from airflow_cdc_provider.sources.cassandra.commit_log.framing import LENGTH, START
from airflow_cdc_provider.sources.cassandra.commit_log.tables import (
    FORMER,
    LOCAL,
    ROLES,
    SCHEMA,
    SELECTED,
    SYSTEM,
    UNSELECTED,
    LogTables,
)
from airflow_cdc_provider.sources.cassandra.decoding.mutation import read_update
from airflow_cdc_provider.sources.cql.decoding.programs import Program, find_table
from airflow_cdc_provider.sources.cql.decoding.sink import (
    BOUNDS_AT,
    FAILED_AT,
    ROWS_AT,
    STATES_AT,
    Sink,
    grow,
    new_sink,
)
from airflow_cdc_provider.sources.cql.reasons import (
    BAD_COUNT,
    NO_SPACE,
    TRAILING_BYTES,
    TRUNCATED,
    UNKNOWN_TABLE,
)
from airflow_cdc_provider.sources.cql.wire import read_uvint

_TABLE_ID_BYTES: Final = 16
_MOST_UPDATES: Final = (1 << 16) - 1
"""A mutation has one update of a table at most; a record in quarantine has two bytes for an ordinal."""

ENTRY: Final = 0
"""Columns of ``found`` and ``failed``: number of the entry, and the ordinal of the update in it."""
ORDINAL: Final = 1
TABLE: Final = 2
"""Column of ``found``: number of the table."""
BEGIN: Final = 3
"""Columns of ``found``: start and end of the update, and of its partition key."""
STOP: Final = 4
KEY_BEGIN: Final = 5
KEY_STOP: Final = 6
_FOUND_COLUMNS: Final = 7

REASON: Final = 2
"""Columns of ``failed``: why the mutation can't be split from that update on, and the offset of the error."""
ERROR_OFFSET: Final = 3
_FAILED_COLUMNS: Final = 4

_FOUND_AT: Final = 0
_FAILED_COUNT: Final = 1
_CURSORS: Final = 2


class Updates(NamedTuple):
    """The updates of entries.

    ``found``    int64, a row per update of a captured table, of ``system.local`` or ``system_schema``
    ``failed``   int64, a row per mutation that could not be split completely
    ``by_role``  int64, number of updates by role of their table
    """

    found: Ints
    failed: Ints
    by_role: Ints


def find_updates(
    plain: Bytes, entries: Ints, versions: Ints, first_ordinals: Ints, tables: LogTables
) -> Updates:
    """Find the updates of selected tables.

    Args:
        plain: Bytes with the mutations.
        entries: From :func:`~.framing.find_entries`.
        versions: Format version of each entry's segment.
        first_ordinals: Number of leading updates to skip in each entry.
        tables: The known tables.

    Returns:
        The updates.
    """
    # Each update takes a table id at least. What isn't written takes no memory.
    found = np.empty((int(entries[:, LENGTH].sum()) // _TABLE_ID_BYTES, _FOUND_COLUMNS), np.int64)
    failed = np.empty((len(entries), _FAILED_COLUMNS), np.int64)
    by_role = np.zeros((2, ROLES), np.int64)
    cursor = np.zeros(_CURSORS, np.int64)
    sink = new_sink(65536, 1024, len(tables.program.column_id))
    done = 0
    while done < len(entries):
        done = _find(
            plain,
            entries,
            versions,
            first_ordinals,
            done,
            tables.roles,
            tables.keyspace_selected,
            tables.program,
            tables.skips_unknown,
            sink,
            cursor,
            found,
            failed,
            by_role,
        )
        if done < len(entries):
            sink = grow(sink)
    return Updates(found[: cursor[_FOUND_AT]], failed[: cursor[_FAILED_COUNT]], by_role[0])


@walker
def _find(
    plain: Bytes,
    entries: Ints,
    versions: Ints,
    first_ordinals: Ints,
    first: Int,
    roles: Bytes,
    keyspace_selected: Bytes,
    program: Program,
    skips_unknown: bool,
    sink: Sink,
    cursor: Ints,
    found: Ints,
    failed: Ints,
    by_role: Ints,
) -> Int:
    """Process entries from number ``first`` until all are done or the sink is full; return the next.

    Line 1 of ``by_role`` counts the updates of one entry, until it is done.
    """
    for entry in range(first, len(entries)):
        begin = entries[entry, START]
        end = begin + entries[entry, LENGTH]
        previous_count = cursor[_FOUND_AT]
        count, at = read_uvint(plain, begin, end)
        reason = 0
        ordinal = np.int64(0)
        if at < 0 or end - at < _TABLE_ID_BYTES:
            reason, at = TRUNCATED, begin
        elif count < 1 or count > min((end - at) // _TABLE_ID_BYTES, _MOST_UPDATES):
            reason, at = BAD_COUNT, begin
        else:
            table = find_table(program, plain, at)
            if table < 0 and skips_unknown:
                continue
            if table < 0:
                reason = UNKNOWN_TABLE
            elif roles[table] == SYSTEM or (roles[table] == LOCAL and count > 1):
                by_role[0, SYSTEM] += count
                continue
            elif not keyspace_selected[table] and roles[table] not in (LOCAL, SCHEMA):
                by_role[0, roles[table] if count == 1 else UNSELECTED] += count
                continue
        while reason == 0 and ordinal < count:
            if end - at < _TABLE_ID_BYTES:
                reason = TRUNCATED
                break
            table = find_table(program, plain, at)
            if table < 0:
                reason = UNKNOWN_TABLE
                break
            stop = end
            if count > 1:
                stop = read_update(plain, at, end, versions[entry], np.int64(0), table, program, sink)
                sink.cursor[ROWS_AT], sink.cursor[STATES_AT], sink.cursor[BOUNDS_AT] = 0, 0, 0
                if stop < 0:
                    reason = -stop
                    at = sink.cursor[FAILED_AT]
                    break
            key_length, key_begin = read_uvint(plain, at + _TABLE_ID_BYTES, stop)
            if key_begin < 0 or key_length < 0 or key_length > stop - key_begin:
                reason = TRUNCATED
                break
            if ordinal >= first_ordinals[entry]:
                role = roles[table]
                if role in (SELECTED, FORMER, LOCAL, SCHEMA):
                    row = cursor[_FOUND_AT]
                    found[row, ENTRY] = entry
                    found[row, ORDINAL] = ordinal
                    found[row, TABLE] = table
                    found[row, BEGIN] = at
                    found[row, STOP] = stop
                    found[row, KEY_BEGIN] = key_begin
                    found[row, KEY_STOP] = key_begin + key_length
                    cursor[_FOUND_AT] = row + 1
                else:
                    by_role[1, role] += 1
            at = stop
            ordinal += 1
        if reason == NO_SPACE:
            cursor[_FOUND_AT] = previous_count
            by_role[1, :] = 0
            return entry
        for role in range(ROLES):
            by_role[0, role] += by_role[1, role]
            by_role[1, role] = 0
        if reason == 0 and at != end:
            reason = TRAILING_BYTES
        if reason != 0:
            row = cursor[_FAILED_COUNT]
            failed[row, ENTRY] = entry
            failed[row, ORDINAL] = ordinal
            failed[row, REASON] = reason
            failed[row, ERROR_OFFSET] = at - begin
            cursor[_FAILED_COUNT] = row + 1
    return len(entries)
