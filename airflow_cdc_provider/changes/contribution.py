"""Contributions: changes decoded to the one form that reconciliation works on, for every source.

The state of a row is the result of reconciling all contributions to it. A merge reads contributions from
three places and treats them the same: decoded changes, the mirror's rows (their ``_cdc`` column), and the
tombstone table, which keeps what a mirror row can't hold (deletions, static columns, states of dead rows).
Reconciliation is commutative, associative and idempotent, so order, duplicates and retries don't matter.

Row-level sources (MongoDB, Vitess) fill ``version`` and hold the native document in ``state``; the
greatest ``(generation, version)`` wins as a whole. Cell-level sources (Cassandra, ScyllaDB) leave ``version``
null and hold a cell row (:mod:`airflow_cdc_provider.changes.cells`) in ``state``; there each cell competes by
its own write time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.fence import Fence

ROW: Final = 0
"""One row: ``key`` and ``clustering`` identify it, ``state`` is its content."""
STATIC: Final = 1
"""The static columns of a partition (cell-level only); ``clustering`` is empty."""
PARTITION_DELETION: Final = 2
"""Deletes all rows and the static row of ``key``; ``state`` is a cell row with only a deletion."""
RANGE_DELETION: Final = 3
"""Deletes rows with ``clustering <= row < clustering_end`` by memcmp; ``state`` as above."""
UNRESOLVED: Final = 4
"""An unresolved key: ``key`` must be read again at the source.

``state`` is null, and it is never reconciled. In the tombstone table its ``generation`` is the last batch of
the merge that reported it."""

UPSERT: Final = 0
DELETE: Final = 1
PATCH: Final = 2
"""Row-level: ``state`` describes the modification of the previous version; the codec applies it."""

CONTRIBUTION_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("scope", pa.int8()),
        pa.field("clustering", pa.binary()),
        pa.field("clustering_end", pa.binary()),
        pa.field("generation", pa.int64()),
        pa.field("version", pa.binary()),
        pa.field("op", pa.int8()),
        pa.field("state", pa.binary()),
    ]
)
"""Columns of a contribution.

``key``             canonical bytes of the primary (cell-level: partition) key; rows are shuffled by it.
``scope``           one of the five above; row-level sources only use ``ROW``.
``clustering``      identity of the row inside ``key``, ordered by memcmp; empty where there is none.
                    For a range deletion the inclusive lower end.
``clustering_end``  range deletion: the exclusive upper end, null when open; else null.
``generation``      of the table at this contribution; contributions of a lower one are invalid.
``version``         row-level: memcmp-sortable; cell-level: null.
``op``              row-level: ``UPSERT``, ``DELETE`` or ``PATCH``; cell-level: always ``UPSERT``.
``state``           row-level: the native document, null for a delete, the modification for a patch;
                    cell-level: a cell row.
"""

SPARK_DDL: Final = (
    "key binary, scope tinyint, clustering binary, clustering_end binary, generation bigint, version binary, "
    "op tinyint, state binary"
)


def unresolved_keys(keys: pa.Array, generation: int) -> pa.RecordBatch:
    """Mark keys as unresolved, so that they are read again.

    Args:
        keys: Column ``key``.
        generation: In the tombstone table: the last batch of the merge that reports them; else 0.

    Returns:
        One contribution of scope :data:`UNRESOLVED` per key.
    """
    count = len(keys)
    columns = {
        "key": keys,
        "scope": pa.array(np.full(count, UNRESOLVED, np.int8)),
        "clustering": pa.repeat(pa.scalar(b"", pa.binary()), count),
        "generation": pa.array(np.full(count, generation, np.int64)),
        "op": pa.array(np.full(count, UPSERT, np.int8)),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(count, field.type)) for field in CONTRIBUTION_SCHEMA],
        schema=CONTRIBUTION_SCHEMA,
    )


def generations(changes: pa.RecordBatch, fences: Sequence[Fence]) -> pa.Array:
    """Return the generation of each record (see :func:`.fence.generation_at`).

    Args:
        changes: Columns ``generation``, ``origin`` and ``position`` of records.
        fences: The table's fences.

    Returns:
        One generation per record.
    """
    found = changes.column("generation").fill_null(0)
    for fence in fences:
        later = pc.greater(changes.column("position"), pa.scalar(fence.position, pa.binary()))
        if fence.origin:
            later = pc.and_(later, pc.equal(changes.column("origin"), fence.origin))
        raised = pc.max_element_wise(found, pa.scalar(fence.generation, pa.int64()))
        found = pc.if_else(later.fill_null(False), raised, found)
    return found


LIVE_ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("clustering", pa.binary()),
        pa.field("generation", pa.int64()),
        pa.field("version", pa.binary()),
        pa.field("state", pa.binary()),
        pa.field("static_state", pa.binary()),
        pa.field("expires_at", pa.int64()),
    ]
)
"""Live rows after reconciliation, before projection to the mirror's columns.

``static_state``  the partition's reconciled static row, null for none.
``expires_at``    earliest epoch second at which a cell of the row or a static column expires, null for never.
A partition that has only static columns is one row with a null ``clustering`` and a null ``state``.
"""
