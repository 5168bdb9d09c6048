"""Merging pending contributions into a mirror: read the touched rows, reconcile, rewrite them.

A broadcast semi-join with the pending keys finds the affected rows of mirror and tombstone table, so the
target is never shuffled. One kernel (:mod:`airflow_cdc_provider.lake.merge_kernel`) reconciles all three
inputs. The outcome is one delete by row id and one append, committed together with the number of the last
merged batch.
"""

from __future__ import annotations

import logging
import time
import uuid
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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_cdc_provider.lake.table import LakeTable

log = logging.getLogger(__name__)

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
    def stores_state(self) -> bool:
        """Whether a mirror stores the native states of rows, to project them again or to apply patches."""
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
    state = plan.base
    _require_no_later_static_columns(mirror, plan)
    sweep = state.earliest_expiry is not None and state.earliest_expiry <= plan.now_seconds
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
        static_columns_table=state.static_columns is not None,
        rewrite_static_columns=state.static_columns_ahead,
        stores_state=shape.stores_state,
        patch=shape.patch,
        rewrite=bool(plan.rows_to_rewrite) and shape.model == "row",
    )
    outcome = _reconciled(spark, mirror, state, contributions, kernel, plan, sweep=sweep)
    try:
        counts, expiries, duplicates = _count(outcome)
        if counts.get(TOMBSTONE) or counts.get(UNRESOLVED):
            mirror.tombstones.append(
                outcome.where(f"_cdc_kind IN ({TOMBSTONE}, {UNRESOLVED})").select("_cdc_tombstone.*")
            )
        fenced = None
        if raised and state.merged_through >= 0:
            earlier = f"{CDC_COLUMN}.generation < {generation}"
            fenced = fences.predicate(CDC_COLUMN) if shape.model == "row" else earlier
        resolved = plan.reread == state.reread_basis
        earlier_unresolved = 0 if resolved else state.unresolved_keys
        unresolved = earlier_unresolved + counts.get(UNRESOLVED, 0)
        snapshot_started_us = plan.snapshot_started_us
        if snapshot_started_us and state.merged_through < 0:
            rows = outcome.where(f"_cdc_kind IN ({LIVE}, {LIVE_STATIC})").selectExpr(
                f"{CDC_COLUMN}.key", f"if(_cdc_kind = {LIVE}, {CDC_COLUMN}.state, null) state"
            )
            tombstones = outcome.where(f"_cdc_kind = {TOMBSTONE}").select("_cdc_tombstone.*")
            if find_keys_not_in_snapshot(rows, tombstones, snapshot_started_us).isEmpty():
                snapshot_started_us = 0
        written, removed = counts.get(LIVE, 0), counts.get(REMOVE, 0)
        merged = replace(
            state,
            merged_through=plan.through,
            offset=plan.offset,
            fences=tuple(plan.fences),
            memory=plan.memory,
            next_expiry=_earliest(expiries.get(LIVE), _later_expiry(mirror.table, state, plan, sweep=sweep)),
            unresolved_keys=unresolved,
            unresolved_since=state.unresolved_since if earlier_unresolved else plan.through,
            snapshot_started_us=max(snapshot_started_us, 0 if resolved else state.snapshot_started_us),
            rows=None if fenced else mirror.row_count(state) + written - removed,
        )
        row_columns = kernel.columns
        if state.static_columns is not None:
            row_columns, partition_columns = mirror.layout(row_columns, shape.static_columns)
            commit = _commit_static_columns(
                mirror,
                state.static_columns,
                plan,
                _changes(outcome, counts, partition_columns, LIVE_STATIC, REMOVE_STATIC),
                fenced=fenced,
                expiry=expiries.get(LIVE_STATIC),
                sweep=sweep,
            )
            merged = replace(merged, static_columns_commit=commit)
        head = mirror.table.commit(
            state.head,
            **_changes(outcome, counts, row_columns, LIVE, REMOVE),
            delete=fenced,
            properties=merged.properties(),
        )
    finally:
        outcome.unpersist()
    return MergeCounts(
        rows=mirror.row_count(replace(merged, head=head)),
        written=written + counts.get(LIVE_STATIC, 0),
        removed=removed + counts.get(REMOVE_STATIC, 0),
        tombstones=counts.get(TOMBSTONE, 0),
        unresolved_keys=unresolved,
        has_unresolved=unresolved > 0 or merged.snapshot_started_us > 0,
        seconds=time.monotonic() - started,
        row_changes=duplicates.row_changes,
        replica_duplicates=duplicates.duplicates,
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
        unread = pa.Table.from_batches([unresolved_keys(pa.array(plan.unread, pa.binary()), 0)])
        pending = pending.select(*names).unionByName(spark.createDataFrame(unread, SPARK_DDL))
    union = pending.selectExpr(
        *names, f"cast({PENDING} as tinyint) _from", "cast(null as bigint) _expires_at"
    )
    if state.merged_through >= 0:
        stored = {FROM_MIRROR: mirror.rows(state)}
        if state.static_columns is not None:
            stored[FROM_STATIC_COLUMNS] = mirror.static_rows(state.static_columns)
        keys = _affected_keys(mirror, plan, pending, stored, sweep=sweep)
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


def _require_no_later_static_columns(mirror: Mirror, plan: MergePlan) -> None:
    """Refuse to replace static columns that an incomplete merge of later batches has written."""
    static_columns = plan.base.static_columns
    if static_columns is not None and static_columns.merged_through > plan.through:
        raise CommitConflict(
            f"another merge writes to {mirror.static_columns.name}",
            expected=f"nothing of batches after {plan.through}",
            found=f"a commit through batch {static_columns.merged_through}",
        )


def _commit_static_columns(
    mirror: Mirror,
    before: StaticColumnsState,
    plan: MergePlan,
    changes: Mapping[str, Any],
    *,
    fenced: str | None,
    expiry: int | None,
    sweep: bool,
) -> str:
    """Commit a merge's static columns, just before its commit to the mirror.

    A merge without changes of static columns commits too, so that a concurrent merge of fewer batches can't
    commit after it.

    Args:
        mirror: The mirror.
        before: The state of its static columns table from which the changes were derived.
        plan: The merge's plan.
        changes: ``append`` and ``delete_keys``.
        fenced: Predicate of the rows that a fence removes.
        expiry: Earliest expiry of the written rows.
        sweep: Whether rows that are due to expire were read.

    Returns:
        The commit's id.
    """
    if plan.base.merged_through < 0:
        # Its rows were not read; existing ones were left by a first merge that was killed.
        fenced = None if mirror.static_columns.empty() else "true"
    merged = StaticColumnsState(
        before.head,
        commit=uuid.uuid4().hex,
        merged_through=plan.through,
        next_expiry=_earliest(expiry, _later_expiry(mirror.static_columns, before, plan, sweep=sweep)),
    )
    mirror.static_columns.commit(before.head, **changes, delete=fenced, properties=merged.properties())
    return merged.commit


def _static_columns_are_lost(state: MirrorState) -> bool:
    """Return whether the static columns table is new while the tombstone table may have static columns."""
    return state.static_columns is not None and state.static_columns.merged_through < 0


def _affected_keys(
    mirror: Mirror, plan: MergePlan, pending: DataFrame, stored: Mapping[int, DataFrame], *, sweep: bool
) -> DataFrame:
    """Return the keys whose rows are read: one column, with repetitions.

    Repetitions don't matter to a semi-join, and removing them would need a shuffle.
    """
    state = plan.base
    keys = pending.select("key")
    if sweep:
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


def _changes(
    outcome: DataFrame, counts: Mapping[int, int], columns: Iterable[pa.Field], written: int, removed: int
) -> dict[str, Any]:
    """Return the arguments of one table's commit: ``append`` and ``delete_keys``."""
    names = _quoted([column.name for column in columns])
    rows = outcome.where(f"_cdc_kind = {written}").select(*names, CDC_COLUMN)
    ids = outcome.where(f"_cdc_kind = {removed}").select(f"{CDC_COLUMN}.id")
    return {
        "append": rows if counts.get(written) else None,
        "delete_keys": (f"{CDC_COLUMN}.id", ids) if counts.get(removed) else None,
    }


def _count(outcome: DataFrame) -> tuple[dict[int, int], dict[int, int], ReplicaDuplicates]:
    """Materialise the outcome: rows and earliest expiry per kind, and replica duplicates."""
    counted = [
        f"sum(if(_cdc_kind = {DUPLICATES}, {CDC_COLUMN}.{name}, 0)) {name}"
        for name in ("generation", "expires_at")
    ]
    rows = (
        outcome.groupBy("_cdc_kind")
        .agg(*_expressions("count(1) n", f"min({CDC_COLUMN}.expires_at) earliest", *counted))
        .collect()
    )
    counts = {int(row["_cdc_kind"]): int(row["n"]) for row in rows}
    expiries = {int(row["_cdc_kind"]): int(row["earliest"]) for row in rows if row["earliest"] is not None}
    found = next((row for row in rows if row["_cdc_kind"] == DUPLICATES), None)
    duplicates = (
        ReplicaDuplicates()
        if found is None
        else ReplicaDuplicates(int(found["generation"]), int(found["expires_at"]))
    )
    return counts, expiries, duplicates


def _expressions(*texts: str) -> list[Column]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


def _later_expiry(
    table: LakeTable, state: MirrorState | StaticColumnsState, plan: MergePlan, *, sweep: bool
) -> int | None:
    """Return a second before which none of a table's remaining rows can expire."""
    if not sweep:
        return state.next_expiry
    rows = table.read(state.head).where(f"{CDC_COLUMN}.expires_at > {plan.now_seconds}")
    found = rows.selectExpr(f"min({CDC_COLUMN}.expires_at)").collect()[0][0]
    return None if found is None else int(found)


def _earliest(*seconds: int | None) -> int | None:
    return min((s for s in seconds if s is not None), default=None)


def _quoted(names: Sequence[str]) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in names]
