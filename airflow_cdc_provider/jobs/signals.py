"""Signals in a running job: received from all channels, stored in the lake, and applied.

Signals are received in one commit: requests are stored with the offset before they are acknowledged to their
channel. Signals in the source's own feed need no acknowledgment, since they are in the changes table: the
offset has the last batch that was searched for them.

A signal that can't be applied, or a channel that can't be read, is logged and reported, but never fails the
job: the capture depends on neither, and signals stay in their channel until it can be read. Only a channel
with an invalid declaration fails the job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate
from typing import Any, Final

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, TransientError, error_from_text
from airflow_cdc_provider.jobs.capturing.capture import CaptureCounts, capture
from airflow_cdc_provider.jobs.context.clients import Clients
from airflow_cdc_provider.jobs.context.events import record_event
from airflow_cdc_provider.jobs.context.job import Job, log
from airflow_cdc_provider.jobs.context.run_report import RunReport
from airflow_cdc_provider.jobs.context.tables import selected_tables
from airflow_cdc_provider.jobs.resuming.progress import Progress, SnapshotProgress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import (
    SignalState,
    SnapshotRequest,
    TableCopy,
    received,
)
from airflow_cdc_provider.jobs.snapshots.incremental import after_failure, begin_attempt, copy_chunks
from airflow_cdc_provider.jobs.snapshots.snapshot import snapshot
from airflow_cdc_provider.jobs.spark.failures import described
from airflow_cdc_provider.jobs.spec import SnapshotResult
from airflow_cdc_provider.lake.changes_table import ChangesState, ChangesTable
from airflow_cdc_provider.lake.stores import Stores
from airflow_cdc_provider.notifications.snapshot_events import ScanStatus, SnapshotEvent
from airflow_cdc_provider.signals.channels import Channel, ChannelRefused, ResumableChannel
from airflow_cdc_provider.signals.names import SOURCE
from airflow_cdc_provider.signals.signal import (
    LARGEST_BYTES,
    MOST_AT_ONCE,
    MOST_BYTES_AT_ONCE,
    MalformedSignal,
    ReceivedSignal,
)
from airflow_cdc_provider.sources.contract import Source

_MAX_UNSTORED_BATCHES: Final = 50
"""Number of batches without a signal after which the offset stores that they were searched."""
_LONGEST_LINE: Final = 100_000
_CAPTURE_SECONDS: Final = 30.0
"""Time of reading chunks after which a run captures the feed again."""


@dataclass
class Followed:
    """The outcome of applying signals in one round.

    Args:
        captured: Captures during the round.
        shot: Result of blocking snapshots.
    """

    captured: list[CaptureCounts] = field(default_factory=list)
    shot: SnapshotResult | None = None

    def with_captured(self, first: CaptureCounts) -> CaptureCounts:
        """Return the first capture of the round and the later ones as one."""
        return reduce(CaptureCounts.joined, self.captured, first)

    def with_shot(self, first: SnapshotResult | None) -> SnapshotResult | None:
        """Return the first snapshot of the round and the later ones as one."""
        if first is None or self.shot is None:
            return first or self.shot
        return self.shot.joined(first)


def follow(job: Job, stores: Stores, source: Source, clients: Clients, report: RunReport) -> Followed:
    """Receive signals and process requests, after the feed was captured to its head.

    Blocking snapshots are completed. Incremental ones are read for a limited time: in a stream its commit
    interval, else ``snapshot.incremental.max_seconds_per_run``, with captures of the feed in between.

    Raises:
        CommitConflict: Another writer committed to the changes table.
        CdcError: A snapshot or a capture failed.
    """
    done = Followed()
    until = time.monotonic() + _seconds(job)
    captured_at = time.monotonic()
    progress, state = _receive(job, stores, source, clients, report, *_stored(stores.changes))
    while not job.stopping():
        if request := progress.signals.blocking:
            shot = take_blocking(job, stores, source, clients, report, request)
            done.shot = shot if done.shot is None or shot is None else shot.joined(done.shot)
            if shot is not None and shot.errors:
                break
            progress, state = _stored(stores.changes)
            continue
        if (request := progress.signals.incremental) is None:
            break
        progress, state = copy_chunks(
            job.connector, stores, source, clients, report, request, progress, state
        )
        now = time.monotonic()
        if now > until:
            break
        if now - captured_at > _CAPTURE_SECONDS:
            done.captured.append(capture(job, stores, source, report))
            captured_at = time.monotonic()
            progress, state = _receive(job, stores, source, clients, report, *_stored(stores.changes))
        elif has_signals(job.connector, clients, report):
            progress, state = _receive(job, stores, source, clients, report, progress, state)
    return done


def busy(changes: ChangesTable) -> bool:
    """Return whether the next round must start at once: an incremental snapshot is active and not paused."""
    return _stored(changes)[0].signals.incremental is not None


def has_signals(connector: Connector, clients: Clients, report: RunReport) -> bool:
    """Return whether a channel other than the source has signals; polls at the declared interval."""
    now = time.monotonic()
    if now - report.signals.polled_at < connector.signals.poll_interval_seconds:
        return False
    report.signals.polled_at = now
    return any(arrived for _, arrived in _poll_channels(clients, report))


def _seconds(job: Job) -> float:
    if job.spec.stage == "stream":
        return float(job.spec.options.get("commit_interval_seconds", _CAPTURE_SECONDS))
    return job.connector.snapshot.incremental.max_seconds_per_run or float("inf")


def _receive(
    job: Job,
    stores: Stores,
    source: Source,
    clients: Clients,
    report: RunReport,
    progress: Progress,
    state: ChangesState,
) -> tuple[Progress, ChangesState]:
    """Receive the signals of all channels, commit them, then acknowledge them."""
    memory, before = report.signals, progress.signals
    for channel in clients.channels:
        if isinstance(channel, ResumableChannel):
            channel.resume(before.positions.get(channel.name))
    polled = _poll_channels(clients, report)
    of_source, part = _search_batches(job.connector, stores.changes, source, report, before, state)
    arrived = [*of_source, *(one for _, some in polled for one in some)]
    tables = selected_tables(job, stores, source) if arrived else ()
    trusted = job.connector.signals.unrestricted_filters
    refused_filter = _refuse_none if trusted else source.refused_filter
    result = received(before, arrived, tables, time.time_ns() // 1000, refused_filter)
    for text in result.warnings:
        log.warning("%s", text)
    read = [channel for channel, _ in polled]
    signals = replace(result.state, positions={**before.positions, **_positions(read), **part})
    if job.connector.signals.listens_to_source:
        late = memory.searched_through - signals.read_batch > _MAX_UNSTORED_BATCHES
        if late or signals != before:
            signals = replace(signals, read_batch=memory.searched_through)
    if signals != before:
        progress = _without_stopped(progress, signals).with_signals(signals)
        state = stores.changes.set_offset(progress.to_offset(), state)
    for channel in read if arrived or signals.positions != before.positions else ():
        channel.done()
    for event in result.events:
        record_event(clients, report, event)
    offset = json.dumps(progress.source, sort_keys=True) if result.messages else ""
    for identity, message in result.messages:
        log.info("signal %s: %s", identity, logged_message(message, offset))
    return progress, state


def logged_message(message: str, offset: str) -> str:
    """Return the message of a signal of type ``log``, with the offset in place of the first ``{}``."""
    return message.replace("{}", offset, 1)[:_LONGEST_LINE]


def _without_stopped(progress: Progress, signals: SignalState) -> Progress:
    """Return the progress without the unfinished snapshots of blocking requests that were stopped."""
    left = {request.id: request.tables for request in signals.requests}
    for request in progress.signals.requests:
        if request.kind == "blocking" and request.started:
            stopped = {copy.table for copy in request.tables} - {
                copy.table for copy in left.get(request.id, ())
            }
            progress = progress.without_unfinished(request, stopped)
    return progress


def _refuse_none(where: str) -> str:
    del where
    return ""


def _poll_channels(clients: Clients, report: RunReport) -> list[tuple[Channel, Sequence[ReceivedSignal]]]:
    """Poll all channels other than the source; return the readable ones with their signals.

    Raises:
        ChannelRefused: A channel's declaration is invalid.
    """
    found: list[tuple[Channel, Sequence[ReceivedSignal]]] = []
    errors = report.signals.errors
    for channel in clients.channels:
        try:
            found.append((channel, channel.receive()))
            errors.pop(channel.name, None)
        except ChannelRefused:
            raise
        except Exception as failure:  # noqa: BLE001 - capture doesn't depend on a channel
            error = described(failure)
            if errors.get(channel.name) != error:
                log.warning("channel %s can't be read now, retrying later: %s", channel.name, error)
            errors[channel.name] = error
    return found


def _positions(channels: Sequence[Channel]) -> dict[str, Mapping[str, Any]]:
    """Return the positions of the channels that have one."""
    positions = {
        channel.name: channel.position for channel in channels if isinstance(channel, ResumableChannel)
    }
    return {name: position for name, position in positions.items() if position is not None}


def _search_batches(
    connector: Connector,
    changes: ChangesTable,
    source: Source,
    report: RunReport,
    before: SignalState,
    state: ChangesState,
) -> tuple[Sequence[ReceivedSignal], Mapping[str, Mapping[str, Any]]]:
    """Search new batches of the changes table for signals.

    Returns:
        The signals, and if they are a part of the next batch, the position to store.
    """
    memory = report.signals
    if not connector.signals.listens_to_source:
        return (), {}
    after = max(memory.searched_through, before.read_batch)
    memory.searched_through = max(state.batch, after)
    if after >= state.batch:
        return (), {}
    collection = connector.signals.collection
    rows = changes.pending(after, state.batch, [collection], (record.CHANGE,))
    if (searched := before.positions.get(SOURCE, {})).get("batch", -1) > after:
        is_new = rows["position"] > bytes.fromhex(searched["position"])
        rows = rows.where((rows["batch"] > searched["batch"]) | is_new)
    is_small = f"length(payload) <= {LARGEST_BYTES}"
    sizes = rows.selectExpr("batch", "position", f"IF({is_small}, length(payload), 0) AS size")
    places = sizes.orderBy("batch", "position").limit(MOST_AT_ONCE + 1).collect()
    if not places:
        return (), {}
    taken = _fitting([place["size"] for place in places])
    end = places[taken - 1]
    part: dict[str, Mapping[str, Any]] = {}
    if taken < len(places):  # a later round goes on after them
        memory.searched_through = places[taken]["batch"] - 1
        if end["batch"] > memory.searched_through:
            part = {SOURCE: {"batch": end["batch"], "position": bytes(end["position"]).hex()}}
    is_taken = (rows["batch"] < end["batch"]) | (
        (rows["batch"] == end["batch"]) & (rows["position"] <= bytes(end["position"]))
    )
    payloads = rows.where(is_taken).orderBy("batch", "position").limit(taken)
    found = payloads.selectExpr("batch", f"IF({is_small}, payload, NULL) AS payload").collect()
    arrived = source.parse_signals([bytes(row["payload"]) for row in found if row["payload"] is not None])
    too_large = {row["batch"] for row in found if row["payload"] is None}
    reason = f"it is larger than {LARGEST_BYTES} bytes"
    large = (MalformedSignal(f"batch {number}", SOURCE, reason) for number in sorted(too_large))
    return [*arrived, *large], part


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many signals are received at once, of those with some sizes."""
    return sum(total <= MOST_BYTES_AT_ONCE for total in accumulate(sizes[:MOST_AT_ONCE]))


def take_blocking(
    job: Job, stores: Stores, source: Source, clients: Clients, report: RunReport, request: SnapshotRequest
) -> SnapshotResult | None:
    """Copy the tables of a request like an initial snapshot, while nothing is captured.

    Rows that the source no longer has are removed from the mirrors of tables without a filter.

    Returns:
        The result, None if the request was refused. A job that is stopped meanwhile, or can't read a table,
        leaves the rest to the next one.
    """
    progress, state = _stored(stores.changes)
    is_first = not request.started
    if is_first:
        known = {copy.table: progress.snapshots.get(copy.table) for copy in request.tables}
        before = {table: taken.to_plain() for table, taken in known.items() if taken is not None}
        request = replace(request, started=True, before=before)
        progress = progress.with_signals(progress.signals.with_outcome(request.id, "running"))
    if (read := _ranges_read(request, progress)) > request.done:
        request = replace(request, failures=0, done=read)
    request, progress, state = begin_attempt(stores.changes, clients, report, request, progress, state)
    if not request.tables:
        return None
    if is_first:
        record_event(clients, report, _event("started", request))
    shot: SnapshotResult | None = None
    failure: Exception | None = None
    try:
        shot = _copy_tables(job, stores, source, clients, report, _unread(request, progress))
    except Exception as error:  # noqa: BLE001 - it is raised below, unless it ends the request
        failure = error
    if failure is None and shot is not None and shot.errors:
        failures = [error_from_text(text) or CdcError(text) for text in shot.errors.values()]
        failure = min(failures, key=lambda error: isinstance(error, TransientError))
    if failure is None:
        if not job.stopping() or (shot is not None and shot.completed):
            _complete(stores.changes, clients, report, request, shot)
        return shot
    if not job.stopping():
        if stores.changes.state().batch > state.batch:
            request = replace(request, failures=1)
        if after_failure(stores.changes, clients, report, request, failure) is not None:
            return None
    if shot is None:
        raise failure
    return shot


def _unread(request: SnapshotRequest, progress: Progress) -> list[TableCopy]:
    """Return the tables of a request that no snapshot has read since it was received."""
    taken = _taken(request, progress)
    return [copy for copy in request.tables if copy.table not in taken or not taken[copy.table].done]


def _ranges_read(request: SnapshotRequest, progress: Progress) -> int:
    return sum(taken.committed for taken in _taken(request, progress).values())


def _taken(request: SnapshotRequest, progress: Progress) -> Mapping[str, SnapshotProgress]:
    """Return the snapshots of a request's tables that began after it was received."""
    known = ((copy.table, progress.snapshots.get(copy.table)) for copy in request.tables)
    return {
        table: taken
        for table, taken in known
        if taken is not None and taken.started_us >= request.requested_us
    }


def _copy_tables(
    job: Job, stores: Stores, source: Source, clients: Clients, report: RunReport, copies: Sequence[TableCopy]
) -> SnapshotResult | None:
    """Take the snapshots of tables: first of those without a filter, whose missing rows are removed."""
    shot: SnapshotResult | None = None
    for some in ([c for c in copies if not c.where], [c for c in copies if c.where]):
        if some and not job.stopping():
            filters = {copy.table: copy.where for copy in some if copy.where}
            tables = [copy.table for copy in some]
            run = (job, stores, source, clients, report)
            one = snapshot(*run, tables, again=True, replacing=not filters, filters=filters)
            shot = report.snapshot = one if shot is None else one.joined(shot)
    return shot


def _complete(
    changes: ChangesTable,
    clients: Clients,
    report: RunReport,
    request: SnapshotRequest,
    shot: SnapshotResult | None,
) -> None:
    """Store that a blocking request is done, and record it by table."""
    progress, state = _stored(changes)
    signals = progress.signals.with_request(replace(request, tables=())).with_outcome(request.id, "done")
    changes.set_offset(progress.with_signals(signals).to_offset(), state)
    scanned = _event("table_scanned", request)
    for copy in request.tables:
        rows = shot.rows_by_table.get(copy.table) if shot else None
        status: ScanStatus = "EMPTY" if rows == 0 else "SUCCEEDED"
        record_event(clients, report, replace(scanned, table=copy.table, rows=rows, status=status))
    record_event(clients, report, _event("completed", request))


def _event(kind: str, request: SnapshotRequest) -> SnapshotEvent:
    tables = tuple(copy.table for copy in request.tables)
    at_us = time.time_ns() // 1000
    return SnapshotEvent(kind, "blocking", request.id, tables=tables, at_us=at_us)  # type: ignore[arg-type]


def _stored(changes: ChangesTable) -> tuple[Progress, ChangesState]:
    state = changes.state()
    return Progress.from_offset(state.offset), state
