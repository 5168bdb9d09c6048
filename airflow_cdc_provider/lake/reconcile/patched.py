"""Row-level reconciliation with patches: changes that describe a modification instead of the whole row.

Whole contributions are reconciled first (:mod:`.rows`). Patches newer than the winner are then applied to its
state in the order of their versions, each once, however often it occurs. If a patch has no row, its row isn't
fully known, or it can't be applied, the key is unresolved: the row doesn't change until the key is read again
at the source.

Commutative and idempotent like all reconciliation, provided that versions give the order of changes and that
a whole contribution includes exactly the changes up to its version.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.contribution import LIVE_ROW_SCHEMA, PATCH
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.lake.reconcile.flat import one_array, to_table
from airflow_cdc_provider.lake.reconcile.reconciled import Reconciled
from airflow_cdc_provider.lake.reconcile.rows import reconcile_rows

Patch = Callable[[pa.Array, pa.Array, Ints], pa.Array]
"""Applies patches to states. Arguments are the states, the patches grouped by row, and the offsets of each
row's patches; returns the new states, null where a patch can't be applied."""


def reconcile_patched(
    contributions: pa.Table, now_seconds: int, patch: Patch, *, min_generation: int = 0
) -> Reconciled:
    """Reconcile row-level contributions of one table, patches among them.

    Args:
        contributions: As for :func:`~airflow_cdc_provider.lake.reconcile.rows.reconcile_rows`.
        now_seconds: Unused.
        patch: Applies patches.
        min_generation: Contributions of a lower generation are ignored.

    Returns:
        The winners with patches applied.

    Raises:
        CorruptInput: A key or generation is null, or the scope is not ``ROW``.
    """
    is_patch = pc.equal(contributions["op"], PATCH)
    whole = reconcile_rows(
        contributions.filter(pc.invert(is_patch)), now_seconds, min_generation=min_generation
    )
    patches = contributions.filter(
        pc.and_(is_patch, pc.greater_equal(contributions["generation"], min_generation))
    )
    return _patched(whole, patches, patch) if patches.num_rows else whole


def _patched(whole: Reconciled, patches: pa.Table, patch: Patch) -> Reconciled:
    live = whole.live
    rows = {
        name: pa.concat_arrays([one_array(live[name]), one_array(whole.tombstones[name])])
        for name in ("key", "generation", "version")
    }
    index = pc.index_in(one_array(patches["key"]), value_set=rows["key"])
    generation, version = one_array(patches["generation"]), one_array(patches["version"])
    before, known = rows["generation"].take(index), rows["version"].take(index)
    newer = pc.or_(
        pc.greater(generation, before),
        pc.and_(pc.equal(generation, before), pc.greater(version, known)),
    )
    outdated = pc.and_(pc.is_valid(index), pc.invert(newer.fill_null(True)))
    base = pc.less(index, live.num_rows).fill_null(False)  # rows of the tombstone table are deleted
    lost = one_array(patches["key"]).filter(pc.and_(pc.invert(outdated), pc.invert(base)))
    chosen = pc.and_(pc.invert(outdated), base)
    ordered = _in_order(patches.filter(chosen), index.filter(chosen))
    if not ordered.num_rows:
        return Reconciled(live, whole.tombstones, pc.unique(lost).cast(pa.binary()))
    changed, first = np.unique(one_array(ordered["index"]).to_numpy(), return_index=True)
    offsets = np.append(first, ordered.num_rows).astype(np.int64)
    states = patch(one_array(live["state"]).take(pa.array(changed)), one_array(ordered["state"]), offsets)
    applied = states.is_valid().to_numpy(zero_copy_only=False)
    refused = one_array(live["key"]).take(pa.array(changed[~applied]))
    last = pa.array(offsets[1:][applied] - 1)
    new = {
        "state": states.filter(pa.array(applied)),
        "version": one_array(ordered["version"]).take(last),
        "generation": one_array(ordered["generation"]).take(last),
    }
    source = np.arange(live.num_rows)
    source[changed[applied]] = live.num_rows + np.arange(int(applied.sum()))
    columns = {name: one_array(live[name]) for name in LIVE_ROW_SCHEMA.names}
    for name, values in new.items():
        columns[name] = pa.concat_arrays([columns[name], values]).take(pa.array(source))
    unresolved = pc.unique(pa.concat_arrays([lost, refused])).cast(pa.binary())
    return Reconciled(to_table(columns, LIVE_ROW_SCHEMA), whole.tombstones, unresolved)


def _in_order(patches: pa.Table, index: pa.Array) -> pa.Table:
    """Sort patches by row and version, and drop duplicates."""
    placed = patches.append_column("index", index)
    order = [(name, "ascending") for name in ("index", "generation", "version")]
    placed = placed.take(pc.sort_indices(placed, sort_keys=order))
    if placed.num_rows < 2:
        return placed
    duplicates = np.ones(placed.num_rows - 1, np.bool_)
    for name, _ in order:
        column = one_array(placed[name])
        same = pc.equal(column.slice(1), column.slice(0, len(column) - 1))
        duplicates &= same.to_numpy(zero_copy_only=False)
    return placed.filter(pa.array(np.concatenate([[True], ~duplicates])))
