"""The stream stage: repeats sync with pauses, until a stop is requested or its maximum runtime is over.

A signal ends a pause, and there are no pauses during an incremental snapshot. Heartbeats for consumers are
sent in pauses, too (:mod:`.channels.heartbeats`).

It writes a state file next to the result, which its supervisor reads::

    {"pid": 4711, "host": "...", "name": "...", "started_at": s, "heartbeat_at": s, "rounds": n, "batch": n,
     "changes": n, "lag_seconds": s, "offset": {...}, "committed_at": s, "metrics": {...},
     "status": "running" | "stopped" | "failed", "error": ""}

Times are epoch seconds; ``offset`` is the source's offset of the newest commit, at ``committed_at``.
``metrics`` are those of the whole application, by Debezium's names (:mod:`.metrics.debezium`).
While it is running, ``error`` names tables that need an operator; the others are processed. A heartbeat older
than a few commit intervals means that the process hangs or has died.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import (
    CdcError,
    CommitConflict,
    CommitStateUnknown,
    ConfigurationError,
    TransientError,
    error_from_text,
)
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.context.run import Run
from airflow_cdc_provider.jobs.metrics.debezium import metrics_of
from airflow_cdc_provider.jobs.publishing.heartbeats import heartbeats_of
from airflow_cdc_provider.jobs.signals import busy, has_signals
from airflow_cdc_provider.jobs.snapshots.custom import captures
from airflow_cdc_provider.jobs.spark.failures import of_all_tables
from airflow_cdc_provider.jobs.spec import JobResult
from airflow_cdc_provider.jobs.sync import sync
from airflow_cdc_provider.masking import masked_values
from airflow_cdc_provider.regular_files import write_private

_STOP_CHECK_SECONDS = 0.2
_FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class StreamState:
    """Content of the state file."""

    pid: int
    host: str
    name: str
    started_at: float
    heartbeat_at: float
    rounds: int = 0
    batch: int = -1
    changes: int = 0
    lag_seconds: float | None = None
    offset: Mapping[str, Any] | None = None
    committed_at: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    status: str = "running"
    error: str = ""

    def write(self, path: Path) -> None:
        """Write the state atomically."""
        write_private(path, json.dumps(masked_values(asdict(self), ("error",)), sort_keys=True))


def stream(run: Run) -> JobResult:
    """Repeat sync; with snapshot mode ``initial_only`` until all tables are read.

    Options: ``commit_interval_seconds`` (30), the time from the start of a round to the next;
    ``max_runtime_seconds`` (86 400), after which it ends successfully; ``state_path``, required;
    ``stop_path``, a file whose creation requests a clean stop, as an alternative to a process signal.

    Raises:
        ConfigurationError: An option is missing or invalid.
    """
    job, stores, _, clients, report = run
    options = job.spec.options
    if "state_path" not in options:
        raise ConfigurationError("a stream needs a state file", expected="option state_path")
    path = Path(str(options["state_path"]))
    stop_path = str(options.get("stop_path", ""))

    def stopping() -> bool:
        return job.stopping() or (bool(stop_path) and Path(stop_path).exists())

    interval = float(options.get("commit_interval_seconds", 30.0))
    deadline = time.monotonic() + float(options.get("max_runtime_seconds", 86_400.0))
    now = time.time()
    state = StreamState(os.getpid(), socket.gethostname(), job.connector.name, now, now)
    state.write(path)
    outcome = JobResult(ok=True)
    failures = 0
    try:
        while not stopping() and time.monotonic() < deadline:
            started = time.monotonic()
            changes = 0
            try:
                outcome = sync(run)
                changes = outcome.changes
                _raise_retryable(outcome)
                failures = 0
            except TransientError as error:
                failures += 1
                if failures >= _FAILURES_IN_A_ROW:
                    raise
                log.warning("round failed, %d in a row: %s", failures, error)
            state = _after_round(state, run, outcome, changes, failed=failures > 0)
            state.write(path)
            if _snapshots_completed(job.connector, outcome) and not failures:
                break
            if not failures and busy(stores.changes):
                continue
            # A round that failed, or did not publish, sends no heartbeats.
            published = outcome.published is not None and not failures
            beats = heartbeats_of(job.connector, stores.changes, clients) if published else None
            _pause(
                lambda: stopping() or has_signals(job.connector, clients, report),
                min(started + interval, deadline),
                beats,
            )
    except Exception as error:
        replace(state, heartbeat_at=time.time(), status="failed", error=str(error)).write(path)
        raise
    status = "stopped" if outcome.ok else "failed"
    replace(state, heartbeat_at=time.time(), status=status).write(path)
    return replace(outcome, changes=state.changes)


def _after_round(
    state: StreamState, run: Run, outcome: JobResult, changes: int, *, failed: bool
) -> StreamState:
    """Return the state after a round with so many changes; ``outcome`` is that of the last complete one."""
    return replace(
        state,
        heartbeat_at=time.time(),
        rounds=state.rounds + 1,
        batch=run.stores.changes.state().batch,
        changes=state.changes + changes,
        lag_seconds=outcome.lag_seconds,
        offset=outcome.offset,
        committed_at=outcome.committed_at,
        metrics=metrics_of(outcome, run.report.snapshot),
        error="" if failed else outcome.error,
    )


def _snapshots_completed(connector: Connector, outcome: JobResult) -> bool:
    """Return whether a stream that only takes snapshots has completed them."""
    if captures(connector):
        return False
    return outcome.snapshot is None or outcome.snapshot.completed


def _raise_retryable(outcome: JobResult) -> None:
    """Raise the error of a round if another round, or another run, may resolve it.

    Errors that need an operator are reported in each round, and so are transient ones of some tables, while
    the other tables are processed.
    """
    if not outcome.ok:
        error = error_from_text(outcome.error) or CdcError(outcome.error)
        of_tables = str(of_all_tables(outcome.tables)) == outcome.error
        of_some = of_tables and not all(table.error for table in outcome.tables)
        if isinstance(error, CommitConflict | CommitStateUnknown) or (
            isinstance(error, TransientError) and not of_some
        ):
            raise error


def _pause(ended: Callable[[], bool], until: float, beats: Heartbeats | None = None) -> None:
    """Wait, and send heartbeats; if one can't be sent, the next round reports a persistent error."""
    while not ended() and (left := until - time.monotonic()) > 0:
        if beats is not None:
            try:
                beats.beat()
            except CdcError as error:
                log.warning("a heartbeat was not sent: %s", error)
                beats = None
        time.sleep(min(left, _STOP_CHECK_SECONDS))
