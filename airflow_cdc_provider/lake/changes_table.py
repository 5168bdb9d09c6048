"""The changes table: every captured change of a connector, in numbered batches that carry their offset.

One commit is one batch: the changes, and one row of kind ``offset`` whose payload is the offset's JSON text.
The commit's properties hold the offset too, so that a run resumes by reading metadata only. A commit is a
compare-and-set on the state from which it was derived: of two runs that read the same offset, one commits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import ConfigurationError, OffsetMissing
from airflow_cdc_provider.lake.layout import CHANGES, MOST_OFFSET_CHARACTERS
from airflow_cdc_provider.lake.table import Head, MaintenanceReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_cdc_provider.lake.table import Lake

BATCH = "cdc.batch"
OFFSET = "cdc.offset"
COMMITTED_AT = "cdc.committed_at"

LASTING: Final = (record.SCHEMA, record.QUARANTINE)
"""Kinds that are kept when their batches expire: schemas, and records that could not be decoded so far."""

_SPARK_TYPES = "batch bigint, " + record.SPARK_DDL


@dataclass(frozen=True)
class ChangesState:
    """The state that the next batch is based on.

    Args:
        head: The table's head.
        batch: Number of the newest batch, 0 before the first.
        offset: The offset after that batch, None before the first.
        appended: Changes that the commit added; 0 for a state that was read.
        committed_at: Commit time in epoch seconds, by the clock of the job that committed; None before the
            first batch, and for a commit that doesn't record it.
    """

    head: Head
    batch: int
    offset: Mapping[str, Any] | None
    appended: int = 0
    committed_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class OriginChanges:
    """Counts and latencies of one origin's changes.

    Args:
        origin: The origin.
        changes: Number of changes.
        quarantined: Number of quarantined records.
        latency_seconds: Maximum latency from a write to its capture, None if unknown.
        latency_p50_seconds: Median latency.
        latency_p99_seconds: 99th percentile of the latency.
        latency_p95_seconds: 95th percentile of the latency.
        latency_min_seconds: Minimum latency.
        latency_average_seconds: Mean latency.
        last_transaction: Transaction id of the last change that has one, empty for none.
    """

    origin: str
    changes: int
    quarantined: int
    latency_seconds: float | None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
    latency_p95_seconds: float | None = None
    latency_min_seconds: float | None = None
    latency_average_seconds: float | None = None
    last_transaction: str = ""


def join_origins(some: Sequence[OriginChanges], others: Sequence[OriginChanges]) -> list[OriginChanges]:
    """Merge the counts of two periods, ``others`` being the later; the greater percentiles are taken."""
    found = {one.origin: one for one in some}
    for other in others:
        known = found.get(other.origin)
        if known is None:
            found[other.origin] = other
            continue
        found[other.origin] = OriginChanges(
            origin=other.origin,
            changes=known.changes + other.changes,
            quarantined=known.quarantined + other.quarantined,
            latency_seconds=_greater(known.latency_seconds, other.latency_seconds),
            latency_p50_seconds=_greater(known.latency_p50_seconds, other.latency_p50_seconds),
            latency_p99_seconds=_greater(known.latency_p99_seconds, other.latency_p99_seconds),
            latency_p95_seconds=_greater(known.latency_p95_seconds, other.latency_p95_seconds),
            latency_min_seconds=_least(known.latency_min_seconds, other.latency_min_seconds),
            latency_average_seconds=_mean(known, other),
            last_transaction=other.last_transaction or known.last_transaction,
        )
    return [found[origin] for origin in sorted(found)]


def _greater(one: float | None, other: float | None) -> float | None:
    return max((t for t in (one, other) if t is not None), default=None)


def _least(one: float | None, other: float | None) -> float | None:
    return min((t for t in (one, other) if t is not None), default=None)


def _mean(one: OriginChanges, other: OriginChanges) -> float | None:
    parts = [(p.latency_average_seconds, p.changes) for p in (one, other)]
    known = [(mean, count) for mean, count in parts if mean is not None and count]
    total = sum(count for _, count in known)
    return sum(mean * count for mean, count in known) / total if total else None


@dataclass(frozen=True)
class PendingChanges:
    """Number of pending changes of one table and kind, for deciding on a merge.

    Args:
        source_table: The table, None for records that belong to no table.
        kind: Their kind.
        count: Their number.
        rows: Their number without static columns of partitions, which snapshots have in records of their own.
        captured_at: When the oldest of them was captured.
        through_batch: The newest batch that has one.
        origins: Their number by origin, where the records have one.
    """

    source_table: str | None
    kind: str
    count: int
    rows: int
    captured_at: datetime | None
    through_batch: int
    origins: Mapping[str, int] = field(default_factory=dict)


class Names(Protocol):
    """Names of a changes table; a connector has them."""

    @property
    def changes_table(self) -> str:
        """``namespace.table`` of the changes table."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace, which is also that of the mirrors."""
        ...


class ChangesTable:
    """The changes table of a connector.

    Args:
        lake: The lake.
        connector: The connector's declaration, which names the table.
    """

    def __init__(self, lake: Lake, connector: Names) -> None:
        self.lake = lake
        self.name = connector.changes_table
        self.namespace = connector.namespace
        self.table = lake.table(self.name, CHANGES)

    def create(self) -> None:
        """Create the table and its namespace if they don't exist."""
        from pyspark.sql.types import StructType

        self.lake.create_namespace(self.namespace)
        self.table.create(StructType.fromDDL(_SPARK_TYPES), partition_by=["batch", "kind"])

    def state(self) -> ChangesState:
        """Read the newest batch number and its offset.

        Raises:
            OffsetMissing: There are changes but no offset that covers them.
        """
        if not self.table.exists():
            return ChangesState(Head(None), 0, None)
        head = self.table.head()
        batch, offset = head.properties.get(BATCH), head.properties.get(OFFSET)
        if batch is not None and offset is not None:
            at = head.properties.get(COMMITTED_AT)
            committed_at = None if at is None else float(at)
            return ChangesState(head, int(batch), json.loads(offset), committed_at=committed_at)
        if head.snapshot is None:
            return ChangesState(head, 0, None)
        return self._state_from_rows(head)

    def append_batch(
        self,
        rows: DataFrame | None,
        offset: Mapping[str, Any],
        state: ChangesState,
        *,
        extra_rows: Sequence[Mapping[str, Any]] = (),
        delete: str | None = None,
    ) -> ChangesState:
        """Commit one batch with the offset after it.

        Args:
            rows: Changes in the columns of :data:`~airflow_cdc_provider.changes.record.CHANGE_SCHEMA`.
            offset: The offset after them.
            state: The state that :meth:`state` or the previous call returned.
            extra_rows: Further changes built on the driver, by column name; absent columns are null.
            delete: SQL predicate of rows to delete in the same commit.

        Returns:
            The state after the commit.

        Raises:
            CommitConflict: Another run committed after ``state``; nothing of this batch was committed.
            CommitStateUnknown: The outcome is unknown; call :meth:`state` to find out.
        """
        if state.head.snapshot is None:
            self.create()
        batch = state.batch + 1
        text = json.dumps(offset, sort_keys=True)
        now = datetime.now(UTC)
        frame = self._driver_rows(batch, [*extra_rows, _offset_row(text, now)])
        if rows is not None:
            from pyspark.sql import functions

            changes = rows.select(
                functions.lit(batch).cast("bigint").alias("batch"), *record.CHANGE_SCHEMA.names
            )
            frame = changes.sortWithinPartitions("source_table").union(frame)
        properties = {BATCH: str(batch), COMMITTED_AT: str(now.timestamp())}
        if len(text) <= MOST_OFFSET_CHARACTERS:
            properties[OFFSET] = text
        head = self.table.commit(state.head, append=frame, delete=delete, properties=properties)
        appended = head.added_rows - 1  # the offset is a row of its own
        return ChangesState(head, batch, dict(offset), appended, now.timestamp())

    def lasting(self, kind: str) -> DataFrame:
        """Read all rows of a kind in :data:`LASTING`."""
        from pyspark.sql import functions

        return self.table.read(self.table.head()).where(functions.col("kind") == kind)

    def land(self, rows: DataFrame, state: ChangesState) -> ChangesState:
        """Replace all quarantined rows with the result of reading them again, as a separate batch.

        Args:
            rows: Changes, and rows that stay in quarantine, in the columns of ``CHANGE_SCHEMA``.
            state: The state that :meth:`state` or the previous call returned.

        Raises:
            CommitConflict: Another run committed after ``state``; nothing has changed.
        """
        assert state.offset is not None
        return self.append_batch(
            rows, state.offset, state, delete=f"kind = '{record.QUARANTINE}' AND batch <= {state.batch}"
        )

    def set_offset(self, offset: Mapping[str, Any], state: ChangesState) -> ChangesState:
        """Commit a batch that holds only an offset."""
        return self.append_batch(None, offset, state)

    def pending(
        self,
        after_batch: int,
        through_batch: int,
        tables: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
    ) -> DataFrame:
        """Read the changes of a range of batches, all from one snapshot of the table.

        Args:
            after_batch: The last batch before the range.
            through_batch: The last batch of the range.
            tables: Only these tables; None for all, and for records that belong to no table.
            kinds: Only these kinds; None for all but offsets.
        """
        from pyspark.sql import functions

        rows = self.table.read(self.table.head())
        batch, table, kind = (functions.col(c) for c in ("batch", "source_table", "kind"))
        rows = rows.where((batch > after_batch) & (batch <= through_batch))
        if tables is not None:
            rows = rows.where(table.isin(list(tables)))
        return rows.where(kind.isin(list(kinds)) if kinds is not None else kind != record.OFFSET)

    def summary(self, after: int, through: int | None = None) -> list[PendingChanges]:
        """Count pending changes per table and kind; reads five narrow columns.

        Args:
            after: The last batch before the range.
            through: The last batch of the range; None for the newest.
        """
        from pyspark.sql import functions

        through = self.state().batch if through is None else through
        if through <= after:
            return []
        rows = self.pending(after, through).groupBy("source_table", "kind", "origin")
        found = rows.agg(
            functions.count("*").alias("n"),
            functions.count("reason").alias("not_rows"),
            functions.unix_micros(functions.min("captured_at")).alias("captured_us"),
            functions.max("batch").alias("through"),
        ).collect()
        parts: dict[tuple[str | None, str], list[Any]] = {}
        for row in found:
            parts.setdefault((row["source_table"], row["kind"]), []).append(row)
        summaries = [
            PendingChanges(
                table,
                kind,
                sum(row["n"] for row in rows),
                sum(row["n"] - row["not_rows"] for row in rows),
                _moment(min((row["captured_us"] for row in rows if row["captured_us"]), default=None)),
                max(row["through"] for row in rows),
                {row["origin"]: row["n"] - row["not_rows"] for row in rows if row["origin"]},
            )
            for (table, kind), rows in parts.items()
        ]
        return sorted(summaries, key=lambda s: (s.source_table or "", s.kind))

    def origins(
        self, after: int, through: int, *, latencies: bool = True, per_table: bool = False
    ) -> list[OriginChanges]:
        """Count changes and quarantined records per origin; reads seven narrow columns.

        Args:
            after: The last batch before the range.
            through: The last batch of the range.
            latencies: Whether to compute capture latencies.
            per_table: Whether to group by table instead, for sources with thousands of origins per table.
        """
        from pyspark.sql import functions

        if through <= after:
            return []
        kinds = (record.CHANGE, record.QUARANTINE)
        captured, committed = (functions.unix_micros(c) for c in ("captured_at", "committed_at"))
        took = captured - committed
        measured = {
            "latency_us": functions.max(took),
            "percentiles_us": functions.percentile_approx(took, [0.5, 0.99, 0.95]),
            "least_us": functions.min(took),
            "mean_us": functions.avg(took),
        }
        found = (
            self.pending(after, through, kinds=kinds)
            .groupBy(functions.col("source_table" if per_table else "origin").alias("origin"))
            .agg(
                *(functions.count_if(functions.col("kind") == kind).alias(kind) for kind in kinds),
                functions.max_by(
                    "transaction",
                    functions.when(functions.col("transaction").isNotNull(), functions.col("position")),
                ).alias("last_transaction"),
                *(value.alias(name) for name, value in measured.items() if latencies),
            )
            .collect()
        )
        return [
            OriginChanges(
                origin=r["origin"],
                changes=r[record.CHANGE],
                quarantined=r[record.QUARANTINE],
                **(_latencies(r) if latencies else {"latency_seconds": None}),
                last_transaction=r["last_transaction"] or "",
            )
            for r in sorted(found, key=lambda r: r["origin"])
        ]

    def expire(self, through_batch: int, older_than: datetime) -> int:
        """Remove old batches that every consumer has merged, except for the kinds in :data:`LASTING`.

        The removal is maintenance: a concurrent capture is not disturbed. The newest batch is kept.

        Args:
            through_batch: The newest batch that all consumers have merged.
            older_than: Batches committed at or after this time are kept.

        Returns:
            The newest batch removed, 0 for none.
        """
        newest = self.last_old(through_batch, older_than)
        if newest:
            self.table.discard("batch", newest, sparing=("kind", LASTING))
        return newest

    def last_old(self, through_batch: int, older_than: datetime) -> int:
        """Return the last batch that :meth:`expire` would remove, 0 for none."""
        from pyspark.sql import functions

        state = self.state()
        last = min(through_batch, state.batch - 1)
        if last <= 0:
            return 0
        offsets = self.table.read(state.head).where(functions.col("kind") == record.OFFSET)
        old = offsets.where((functions.col("batch") <= last) & (functions.col("captured_at") < older_than))
        return int(old.agg(functions.max("batch")).collect()[0][0] or 0)

    def maintain(self, *, through_batch: int, retain_seconds: int) -> MaintenanceReport:
        """Expire batches and snapshots. Files are not compacted: batches are short-lived and have few files.

        Args:
            through_batch: The newest batch that all consumers have merged.
            retain_seconds: Age at which batches and snapshots expire.
        """
        self.expire(through_batch, datetime.now(UTC) - timedelta(seconds=retain_seconds))
        return self.table.maintain(retain_seconds=retain_seconds, compact=False)

    def _state_from_rows(self, head: Head) -> ChangesState:
        from pyspark.sql import functions

        rows = self.table.read(head)
        newest = rows.agg(functions.max("batch")).collect()[0][0]
        if newest is None:
            return ChangesState(head, 0, None)
        found = (
            rows.where((functions.col("kind") == record.OFFSET) & (functions.col("batch") == newest))
            .select("payload", functions.unix_micros("captured_at").alias("captured_us"))
            .collect()
        )
        if len(found) != 1:
            raise OffsetMissing(
                f"{self.name} holds changes without an offset",
                expected=f"one row of kind offset in its newest batch, {newest}",
                found=str(len(found)),
                remedy="set one with: airflow cdc offsets set, or drop the table to start over",
            )
        committed_at = found[0]["captured_us"] / 1_000_000
        return ChangesState(
            head, int(newest), json.loads(bytes(found[0]["payload"])), committed_at=committed_at
        )

    def _driver_rows(self, batch: int, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        for row in rows:
            if unknown := set(row) - set(record.CHANGE_SCHEMA.names):
                raise ConfigurationError(f"a change has no column {', '.join(sorted(unknown))}")
        table = pa.Table.from_pylist([{"batch": batch, **row} for row in rows], schema=record.TABLE_SCHEMA)
        return self.lake.spark.createDataFrame(table)


def _moment(microseconds: int | None) -> datetime | None:
    return (
        None
        if microseconds is None
        else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    )


def _latencies(row: Any) -> dict[str, float | None]:
    """Return an origin's latencies in seconds."""
    p50, p99, p95 = row["percentiles_us"] or (None, None, None)
    microseconds = {
        "": row["latency_us"],
        "_p50": p50,
        "_p95": p95,
        "_p99": p99,
        "_min": row["least_us"],
        "_average": row["mean_us"],
    }
    return {
        f"latency{name}_seconds": None if us is None else us / 1_000_000 for name, us in microseconds.items()
    }


def _offset_row(text: str, now: datetime) -> dict[str, Any]:
    return {"kind": record.OFFSET, "captured_at": now, "payload": text.encode()}
