"""The state of rows right after or right before each change, for events with whole rows.

Changes are reconciled in sequence, as in the database: a change with an older write time than the current
value has no effect. Independent changes, which are those of different rows, are reconciled at once, in one
round. A change of static columns, or a deletion of a range or partition, conflicts with every other change of
its partition. So a row needs a round for each of its changes, but a partition of many rows doesn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    LIVE_ROW_SCHEMA,
    PARTITION_DELETION,
    RANGE_DELETION,
    ROW,
    UPSERT,
)
from airflow_cdc_provider.formats.kernels import Flags, Ints, walker
from airflow_cdc_provider.lake.reconcile import Reconciled, reconcile_cells

_COMBINE_EVERY: Final = 32
"""Number of rounds after which the chunks of the state tables are combined."""

ROW_STATE_SCHEMA: Final = pa.schema(
    [
        pa.field("change", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("key_state", pa.binary()),
        pa.field("state", pa.binary()),
        pa.field("static_state", pa.binary()),
        pa.field("lives", pa.bool_()),
        pa.field("name", pa.binary()),
    ]
)
"""Columns of a row's state after a change.

``change``        the change.
``key``           the partition key.
``key_state``     a cell row with the row's clustering; null if the change is of the partition.
``state``         the row's cells, null if it doesn't exist or the change is of the partition.
``static_state``  the partition's static cells, null if there are none.
``lives``         whether the row exists; for a partition, whether it has static cells.
``name``          identifies the row, or the partition; not to be stored.
"""


_BEFORE_SCHEMA: Final = pa.schema([pa.field("state", pa.binary()), pa.field("static_state", pa.binary())])
_BEFORE_ALL_EXPIRY: Final = 0
"""A time at which nothing has expired, in epoch seconds."""


def row_states(
    contributions: pa.Table,
    changes: npt.NDArray[np.int64],
    now_seconds: int,
    rules: str,
    *,
    clustered: bool = True,
) -> pa.RecordBatch:
    """Return the states of all rows that each change touched.

    A change first has the rows and static cells that it names, in its order, with a deletion of a partition
    as such (as a row, if partitions are rows); then each row that a deletion of a partition or range removed,
    wholly or in part, or perhaps: rows of a SELECT don't show when they were inserted.
    Rows from before the first change are unknown, and rows that a TRUNCATE removed have no states.

    Args:
        contributions: ``CONTRIBUTION_SCHEMA`` of one table.
        changes: Per contribution the number of its change; changes of a partition come in this order.
        now_seconds: Epoch second at which expiry is evaluated.
        rules: Tie rules.
        clustered: Whether the table has clustering columns; without them a partition is a row.

    Returns:
        Batch of :data:`ROW_STATE_SCHEMA`, in the order of the changes.
    """
    by_name = _by_name(clustered)
    states = [ROW_STATE_SCHEMA.empty_table()]
    for indexes, part, before, after in _play(contributions, changes, now_seconds, rules):
        states.append(_states_after(part, changes[indexes], after, by_name))
        states.append(_covered(part, changes[indexes], before, after, by_name))
    table = pa.concat_tables(states).combine_chunks()
    order = np.argsort(table["change"].to_numpy(), kind="stable")
    (batch,) = table.take(pa.array(order)).combine_chunks().to_batches() or [_nothing()]
    return batch


def rows_before(
    contributions: pa.Table, changes: npt.NDArray[np.int64], rules: str, *, clustered: bool = True
) -> pa.Table:
    """Return the state of each contribution's row right before its change.

    Expiry is not applied: the decoder of the cells does. Rows from before the first change are unknown.

    Args:
        contributions: As for :func:`row_states`.
        changes: As for :func:`row_states`.
        rules: As for :func:`row_states`.
        clustered: As for :func:`row_states`.

    Returns:
        One row per contribution, with columns ``state`` (the row's cells; null if it didn't exist, or the
        contribution is of the partition or a range of it) and ``static_state`` (the partition's static
        cells, null for none and for a range).
    """
    by_name = _by_name(clustered)
    found = [_BEFORE_SCHEMA.empty_table()]
    order = [np.empty(0, np.int64)]
    for indexes, part, before, _ in _play(contributions, changes, _BEFORE_ALL_EXPIRY, rules):
        order.append(indexes)
        found.append(_states_before(part, before, by_name))
    table = pa.concat_tables(found).combine_chunks()
    return table.take(pa.array(np.argsort(np.concatenate(order))))


def _by_name(clustered: bool) -> pa.Array:
    return pa.array([ROW] if clustered else [ROW, PARTITION_DELETION], pa.int8())


class _Round(NamedTuple):
    """Independent changes: indexes of their contributions, these, rows before and rows after."""

    indexes: npt.NDArray[np.int64]
    part: pa.Table
    before: pa.Table
    after: Reconciled


def _play(
    contributions: pa.Table, changes: npt.NDArray[np.int64], now_seconds: int, rules: str
) -> Iterator[_Round]:
    names = _names(contributions)
    rounds, whole = _rounds(contributions, changes, names)
    known = CONTRIBUTION_SCHEMA.empty_table().append_column("name", pa.array([], pa.binary()))
    live = LIVE_ROW_SCHEMA.empty_table().append_column("name", pa.array([], pa.binary()))
    order = np.argsort(rounds, kind="stable")
    starts = np.searchsorted(rounds[order], np.arange(int(rounds.max(initial=-1)) + 2))
    for number in range(len(starts) - 1):
        indexes = order[starts[number] : starts[number + 1]]
        part = contributions.take(pa.array(indexes))
        touched = _Touched(
            pc.unique(part["key"]),
            pc.unique(part["key"].filter(pa.array(whole[indexes]))),
            pc.unique(names.take(pa.array(indexes))),
        )
        touching, others = _split(known, touched, pc.not_equal(known["scope"], ROW))
        before, resting = _split(live, touched, live["state"].is_null())
        touching_now = pa.concat_tables([touching.drop_columns("name"), part])
        after = reconcile_cells(_current(touching_now), now_seconds, rules)
        yield _Round(indexes, part, before.drop_columns("name"), after)
        known = pa.concat_tables([others, _named(after.tombstones), _named(_as_contributions(after.live))])
        live = pa.concat_tables([resting, _named(after.live)])
        if number % _COMBINE_EVERY == 0:
            known, live = known.combine_chunks(), live.combine_chunks()


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=ROW_STATE_SCHEMA)


def _rounds(
    contributions: pa.Table, changes: npt.NDArray[np.int64], names: pa.Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the round of each contribution, and whether its change conflicts with its whole partition.

    A change of another generation than its predecessors does too, since one of the two was truncated.
    """
    keys = contributions["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    of_row = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    rounds = np.zeros(len(keys), np.int64)
    whole = np.zeros(len(keys), np.bool_)
    order = np.lexsort((changes, keys))
    new_key = np.concatenate([[True], keys[order][1:] != keys[order][:-1]])[: len(keys)]
    new_change = np.concatenate([[True], changes[order][1:] != changes[order][:-1]])[: len(keys)] | new_key
    starts = np.append(np.flatnonzero(new_change), len(keys))
    _number_rounds(
        order,
        starts,
        new_key[starts[:-1]],
        of_row,
        contributions["scope"].to_numpy() == ROW,
        contributions["generation"].to_numpy(),
        np.full(int(of_row.max(initial=-1)) + 1, -1),
        rounds,
        whole,
    )
    return rounds, whole


@walker
def _number_rounds(
    order: Ints,
    starts: Ints,
    new_key: Flags,
    of_row: Ints,
    is_row: Flags,
    generations: Ints,
    last: Ints,
    rounds: Ints,
    whole: Flags,
) -> None:
    """Number the rounds of changes.

    Args:
        order: Indexes of contributions, sorted by key and change.
        starts: Start of each change in ``order``, and the end of the last.
        new_key: Per change, whether it is the first of its key.
        of_row: Per contribution, the number of its row.
        is_row: Per contribution, whether it is of one row.
        generations: Per contribution, its generation.
        last: Per row, the last round that touched it, -1 for none.
        rounds: Output: per contribution, its round.
        whole: Output: per contribution, whether its change conflicts with its whole partition.
    """
    floor, top, generation = np.int64(0), np.int64(-1), np.int64(0)
    for change in range(len(starts) - 1):
        start, end = starts[change], starts[change + 1]
        if new_key[change]:
            floor, top, generation = np.int64(0), np.int64(-1), generations[order[start]]
        number, newest, independent = floor, generation, True
        for at in range(start, end):
            index = order[at]
            independent = independent and is_row[index] and generations[index] == generation
            newest = max(newest, generations[index])
            number = max(number, last[of_row[index]] + 1)
        if not independent:
            number = top + 1
            floor, generation = number + 1, newest
        top = max(top, number)
        for at in range(start, end):
            index = order[at]
            last[of_row[index]] = number
            rounds[index] = number
            whole[index] = not independent


@dataclass(frozen=True)
class _Touched:
    """What a round touches: partitions, those of them that it touches as a whole, and rows by name."""

    keys: pa.Array
    whole: pa.Array
    names: pa.Array


def _split(table: pa.Table, touched: _Touched, of_partition: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """Split off what a round touches; a deletion of a range or partition belongs to all of its rows."""
    ours = pc.or_(
        pc.or_(
            pc.is_in(table["name"], value_set=touched.names), pc.is_in(table["key"], value_set=touched.whole)
        ),
        pc.and_(of_partition, pc.is_in(table["key"], value_set=touched.keys)),
    )
    return table.filter(ours), table.filter(pc.invert(ours))


def _named(table: pa.Table) -> pa.Table:
    return table.append_column("name", _names(table))


def _current(contributions: pa.Table) -> pa.Table:
    """Return the contributions of their key's newest generation; the others were truncated."""
    generations = contributions["generation"].to_numpy()
    if len(generations) == 0 or (generations == generations[0]).all():
        return contributions
    keys = contributions["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    greatest = np.full(int(keys.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(greatest, keys, generations)
    return contributions.filter(pa.array(generations == greatest[keys]))


def _as_contributions(live: pa.Table) -> pa.Table:
    """Return live rows as contributions for later rounds; static columns are in the tombstone table."""
    rows = live.filter(pc.is_valid(live["state"]))
    count = rows.num_rows
    columns: dict[str, Any] = {
        "key": rows["key"],
        "scope": pa.array(np.full(count, ROW, np.int8)),
        "clustering": rows["clustering"],
        "clustering_end": pa.nulls(count, pa.binary()),
        "generation": rows["generation"],
        "version": pa.nulls(count, pa.binary()),
        "op": pa.array(np.full(count, UPSERT, np.int8)),
        "state": rows["state"],
    }
    return pa.table(columns, schema=CONTRIBUTION_SCHEMA)


def _states_before(part: pa.Table, before: pa.Table, by_name: pa.Array) -> pa.Table:
    """Return the states of contributions' rows before the round, without rows that a TRUNCATE removed."""
    before = before.combine_chunks()
    rows = before.filter(pc.is_valid(before["state"]))
    scope = part["scope"].combine_chunks()
    is_row = pc.is_in(scope, value_set=by_name)
    generation = part["generation"].combine_chunks()

    def not_truncated(index: pa.Array, of: pa.Table) -> pa.Array:
        own = of["generation"].combine_chunks().take(index)
        return pc.if_else(pc.less(own, generation), pa.scalar(None, pa.int32()), index)

    row = not_truncated(pc.index_in(_names(part), value_set=_names(rows)), rows)
    row = pc.if_else(is_row, row, pa.scalar(None, pa.int32()))
    partition = not_truncated(
        pc.index_in(part["key"].combine_chunks(), value_set=before["key"].combine_chunks()), before
    )
    of_partition = pc.and_(pc.invert(is_row), pc.not_equal(scope, RANGE_DELETION))
    partition = pc.if_else(of_partition, partition, pa.scalar(None, pa.int32()))
    static = pc.coalesce(
        rows["static_state"].combine_chunks().take(row),
        before["static_state"].combine_chunks().take(partition),
    )
    state = rows["state"].combine_chunks().take(row)
    return pa.table({"state": state, "static_state": static}, schema=_BEFORE_SCHEMA)


def _states_after(
    part: pa.Table, changes: npt.NDArray[np.int64], after: Reconciled, by_name: pa.Array
) -> pa.Table:
    """Return the states of the rows and partitions that the changes name."""
    indexes = np.flatnonzero(part["scope"].to_numpy() != RANGE_DELETION)
    part, changes = part.take(pa.array(indexes)), changes[indexes]
    is_row = pc.is_in(part["scope"].combine_chunks(), value_set=by_name)
    rows = after.live.filter(pc.is_valid(after.live["state"]))
    row = pc.index_in(_names(part), value_set=_names(rows))
    row = pc.if_else(is_row, row, pa.scalar(None, pa.int32()))
    partition = pc.index_in(part["key"].combine_chunks(), value_set=after.live["key"].combine_chunks())
    state = rows["state"].combine_chunks().take(row)
    static = after.live["static_state"].combine_chunks().take(partition)
    static = pc.if_else(pc.or_(pc.invert(is_row), row.is_valid()), static, pa.scalar(None, static.type))
    return pa.table(
        {
            "change": changes,
            "key": part["key"],
            "key_state": pc.if_else(is_row, part["state"].combine_chunks(), pa.scalar(None, pa.binary())),
            "state": state,
            "static_state": static,
            "lives": pc.if_else(is_row, row.is_valid(), static.is_valid()),
            "name": _state_names(_names(part), is_row),
        },
        schema=ROW_STATE_SCHEMA,
    )


def _covered(
    part: pa.Table, changes: npt.NDArray[np.int64], before: pa.Table, after: Reconciled, by_name: pa.Array
) -> pa.Table:
    """Return the rows that deletions of partitions and ranges removed or changed, except those named, too."""
    deletions = np.flatnonzero(np.isin(part["scope"].to_numpy(), (PARTITION_DELETION, RANGE_DELETION)))
    if not len(deletions):
        return ROW_STATE_SCHEMA.empty_table()
    named = part.filter(pc.is_in(part["scope"], value_set=by_name))
    part, changes = part.take(pa.array(deletions)), changes[deletions]
    before = before.filter(pc.is_valid(before["state"])).combine_chunks()
    survivors = after.live.filter(pc.is_valid(after.live["state"])).combine_chunks()
    names = _names(before)
    index = pc.index_in(names, value_set=_names(survivors))
    same = pc.equal(before["state"].combine_chunks(), survivors["state"].combine_chunks().take(index))
    decided = pc.invert(pc.is_in(before["key"].combine_chunks(), value_set=after.unresolved_keys))
    change = pc.index_in(before["key"].combine_chunks(), value_set=part["key"].combine_chunks())
    own = before["generation"].combine_chunks()
    truncated = pc.less(own, part["generation"].combine_chunks().take(change)).fill_null(True)
    unaffected = pc.or_(pc.and_(same.fill_null(False), decided), truncated)
    chosen = pc.invert(pc.or_(unaffected, pc.is_in(names, value_set=_names(named))))
    rows, index, change = before.filter(chosen), index.filter(chosen), change.filter(chosen)
    return pa.table(
        {
            "change": pa.array(changes).take(change),
            "key": rows["key"],
            "key_state": rows["state"],
            "state": survivors["state"].combine_chunks().take(index),
            "static_state": survivors["static_state"].combine_chunks().take(index),
            "lives": index.is_valid(),
            "name": _state_names(names.filter(chosen), pa.repeat(True, rows.num_rows)),
        },
        schema=ROW_STATE_SCHEMA,
    )


def _state_names(names: pa.Array, is_row: pa.Array) -> pa.Array:
    """Make names of rows distinct from those of partitions: either may have no clustering."""
    kind = pc.if_else(is_row, pa.scalar(b"r", pa.binary()), pa.scalar(b"p", pa.binary()))
    return pc.binary_join_element_wise(kind, names, pa.scalar(b"", pa.binary()))


def _names(rows: pa.Table) -> pa.Array:
    """Return key and clustering as one name per row; the key's length separates the two."""
    key, clustering = (rows[name].combine_chunks() for name in ("key", "clustering"))
    length = pc.binary_length(key).cast(pa.utf8()).cast(pa.binary())
    parts: Sequence[Any] = (length, pa.scalar(b":", pa.binary()), key, clustering.fill_null(b""))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
