"""Merging pending contributions into a mirror: read the touched rows, reconcile, rewrite them.

The touched rows of mirror and side table are found by a broadcast semi-join with the pending keys, so the
target is never shuffled; one kernel (:mod:`airflow_cdc_provider.lake.merge_kernel`) reconciles all three
inputs; the outcome is one delete by row id and one append, committed together with the batch that was
reached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, SPARK_DDL, doubts
from airflow_cdc_provider.changes.fence import Fence, newest_generation
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.lake.doubts import unseen_among
from airflow_cdc_provider.lake.merge_kernel import (
    COPIES,
    DOUBT,
    FROM_MIRROR,
    FROM_SIDE,
    LIVE,
    PENDING,
    REMOVE,
    SIDE,
    MergeKernel,
)
from airflow_cdc_provider.lake.mirror import CDC_COLUMN, Asked, Mirror, MirrorState, spark_schema
from airflow_cdc_provider.lake.reconcile import Copies

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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

    def mirror_schema(self) -> pa.Schema:
        """Return the mirror's columns."""
        ...

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Show live rows as those columns."""
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
    offset: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class MergeCounts:
    """What a merge did to a mirror.

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
    """Merge contributions of one table into its mirror, in one commit.

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
    sweep = state.next_expiry is not None and state.next_expiry <= plan.now_seconds
    fence = _last_position(plan.fences)
    generation = newest_generation(plan.fences)
    if shape.model == "row":
        raised = fence > _last_position(state.fences)
    else:
        raised = generation > newest_generation(state.fences)
    kernel = MergeKernel(
        model=shape.model,
        rules=shape.rules,
        columns=shape.mirror_schema(),
        project=shape.project,
        now_seconds=plan.now_seconds,
        fence=fence if shape.model == "row" else b"",
        generation=generation if shape.model == "cell" else 0,
        purge_before_seconds=plan.purge_before_seconds,
        through=plan.through,
        column_ids=plan.column_ids,
    )
    outcome = _reconciled(spark, mirror, state, contributions, kernel, plan, sweep=sweep)
    try:
        counts, next_expiry, found = _count(outcome)
        if counts.get(SIDE) or counts.get(DOUBT):
            mirror.side.append(outcome.where(f"_cdc_kind IN ({SIDE}, {DOUBT})").select("_cdc_side.*"))
        gone = None
        if raised and state.merged_through >= 0:
            version = f"{CDC_COLUMN}.version <= X'{fence.hex()}'"
            gone = version if shape.model == "row" else f"{CDC_COLUMN}.generation < {generation}"
        settled = plan.reread == state.asked
        known = 0 if settled else state.doubts
        in_doubt = known + counts.get(DOUBT, 0)
        unseen_before_us = plan.unseen_before_us
        if unseen_before_us and state.merged_through < 0:
            rows = outcome.where(f"_cdc_kind = {LIVE}").select(f"{CDC_COLUMN}.key", f"{CDC_COLUMN}.state")
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
            next_expiry=_earliest(next_expiry, _later_expiry(mirror, state, plan.now_seconds, sweep=sweep)),
            doubts=in_doubt,
            doubts_since=state.doubts_since if known else plan.through,
            unseen_before_us=max(unseen_before_us, 0 if settled else state.unseen_before_us),
            rows=None if gone else mirror.row_count(state) + written - removed,
        )
        removed_ids = outcome.where(f"_cdc_kind = {REMOVE}").select(f"{CDC_COLUMN}.id")
        names = [field.name for field in kernel.columns]
        head = mirror.table.commit(
            state.head,
            append=outcome.where(f"_cdc_kind = {LIVE}").select(*_quoted(names), CDC_COLUMN)
            if written
            else None,
            delete=gone,
            delete_keys=(f"{CDC_COLUMN}.id", removed_ids) if removed else None,
            properties=reached.properties(),
        )
    finally:
        outcome.unpersist()
    return MergeCounts(
        rows=mirror.row_count(replace(reached, head=head)),
        written=written,
        removed=removed,
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
        rows = mirror.rows(state)
        # With repetitions: a semi-join doesn't mind, and sorting them out would be a shuffle.
        keys = pending.select("key")
        if sweep:
            keys = keys.union(rows.where(f"expires_at <= {plan.now_seconds}").select("key"))
        if plan.revisit:
            keys = keys.union(mirror.table.read(state.head).where(plan.revisit).select(f"{CDC_COLUMN}.key"))
        if plan.pending_rows <= _BROADCAST_KEYS:
            keys = f.broadcast(keys)
        shown = rows.join(keys, "key", "left_semi").selectExpr(
            *names, f"cast({FROM_MIRROR} as tinyint) _from", "expires_at _expires_at"
        )
        union = union.unionByName(shown)
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


def _count(outcome: DataFrame) -> tuple[dict[int, int], int | None, Copies]:
    """Materialise the outcome: rows per kind, the earliest expiry among the live ones, and copies."""
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
    earliest = next((row["earliest"] for row in rows if row["_cdc_kind"] == LIVE), None)
    found = next((row for row in rows if row["_cdc_kind"] == COPIES), None)
    copies = Copies() if found is None else Copies(int(found["generation"]), int(found["expires_at"]))
    return counts, None if earliest is None else int(earliest), copies


def _last_position(fences: Sequence[Fence]) -> bytes:
    return max((f.position for f in fences), default=b"")


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


def _later_expiry(mirror: Mirror, state: MirrorState, now_seconds: int, *, sweep: bool) -> int | None:
    """Return a second before which none of the mirror's rows that stay can expire."""
    if not sweep:
        return state.next_expiry
    rows = mirror.table.read(state.head).where(f"{CDC_COLUMN}.expires_at > {now_seconds}")
    found = rows.selectExpr(f"min({CDC_COLUMN}.expires_at)").collect()[0][0]
    return None if found is None else int(found)


def _earliest(*seconds: int | None) -> int | None:
    return min((s for s in seconds if s is not None), default=None)


def _quoted(names: Sequence[str]) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in names]
