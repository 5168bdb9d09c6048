"""The specification of a Spark application, which an operator writes, and the result that it reads.

Both are JSON files. Neither has secrets: a spec refers to a connection's values, and the job resolves the
reference (:class:`ConnectionRef`); a result's texts are masked. This module is import-light; operators
import it when a DAG is parsed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from airflow_cdc_provider.exceptions import ConfigurationError, printable
from airflow_cdc_provider.masking import masked, masked_values, remember
from airflow_cdc_provider.regular_files import write_private
from airflow_cdc_provider.secrets import read_private
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics

Stage = Literal[
    "sync",
    "capture",
    "merge",
    "snapshot",
    "verify",
    "maintain",
    "offsets",
    "stream",
    "events",
    "publish",
    "replay",
    "compare_topics",
    "check_lake",
]
STAGES: tuple[Stage, ...] = get_args(Stage)

SNAPSHOT_ROWS: Final = "snapshot_rows.jsonl"
"""Name of the file next to the result in which a job reports the rows read per table."""
NOTIFICATIONS: Final = "notifications.jsonl"
"""Name of the file next to the result in which a job passes notifications to Airflow."""


NEXT: Final = "next"
"""In place of a batch's number: the batch of the next capture."""
DECLARED: Final = "declared_secrets"
"""Key in a job's connection of the secrets that the declaration has literally, and their paths there."""
KAFKA: Final = "kafka"
"""Key in a job's connection of the librdkafka settings for publishing events."""
PULSAR: Final = "pulsar"
"""Key in a job's connection of Pulsar's values."""
REGISTRY: Final = "registry"
"""Key in a job's connection of the schema registry's values."""
SIGNALS_KAFKA: Final = "signals_kafka"
"""Key in a job's connection of the librdkafka settings for signals."""
NOTIFICATIONS_KAFKA: Final = "notifications_kafka"
"""Key in a job's connection of the librdkafka settings for notifications."""
FOLLOWING: Final[tuple[Stage, ...]] = ("sync", "capture", "stream")
"""Stages that process signals."""
NOTIFYING: Final[tuple[Stage, ...]] = ("sync", "capture", "stream", "snapshot")
"""Stages that send notifications of snapshots."""
PUBLISHING: Final[tuple[Stage, ...]] = (
    "sync",
    "stream",
    "publish",
    "offsets",
    "maintain",
    "replay",
    "compare_topics",
)
"""Stages that connect to the broker of a connector that publishes."""


_TEXTS: Final = (
    *("error", "findings", "tables.error", "tables.note", "snapshot.errors", "snapshot.last_event"),
    *("signals.detail", "published.findings", "published.errors", "published.refused"),
)
"""Members of a result that are masked."""


@dataclass(frozen=True)
class ConnectionRef:
    """Location of a connection's values (a JSON object: host, port, login, password, schema, extra).

    Args:
        environment: Name of an environment variable, or empty.
        file: Path of a file with mode 0600, or of a mounted secret; or empty.
    """

    environment: str = ""
    file: str = ""

    def resolve(self) -> dict[str, Any]:
        """Read the values; their secrets are masked from then on.

        Raises:
            ConfigurationError: The values don't exist, or other users can read the file.
        """
        if self.environment:
            text = os.environ.get(self.environment)
            if text is None:
                raise ConfigurationError(
                    "the job's connection is missing",
                    expected=f"environment variable {self.environment}",
                    remedy="pass it to the driver, or use a file reference",
                )
        elif self.file:
            text = read_private(self.file, "the job's connection")
        else:
            return {}
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ConfigurationError(
                "a connection's values must be a JSON object", found=type(values).__name__
            )
        remember({name: value for name, value in values.items() if name != DECLARED})
        return values


@dataclass(frozen=True)
class JobSpec:
    """One Spark application.

    Args:
        stage: The stage to run.
        connector: The declaration as a mapping (see :mod:`airflow_cdc_provider.connector`).
        result_path: Path of the :class:`JobResult`; its folder must exist for the driver.
        connection: The source's connection; an empty reference for offline input.
        tables: Only these tables; empty for all that the declaration selects.
        options: Options of the stage, documented in the stage's module.
        secrets: Digest of the secrets that the declaration has literally; empty if it has none.
    """

    stage: Stage
    connector: Mapping[str, Any]
    result_path: str
    connection: ConnectionRef = field(default_factory=ConnectionRef)
    tables: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    secrets: str = ""

    @property
    def rows_path(self) -> Path | None:
        """File in which the job reports the rows read by a snapshot; None without a result file."""
        return Path(self.result_path).with_name(SNAPSHOT_ROWS) if self.result_path else None

    @property
    def notifications_path(self) -> Path | None:
        """File in which the job passes notifications to Airflow; None without a result file."""
        return Path(self.result_path).with_name(NOTIFICATIONS) if self.result_path else None

    def to_json(self) -> str:
        """Write the spec as JSON."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read what :meth:`to_json` wrote.

        Raises:
            ConfigurationError: The text is not a valid spec of this version.
        """
        values = json.loads(text)
        unknown = set(values) - set(cls.__dataclass_fields__)
        if unknown or values.get("stage") not in STAGES:
            raise ConfigurationError(
                "not a valid job spec of this version",
                expected=f"a stage among {', '.join(STAGES)}; fields {', '.join(cls.__dataclass_fields__)}",
                found=f"stage {values.get('stage')!r}, unknown fields {sorted(unknown)}",
                remedy="use the same package version in Airflow and on Spark's driver",
            )
        values["connection"] = ConnectionRef(**values.get("connection", {}))
        return cls(**values)


@dataclass(frozen=True)
class TableResult:
    """Result of a job for one table: numbers for XCom, asset events and metrics.

    ``row_changes`` counts merged changes of a cell-level source: changes of rows and of static columns, and
    deletions; ``replica_duplicates`` those of them that repeat another one, such as each replica's duplicate
    of a write. ``unresolved_keys`` counts keys that must be reread; ``not_in_snapshot`` means that rows not
    returned by the last snapshot must still be reread. ``error_code`` and ``error`` have the error, as
    :class:`JobResult` has for the job.
    """

    table: str
    changes: int = 0
    snapshot_rows: int = 0
    rows_written: int = 0
    rows_removed: int = 0
    row_changes: int = 0
    replica_duplicates: int = 0
    undecodable: int = 0
    unresolved_keys: int = 0
    not_in_snapshot: bool = False
    merged_through: int | None = None
    mirror_rows: int | None = None
    differences: int | None = None
    seconds: float = 0.0
    note: str = ""
    error_code: str = ""
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class SnapshotResult:
    """Progress of a snapshot of several tables.

    Args:
        tables: Number of tables.
        remaining: Number of tables that are not completed.
        rows: Rows read, of all tables.
        rows_by_table: Rows read by table; while it runs, or after a failure, as reported by tasks.
        seconds: Duration so far.
        aborted: Whether the job, or a table, failed during the snapshot; commits stay and are resumed.
        paused: Whether it is paused until it is resumed.
        paused_seconds: Duration of pauses.
        erroneous: Rows that could not be read and were quarantined.
        disconnects: Connections lost during the reading.
        last_event: Description of the last row that a task reported.
        last_event_at: Time of that report, epoch seconds; None before the first.
        rows_by_origin: Committed rows by feed (a shard) and table; set at the end, for sources whose
            snapshots have feeds.
        errors: By table that can't be read, its error in the form of :class:`TableResult`'s; the others are
            read.
    """

    tables: int = 0
    remaining: int = 0
    rows: int = 0
    rows_by_table: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    aborted: bool = False
    paused: bool = False
    paused_seconds: float = 0.0
    erroneous: int = 0
    disconnects: int = 0
    last_event: str = ""
    last_event_at: float | None = None
    rows_by_origin: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    def joined(self, other: SnapshotResult) -> SnapshotResult:
        """Return both as one: they are of different tables."""
        return SnapshotResult(
            tables=self.tables + other.tables,
            remaining=self.remaining + other.remaining,
            rows=self.rows + other.rows,
            rows_by_table={**other.rows_by_table, **self.rows_by_table},
            seconds=self.seconds + other.seconds,
            aborted=self.aborted or other.aborted,
            paused=self.paused or other.paused,
            paused_seconds=self.paused_seconds + other.paused_seconds,
            erroneous=self.erroneous + other.erroneous,
            disconnects=self.disconnects + other.disconnects,
            last_event=self.last_event or other.last_event,
            last_event_at=self.last_event_at or other.last_event_at,
            rows_by_origin={
                origin: {**other.rows_by_origin.get(origin, {}), **self.rows_by_origin.get(origin, {})}
                for origin in sorted({*self.rows_by_origin, *other.rows_by_origin})
            },
            errors={**other.errors, **self.errors},
        )

    @property
    def completed(self) -> bool:
        """Whether all tables are read."""
        return self.remaining == 0 and not self.aborted

    @property
    def running(self) -> bool:
        """Whether the next run resumes it, after a requested stop."""
        return self.remaining > 0 and not self.aborted


@dataclass(frozen=True)
class IncrementalResult:
    """Progress of an incremental snapshot.

    Args:
        request_id: Id of the signal that requested it.
        state: Its state.
        tables: Number of tables.
        remaining: Number of tables that are not completed.
        table: The current table, or the last one.
        chunk_id: Id of the newest chunk.
        chunk_from: First key of the chunk, as text.
        chunk_to: Last key of the chunk.
        table_from: First key of the table's first chunk.
        table_to: The greatest key of the table when its reading started.
        rows_by_table: Rows read by table.
        started_us: Start time, µs since 1970; 0 before.
        ended_us: End time; 0 before.
        paused_at_us: Start of the current pause; 0 if it isn't paused.
        paused_us: Duration of earlier pauses.
    """

    request_id: str
    state: Literal["running", "paused", "aborted", "completed", "skipped"] = "running"
    tables: int = 0
    remaining: int = 0
    table: str = ""
    chunk_id: str = ""
    chunk_from: str = ""
    chunk_to: str = ""
    table_from: str = ""
    table_to: str = ""
    rows_by_table: Mapping[str, int] = field(default_factory=dict)
    started_us: int = 0
    ended_us: int = 0
    paused_at_us: int = 0
    paused_us: int = 0

    def seconds(self, now_us: int) -> float:
        """Return its duration, including pauses."""
        return max((self.ended_us or now_us) - self.started_us, 0) / 1e6 if self.started_us else 0.0

    def paused_seconds(self, now_us: int) -> float:
        """Return the duration of its pauses."""
        now = max((self.ended_us or now_us) - self.paused_at_us, 0) if self.paused_at_us else 0
        return (self.paused_us + now) / 1e6


@dataclass(frozen=True)
class SegmentNumbers:
    """Segments of one feed during a capture.

    Args:
        seen: Segments with unread changes at its start.
        at_once: Maximum number of segments in a batch.
        read: Segments read to their end, or to the end of their durable part at its start.
        pending: Segments with unread changes at its end.
        pending_max: Maximum number of such segments.
        kept: Completed segments that still exist at its end.
        kept_max: Maximum number of such segments.
    """

    seen: int = 0
    at_once: int = 0
    read: int = 0
    pending: int = 0
    pending_max: int = 0
    kept: int = 0
    kept_max: int = 0


@dataclass(frozen=True)
class OriginResult:
    """Result of a capture for one ordered feed, such as a node's log.

    Args:
        origin: The feed: a host id, ``stream``.
        file: The segment that was read last, empty without segments.
        position: The position in that segment.
        mutations: Changes captured.
        errors: Entries that could not be read and were quarantined.
        latency_seconds: Maximum time from the write of a change to its capture, None if unknown.
        latency_p50_seconds: 50th percentile of that time.
        latency_p99_seconds: 99th percentile.
        latency_p95_seconds: 95th percentile.
        latency_min_seconds: Minimum.
        latency_average_seconds: Mean.
        skipped: Number of skipped changes, by reason: ``view``, ``counter``, ``unselected``, ``system``.
        failed_batches: Batches with its changes that could not be committed; the next run reads them again.
        segments: Segments, for sources that read them.
        stream: Stream metrics of the job's process so far, for sources that read a server's stream.
    """

    origin: str
    file: str = ""
    position: int | None = None
    mutations: int = 0
    errors: int = 0
    latency_seconds: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    failed_batches: int = 0
    segments: SegmentNumbers | None = None
    stream: StreamMetrics | None = None
    latency_p95_seconds: float | None = None
    latency_min_seconds: float | None = None
    latency_average_seconds: float | None = None


@dataclass(frozen=True)
class PublishResult:
    """Result of publishing, and the published position.

    Args:
        batch: All batches of the changes table up to this one are published.
        records: Records sent, without dead letters.
        dead_letters: Records that can't be built, or that brokers or the registry refused.
        transactions: Number of transactions.
        pending_batches: Number of batches that are not published.
        lag_seconds: Age of the oldest of them; 0 for none.
        seconds: Duration.
        findings: Warnings for operators.
        errors: By table that can't be published, its error in the form of :class:`TableResult`'s.
        refused: By topic whose records, or their schemas, are refused, the error.
    """

    batch: int
    records: int = 0
    dead_letters: int = 0
    transactions: int = 0
    pending_batches: int = 0
    lag_seconds: float = 0.0
    seconds: float = 0.0
    findings: Sequence[str] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay.

    Args:
        first_batch: The first batch of the changes table whose events were sent.
        last_batch: The last batch.
        records: Records sent by this run, without those of earlier tries.
        dead_letters: Records that can't be built, or that brokers or the registry refused.
        transactions: Number of transactions.
        seconds: Duration.
    """

    first_batch: int
    last_batch: int
    records: int = 0
    dead_letters: int = 0
    transactions: int = 0
    seconds: float = 0.0


SnapshotState = Literal["none", "running", "done", "outdated"]


@dataclass(frozen=True)
class TableStatus:
    """Status of one table.

    Args:
        table: The table.
        snapshot: State of its snapshot; ``outdated`` if changes were lost since.
        offset: The source's offset through which its mirror is complete, None before the first merge.
        pending: Records that are captured and not merged.
        pending_seconds: Age of the oldest of them.
        rows: Rows of its mirror, None if unknown without counting.
        unresolved_keys: Unresolved keys, which must be reread from the source.
        undecodable: Changes that no known schema decodes yet.
    """

    table: str
    snapshot: SnapshotState = "none"
    offset: Mapping[str, Any] | None = None
    pending: int = 0
    pending_seconds: float = 0.0
    rows: int | None = None
    unresolved_keys: int = 0
    undecodable: int = 0


@dataclass(frozen=True)
class JobResult:
    """The outcome of a job, written to ``result_path`` at its end, whether it succeeded or not.

    Args:
        ok: Whether the stage completed.
        offset: The connector's offset after the job.
        batches: Number of commits to the changes table.
        changes: Number of captured changes.
        lag_seconds: See :class:`~airflow_cdc_provider.sources.contract.Lag`.
        lag_bytes: See :class:`~airflow_cdc_provider.sources.contract.Lag`.
        tables: Results per table.
        seconds: Wall time per part of the job; ``merge`` is the sum of its tables, of which several may be
            merged at once.
        findings: Warnings for operators.
        error_code: Code of the :class:`~airflow_cdc_provider.exceptions.CdcError` that failed the job.
        error: Text of that error.
        origins: Results per ordered feed of the source.
        snapshot: Progress of a snapshot, None without one.
        skipped: Number of skipped changes by reason, of all origins.
        status: Status per table, if requested.
        signals: The newest signals and the snapshots that they requested, if requested: see
            :func:`~airflow_cdc_provider.jobs.reporting.status.signal_status`.
        selected: The source's captured tables; empty for a job without a capture.
        committed_at: Commit time of the newest batch of the changes table, epoch seconds.
        newest_batch: Number of that batch, 0 before the first; None for a failed job.
        snapshot_skipped: Whether no snapshot was due.
        incremental: Progress of the newest incremental snapshot, None without one.
        table_snapshots: Per table whose snapshot has started, ``done`` (whether it completed and no changes
            were lost since) and ``started_at`` (epoch seconds); None for a failed job.
        published: Result of publishing, None if it did not run.
        replayed: Result of a replay, None if it did not run.
    """

    ok: bool
    offset: Mapping[str, Any] | None = None
    batches: int = 0
    changes: int = 0
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    tables: Sequence[TableResult] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    findings: Sequence[str] = ()
    error_code: str = ""
    error: str = ""
    origins: Sequence[OriginResult] = ()
    snapshot: SnapshotResult | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    status: Sequence[TableStatus] = ()
    signals: Sequence[Mapping[str, Any]] = ()
    selected: Sequence[str] = ()
    committed_at: float | None = None
    snapshot_skipped: bool = False
    incremental: IncrementalResult | None = None
    table_snapshots: Mapping[str, Mapping[str, Any]] | None = None
    published: PublishResult | None = None
    replayed: ReplayResult | None = None
    newest_batch: int | None = None

    def __post_init__(self) -> None:
        """Make one printable line of each finding: they name fields and records of sources."""
        object.__setattr__(self, "findings", tuple(printable(masked(one)) for one in self.findings))

    def write(self, path: str) -> None:
        """Write the result as JSON, atomically."""
        text = json.dumps(masked_values(asdict(self), _TEXTS), sort_keys=True, indent=1)
        write_private(Path(path), text)

    @classmethod
    def read(cls, path: str) -> JobResult:
        """Read what :meth:`write` wrote."""
        values = masked_values(json.loads(Path(path).read_text()), _TEXTS)
        values["tables"] = tuple(TableResult(**table) for table in values.get("tables", ()))
        values["origins"] = tuple(_read_origin(origin) for origin in values.get("origins", ()))
        values["status"] = tuple(TableStatus(**table) for table in values.get("status", ()))
        values["signals"] = tuple(values.get("signals", ()))
        shot = values.get("snapshot")
        values["snapshot"] = SnapshotResult(**shot) if shot else None
        incremental = values.get("incremental")
        values["incremental"] = IncrementalResult(**incremental) if incremental else None
        published = values.get("published")
        values["published"] = PublishResult(**published) if published else None
        replayed = values.get("replayed")
        values["replayed"] = ReplayResult(**replayed) if replayed else None
        return cls(**values)


def _read_origin(values: Mapping[str, Any]) -> OriginResult:
    segments, stream = values.get("segments"), values.get("stream")
    return OriginResult(
        **{
            **values,
            "segments": SegmentNumbers(**segments) if segments else None,
            "stream": StreamMetrics(**stream) if stream else None,
        }
    )
