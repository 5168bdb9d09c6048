"""Events of a CQL database's topic as rows: row key, time, kind of change, and cells.

Debezium's and ScyllaDB's events contain what a statement wrote: cells of a row, or its deletion. So a row of
a topic has the last value of each cell in its events, without cells that are older than a deletion.
The order of events:

===================  =====================================================================================
Cassandra's cells    by the write times in events, from whichever node; a deletion wins a tie
ScyllaDB's cells     by the time of the change, then by their order in the topic
whole rows            by their order in the topic: those of ``datastax``, and rows as merges left them
===================  =====================================================================================

:mod:`.row_comparison` combines the events of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.arrow_bytes import span_column
from airflow_cdc_provider.formats.json_text import OBJECT
from airflow_cdc_provider.sources.debezium.decode import operations_of
from airflow_cdc_provider.sources.debezium.json_members import Members, members_of, read_values
from airflow_cdc_provider.sources.debezium.json_texts import compact
from airflow_cdc_provider.sources.debezium.values import show_plain

INSERT: Final = 0
"""The event has cells of a row that was inserted."""
UPDATE: Final = 1
"""The event has cells of a row."""
DELETE: Final = 2
DELETE_PARTITION: Final = 3
DELETE_RANGE: Final = 4

_NOTHING: Final = -1
_EFFECTS: Final = {"insert": INSERT, "update": UPDATE, "delete": DELETE, "delete_range": DELETE_RANGE}

REPORTED_DDL: Final = (
    "partition binary, key binary, of_mirror boolean, static boolean, what tinyint, time bigint, "
    "wins_ties boolean, place bigint, cells binary"
)
"""Columns of events as rows: the keys of partition and row, as JSON; whether the event is of a mirror;
whether it is of the partition itself, for static columns; one of the constants above; the write time (us, or
0), whether it wins over other events of that time, and its offset in the topic; the object with the cells."""
REPORTED_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.binary()),
        ("key", pa.binary()),
        ("of_mirror", pa.bool_()),
        ("static", pa.bool_()),
        ("what", pa.int8()),
        ("time", pa.int64()),
        ("wins_ties", pa.bool_()),
        ("place", pa.int64()),
        ("cells", pa.binary()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class RowForm:
    """The form of rows in events.

    Args:
        operations: See :class:`~airflow_cdc_provider.sources.cql.events.source_events.CqlSourceEvents`.
        exact_deletions: See there.
        partition: Names of the columns of the partition key in events.
        clustering: Names of the clustering columns in events.
        static_columns: Names of the static columns in events.
        left_out: Columns that events don't contain completely.
        enveloped: Whether values are envelopes with ``op`` and ``after``; else they are whole rows.
        in_cells: Whether values are objects with a member ``value``; columns without one are unchanged.
        whole: Whether each event contains its whole row.
        deletion_unit_us: The unit of ``deletion_ts``, us.
    """

    operations: Mapping[str, str]
    exact_deletions: bool
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    static_columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    enveloped: bool = True
    in_cells: bool = True
    whole: bool = False
    deletion_unit_us: int = 1


def reported_by(
    keys: pa.Array, values: pa.Array, offsets: np.ndarray, form: RowForm, *, of_mirror: bool
) -> pa.RecordBatch:
    """Return events as rows of ``REPORTED_SCHEMA``.

    Args:
        keys: JSON texts in canonical form.
        values: JSON texts, null for tombstones.
        offsets: The offset of each event in the topic.
        form: The form of rows in events.
        of_mirror: Whether the events are of a mirror's rows.

    Raises:
        CorruptInput: An event has no key or another form.
    """
    partitions, static = _named(keys, form)
    data, objects = read_values(values)
    members = members_of(data, objects)
    if form.enveloped:
        what = _operations(members, form.operations)
        what[~(objects.kinds == OBJECT)] = _NOTHING  # tombstones: the delete comes before them
        (after,) = members.find("after")
    else:
        count = np.bincount(members.owners, minlength=members.count) if len(members.owners) else 0
        what = np.where((objects.kinds == OBJECT) & (count > 0), INSERT, DELETE)
        after = objects
    times, wins = _times(members, what, form)
    if form.exact_deletions and not form.whole:
        # With rows of merges, each deleted row has an event of its own.
        what[(what == DELETE) & static] = DELETE_PARTITION
    cells = after.only(OBJECT)
    reported = pa.RecordBatch.from_arrays(
        [
            partitions,
            keys,
            pa.repeat(pa.scalar(of_mirror), len(keys)),
            pa.array(static),
            pa.array(what.astype(np.int8)),
            pa.array(times),
            pa.array(wins),
            pa.array(offsets),
            span_column(pa.binary(), data, cells.starts, cells.ends),
        ],
        schema=REPORTED_SCHEMA,
    )
    return reported.filter(pa.array(what != _NOTHING))


def _named(keys: pa.Array, form: RowForm) -> tuple[pa.Array, np.ndarray]:
    """Return the partition of each key, and which keys are of whole partitions."""
    data, objects = read_values(keys)
    if (objects.kinds != OBJECT).any():
        raise CorruptInput("a message has no key that names a row", expected="a key with the row's columns")
    if not form.clustering:
        return keys, np.zeros(len(keys), np.bool_)
    found = members_of(data, objects).find(*form.partition, *form.clustering)
    own = [compact(data, one).fill_null(b"") for one in found[: len(form.partition)]]
    joined = pc.binary_join_element_wise(*own, pa.scalar(b",", pa.binary()))
    return joined, ~np.logical_or.reduce([one.present for one in found[len(form.partition) :]])


def _operations(members: Members, operations: Mapping[str, str]) -> np.ndarray:
    letters = operations_of(members)
    known = np.full(256, _NOTHING, np.int64)
    for letter, effect in operations.items():
        known[ord(letter)] = _EFFECTS[effect]
    found: np.ndarray = known[letters]
    there = np.bincount(members.owners, minlength=members.count) > 0 if len(members.owners) else letters > 0
    if (there & (found == _NOTHING)).any():
        raise CorruptInput("an event has an unknown op", expected=f"one of {', '.join(operations)}")
    return found


def _times(members: Members, what: np.ndarray, form: RowForm) -> tuple[np.ndarray, np.ndarray]:
    """Return the write times of events, and which events win over others of that time."""
    no_ties = np.zeros(members.count, np.bool_)
    if form.whole:
        return np.zeros(members.count, np.int64), no_ties
    source, after = members.find("source", "after")
    ts_us, ts_ms = members_of(members.data, source).find("ts_us", "ts_ms")
    # The source block of the documents has microseconds in ts_ms.
    micros, millis = (show_plain(members.data, one, "int64")[0] for one in (ts_us, ts_ms))
    times = pc.coalesce(micros, millis).fill_null(0).to_numpy(zero_copy_only=False)
    if not form.exact_deletions or not (what == DELETE).any():
        return times, no_ties
    cells = members_of(members.data, after)
    (ended,) = members_of(members.data, cells.values).find("deletion_ts")
    ends = show_plain(members.data, ended, "int64")[0].fill_null(-1).to_numpy(zero_copy_only=False)
    latest = np.full(members.count, -1, np.int64)
    np.maximum.at(latest, cells.owners, ends)
    exact = (what == DELETE) & (latest >= 0)
    latest = (latest + 1) * form.deletion_unit_us - 1  # the end of a ms, but not after the change
    return np.where(exact, np.minimum(latest, times), times), exact
