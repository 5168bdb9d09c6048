"""Merging pending contributions into a mirror: read the touched rows, reconcile, rewrite them.

A broadcast semi-join with the pending keys finds the affected rows of mirror and tombstone table, so the
target is never shuffled. One kernel (:mod:`airflow_cdc_provider.lake.merge_kernel`) reconciles all three
inputs. The outcome is one delete by row id and one append, committed together with the number of the last
merged batch.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, SPARK_DDL, STATIC, unresolved_keys
from airflow_cdc_provider.changes.fence import Fence, newest_generation
from airflow_cdc_provider.changes.static_columns import StaticColumns
from airflow_cdc_provider.changes.worker import map_in_arrow
from airflow_cdc_provider.exceptions import CommitConflict
from airflow_cdc_provider.lake.merge_kernel import (
    DUPLICATES,
    FROM_MIRROR,
    FROM_STATIC_COLUMNS,
    FROM_TOMBSTONES,
    LIVE,
    LIVE_STATIC,
    PENDING,
    REMOVE,
    REMOVE_STATIC,
    TOMBSTONE,
    UNRESOLVED,
    MergeKernel,
)
from airflow_cdc_provider.lake.mirror import (
    CDC_COLUMN,
    Mirror,
    MirrorState,
    RereadBasis,
    StaticColumnsState,
    spark_schema,
)
from airflow_cdc_provider.lake.reconcile import ReplicaDuplicates
from airflow_cdc_provider.lake.row_fences import NO_FENCES, HasFeeds, RowFences
from airflow_cdc_provider.lake.unresolved import find_keys_not_in_snapshot
from airflow_cdc_provider.logs import logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_cdc_provider.lake.table import LakeTable

log = logger(__name__)

_ROWS_PER_PARTITION = 50_000
_BROADCAST_KEYS = 5_000_000


class RowShape(HasFeeds, Protocol):
    """How a source's rows compete and how they are projected; every codec implements it."""

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
        """Its static columns; None for a source that has no such concept."""
        ...

    def mirror_schema(self) -> pa.Schema:
        """Return the source table's columns."""
        ...

    def project(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Project live rows to those columns."""
        ...

    @property
    def reads_states(self) -> bool:
        """Whether merges need the stored states of rows, to project them again or to apply patches."""
        ...

    def patch(self, states: pa.Array, patches: pa.Array, offsets: Any) -> pa.Array:
        """Apply patches (see :data:`~airflow_cdc_provider.lake.reconcile.Patch`)."""
        ...


@dataclass(frozen=True)
class MergePlan:
    """Input and target of one merge.

    Args:
        base: The mirror's state from which the rest was derived.
        through: Last batch of the changes table that the contributions come from.
        fences: All fences of the table up to that batch.
        memory: The source's memory of the table.
        now_seconds: Epoch second at which expiry is judged.
        pending_rows: Approximate number of contributions, to size the shuffle.
        purge_before_seconds: Tombstones older than this may be purged; None keeps all.
        snapshot_started_us: Start of a replacing snapshot that is among the contributions: rows not read
            since then must be read again. 0 for none.
        reread: Identifies the unresolved keys whose second reading is among the contributions; None for none.
        unread: Those of the keys that could not be read.
        column_ids: See :class:`~airflow_cdc_provider.lake.merge_kernel.MergeKernel`.
        rows_to_rewrite: SQL predicate of mirror rows to merge although they have no pending changes; empty
            for none.
        static_rows_to_rewrite: The same for rows of the static columns table.
        offset: The source's offset after batch ``through``; None if unknown.
    """

    base: MirrorState
    through: int
    fences: Sequence[Fence]
    memory: Mapping[str, Any]
    now_seconds: int
    pending_rows: int
    purge_before_seconds: int | None = None
    snapshot_started_us: int = 0
    reread: RereadBasis | None = None
    unread: Sequence[bytes] = ()
    column_ids: frozenset[int] | None = None
    rows_to_rewrite: str = ""
    static_rows_to_rewrite: str = ""
    offset: Mapping[str, Any] | None = None

    @property
    def sweeps(self) -> bool:
        """Whether rows may be due to expire, so that the merge reads them."""
        earliest = self.base.earliest_expiry
        return earliest is not None and earliest <= self.now_seconds


@dataclass(frozen=True)
class MergeCounts:
    """Counts of one merge.

    Args:
        rows: Rows of the mirror.
        written: Rows written, including those of the static columns table.
        removed: Rows removed, including those of the static columns table.
        tombstones: Rows appended to the tombstone table.
        unresolved_keys: Number of keys that must be read again at the source.
        has_unresolved: Whether such keys may exist, including those that a replacing snapshot did not read,
            which are only found when they are read again.
        seconds: Duration.
        row_changes: Changes of rows; cell-level sources only.
        replica_duplicates: How many of them are replica duplicates.
    """

    rows: int = 0
    written: int = 0
    removed: int = 0
    tombstones: int = 0
    unresolved_keys: int = 0
    has_unresolved: bool = False
    seconds: float = 0.0
    row_changes: int = 0
    replica_duplicates: int = 0


def merge(
    spark: SparkSession,
    mirror: Mirror,
    shape: RowShape,
    contributions: DataFrame | None,
    plan: MergePlan,
) -> MergeCounts:
    """Merge contributions of one table into its mirror in one commit, after one of its static columns table.

    Args:
        spark: The session.
        mirror: A mirror that was prepared with :meth:`Mirror.prepare`.
        shape: How its rows compete and how they are projected.
        contributions: Frame of ``CONTRIBUTION_SCHEMA``, best persisted; None for an expiry sweep only.
        plan: Input and target of the merge.

    Returns:
        Counts.

    Raises:
        CommitConflict: Another writer merged after the plan's base; this merge did not change the mirror.
    """
    started = time.monotonic()
    _require_no_later_static_columns(mirror, plan)
    kernel = _kernel(shape, plan)
    reconciled = _reconciled(spark, mirror, contributions, kernel, plan)
    try:
        outcome = _count(reconciled)
        if outcome.counts[TOMBSTONE] or outcome.counts[UNRESOLVED]:
            mirror.tombstones.append(outcome.of_kinds(TOMBSTONE, UNRESOLVED).select("_cdc_tombstone.*"))
        fenced = _fenced(shape, plan)
        merged = _merged_state(mirror, plan, outcome, fenced)
        row_columns = kernel.columns
        if plan.base.static_columns is not None:
            row_columns, partition_columns = mirror.layout(row_columns, shape.static_columns)
            commit = _commit_static_columns(
                mirror, plan.base.static_columns, plan, outcome, partition_columns, fenced
            )
            merged = replace(merged, static_columns_commit=commit)
        head = mirror.table.commit(
            plan.base.head,
            **outcome.changes(row_columns, LIVE, REMOVE),
            delete=fenced,
            properties=merged.properties(),
        )
    finally:
        reconciled.unpersist()
    return MergeCounts(
        rows=mirror.row_count(replace(merged, head=head)),
        written=outcome.counts[LIVE] + outcome.counts[LIVE_STATIC],
        removed=outcome.counts[REMOVE] + outcome.counts[REMOVE_STATIC],
        tombstones=outcome.counts[TOMBSTONE],
        unresolved_keys=merged.unresolved_keys,
        has_unresolved=merged.unresolved_keys > 0 or merged.snapshot_started_us > 0,
        seconds=time.monotonic() - started,
        row_changes=outcome.duplicates.row_changes,
        replica_duplicates=outcome.duplicates.duplicates,
    )


def _require_no_later_static_columns(mirror: Mirror, plan: MergePlan) -> None:
    """Refuse to replace static columns that an incomplete merge of later batches has written."""
    static_columns = plan.base.static_columns
    if static_columns is not None and static_columns.merged_through > plan.through:
        raise CommitConflict(
            f"another merge writes to {mirror.static_columns.name}",
            expected=f"nothing of batches after {plan.through}",
            found=f"a commit through batch {static_columns.merged_through}",
        )


def _kernel(shape: RowShape, plan: MergePlan) -> MergeKernel:
    """Return the kernel that reconciles stored rows and contributions."""
    by_row = shape.model == "row"
    return MergeKernel(
        model=shape.model,
        rules=shape.rules,
        columns=shape.mirror_schema(),
        project=shape.project,
        now_seconds=plan.now_seconds,
        fences=RowFences.of(plan.fences, shape) if by_row else NO_FENCES,
        generation=newest_generation(plan.fences) if shape.model == "cell" else 0,
        purge_before_seconds=plan.purge_before_seconds,
        through=plan.through,
        column_ids=plan.column_ids,
        static_columns_table=plan.base.static_columns is not None,
        rewrite_static_columns=plan.base.static_columns_ahead,
        reads_states=shape.model == "cell" or shape.reads_states,
        patch=shape.patch,
        rewrite=bool(plan.rows_to_rewrite) and by_row,
    )


def _reconciled(
    spark: SparkSession,
    mirror: Mirror,
    contributions: DataFrame | None,
    kernel: MergeKernel,
    plan: MergePlan,
) -> DataFrame:
    """Plan the reconciliation of contributions with the rows and tombstones of their keys."""
    from pyspark.sql import functions as f

    state, names = plan.base, CONTRIBUTION_SCHEMA.names
    pending = contributions if contributions is not None else spark.createDataFrame([], SPARK_DDL)
    if plan.unread:
        unread = pa.Table.from_batches([unresolved_keys(pa.array(plan.unread, pa.binary()), 0)])
        pending = pending.select(*names).unionByName(spark.createDataFrame(unread, SPARK_DDL))
    union = pending.selectExpr(
        *names, f"cast({PENDING} as tinyint) _from", "cast(null as bigint) _expires_at"
    )
    if state.merged_through >= 0:
        rows = mirror.rows(state)
        if not kernel.reads_states:
            rows = rows.withColumn("state", f.lit(None).cast("binary"))
        stored = {FROM_MIRROR: rows}
        if state.static_columns is not None:
            stored[FROM_STATIC_COLUMNS] = mirror.static_rows(state.static_columns)
        keys = _affected_keys(mirror, plan, pending, stored)
        if plan.pending_rows <= _BROADCAST_KEYS and not _static_columns_are_lost(state):
            keys = f.broadcast(keys)
        for source, rows in stored.items():
            union = union.unionByName(
                rows.join(keys, "key", "left_semi").selectExpr(
                    *names, f"cast({source} as tinyint) _from", "expires_at _expires_at"
                )
            )
        if not mirror.tombstones.empty():
            kept = mirror.tombstone_rows().join(keys, "key", "left_semi")
            union = union.unionByName(
                kept.selectExpr(
                    *names, f"cast({FROM_TOMBSTONES} as tinyint) _from", "cast(null as bigint) _expires_at"
                )
            )
    cores = spark.sparkContext.defaultParallelism
    partitions = max(1, min(plan.pending_rows // _ROWS_PER_PARTITION + 1, 64 * cores))
    if partitions < cores and plan.pending_rows > _ROWS_PER_PARTITION // 5:
        partitions = cores
    shuffled = union.repartition(partitions, "key")
    merged = map_in_arrow(shuffled, kernel, spark_schema(kernel.output_schema))
    return merged.persist()


def _fenced(shape: RowShape, plan: MergePlan) -> str | None:
    """Return the predicate of the stored rows that new fences remove; None for none."""
    base = plan.base
    if base.merged_through < 0:
        return None
    if shape.model == "row":
        fences = RowFences.of(plan.fences, shape)
        return fences.predicate(CDC_COLUMN) if fences.above(RowFences.of(base.fences, shape)) else None
    generation = newest_generation(plan.fences)
    return f"{CDC_COLUMN}.generation < {generation}" if generation > newest_generation(base.fences) else None


def _merged_state(mirror: Mirror, plan: MergePlan, outcome: _Outcome, fenced: str | None) -> MirrorState:
    """Return the state that the commit to the mirror stores, but for the commit of its static columns."""
    base, counts = plan.base, outcome.counts
    resolved = plan.reread == base.reread_basis
    earlier_unresolved = 0 if resolved else base.unresolved_keys
    snapshot_started_us = 0 if _is_all_in_snapshot(plan, outcome) else plan.snapshot_started_us
    return replace(
        base,
        merged_through=plan.through,
        offset=plan.offset,
        fences=tuple(plan.fences),
        memory=plan.memory,
        next_expiry=_earliest(outcome.expiries.get(LIVE), _later_expiry(mirror.table, base, plan)),
        unresolved_keys=earlier_unresolved + counts[UNRESOLVED],
        unresolved_since=base.unresolved_since if earlier_unresolved else plan.through,
        snapshot_started_us=max(snapshot_started_us, 0 if resolved else base.snapshot_started_us),
        rows=None if fenced else mirror.row_count(base) + counts[LIVE] - counts[REMOVE],
    )


def _is_all_in_snapshot(plan: MergePlan, outcome: _Outcome) -> bool:
    """Return whether a first merge has no rows but those that its replacing snapshot read."""
    if not plan.snapshot_started_us or plan.base.merged_through >= 0:
        return False
    rows = outcome.of_kinds(LIVE, LIVE_STATIC).selectExpr(
        f"{CDC_COLUMN}.key", f"if(_cdc_kind = {LIVE}, {CDC_COLUMN}.state, null) state"
    )
    tombstones = outcome.of_kinds(TOMBSTONE).select("_cdc_tombstone.*")
    return find_keys_not_in_snapshot(rows, tombstones, plan.snapshot_started_us).isEmpty()


def _commit_static_columns(
    mirror: Mirror,
    before: StaticColumnsState,
    plan: MergePlan,
    outcome: _Outcome,
    columns: Iterable[pa.Field],
    fenced: str | None,
) -> str:
    """Commit a merge's static columns, just before its commit to the mirror, and return the commit's id.

    A merge without changes of static columns commits too, so that a concurrent merge of fewer batches can't
    commit after it.
    """
    if plan.base.merged_through < 0:
        # Its rows were not read; existing ones were left by a first merge that was killed.
        fenced = None if mirror.static_columns.empty() else "true"
    merged = StaticColumnsState(
        before.head,
        commit=uuid.uuid4().hex,
        merged_through=plan.through,
        next_expiry=_earliest(
            outcome.expiries.get(LIVE_STATIC), _later_expiry(mirror.static_columns, before, plan)
        ),
    )
    changes = outcome.changes(columns, LIVE_STATIC, REMOVE_STATIC)
    mirror.static_columns.commit(before.head, **changes, delete=fenced, properties=merged.properties())
    return merged.commit


def _static_columns_are_lost(state: MirrorState) -> bool:
    """Return whether the static columns table is new while the tombstone table may have static columns."""
    return state.static_columns is not None and state.static_columns.merged_through < 0


def _affected_keys(
    mirror: Mirror, plan: MergePlan, pending: DataFrame, stored: Mapping[int, DataFrame]
) -> DataFrame:
    """Return the keys whose rows are read: one column, with repetitions.

    Repetitions don't matter to a semi-join, and removing them would need a shuffle.
    """
    state = plan.base
    keys = pending.select("key")
    if plan.sweeps:
        for rows in stored.values():
            keys = keys.union(rows.where(f"expires_at <= {plan.now_seconds}").select("key"))
    if plan.rows_to_rewrite:
        keys = keys.union(
            mirror.table.read(state.head).where(plan.rows_to_rewrite).select(f"{CDC_COLUMN}.key")
        )
    if plan.static_rows_to_rewrite and state.static_columns is not None:
        static_rows = mirror.static_columns.read(state.static_columns.head).where(plan.static_rows_to_rewrite)
        keys = keys.union(static_rows.select(f"{CDC_COLUMN}.key"))
    if _static_columns_are_lost(state):
        keys = keys.union(mirror.tombstone_rows().where(f"scope = {STATIC}").select("key"))
    return keys


@dataclass(frozen=True)
class _Outcome:
    """What a merge writes: rows by kind, with their number and earliest expiry, and replica duplicates."""

    rows: DataFrame
    counts: Counter[int]
    expiries: Mapping[int, int]
    duplicates: ReplicaDuplicates

    def of_kinds(self, *kinds: int) -> DataFrame:
        """Return the rows of some kinds."""
        return self.rows.where(f"_cdc_kind IN ({', '.join(map(str, kinds))})")

    def changes(self, columns: Iterable[pa.Field], written: int, removed: int) -> dict[str, Any]:
        """Return the arguments of one table's commit: ``append`` and ``delete_keys``."""
        names = _quoted([column.name for column in columns])
        rows = self.of_kinds(written).select(*names, CDC_COLUMN)
        ids = self.of_kinds(removed).select(f"{CDC_COLUMN}.id")
        return {
            "append": rows if self.counts[written] else None,
            "delete_keys": (f"{CDC_COLUMN}.id", ids) if self.counts[removed] else None,
        }


def _count(reconciled: DataFrame) -> _Outcome:
    """Materialise reconciled rows and count them."""
    from pyspark.sql.functions import expr

    counted = [
        f"sum(if(_cdc_kind = {DUPLICATES}, {CDC_COLUMN}.{name}, 0)) {name}"
        for name in ("generation", "expires_at")
    ]
    texts = ("count(1) n", f"min({CDC_COLUMN}.expires_at) earliest", *counted)
    found = reconciled.groupBy("_cdc_kind").agg(*map(expr, texts)).collect()
    by_kind = {int(row["_cdc_kind"]): row for row in found}
    counts = Counter({kind: int(row["n"]) for kind, row in by_kind.items()})
    expiries = {kind: int(row["earliest"]) for kind, row in by_kind.items() if row["earliest"] is not None}
    row = by_kind.get(DUPLICATES)
    duplicates = [] if row is None else [int(row["generation"]), int(row["expires_at"])]
    return _Outcome(reconciled, counts, expiries, ReplicaDuplicates(*duplicates))


def _later_expiry(table: LakeTable, state: MirrorState | StaticColumnsState, plan: MergePlan) -> int | None:
    """Return a second before which none of a table's remaining rows can expire."""
    if not plan.sweeps:
        return state.next_expiry
    rows = table.read(state.head).where(f"{CDC_COLUMN}.expires_at > {plan.now_seconds}")
    found = rows.selectExpr(f"min({CDC_COLUMN}.expires_at)").collect()[0][0]
    return None if found is None else int(found)


def _earliest(*seconds: int | None) -> int | None:
    return min((s for s in seconds if s is not None), default=None)


def _quoted(names: Sequence[str]) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in names]
