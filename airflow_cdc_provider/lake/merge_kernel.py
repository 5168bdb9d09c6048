"""The merge of one shuffle partition: contributions in, rows to write out. Pure Arrow, no Spark.

All contributions of a key are in one partition, so each partition is merged independently. The output has one
set of columns for all writes, so that one pass over the data feeds them all; ``_cdc_kind`` distinguishes
them:

``LIVE``           the mirror's columns and ``_cdc`` are a row to append
``REMOVE``         ``_cdc.id`` is a row to delete from the mirror
``TOMBSTONE``      ``_cdc_tombstone`` is a contribution to append to the tombstone table
``UNRESOLVED``          ``_cdc_tombstone`` holds a key whose state the data can't decide
``LIVE_STATIC``        the mirror's columns and ``_cdc`` are a row to append to the static columns table
``REMOVE_STATIC``  ``_cdc.id`` is a row to delete from the static columns table
``DUPLICATES``     cell-level, one row: ``_cdc.generation`` is the number of pending changes of rows, and
                   ``_cdc.expires_at`` the number of replica duplicates among them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_cdc_provider.changes.cells import NEVER, ROW_UNCERTAIN
from airflow_cdc_provider.changes.contribution import (
    CONTRIBUTION_SCHEMA,
    LIVE_ROW_SCHEMA,
    PARTITION_DELETION,
    STATIC,
    unresolved_keys,
)
from airflow_cdc_provider.changes.contribution import UNRESOLVED as UNRESOLVED_SCOPE
from airflow_cdc_provider.lake.mirror import CDC_TYPE, fingerprints, mirror_arrow_schema, row_ids
from airflow_cdc_provider.lake.reconcile import (
    Patch,
    Reconciled,
    reconcile_cells,
    reconcile_patched,
    reconcile_rows,
)
from airflow_cdc_provider.lake.reconcile.columns import only_columns
from airflow_cdc_provider.lake.row_fences import NO_FENCES, RowFences

LIVE: Final = 0
REMOVE: Final = 1
TOMBSTONE: Final = 2
UNRESOLVED: Final = 3
LIVE_STATIC: Final = 4
REMOVE_STATIC: Final = 5
DUPLICATES: Final = 6

PENDING: Final = 0
FROM_MIRROR: Final = 1
FROM_TOMBSTONES: Final = 2
FROM_STATIC_COLUMNS: Final = 3

INPUT_SCHEMA: Final = pa.schema(
    [*CONTRIBUTION_SCHEMA, pa.field("_from", pa.int8()), pa.field("_expires_at", pa.int64())]
)
"""Contributions, their source (``PENDING``, ``FROM_MIRROR``, ``FROM_TOMBSTONES``, ``FROM_STATIC_COLUMNS``)
and, for a row of the mirror or of its static columns table, the second at which it must be merged again."""

_TOMBSTONE_TYPE: Final = pa.struct(list(CONTRIBUTION_SCHEMA))
_PROJECTED: Final = pa.array([FROM_MIRROR, FROM_STATIC_COLUMNS], pa.int8())
_AFFECTS_ALL_ROWS: Final = pa.array([STATIC, PARTITION_DELETION], pa.int8())
_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True)
class MergeKernel:
    """Merges partitions of one table. Picklable.

    Args:
        model: ``row`` or ``cell``.
        rules: Tie rules of cell-level sources.
        columns: All columns of the source's table: those of the mirror and of its static columns table.
        project: Projects live rows to those columns.
        now_seconds: Epoch second at which expiry is judged.
        fences: Row-level: contributions up to them are ignored.
        generation: Cell-level: contributions of a lower generation are ignored.
        purge_before_seconds: Tombstones older than this second are purged; None keeps all.
        through: The last batch that is merged; it is recorded with unresolved keys.
        column_ids: Cell-level: ids of the existing columns, None if none was dropped.
        static_columns_table: Cell-level: static columns have a separate table; the mirror's rows don't show
            them.
        rewrite_static_columns: Rewrite all rows of that table, because their projection may have changed.
        reads_states: Whether rows of the mirror have their states; else only their versions were read.
        patch: Row-level: applies patches to states; None for a source without patches.
        rewrite: Row-level: rewrite all rows that were read, from their stored states.
    """

    model: str
    rules: str
    columns: pa.Schema
    project: Callable[[pa.RecordBatch], pa.RecordBatch]
    now_seconds: int
    fences: RowFences = NO_FENCES
    generation: int = 0
    purge_before_seconds: int | None = None
    through: int = 0
    column_ids: frozenset[int] | None = None
    static_columns_table: bool = False
    rewrite_static_columns: bool = False
    reads_states: bool = True
    patch: Patch | None = None
    rewrite: bool = False

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of the output: ``_cdc_kind``, the source table's with ``_cdc``, ``_cdc_tombstone``."""
        return pa.schema(
            [
                pa.field("_cdc_kind", pa.int8()),
                *mirror_arrow_schema(self.columns),
                pa.field("_cdc_tombstone", _TOMBSTONE_TYPE),
            ]
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Merge one partition.

        Args:
            batches: Batches of :data:`INPUT_SCHEMA`, in any order.
        """
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield from self._merge(pa.Table.from_batches(found).combine_chunks())

    def _merge(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        reported = pc.equal(table["scope"], UNRESOLVED_SCOPE)
        reported_keys = _flat(table.filter(reported)["key"])
        table = table.filter(pc.invert(reported))
        prior = table.filter(pc.equal(table["_from"], FROM_MIRROR))
        # A row of static columns only contributes nothing, because the tombstone table has them.
        is_projected = pc.is_in(table["_from"], value_set=_PROJECTED)
        contributing = pc.invert(pc.and_(is_projected, pc.is_null(table["clustering"])))
        outcome = self._reconcile(table.filter(contributing))
        live = outcome.live
        live_ids = row_ids(_flat(live["key"]), _flat(live["clustering"]))
        prior_ids = row_ids(_flat(prior["key"]), _flat(prior["clustering"]))
        unchanged = self._unchanged(table, prior, prior_ids, live, live_ids)

        changed = pc.invert(unchanged)
        yield from self._live_batches(LIVE, live.filter(changed), live_ids.filter(changed))
        yield from self._removed(REMOVE, prior_ids, live_ids.filter(unchanged))
        if self.static_columns_table:
            prior_static = table.filter(pc.equal(table["_from"], FROM_STATIC_COLUMNS))
            yield from self._merge_static_columns(prior_static, outcome.static_columns)
        tombstones = _new_tombstones(table, outcome.tombstones)
        if tombstones.num_rows:
            yield self._batch(TOMBSTONE, tombstones.num_rows, tombstones=_struct(tombstones, _TOMBSTONE_TYPE))
        unresolved = [reported_keys, _flat(outcome.unresolved_keys)]
        if self.column_ids is not None and live.num_rows:
            unresolved.append(_lost_all_cells(live, live_ids, prior, prior_ids))
        keys = pc.unique(pa.concat_arrays(unresolved))
        if len(keys):
            tombstones = pa.Table.from_batches([unresolved_keys(keys, self.through)])
            yield self._batch(UNRESOLVED, len(keys), tombstones=_struct(tombstones, _TOMBSTONE_TYPE))
        changes, duplicates = outcome.replica_duplicates
        if changes:
            counts = _cdc(1, generation=pa.array([changes]), expires_at=pa.array([duplicates]))
            yield self._batch(DUPLICATES, 1, cdc=counts)

    def _merge_static_columns(self, prior: pa.Table, static_columns: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the static columns table.

        Args:
            prior: Its rows of these keys, as contributions.
            static_columns: The static columns of these keys, for the partitions that have some.
        """
        ids = row_ids(_flat(static_columns["key"]), _flat(static_columns["clustering"]))
        prior_ids = row_ids(_flat(prior["key"]), _flat(prior["clustering"]))
        index = pc.index_in(ids, value_set=prior_ids)
        if self.rewrite_static_columns:
            same = pa.array(np.zeros(len(ids), np.bool_))
        else:
            rows = static_columns.drop_columns("state").rename_columns({"static_state": "state"})
            same = self._equal_rows(rows, prior, index)
        changed = pc.invert(same)
        yield from self._live_batches(LIVE_STATIC, static_columns.filter(changed), ids.filter(changed))
        yield from self._removed(REMOVE_STATIC, prior_ids, ids.filter(same))

    def _removed(self, kind: int, prior_ids: pa.Array, kept: pa.Array) -> Iterator[pa.RecordBatch]:
        removed = prior_ids.filter(pc.invert(pc.is_in(prior_ids, value_set=kept)))
        if len(removed):
            yield self._batch(kind, len(removed), cdc=_cdc(len(removed), id=removed))

    def _reconcile(self, table: pa.Table) -> Reconciled:
        contributions = table.select(CONTRIBUTION_SCHEMA.names)
        if self.model == "row":
            contributions = self.fences.filter(contributions)
            if self.patch is not None:
                return reconcile_patched(contributions, self.now_seconds, self.patch)
            return reconcile_rows(contributions, self.now_seconds)
        if self.column_ids is not None:
            index = contributions.schema.get_field_index("state")
            states = only_columns(contributions["state"], self.column_ids)
            contributions = contributions.set_column(index, "state", states)
        return reconcile_cells(
            contributions,
            self.now_seconds,
            rules=self.rules,
            min_generation=self.generation,
            purge_before_seconds=self.purge_before_seconds,
            static_columns_table=self.static_columns_table,
            pending=pc.equal(table["_from"], PENDING),
        )

    def _unchanged(
        self, table: pa.Table, prior: pa.Table, prior_ids: pa.Array, live: pa.Table, live_ids: pa.Array
    ) -> pa.Array:
        """Return which live rows equal their row in the mirror."""
        index = pc.index_in(live_ids, value_set=prior_ids)
        if self.rewrite:
            return pa.array(np.zeros(len(live_ids), np.bool_))
        if self.model == "row" and self.reads_states:
            same = pc.and_(_equal_at(live, prior, index, "version"), _equal_at(live, prior, index, "state"))
            return pc.and_(same, pc.is_valid(index))
        if self.model == "row":
            # A winner from the mirror has no state.
            return pc.and_(pc.is_valid(index), pc.is_null(_flat(live["state"])))
        same = self._equal_rows(live, prior, index)
        if self.static_columns_table:
            return same
        # Rows show their partition's static columns: if these may have changed, all rows are rewritten.
        pending = pc.equal(table["_from"], PENDING)
        affected = table.filter(pc.and_(pending, pc.is_in(table["scope"], value_set=_AFFECTS_ALL_ROWS)))
        return pc.and_(same, pc.invert(pc.is_in(_flat(live["key"]), value_set=_flat(affected["key"]))))

    def _equal_rows(self, live: pa.Table, prior: pa.Table, index: pa.Array) -> pa.Array:
        """Return which rows have the same state and generation as before, and nothing due to expire."""
        same = pc.and_(_equal_at(live, prior, index, "state"), _equal_at(live, prior, index, "generation"))
        due = pc.less_equal(pc.take(_flat(prior["_expires_at"]), index), self.now_seconds)
        return pc.and_(same, pc.invert(pc.fill_null(due, False)))

    def _live_batches(self, kind: int, live: pa.Table, ids: pa.Array) -> Iterator[pa.RecordBatch]:
        state = "static_state" if kind == LIVE_STATIC else "state"
        for start in range(0, live.num_rows, _BATCH_ROWS):
            part = live.slice(start, _BATCH_ROWS).combine_chunks()
            rows = pa.RecordBatch.from_arrays(
                [_flat(part[name]) for name in LIVE_ROW_SCHEMA.names], schema=LIVE_ROW_SCHEMA
            )
            expires = rows["expires_at"]
            cdc = _cdc(
                rows.num_rows,
                id=ids.slice(start, _BATCH_ROWS),
                key=rows["key"],
                clustering=rows["clustering"],
                generation=rows["generation"],
                version=rows["version"],
                state=rows[state],
                expires_at=pc.if_else(pc.equal(expires, NEVER), pa.scalar(None, pa.int64()), expires),
            )
            yield self._batch(kind, rows.num_rows, columns=self.project(rows), cdc=cdc)

    def _batch(
        self,
        kind: int,
        count: int,
        *,
        columns: pa.RecordBatch | None = None,
        cdc: pa.Array | None = None,
        tombstones: pa.Array | None = None,
    ) -> pa.RecordBatch:
        values = [pa.nulls(count, f.type) for f in self.columns] if columns is None else list(columns.columns)
        arrays = [
            pa.array(np.full(count, kind, np.int8)),
            *values,
            pa.nulls(count, CDC_TYPE) if cdc is None else cdc,
            pa.nulls(count, _TOMBSTONE_TYPE) if tombstones is None else tombstones,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)


def _lost_all_cells(live: pa.Table, live_ids: pa.Array, prior: pa.Table, prior_ids: pa.Array) -> pa.Array:
    """Return keys of rows read by a SELECT that lost their last cells because a column was dropped."""
    index = pc.index_in(live_ids, value_set=prior_ids)
    state = _flat(live["state"]).cast(pa.binary())
    before = pc.take(_flat(prior["state"]), index).cast(pa.binary())
    no_cells = pa.scalar(bytes(4), pa.binary())
    read = pc.equal(pc.binary_slice(state, 1, 2), pa.scalar(bytes([ROW_UNCERTAIN]), pa.binary()))
    bare = pc.and_(read, pc.equal(pc.binary_slice(state, 44, 48), no_cells))
    lost = pc.and_(bare, pc.not_equal(pc.binary_slice(before, 44, 48), no_cells))
    return _flat(live["key"]).filter(pc.fill_null(lost, False))


def _new_tombstones(table: pa.Table, tombstones: pa.Table) -> pa.Table:
    """Return the contributions that the tombstone table doesn't have yet."""
    known = table.filter(pc.equal(table["_from"], FROM_TOMBSTONES))
    if not tombstones.num_rows or not known.num_rows:
        return tombstones
    names = CONTRIBUTION_SCHEMA.names
    return tombstones.filter(
        pc.invert(
            pc.is_in(
                fingerprints([_flat(tombstones[n]) for n in names]),
                value_set=fingerprints([_flat(known[n]) for n in names]),
            )
        )
    )


def _equal_at(live: pa.Table, prior: pa.Table, index: pa.Array, name: str) -> pa.Array:
    """Compare a column with its value in row ``index`` of ``prior``; null equals null."""
    new, old = _flat(live[name]), pc.take(_flat(prior[name]), index)
    both_null = pc.and_(pc.is_null(new), pc.and_(pc.is_null(old), pc.is_valid(index)))
    return pc.or_(pc.fill_null(pc.equal(new, old), False), both_null)


def _cdc(count: int, **columns: pa.Array | None) -> pa.Array:
    fields = list(CDC_TYPE)
    arrays = []
    for field in fields:
        values = columns.get(field.name)
        arrays.append(pa.nulls(count, field.type) if values is None else values)
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _struct(table: pa.Table, kind: pa.StructType) -> pa.Array:
    return pa.StructArray.from_arrays([_flat(table[f.name]) for f in kind], fields=list(kind))


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
