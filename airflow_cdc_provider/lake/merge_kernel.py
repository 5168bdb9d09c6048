"""The merge of one shuffle partition: contributions in, rows to write out. Pure Arrow, no Spark.

All contributions of a key are in one partition, so a partition can be merged on its own. The output has one
column set for all purposes, told apart by ``_cdc_kind``, so that one pass over the data feeds all writes::

    LIVE      the mirror's columns and _cdc are a row to append
    REMOVE    _cdc.id is a row of the mirror that goes
    SIDE      _cdc_side is a contribution to append to the side table
    DOUBT     _cdc_side names a key whose state the data can't decide
    STATICS   the mirror's columns and _cdc are a row to append to the table of statics
    UNSTATIC  _cdc.id is a row of the table of statics that goes
    COPIES    cell-level, one row: of _cdc, generation is how many pending changes of rows there were, and
              expires_at how many of them say just what another one says
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
    doubts,
)
from airflow_cdc_provider.changes.contribution import DOUBT as IN_DOUBT
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
SIDE: Final = 2
DOUBT: Final = 3
STATICS: Final = 4
UNSTATIC: Final = 5
COPIES: Final = 6

PENDING: Final = 0
FROM_MIRROR: Final = 1
FROM_SIDE: Final = 2
FROM_STATICS: Final = 3

INPUT_SCHEMA: Final = pa.schema(
    [*CONTRIBUTION_SCHEMA, pa.field("_from", pa.int8()), pa.field("_expires_at", pa.int64())]
)
"""Contributions, the place they come from (``PENDING``, ``FROM_MIRROR``, ``FROM_SIDE``, ``FROM_STATICS``)
and, of a row of the mirror or of its table of statics, the second at which it must be looked at again."""

_SIDE_TYPE: Final = pa.struct(list(CONTRIBUTION_SCHEMA))
_SHOWN: Final = pa.array([FROM_MIRROR, FROM_STATICS], pa.int8())
_SHAKEN: Final = pa.array([STATIC, PARTITION_DELETION], pa.int8())
_BATCH_ROWS: Final = 65_536


@dataclass(frozen=True)
class MergeKernel:
    """Merges partitions of one table. Picklable.

    Args:
        model: ``row`` or ``cell``.
        rules: Tie rules of cell-level sources.
        columns: All columns of the source's table: those of the mirror, and of its table of statics.
        project: Shows live rows as those columns.
        now_seconds: The moment at which expiry is judged.
        fences: Row-level: contributions up to them don't count.
        generation: Cell-level: contributions of a lower generation don't count.
        purge_before_seconds: Tombstones older than this second are forgotten; None keeps all.
        through: The batch through which the merge goes: it is noted with what it finds in doubt.
        column_ids: Cell-level: ids of the columns that there are, None if none is gone.
        statics_apart: Cell-level: statics have a table of their own; the mirror's rows don't show them.
        rewrite_statics: Write all rows of that table again: what stands there may be shown by other columns.
        keeps_state: Row-level: the mirror keeps the states of its rows, so they can be shown anew.
        patch: Row-level: applies patches to states; None for a source that has none.
        rewrite: Row-level: write all rows that were read again, by what is kept of them.
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
    statics_apart: bool = False
    rewrite_statics: bool = False
    keeps_state: bool = False
    patch: Patch | None = None
    rewrite: bool = False

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of the output: ``_cdc_kind``, the source table's with ``_cdc``, ``_cdc_side``."""
        return pa.schema(
            [
                pa.field("_cdc_kind", pa.int8()),
                *mirror_arrow_schema(self.columns),
                pa.field("_cdc_side", _SIDE_TYPE),
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
        asked = pc.equal(table["scope"], IN_DOUBT)
        asked_keys = _flat(table.filter(asked)["key"])
        table = table.filter(pc.invert(asked))
        prior = table.filter(pc.equal(table["_from"], FROM_MIRROR))
        # The row of a partition in which only statics live contributes nothing: the side table has them.
        shows_statics = pc.is_in(table["_from"], value_set=_SHOWN)
        contributing = pc.invert(pc.and_(shows_statics, pc.is_null(table["clustering"])))
        outcome = self._reconcile(table.filter(contributing))
        live = outcome.live
        live_ids = row_ids(_flat(live["key"]), _flat(live["clustering"]))
        prior_ids = row_ids(_flat(prior["key"]), _flat(prior["clustering"]))
        unchanged = self._unchanged(table, prior, prior_ids, live, live_ids)

        changed = pc.invert(unchanged)
        yield from self._live_batches(LIVE, live.filter(changed), live_ids.filter(changed))
        yield from self._removed(REMOVE, prior_ids, live_ids.filter(unchanged))
        if self.statics_apart:
            shown = table.filter(pc.equal(table["_from"], FROM_STATICS))
            yield from self._merge_statics(shown, outcome.statics)
        side = _new_side(table, outcome.side)
        if side.num_rows:
            yield self._batch(SIDE, side.num_rows, side=_struct(side, _SIDE_TYPE))
        in_doubt = [asked_keys, _flat(outcome.doubtful_keys)]
        if self.column_ids is not None and live.num_rows:
            in_doubt.append(_lost_all_cells(live, live_ids, prior, prior_ids))
        keys = pc.unique(pa.concat_arrays(in_doubt))
        if len(keys):
            side = pa.Table.from_batches([doubts(keys, self.through)])
            yield self._batch(DOUBT, len(keys), side=_struct(side, _SIDE_TYPE))
        changes, copies = outcome.copies
        if changes:
            counts = _cdc(1, generation=pa.array([changes]), expires_at=pa.array([copies]))
            yield self._batch(COPIES, 1, cdc=counts)

    def _merge_statics(self, prior: pa.Table, statics: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield what changes in the table of statics.

        Args:
            prior: Its rows of these keys, as contributions.
            statics: Statics of these keys, of those partitions that have some.
        """
        ids = row_ids(_flat(statics["key"]), _flat(statics["clustering"]))
        prior_ids = row_ids(_flat(prior["key"]), _flat(prior["clustering"]))
        place = pc.index_in(ids, value_set=prior_ids)
        if self.rewrite_statics:
            same = pa.array(np.zeros(len(ids), np.bool_))
        else:
            shown = statics.drop_columns("state").rename_columns({"static_state": "state"})
            same = self._equal_rows(shown, prior, place)
        changed = pc.invert(same)
        yield from self._live_batches(STATICS, statics.filter(changed), ids.filter(changed))
        yield from self._removed(UNSTATIC, prior_ids, ids.filter(same))

    def _removed(self, kind: int, prior_ids: pa.Array, staying: pa.Array) -> Iterator[pa.RecordBatch]:
        removed = prior_ids.filter(pc.invert(pc.is_in(prior_ids, value_set=staying)))
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
            place = contributions.schema.get_field_index("state")
            states = only_columns(contributions["state"], self.column_ids)
            contributions = contributions.set_column(place, "state", states)
        return reconcile_cells(
            contributions,
            self.now_seconds,
            rules=self.rules,
            min_generation=self.generation,
            purge_before_seconds=self.purge_before_seconds,
            statics_apart=self.statics_apart,
            pending=pc.equal(table["_from"], PENDING),
        )

    def _unchanged(
        self, table: pa.Table, prior: pa.Table, prior_ids: pa.Array, live: pa.Table, live_ids: pa.Array
    ) -> pa.Array:
        """Tell which live rows stand in the mirror as they are."""
        place = pc.index_in(live_ids, value_set=prior_ids)
        if self.rewrite:
            return pa.array(np.zeros(len(live_ids), np.bool_))
        if self.model == "row" and self.keeps_state:
            same = pc.and_(_equal_at(live, prior, place, "version"), _equal_at(live, prior, place, "state"))
            return pc.and_(same, pc.is_valid(place))
        if self.model == "row":
            # A winner that came from the mirror has no state: only its version was read.
            return pc.and_(pc.is_valid(place), pc.is_null(_flat(live["state"])))
        same = self._equal_rows(live, prior, place)
        if self.statics_apart:
            return same
        # A row shows its partition's statics: when they may have changed, all its rows are written again.
        pending = pc.equal(table["_from"], PENDING)
        shaken = table.filter(pc.and_(pending, pc.is_in(table["scope"], value_set=_SHAKEN)))
        return pc.and_(same, pc.invert(pc.is_in(_flat(live["key"]), value_set=_flat(shaken["key"]))))

    def _equal_rows(self, live: pa.Table, prior: pa.Table, place: pa.Array) -> pa.Array:
        """Tell which rows have the state and generation that they had, of which nothing was due to expire."""
        same = pc.and_(_equal_at(live, prior, place, "state"), _equal_at(live, prior, place, "generation"))
        due = pc.less_equal(pc.take(_flat(prior["_expires_at"]), place), self.now_seconds)
        return pc.and_(same, pc.invert(pc.fill_null(due, False)))

    def _live_batches(self, kind: int, live: pa.Table, ids: pa.Array) -> Iterator[pa.RecordBatch]:
        state = "static_state" if kind == STATICS else "state"
        for start in range(0, live.num_rows, _BATCH_ROWS):
            part = live.slice(start, _BATCH_ROWS).combine_chunks()
            rows = pa.RecordBatch.from_arrays(
                [_flat(part[name]) for name in LIVE_ROW_SCHEMA.names], schema=LIVE_ROW_SCHEMA
            )
            kept = self.model == "cell" or self.keeps_state
            expires = rows["expires_at"]
            cdc = _cdc(
                rows.num_rows,
                id=ids.slice(start, _BATCH_ROWS),
                key=rows["key"],
                clustering=rows["clustering"],
                generation=rows["generation"],
                version=rows["version"],
                state=rows[state] if kept else None,
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
        side: pa.Array | None = None,
    ) -> pa.RecordBatch:
        shown = [pa.nulls(count, f.type) for f in self.columns] if columns is None else list(columns.columns)
        arrays = [
            pa.array(np.full(count, kind, np.int8)),
            *shown,
            pa.nulls(count, CDC_TYPE) if cdc is None else cdc,
            pa.nulls(count, _SIDE_TYPE) if side is None else side,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)


def _lost_all_cells(live: pa.Table, live_ids: pa.Array, prior: pa.Table, prior_ids: pa.Array) -> pa.Array:
    """Return keys of rows known from a SELECT that have lost their last cells, with a dropped column."""
    place = pc.index_in(live_ids, value_set=prior_ids)
    state = _flat(live["state"]).cast(pa.binary())
    before = pc.take(_flat(prior["state"]), place).cast(pa.binary())
    no_cells = pa.scalar(bytes(4), pa.binary())
    read = pc.equal(pc.binary_slice(state, 1, 2), pa.scalar(bytes([ROW_UNCERTAIN]), pa.binary()))
    bare = pc.and_(read, pc.equal(pc.binary_slice(state, 44, 48), no_cells))
    lost = pc.and_(bare, pc.not_equal(pc.binary_slice(before, 44, 48), no_cells))
    return _flat(live["key"]).filter(pc.fill_null(lost, False))


def _new_side(table: pa.Table, side: pa.Table) -> pa.Table:
    """Leave out what the side table has already."""
    known = table.filter(pc.equal(table["_from"], FROM_SIDE))
    if not side.num_rows or not known.num_rows:
        return side
    names = CONTRIBUTION_SCHEMA.names
    return side.filter(
        pc.invert(
            pc.is_in(
                fingerprints([_flat(side[n]) for n in names]),
                value_set=fingerprints([_flat(known[n]) for n in names]),
            )
        )
    )


def _equal_at(live: pa.Table, prior: pa.Table, place: pa.Array, name: str) -> pa.Array:
    """Compare a column with its value in the row of ``prior`` at ``place``; null equals null."""
    new, old = _flat(live[name]), pc.take(_flat(prior[name]), place)
    both_null = pc.and_(pc.is_null(new), pc.and_(pc.is_null(old), pc.is_valid(place)))
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
