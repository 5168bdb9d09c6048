"""Cell-level reconciliation: the read path of Cassandra and ScyllaDB over contributions, as one Arrow kernel.

``docs/formats/cassandra-commit-log.md``, section 16: every cell by its write time and the database's tie
rules, row liveness, deletions of rows, ranges, partitions and collections, expiry, static columns. The output
can be merged again with whatever arrives next: the result doesn't depend on order, batching or repetition
(under 3.11's rules only at one and the same moment, since there expiry decides ties).

Therefore some data is kept that the database doesn't return to readers:

- a tombstone or covering deletion, so that older data is not resurrected, until ``purge_before_seconds``;
- an expired cell with write time and expiry, flagged both ``CELL_TOMBSTONE`` and ``CELL_EXPIRING``, without
  TTL and value. As the tombstone that a compaction writes for it, it would win ties that it loses as an
  expiring cell, and the result would depend on the time of the merge;
- an expired row liveness, for the same reason.

A row's deletion, the deletions of its collections and its dead cells are in its ``state``. Deletions of
partitions and ranges are in the tombstone table only, with ranges split to be disjoint. A deletion that a
stronger one covers is dropped.

A row with ``ROW_UNCERTAIN`` and without ``ROW_LIVENESS`` has the time of its reading, in us, instead of the
liveness' write time, and the greatest known liveness next to it. Older data may be unresolved
(:mod:`.unresolved`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cells import NEVER
from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    LIVE_ROW_SCHEMA,
    RANGE_DELETION,
    ROW,
)
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.lake.reconcile.cell_row import (
    FAULTS,
    HOLDS_NOTHING,
    HOLDS_UNCERTAIN_ROW,
    RULES_3_11,
    RULES_4_0,
    RULES_SCYLLA,
    check_cell_rows,
)
from airflow_cdc_provider.lake.reconcile.flat import (
    flat,
    large_binary,
    numbers,
    one_array,
    reject_nulls,
    to_table,
)
from airflow_cdc_provider.lake.reconcile.order import order_contributions
from airflow_cdc_provider.lake.reconcile.partition import NONE, outcome_for, reconcile_partitions
from airflow_cdc_provider.lake.reconcile.reconciled import Reconciled
from airflow_cdc_provider.lake.reconcile.replica_duplicates import NO_CHANGES, count_duplicates
from airflow_cdc_provider.lake.reconcile.shapes import Batch, Outcome, Settings

RULES: Final = {"4.0": RULES_4_0, "3.11": RULES_3_11, "scylla": RULES_SCYLLA}


def reconcile_cells(
    contributions: pa.Table,
    now_seconds: int,
    rules: str = "4.0",
    *,
    min_generation: int = 0,
    purge_before_seconds: int | None = None,
    static_columns_table: bool = False,
    pending: pa.ChunkedArray | None = None,
) -> Reconciled:
    """Reconcile cell-level contributions of one table.

    Args:
        contributions: ``CONTRIBUTION_SCHEMA``, in any order, with any duplicates. For each key, all that is
            known of it: pending changes, the mirror's rows (as scope ``ROW``), the tombstone table.
        now_seconds: Epoch second at which expiry is judged.
        rules: Tie rules: Cassandra's ``4.0`` (and later) or ``3.11``, or ``scylla``.
        min_generation: The table's generation: contributions of a lower one are ignored. Output rows have the
            highest generation of their key.
        purge_before_seconds: Tombstones and expired data older than this epoch second are purged. Only safe
            if nothing older can arrive any more; None keeps all.
        static_columns_table: Return static columns once per partition, not with each of its rows.
        pending: Which of the contributions are new: replica duplicates are counted among them, except for
            rows read by a SELECT and ignored contributions. None counts nothing.

    Returns:
        The live rows and the rows of the tombstone table, ordered by key (in an internal order) and
        clustering. They replace the rows of these keys in the mirror and in the tombstone table.

    Raises:
        CorruptInput: A cell row is malformed, a key or cell row is null, or a scope is unknown.
    """
    key = one_array(contributions["key"])
    state = one_array(contributions["state"])
    scope = one_array(contributions["scope"], pa.int8())
    generation = one_array(contributions["generation"], pa.int64())
    for name, column in (("key", key), ("state", state), ("scope", scope), ("generation", generation)):
        reject_nulls(name, column)
    clustering = one_array(contributions["clustering"])
    clustering_end = one_array(contributions["clustering_end"])

    states = flat(state)
    cells = np.empty(len(state), np.int64)
    contents = np.empty(len(state), np.uint8)
    row, fault = check_cell_rows(*states, cells, contents)
    if fault:
        raise CorruptInput(f"The cell row of contribution {row} is broken", found=FAULTS[fault])
    batch = Batch(
        state=states.data,
        row=states.starts,
        contents=contents,
        scope=_scopes(scope),
        generation=numbers(generation),
        clustering=flat(clustering),
        clustering_end=flat(clustering_end),
        has_end=_has_value(clustering_end),
    )
    counting = (batch.generation >= min_generation) & (contents != HOLDS_NOTHING)
    ranges = batch.scope == RANGE_DELETION
    if ranges.any():
        counting &= ~ranges | _is_range(clustering, clustering_end)
    order, levels = order_contributions(
        flat(key), batch.clustering, batch.scope, np.flatnonzero(counting).astype(np.int64)
    )
    settings = Settings(
        np.int64(now_seconds),
        np.int64(-NEVER if purge_before_seconds is None else purge_before_seconds),
        RULES[rules],
    )
    outcome = outcome_for(len(state), int(ranges.sum()), int((states.ends - states.starts).sum()))
    reconcile_partitions(batch, order, levels, cells, settings, outcome)
    live_count, tombstone_count, unresolved_count = (int(n) for n in outcome.counts)
    live = _live_rows(outcome, live_count, tombstone_count, key, clustering)
    rows, static_columns = (
        _split_static_columns(live, outcome, live_count) if static_columns_table else (live, live.slice(0, 0))
    )
    duplicates = NO_CHANGES
    if pending is not None:
        new = numbers(one_array(pending.cast(pa.uint8()))) == 1
        changes = new & (contents & HOLDS_UNCERTAIN_ROW == 0)
        duplicates = count_duplicates(states, batch.clustering_end, batch.scope, changes, order, levels)
    return Reconciled(
        live=rows,
        static_columns=static_columns,
        replica_duplicates=duplicates,
        tombstones=_tombstone_rows(outcome, tombstone_count, key, clustering, clustering_end),
        unresolved_keys=key.take(pa.array(outcome.unresolved[:unresolved_count])).cast(pa.binary()),
    )


def _scopes(scope: Any) -> Any:
    scopes = numbers(scope)
    wrong = (scopes < ROW) | (scopes > RANGE_DELETION)
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptInput(
            f"Contribution {row} has an unknown scope", expected="0 to 3", found=str(int(scopes[row]))
        )
    return scopes.view(np.uint8)


def _has_value(array: Any) -> Any:
    return numbers(array.is_valid().cast(pa.uint8()))


def _is_range(clustering: Any, clustering_end: Any) -> Any:
    return numbers(pc.less(clustering.fill_null(b""), clustering_end).fill_null(True).cast(pa.uint8())) == 1


def _live_rows(outcome: Outcome, count: int, tombstone_count: int, key: Any, clustering: Any) -> pa.Table:
    state = large_binary(outcome.live[: outcome.live_at[count]], outcome.live_at[: count + 1])
    member = outcome.live_member[:count]
    static_only = state.is_null().to_numpy(zero_copy_only=False)
    expires = np.minimum(outcome.live_expires[:count], outcome.live_static_expires[:count])
    return to_table(
        {
            "key": key.take(pa.array(member)),
            "clustering": clustering.fill_null(b"").take(pa.array(member, mask=static_only)),
            "generation": pa.array(outcome.live_generation[:count]),
            "version": pa.nulls(count, pa.binary()),
            "state": state,
            "static_state": _tombstone_states(outcome, tombstone_count).take(
                _or_null(outcome.live_static[:count])
            ),
            "expires_at": _expiry(expires),
        },
        LIVE_ROW_SCHEMA,
    )


def _split_static_columns(live: pa.Table, outcome: Outcome, count: int) -> tuple[pa.Table, pa.Table]:
    """Return rows without static columns, and the static columns of each partition that has some."""
    states = pc.is_valid(live["state"])
    rows = {
        **_columns(live),
        "static_state": pa.nulls(count, pa.binary()),
        "expires_at": _expiry(outcome.live_expires[:count]),
    }
    numbers, first = np.unique(outcome.live_static[:count], return_index=True)
    chosen = first[numbers != NONE]
    static_columns = {
        **_columns(live.take(pa.array(chosen))),
        "clustering": pa.nulls(len(chosen), pa.binary()),
        "state": pa.nulls(len(chosen), pa.binary()),
        "expires_at": _expiry(outcome.live_static_expires[:count][chosen]),
    }
    return to_table(rows, LIVE_ROW_SCHEMA).filter(states), to_table(static_columns, LIVE_ROW_SCHEMA)


def _columns(table: pa.Table) -> dict[str, Any]:
    return {name: table[name] for name in table.column_names}


def _expiry(seconds: Ints) -> Any:
    return pa.array(seconds, mask=seconds == NEVER)


def _tombstone_rows(outcome: Outcome, count: int, key: Any, clustering: Any, clustering_end: Any) -> pa.Table:
    bounds = pa.concat_arrays([clustering.fill_null(b""), clustering_end])
    return to_table(
        {
            "key": key.take(pa.array(outcome.tombstone_member[:count])),
            "scope": pa.array(outcome.tombstone_scope[:count].view(np.int8)),
            "clustering": bounds.take(_or_null(outcome.tombstone_start[:count])).fill_null(b""),
            "clustering_end": bounds.take(_or_null(outcome.tombstone_end[:count])),
            "generation": pa.array(outcome.tombstone_generation[:count]),
            "version": pa.nulls(count, pa.binary()),
            "op": pa.array(np.zeros(count, np.int8)),
            "state": _tombstone_states(outcome, count),
        },
        CONTRIBUTION_SCHEMA,
    )


def _tombstone_states(outcome: Outcome, count: int) -> Any:
    return large_binary(outcome.tombstones[: outcome.tombstone_at[count]], outcome.tombstone_at[: count + 1])


def _or_null(indexes: Ints) -> Any:
    return pa.array(indexes, mask=indexes == NONE)
