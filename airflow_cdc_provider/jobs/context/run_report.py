"""What a run has done so far, for its result and for its next round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.jobs.context.job import log
from airflow_cdc_provider.jobs.spec import IncrementalResult, SnapshotResult


@dataclass
class SignalsMemory:
    """State of signals that a job keeps from round to round; a new job starts without it.

    Args:
        searched_through: The newest batch of the changes table that was searched for signals.
        polled_at: When channels were last polled within a round, by the monotonic clock.
        chunks: Number of chunks in the next commit of an incremental snapshot.
        attempted: Id of the request whose attempt was counted last.
        errors: By channel, the error of the last poll.
    """

    searched_through: int = -1
    polled_at: float = 0.0
    chunks: int = 8
    attempted: str = ""
    errors: dict[str, str] = field(default_factory=dict)


@dataclass
class RunReport:
    """What a run has done so far; stages update it. It remains readable after a failure.

    Args:
        snapshot: Progress of the snapshot that this job takes, None without one; also if it fails.
        incremental: Progress of the newest incremental snapshot, None without one.
        uncommitted: Feeds whose segments were in a batch that could not be committed.
        reading: Counts of tasks (:class:`~airflow_cdc_provider.sources.contract.ReadMetrics`), for all
            captures of this job.
        last_transactions: By feed, the last transaction that was captured.
        signals: State of signals.
        reselected: What is said of each table that a capture of this round found selected again.
        callbacks: Called after the job's result is written; they can't fail the job.
    """

    snapshot: SnapshotResult | None = None
    incremental: IncrementalResult | None = None
    uncommitted: Sequence[str] = ()
    reading: Counter[str] = field(default_factory=Counter)
    last_transactions: dict[str, str] = field(default_factory=dict)
    signals: SignalsMemory = field(default_factory=SignalsMemory)
    reselected: dict[str, str] = field(default_factory=dict)
    callbacks: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def on_finished(self) -> None:
        """Run the callbacks, after the job's result is written; errors are logged."""
        for callback in self.callbacks:
            try:
                callback()
            except CdcError as error:
                log.warning("after the job: %s", error)
