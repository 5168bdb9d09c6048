"""The job spec: what an operator asks of a Spark application, and the result that it gets back.

Both are JSON files. A spec holds no secret: a connection's values are named by a reference that the job
resolves (:class:`ConnectionRef`). This module is import-light; operators import it when a DAG is parsed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.secrets import read_private
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers

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
]
STAGES: tuple[Stage, ...] = get_args(Stage)

SNAPSHOT_ROWS: Final = "snapshot_rows.jsonl"
"""Name of the file beside the result in which a job tells how many rows it has read of each table."""
NOTIFICATIONS: Final = "notifications.jsonl"
"""Name of the file beside the result in which a job tells its notifications to Airflow."""


NEXT: Final = "next"
"""In place of a batch's number: the one that the next capture makes."""
KAFKA: Final = "kafka"
"""Where, in a job's connection, librdkafka's settings stand by which events are published."""
PULSAR: Final = "pulsar"
"""Likewise the values of Pulsar's."""
REGISTRY: Final = "registry"
"""Where, in a job's connection, the values of the schema registry's stand."""
SIGNALS_KAFKA: Final = "signals_kafka"
"""Where, in a job's connection, librdkafka's settings stand by which signals come."""
NOTIFICATIONS_KAFKA: Final = "notifications_kafka"
"""Likewise those by which notifications go."""
FOLLOWING: Final[tuple[Stage, ...]] = ("sync", "capture", "stream")
"""Stages that follow signals."""
NOTIFYING: Final[tuple[Stage, ...]] = ("sync", "capture", "stream", "snapshot")
"""Stages that tell of snapshots."""
PUBLISHING: Final[tuple[Stage, ...]] = (
    "sync",
    "stream",
    "publish",
    "offsets",
    "maintain",
    "replay",
    "compare_topics",
)
"""Stages that ask the broker, of a connector that publishes."""


@dataclass(frozen=True)
class ConnectionRef:
    """Where a job finds a connection's values (a JSON object: host, port, login, password, schema, extra).

    Args:
        environment: Name of an environment variable, or empty.
        file: Path of a file with mode 0600, or of a mounted secret; or empty.
    """

    environment: str = ""
    file: str = ""

    def resolve(self) -> dict[str, Any]:
        """Read the values.

        Raises:
            ConfigurationError: Nothing is there, or the file can be read by others.
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
        return values


@dataclass(frozen=True)
class JobSpec:
    """One Spark application.

    Args:
        stage: What to do.
        connector: The declaration as a mapping (see :mod:`airflow_cdc_provider.connector`).
        result_path: Where to write the :class:`JobResult`; its folder must exist for the driver.
        connection: The source's connection; an empty reference for offline input.
        tables: Only these tables; empty for all that the declaration selects.
        options: Options of the stage, named in the stage's module.
    """

    stage: Stage
    connector: Mapping[str, Any]
    result_path: str
    connection: ConnectionRef = field(default_factory=ConnectionRef)
    tables: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows_path(self) -> Path | None:
        """Where the job tells how many rows a snapshot has read; None if it has no result file either."""
        return Path(self.result_path).with_name(SNAPSHOT_ROWS) if self.result_path else None

    @property
    def notifications_path(self) -> Path | None:
        """Where the job tells its notifications to Airflow; None if it has no result file either."""
        return Path(self.result_path).with_name(NOTIFICATIONS) if self.result_path else None

    def to_json(self) -> str:
        """Write the spec as JSON."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        """Read what :meth:`to_json` wrote.

        Raises:
            ConfigurationError: The text is no spec of this version.
        """
        values = json.loads(text)
        unknown = set(values) - set(cls.__dataclass_fields__)
        if unknown or values.get("stage") not in STAGES:
            raise ConfigurationError(
                "this is no job spec of this version",
                expected=f"a stage among {', '.join(STAGES)}; fields {', '.join(cls.__dataclass_fields__)}",
                found=f"stage {values.get('stage')!r}, unknown fields {sorted(unknown)}",
                remedy="use the same package version in Airflow and on Spark's driver",
            )
        values["connection"] = ConnectionRef(**values.get("connection", {}))
        return cls(**values)


@dataclass(frozen=True)
class TableResult:
    """What a job did to one table: numbers for XCom, asset events and metrics.

    ``row_changes`` counts what was merged of a cell-level source: changes of single rows and of statics, and
    deletions; ``copies`` those of them that say just what another one says, as each replica's copy of a write
    does. ``error_code`` and ``error`` say why it could not be done, as :class:`JobResult` does of the whole
    job.
    """

    table: str
    changes: int = 0
    snapshot_rows: int = 0
    rows_written: int = 0
    rows_removed: int = 0
    row_changes: int = 0
    copies: int = 0
    undecodable: int = 0
    doubtful: int = 0
    unseen: bool = False
    merged_through: int | None = None
    mirror_rows: int | None = None
    differences: int | None = None
    seconds: float = 0.0
    note: str = ""
    error_code: str = ""
    error: str = ""


@dataclass(frozen=True)
class SnapshotResult:
    """How far a snapshot of several tables came.

    Args:
        tables: How many tables it is of.
        remaining: How many of them are not read to their end.
        rows: Rows read, all tables together.
        rows_by_table: Rows read by table; while it runs, or when it failed, as far as tasks told.
        seconds: How long it took so far.
        aborted: Whether the job failed while it ran; what was committed stays and is resumed.
        paused: Whether it waits until somebody resumes it.
        paused_seconds: How long it waited so.
        erroneous: Rows that could not be read and were set apart.
        disconnects: Connections that its reads lost.
        last_event: The last row that a task told of, in words.
        last_event_at: When that was, epoch seconds; None before the first.
        rows_by_origin: Rows committed, by feed (a shard) and table; when it has ended, of sources whose
            snapshots tell feeds.
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

    def joined(self, other: SnapshotResult) -> SnapshotResult:
        """Return both as one: they are of different tables."""
        return SnapshotResult(
            self.tables + other.tables,
            self.remaining + other.remaining,
            self.rows + other.rows,
            {**other.rows_by_table, **self.rows_by_table},
            self.seconds + other.seconds,
            self.aborted or other.aborted,
            self.paused or other.paused,
            self.paused_seconds + other.paused_seconds,
            self.erroneous + other.erroneous,
            self.disconnects + other.disconnects,
            self.last_event or other.last_event,
            self.last_event_at or other.last_event_at,
            {
                origin: {**other.rows_by_origin.get(origin, {}), **self.rows_by_origin.get(origin, {})}
                for origin in sorted({*self.rows_by_origin, *other.rows_by_origin})
            },
        )

    @property
    def completed(self) -> bool:
        """Whether all tables are read."""
        return self.remaining == 0 and not self.aborted

    @property
    def running(self) -> bool:
        """Whether it goes on with the next run: it was asked to stop in between."""
        return self.remaining > 0 and not self.aborted


@dataclass(frozen=True)
class IncrementalResult:
    """How far a snapshot beside the stream came.

    Args:
        request_id: Id of the signal that asked for it.
        state: Where it stands.
        tables: How many tables it is of.
        remaining: How many of them are not read to their end.
        table: The table that it reads, or read last.
        chunk_id: Its newest chunk.
        chunk_from: First key of that, as text.
        chunk_to: Where that ends.
        table_from: First key of the table's first chunk.
        table_to: The greatest key that the table had when its reading began.
        rows_by_table: Rows read by table.
        began_us: When it began, µs since 1970; 0 before.
        ended_us: When it ended; 0 before.
        paused_at_us: Since when it is paused; 0 if it isn't.
        paused_us: How long it was paused before.
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
    began_us: int = 0
    ended_us: int = 0
    paused_at_us: int = 0
    paused_us: int = 0

    def seconds(self, now_us: int) -> float:
        """Return how long it has taken, pauses included."""
        return max((self.ended_us or now_us) - self.began_us, 0) / 1e6 if self.began_us else 0.0

    def paused_seconds(self, now_us: int) -> float:
        """Return how long of it it was paused."""
        now = max((self.ended_us or now_us) - self.paused_at_us, 0) if self.paused_at_us else 0
        return (self.paused_us + now) / 1e6


@dataclass(frozen=True)
class SegmentNumbers:
    """What a capture did to the segments of one feed.

    Args:
        seen: Segments with changes to read when it began.
        at_once: The most segments of one batch.
        read: Segments that it read to their end, or up to where they were durable when it began.
        waiting: Segments with changes to read when it ended.
        waiting_max: The most that waited meanwhile.
        kept: Segments that are done with and still there when it ended.
        kept_max: The most of them meanwhile.
    """

    seen: int = 0
    at_once: int = 0
    read: int = 0
    waiting: int = 0
    waiting_max: int = 0
    kept: int = 0
    kept_max: int = 0


@dataclass(frozen=True)
class OriginResult:
    """What a job captured of one ordered feed, such as a node's log.

    Args:
        origin: The feed: a host id, ``stream``.
        file: The segment that was read last, empty where there are none.
        position: Up to where in it.
        mutations: Changes captured.
        errors: Entries that could not be read and were set apart.
        latency_seconds: The greatest time from the write of a change to its capture, None where it isn't
            known.
        latency_p50_seconds: Half of the changes took no longer.
        latency_p99_seconds: 99 of 100 took no longer.
        latency_p95_seconds: 95 of 100 took no longer.
        latency_min_seconds: The least.
        latency_average_seconds: The mean.
        passed_over: What was met there that is no change of a captured table, by why: ``view``, ``counter``,
            ``unselected``, ``system``.
        failed_batches: Batches with changes of it that could not be committed; the next run reads them again.
        segments: Of sources that read segments.
        stream: Of sources that listen to a server's stream: what the job's process met on it so far.
    """

    origin: str
    file: str = ""
    position: int | None = None
    mutations: int = 0
    errors: int = 0
    latency_seconds: float | None = None
    latency_p50_seconds: float | None = None
    latency_p99_seconds: float | None = None
    passed_over: Mapping[str, int] = field(default_factory=dict)
    failed_batches: int = 0
    segments: SegmentNumbers | None = None
    stream: StreamNumbers | None = None
    latency_p95_seconds: float | None = None
    latency_min_seconds: float | None = None
    latency_average_seconds: float | None = None


@dataclass(frozen=True)
class PublishResult:
    """What a job published, and where publishing stands.

    Args:
        batch: All batches of the changes table up to this one are published.
        records: Records sent, set apart ones not among them.
        refused: Records that can't be made, or that the broker refused, and that were set apart.
        transactions: How many there were.
        pending_batches: Batches that are not published.
        lag_seconds: How long ago the oldest of them was committed; 0 for none.
        seconds: How long it took.
        findings: Warnings for people.
    """

    batch: int
    records: int = 0
    refused: int = 0
    transactions: int = 0
    pending_batches: int = 0
    lag_seconds: float = 0.0
    seconds: float = 0.0
    findings: Sequence[str] = ()


@dataclass(frozen=True)
class ReplayResult:
    """What a job published once more.

    Args:
        first_batch: The first batch of the changes table whose events were sent.
        last_batch: The last one.
        records: Records sent by this run; those that an earlier try had sent are not among them.
        refused: Records that can't be made, or that the broker refused, and that were set apart.
        transactions: How many there were.
        seconds: How long it took.
    """

    first_batch: int
    last_batch: int
    records: int = 0
    refused: int = 0
    transactions: int = 0
    seconds: float = 0.0


SnapshotState = Literal["none", "running", "done", "outdated"]


@dataclass(frozen=True)
class TableStatus:
    """Where one table stands.

    Args:
        table: The table.
        snapshot: Whether it was read in full; ``outdated`` since changes of it were lost.
        offset: The source's offset up to which its mirror holds all its changes, None before the first merge.
        pending: Records that are captured and not merged.
        pending_seconds: How long ago the oldest of them was captured.
        rows: Rows of its mirror, None where they would have to be counted.
        doubtful: Keys that are to be read again at the source.
        undecodable: Changes that no schema explains yet.
    """

    table: str
    snapshot: SnapshotState = "none"
    offset: Mapping[str, Any] | None = None
    pending: int = 0
    pending_seconds: float = 0.0
    rows: int | None = None
    doubtful: int = 0
    undecodable: int = 0


@dataclass(frozen=True)
class JobResult:
    """The outcome of a job, written to ``result_path`` at its end, whether it succeeded or not.

    Args:
        ok: Whether the stage did all it was asked.
        offset: The connector's offset afterwards.
        batches: Commits made to the changes table.
        changes: Changes captured.
        lag_seconds: See :class:`~airflow_cdc_provider.sources.base.Lag`.
        lag_bytes: Likewise.
        tables: Per table.
        seconds: Per part of the job, wall time.
        findings: Warnings for people.
        error_code: Code of the :class:`~airflow_cdc_provider.exceptions.CdcError` that ended it.
        error: Its text.
        origins: Per ordered feed of the source.
        snapshot: How far a snapshot came, if there was one.
        passed_over: As for each origin, of all together.
        status: Per table where it stands, if that was asked for.
        signals: Likewise the newest signals and the snapshots that they asked for: see
            :func:`~airflow_cdc_provider.jobs.reporting.status.signal_status`.
        selected: The source's tables that a capture takes; empty of a job that captures nothing.
        committed_at: When the newest batch of the changes table was committed, epoch seconds.
        newest_batch: Its number, 0 before the first; None of a job that failed.
        snapshot_skipped: Whether no snapshot was due.
        incremental: How far the newest snapshot beside the stream came, if there was one.
        copies: Per table whose snapshot has begun, ``done`` (whether it was read in full and no changes were
            lost since) and ``began_at`` (epoch seconds); None of a job that failed.
        published: What was published, None if nothing was to be.
        replayed: What was published once more, None if nothing was to be.
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
    passed_over: Mapping[str, int] = field(default_factory=dict)
    status: Sequence[TableStatus] = ()
    signals: Sequence[Mapping[str, Any]] = ()
    selected: Sequence[str] = ()
    committed_at: float | None = None
    snapshot_skipped: bool = False
    incremental: IncrementalResult | None = None
    copies: Mapping[str, Mapping[str, Any]] | None = None
    published: PublishResult | None = None
    replayed: ReplayResult | None = None
    newest_batch: int | None = None

    def write(self, path: str) -> None:
        """Write it as JSON, whole or not at all."""
        target = Path(path)
        temporary = target.with_name(target.name + ".part")
        temporary.write_text(json.dumps(asdict(self), sort_keys=True, indent=1))
        temporary.replace(target)

    @classmethod
    def read(cls, path: str) -> JobResult:
        """Read what :meth:`write` wrote."""
        values = json.loads(Path(path).read_text())
        values["tables"] = tuple(TableResult(**table) for table in values.get("tables", ()))
        values["origins"] = tuple(_read_origin(origin) for origin in values.get("origins", ()))
        values["status"] = tuple(TableStatus(**table) for table in values.get("status", ()))
        values["signals"] = tuple(values.get("signals", ()))
        shot = values.get("snapshot")
        values["snapshot"] = SnapshotResult(**shot) if shot else None
        beside = values.get("incremental")
        values["incremental"] = IncrementalResult(**beside) if beside else None
        sent = values.get("published")
        values["published"] = PublishResult(**sent) if sent else None
        again = values.get("replayed")
        values["replayed"] = ReplayResult(**again) if again else None
        return cls(**values)


def _read_origin(values: Mapping[str, Any]) -> OriginResult:
    segments, stream = values.get("segments"), values.get("stream")
    return OriginResult(
        **{
            **values,
            "segments": SegmentNumbers(**segments) if segments else None,
            "stream": StreamNumbers(**stream) if stream else None,
        }
    )
