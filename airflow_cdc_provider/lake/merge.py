"""Merging pending contributions into a mirror: read the touched rows, reconcile, rewrite them.

The touched rows of mirror and side table are found by a broadcast semi-join with the pending keys, so the
target is never shuffled; one kernel (:mod:`airflow_cdc_provider.lake.merge_kernel`) reconciles all three
inputs; the outcome is one delete by row id and one append, committed together with the batch that was
reached.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, SPARK_DDL, STATIC, doubts
from airflow_cdc_provider.changes.fence import Fence, newest_generation
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.lake.doubts import unseen_among
from airflow_cdc_provider.lake.merge_kernel import (
    COPIES,
    DOUBT,
    FROM_MIRROR,
    FROM_SIDE,
    FROM_STATICS,
    LIVE,
    PENDING,
    REMOVE,
    SIDE,
    STATICS,
    UNSTATIC,
    MergeKernel,
)
from airflow_cdc_provider.lake.mirror import (
    CDC_COLUMN,
    Asked,
    Mirror,
    MirrorState,
    StaticsState,
    spark_schema,
)
from airflow_cdc_provider.lake.reconcile import Copies
from airflow_cdc_provider.lake.row_fences import NO_FENCES, RowFences

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_cdc_provider.lake.table import LakeTable

log = logging.getLogger(__name__)

_ROWS_PER_PARTITION = 50_000
_BROADCAST_KEYS = 5_000_000


class RowShape(Protocol):
    """What a merge must know of a source's rows; every codec is one."""

    @property
    def model(self) -> str:
        """``row`` or ``cell``."""
        ...

    @property
    def rules(self) -> str:
        """Tie rules of cell-level sources."""
        ...

    @property
    def static_columns(self) -> StaticColumns | None:
        """Its static columns; None for a source that knows no such."""
        ...

    def mirror_schema(self) -> pa.Schema:
        """Return the source table's columns."""
        ...

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Show live rows as those columns."""
        ...


@runtime_checkable
class KeepsState(Protocol):
    """What a row-level source's rows add whose native states the mirror keeps beside what it shows."""

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps them: further columns can be made of them, and patches applied to them."""
        ...


@runtime_checkable
class AppliesPatches(Protocol):
    """What a row-level source's rows add of which changes may tell only what became of them."""

    def patch(self, states: pa.Array, patches: pa.Array, offsets: Any) -> pa.Array:
        """Apply patches (see :data:`~airflow_cdc_provider.lake.reconcile.Patch`)."""
        ...


@dataclass(frozen=True)
class MergePlan:
    """What one merge is to reach.

    Args:
        base: The mirror's state from which the rest was derived.
        through: Last batch of the changes table that the contributions come from.
        fences: All fences of the table up to there.
        memory: The source's memory of the table.
        now_seconds: The moment at which expiry is judged.
        pending_rows: About how many contributions there are, to size the shuffle.
        purge_before_seconds: Tombstones older than this may be forgotten; None keeps all.
        unseen_before_us: A replacing snapshot is among the contributions: rows that were not read since then
            are to be read again. 0 for none.
        reread: The contributions hold a second reading of what was in doubt then; None if they hold none.
        unread: Keys that were in doubt then and could not be read.
        column_ids: See :class:`~airflow_cdc_provider.lake.merge_kernel.MergeKernel`.
        revisit: SQL predicate over the mirror's rows: those whose keys are merged though nothing pends for
            them; empty for none.
        revisit_statics: Likewise over the rows of its table of statics.
        offset: The source's offset that batch ``through`` reached; None where it isn't known.
    """

    base: MirrorState
    through: int
    fences: Sequence[Fence]
    memory: Mapping[str, Any]
    now_seconds: int
    pending_rows: int
    purge_before_seconds: int | None = None
    unseen_before_us: int = 0
    reread: Asked | None = None
    unread: Sequence[bytes] = ()
    column_ids: frozenset[int] | None = None
    revisit: str = ""
    revisit_statics: str = ""
    offset: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class MergeCounts:
    """What a merge did to a mirror.

    ``rows`` are the mirror's own; ``written`` and ``removed`` count rows of its table of statics too.
    ``doubts`` counts the keys that must be read again at the source; ``unsettled`` tells whether there may be
    any, with those that a replacing snapshot didn't see, which are found only when they are read. ``copies``
    counts those among its ``row_changes`` that say just what another one says; both are of cell-level sources
    alone.
    """

    rows: int = 0
    written: int = 0
    removed: int = 0
    remembered: int = 0
    doubts: int = 0
    unsettled: bool = False
    swept: bool = False
    seconds: float = 0.0
    row_changes: int = 0
    copies: int = 0


def merge(
    spark: SparkSession,
    mirror: Mirror,
    shape: RowShape,
    contributions: DataFrame | None,
    plan: MergePlan,
) -> MergeCounts:
    """Merge contributions of one table into its mirror, in one commit; one more before it for its statics.

    Args:
        spark: The session.
        mirror: A mirror that :meth:`Mirror.prepare` has made fit.
        shape: How its rows compete and show.
        contributions: Frame of ``CONTRIBUTION_SCHEMA``, best persisted; None for an expiry sweep alone.
        plan: What is to be reached.

    Raises:
        CommitConflict: Another writer merged after the plan's base; the mirror is as that one left it.
    """
    started = time.monotonic()
    state = plan.base
    _require_no_later_statics(mirror, plan)
    sweep = state.expires_next is not None and state.expires_next <= plan.now_seconds
    fences = RowFences.of(plan.fences, shape)
    generation = newest_generation(plan.fences)
    if shape.model == "row":
        raised = fences.above(RowFences.of(state.fences, shape))
    else:
        raised = generation > newest_generation(state.fences)
    kernel = MergeKernel(
        model=shape.model,
        rules=shape.rules,
        columns=shape.mirror_schema(),
        project=shape.project,
        now_seconds=plan.now_seconds,
        fences=fences if shape.model == "row" else NO_FENCES,
        generation=generation if shape.model == "cell" else 0,
        purge_before_seconds=plan.purge_before_seconds,
        through=plan.through,
        column_ids=plan.column_ids,
        statics_apart=state.statics is not None,
        rewrite_statics=state.statics_ahead,
        keeps_state=isinstance(shape, KeepsState) and shape.keeps_state,
        patch=shape.patch if isinstance(shape, AppliesPatches) else None,
        rewrite=bool(plan.revisit) and shape.model == "row",
    )
    outcome = _reconciled(spark, mirror, state, contributions, kernel, plan, sweep=sweep)
    try:
        counts, expiries, found = _count(outcome)
        if counts.get(SIDE) or counts.get(DOUBT):
            mirror.side.append(outcome.where(f"_cdc_kind IN ({SIDE}, {DOUBT})").select("_cdc_side.*"))
        gone = None
        if raised and state.merged_through >= 0:
            earlier = f"{CDC_COLUMN}.generation < {generation}"
            gone = fences.predicate(CDC_COLUMN) if shape.model == "row" else earlier
        settled = plan.reread == state.asked
        known = 0 if settled else state.doubts
        in_doubt = known + counts.get(DOUBT, 0)
        unseen_before_us = plan.unseen_before_us
        if unseen_before_us and state.merged_through < 0:
            rows = outcome.where(f"_cdc_kind IN ({LIVE}, {STATICS})").selectExpr(
                f"{CDC_COLUMN}.key", f"if(_cdc_kind = {LIVE}, {CDC_COLUMN}.state, null) state"
            )
            side = outcome.where(f"_cdc_kind = {SIDE}").select("_cdc_side.*")
            if unseen_among(rows, side, unseen_before_us).isEmpty():
                unseen_before_us = 0
        written, removed = counts.get(LIVE, 0), counts.get(REMOVE, 0)
        reached = replace(
            state,
            merged_through=plan.through,
            offset=plan.offset,
            fences=tuple(plan.fences),
            memory=plan.memory,
            next_expiry=_earliest(expiries.get(LIVE), _later_expiry(mirror.table, state, plan, sweep=sweep)),
            doubts=in_doubt,
            doubts_since=state.doubts_since if known else plan.through,
            unseen_before_us=max(unseen_before_us, 0 if settled else state.unseen_before_us),
            rows=None if gone else mirror.row_count(state) + written - removed,
        )
        own = kernel.columns
        if state.statics is not None:
            own, apart = mirror.layout(own, shape.static_columns)
            commit = _commit_statics(
                mirror,
                state.statics,
                plan,
                _changes(outcome, counts, apart, STATICS, UNSTATIC),
                gone=gone,
                expiry=expiries.get(STATICS),
                sweep=sweep,
            )
            reached = replace(reached, statics_commit=commit)
        head = mirror.table.commit(
            state.head,
            **_changes(outcome, counts, own, LIVE, REMOVE),
            delete=gone,
            properties=reached.properties(),
        )
    finally:
        outcome.unpersist()
    return MergeCounts(
        rows=mirror.row_count(replace(reached, head=head)),
        written=written + counts.get(STATICS, 0),
        removed=removed + counts.get(UNSTATIC, 0),
        remembered=counts.get(SIDE, 0),
        doubts=in_doubt,
        unsettled=in_doubt > 0 or reached.unseen_before_us > 0,
        swept=sweep,
        seconds=time.monotonic() - started,
        row_changes=found.row_changes,
        copies=found.copies,
    )


def _reconciled(
    spark: SparkSession,
    mirror: Mirror,
    state: MirrorState,
    contributions: DataFrame | None,
    kernel: MergeKernel,
    plan: MergePlan,
    *,
    sweep: bool,
) -> DataFrame:
    from pyspark.sql import functions as f

    names = CONTRIBUTION_SCHEMA.names
    pending = contributions if contributions is not None else spark.createDataFrame([], SPARK_DDL)
    if plan.unread:
        unread = pa.Table.from_batches([doubts(pa.array(plan.unread, pa.binary()), 0)])
        pending = pending.select(*names).unionByName(spark.createDataFrame(unread, SPARK_DDL))
    union = pending.selectExpr(
        *names, f"cast({PENDING} as tinyint) _from", "cast(null as bigint) _expires_at"
    )
    if state.merged_through >= 0:
        shown = {FROM_MIRROR: mirror.rows(state)}
        if state.statics is not None:
            shown[FROM_STATICS] = mirror.static_rows(state.statics)
        keys = _touched(mirror, plan, pending, shown, sweep=sweep)
        if plan.pending_rows <= _BROADCAST_KEYS and not _statics_are_lost(state):
            keys = f.broadcast(keys)
        for place, rows in shown.items():
            union = union.unionByName(
                rows.join(keys, "key", "left_semi").selectExpr(
                    *names, f"cast({place} as tinyint) _from", "expires_at _expires_at"
                )
            )
        if not mirror.side.empty():
            kept = mirror.remembered().join(keys, "key", "left_semi")
            union = union.unionByName(
                kept.selectExpr(
                    *names, f"cast({FROM_SIDE} as tinyint) _from", "cast(null as bigint) _expires_at"
                )
            )
    cores = spark.sparkContext.defaultParallelism
    partitions = max(1, min(plan.pending_rows // _ROWS_PER_PARTITION + 1, 64 * cores))
    if partitions < cores and plan.pending_rows > _ROWS_PER_PARTITION // 5:
        partitions = cores
    shuffled = union.repartition(partitions, "key")
    merged = map_in_arrow(shuffled, kernel, spark_schema(kernel.output_schema))
    return merged.persist()


def _require_no_later_statics(mirror: Mirror, plan: MergePlan) -> None:
    """Refuse to replace statics that a merge of later batches has written, though it isn't done yet."""
    statics = plan.base.statics
    if statics is not None and statics.merged_through > plan.through:
        raise CommitConflict(
            f"another merge writes to {mirror.statics.name}",
            expected=f"nothing of batches after {plan.through}",
            found=f"a commit through batch {statics.merged_through}",
        )


def _commit_statics(
    mirror: Mirror,
    before: StaticsState,
    plan: MergePlan,
    changes: Mapping[str, Any],
    *,
    gone: str | None,
    expiry: int | None,
    sweep: bool,
) -> str:
    """Commit to the table of statics what a merge is about to commit to the mirror.

    Also if nothing changes: a merge of fewer batches that runs beside this one must not commit after it.

    Args:
        mirror: The mirror.
        before: The state of its table of statics from which the changes were derived.
        plan: Of the merge.
        changes: ``append`` and ``delete_keys``.
        gone: Predicate of the rows that a fence removes.
        expiry: When the first of the rows that are written expires.
        sweep: Rows that are due to expire were looked at.

    Returns:
        The commit's name.
    """
    if plan.base.merged_through < 0:
        # Its rows were not read, and those that are there were left by a first merge that was killed.
        gone = None if mirror.statics.empty() else "true"
    reached = StaticsState(
        before.head,
        commit=uuid.uuid4().hex,
        merged_through=plan.through,
        next_expiry=_earliest(expiry, _later_expiry(mirror.statics, before, plan, sweep=sweep)),
    )
    mirror.statics.commit(before.head, **changes, delete=gone, properties=reached.properties())
    return reached.commit


def _statics_are_lost(state: MirrorState) -> bool:
    """Tell whether the table of statics is new while the side table may have statics already."""
    return state.statics is not None and state.statics.merged_through < 0


def _touched(
    mirror: Mirror, plan: MergePlan, pending: DataFrame, shown: Mapping[int, DataFrame], *, sweep: bool
) -> DataFrame:
    """Return the keys whose rows are read: one column, with repetitions.

    A semi-join doesn't mind them, and sorting them out would be a shuffle.
    """
    state = plan.base
    keys = pending.select("key")
    if sweep:
        for rows in shown.values():
            keys = keys.union(rows.where(f"expires_at <= {plan.now_seconds}").select("key"))
    if plan.revisit:
        keys = keys.union(mirror.table.read(state.head).where(plan.revisit).select(f"{CDC_COLUMN}.key"))
    if plan.revisit_statics and state.statics is not None:
        visited = mirror.statics.read(state.statics.head).where(plan.revisit_statics)
        keys = keys.union(visited.select(f"{CDC_COLUMN}.key"))
    if _statics_are_lost(state):
        keys = keys.union(mirror.remembered().where(f"scope = {STATIC}").select("key"))
    return keys


def _changes(
    outcome: DataFrame, counts: Mapping[int, int], columns: Iterable[pa.Field], written: int, removed: int
) -> dict[str, Any]:
    """Return what one of the tables is to be told by its commit: ``append`` and ``delete_keys``."""
    names = _quoted([column.name for column in columns])
    rows = outcome.where(f"_cdc_kind = {written}").select(*names, CDC_COLUMN)
    ids = outcome.where(f"_cdc_kind = {removed}").select(f"{CDC_COLUMN}.id")
    return {
        "append": rows if counts.get(written) else None,
        "delete_keys": (f"{CDC_COLUMN}.id", ids) if counts.get(removed) else None,
    }


def _count(outcome: DataFrame) -> tuple[dict[int, int], dict[int, int], Copies]:
    """Materialise the outcome: rows and earliest expiry per kind, and copies."""
    counted = [
        f"sum(if(_cdc_kind = {COPIES}, {CDC_COLUMN}.{name}, 0)) {name}"
        for name in ("generation", "expires_at")
    ]
    rows = (
        outcome.groupBy("_cdc_kind")
        .agg(*_expressions("count(1) n", f"min({CDC_COLUMN}.expires_at) earliest", *counted))
        .collect()
    )
    counts = {int(row["_cdc_kind"]): int(row["n"]) for row in rows}
    expiries = {int(row["_cdc_kind"]): int(row["earliest"]) for row in rows if row["earliest"] is not None}
    found = next((row for row in rows if row["_cdc_kind"] == COPIES), None)
    copies = Copies() if found is None else Copies(int(found["generation"]), int(found["expires_at"]))
    return counts, expiries, copies


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


def _later_expiry(
    table: LakeTable, state: MirrorState | StaticsState, plan: MergePlan, *, sweep: bool
) -> int | None:
    """Return a second before which none of a table's rows that stay can expire."""
    if not sweep:
        return state.next_expiry
    rows = table.read(state.head).where(f"{CDC_COLUMN}.expires_at > {plan.now_seconds}")
    found = rows.selectExpr(f"min({CDC_COLUMN}.expires_at)").collect()[0][0]
    return None if found is None else int(found)


def _earliest(*seconds: int | None) -> int | None:
    return min((s for s in seconds if s is not None), default=None)


def _quoted(names: Sequence[str]) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in names]
