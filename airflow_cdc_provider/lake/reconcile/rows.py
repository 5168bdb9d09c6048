"""Row-level reconciliation: the contribution with the greatest (generation, version) wins as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, DELETE, LIVE_ROW_SCHEMA, ROW
from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.formats.kernels import Bytes, Ints, kernel
from airflow_cdc_provider.lake.reconcile.cell_row import compare_values_at, order_of
from airflow_cdc_provider.lake.reconcile.flat import flat, numbers, one_array, reject_nulls, to_table
from airflow_cdc_provider.lake.reconcile.order import SAME_ROW, order_contributions
from airflow_cdc_provider.lake.reconcile.reconciled import Reconciled
from airflow_cdc_provider.lake.reconcile.shapes import Flat


def reconcile_rows(contributions: pa.Table, now_seconds: int, *, min_generation: int = 0) -> Reconciled:
    """Reconcile row-level contributions of one table.

    Args:
        contributions: ``CONTRIBUTION_SCHEMA``, all of scope ``ROW``, in any order, with any duplicates. For
            each key, all that is known of it: pending changes, the mirror's rows, the tombstone table.
        now_seconds: Unused; the signature is that of cell-level sources.
        min_generation: The table's generation: contributions of a lower one are ignored.

    Returns:
        The winners: upserts are live, deletes go to the tombstone table; ordered by key (in an internal
        order). Among equal versions a delete wins, then the lesser state, so that duplicates and order don't
        matter. A null state is the least, so a row read without its state doesn't change when a duplicate of
        it arrives.

    Raises:
        CorruptInput: A key or generation is null, or the scope is not ``ROW``.
    """
    key = one_array(contributions["key"])
    generation = one_array(contributions["generation"], pa.int64())
    scope = one_array(contributions["scope"], pa.int8())
    op = one_array(contributions["op"], pa.int8())
    for name, column in (("key", key), ("generation", generation), ("scope", scope), ("op", op)):
        reject_nulls(name, column)
    scopes = numbers(scope)
    if (scopes != ROW).any():
        row = int((scopes != ROW).argmax())
        raise CorruptInput(
            f"Contribution {row} has an invalid scope", expected="scope 0", found=str(int(scopes[row]))
        )
    clustering = one_array(contributions["clustering"])
    version = one_array(contributions["version"])
    state = one_array(contributions["state"])

    generations = numbers(generation)
    order, levels = order_contributions(
        flat(key),
        flat(clustering),
        scopes.view(np.uint8),
        np.flatnonzero(generations >= min_generation).astype(np.int64),
    )
    winners = _winners(order, levels, generations, flat(version), numbers(op), flat(state))
    chosen = pa.array(winners)
    deleted = numbers(op)[winners] == DELETE
    columns: dict[str, Any] = {
        "key": key.take(chosen),
        "scope": pa.array(scopes[winners]),
        "clustering": clustering.fill_null(b"").take(chosen),
        "clustering_end": pa.nulls(len(winners), pa.binary()),
        "generation": pa.array(generations[winners]),
        "version": version.take(chosen),
        "op": pa.array(numbers(op)[winners]),
        "state": state.take(chosen),
        "static_state": pa.nulls(len(winners), pa.binary()),
        "expires_at": pa.nulls(len(winners), pa.int64()),
    }
    return Reconciled(
        live=to_table(_where(columns, ~deleted), LIVE_ROW_SCHEMA),
        tombstones=to_table(_where(columns, deleted), CONTRIBUTION_SCHEMA),
    )


def _where(columns: dict[str, Any], mask: Any) -> dict[str, Any]:
    chosen = pa.array(mask)
    return {name: column.filter(chosen) for name, column in columns.items()}


@kernel
def _winners(order: Ints, levels: Bytes, generation: Ints, version: Flat, op: Bytes, state: Flat) -> Ints:
    winners = np.empty(len(order), np.int64)
    count = 0
    for index in range(len(order)):
        member = order[index]
        if levels[index] != SAME_ROW:
            winners[count] = member
            count += 1
            continue
        best = winners[count - 1]
        result = order_of(generation[member], generation[best])
        if result == 0:
            result = compare_values_at(version, member, best)
        if result == 0:
            result = order_of(op[member], op[best])
        if result == 0:
            result = compare_values_at(state, best, member)
        if result > 0:
            winners[count - 1] = member
    return winners[:count]
