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
from typing import Any, Final

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.jobs.capturing.capture import CaptureCounts, capture
from airflow_cdc_provider.jobs.context import JobContext, log
from airflow_cdc_provider.jobs.resuming.progress import Progress
from airflow_cdc_provider.jobs.resuming.snapshot_requests import SnapshotRequest, received
from airflow_cdc_provider.jobs.snapshots.incremental import copy_chunks, end_request
from airflow_cdc_provider.jobs.snapshots.snapshot import snapshot
from airflow_cdc_provider.jobs.spark.failures import explain
from airflow_cdc_provider.jobs.spec import SnapshotResult
from airflow_cdc_provider.lake.changes_table import ChangesState
from airflow_cdc_provider.notifications.snapshot_events import ScanStatus, SnapshotEvent
from airflow_cdc_provider.signals.channels import Channel, ChannelRefused, ResumableChannel
from airflow_cdc_provider.signals.signal import ReceivedSignal
from airflow_cdc_provider.sources.abilities import CarriesSignals

_MAX_UNSTORED_BATCHES: Final = 50
"""Number of batches without a signal after which the offset stores that they were searched."""
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


def follow(context: JobContext) -> Followed:
    """Receive signals and process requests, after the feed was captured to its head.

    Blocking snapshots are completed. Incremental ones are read for a limited time: in a stream its commit
    interval, else ``snapshot.incremental.max_seconds_per_run``, with captures of the feed in between.

    Raises:
        CommitConflict: Another writer committed to the changes table.
        CdcError: A snapshot or a capture failed.
    """
    done = Followed()
    until = time.monotonic() + _seconds(context)
    captured_at = time.monotonic()
    progress, state = _receive(context, *_stored(context))
    while not context.stopping():
        if request := progress.signals.blocking:
            shot = take_blocking(context, request)
            done.shot = shot if done.shot is None or shot is None else shot.joined(done.shot)
            progress, state = _stored(context)
            continue
        if (request := progress.signals.incremental) is None:
            break
        progress, state = copy_chunks(context, request, progress, state)
        now = time.monotonic()
        if now > until:
            break
        if now - captured_at > _CAPTURE_SECONDS:
            done.captured.append(capture(context))
            captured_at = time.monotonic()
            progress, state = _receive(context, *_stored(context))
        elif has_signals(context):
            progress, state = _receive(context, progress, state)
    return done


def busy(context: JobContext) -> bool:
    """Return whether the next round must start at once: an incremental snapshot is active and not paused."""
    return _stored(context)[0].signals.incremental is not None


def has_signals(context: JobContext) -> bool:
    """Return whether a channel other than the source has signals; polls at the declared interval."""
    now = time.monotonic()
    if now - context.signals.polled_at < context.connector.signals.poll_interval_seconds:
        return False
    context.signals.polled_at = now
    return any(arrived for _, arrived in _poll_channels(context))


def _seconds(context: JobContext) -> float:
    if context.spec.stage == "stream":
        return float(context.spec.options.get("commit_interval_seconds", _CAPTURE_SECONDS))
    return context.connector.snapshot.incremental.max_seconds_per_run or float("inf")


def _receive(context: JobContext, progress: Progress, state: ChangesState) -> tuple[Progress, ChangesState]:
    """Receive the signals of all channels, commit them, then acknowledge them."""
    memory, before = context.signals, progress.signals
    for channel in context.channels:
        if isinstance(channel, ResumableChannel):
            channel.resume(before.positions.get(channel.name))
    polled = _poll_channels(context)
    arrived = [
        *_search_batches(context, before.read_batch, state),
        *(one for _, some in polled for one in some),
    ]
    result = received(before, arrived, context.tables() if arrived else (), time.time_ns() // 1000)
    for text in result.warnings:
        log.warning("%s", text)
    read = [channel for channel, _ in polled]
    signals = replace(result.state, positions={**before.positions, **_positions(read)})
    if context.listens_to_source:
        late = memory.searched_through - signals.read_batch > _MAX_UNSTORED_BATCHES
        if late or signals != before:
            signals = replace(signals, read_batch=memory.searched_through)
    if signals != before:
        progress = progress.with_signals(signals)
        state = context.changes.set_offset(progress.to_offset(), state)
    for channel in read if arrived or signals.positions != before.positions else ():
        channel.done()
    for event in result.events:
        context.record(event)
    for identity, message in result.messages:
        offset = json.dumps(progress.source, sort_keys=True)
        log.info("signal %s: %s", identity, message.replace("{}", offset))
    return progress, state


def _poll_channels(context: JobContext) -> list[tuple[Channel, Sequence[ReceivedSignal]]]:
    """Poll all channels other than the source; return the readable ones with their signals.

    Raises:
        ChannelRefused: A channel's declaration is invalid.
    """
    found: list[tuple[Channel, Sequence[ReceivedSignal]]] = []
    errors = context.signals.errors
    for channel in context.channels:
        try:
            found.append((channel, channel.receive()))
            errors.pop(channel.name, None)
        except ChannelRefused:
            raise
        except CdcError as error:
            if errors.get(channel.name) != str(error):
                log.warning("channel %s can't be read now, retrying later: %s", channel.name, error)
            errors[channel.name] = str(error)
    return found


def _positions(channels: Sequence[Channel]) -> dict[str, Mapping[str, Any]]:
    """Return the positions of the channels that have one."""
    positions = {
        channel.name: channel.position for channel in channels if isinstance(channel, ResumableChannel)
    }
    return {name: position for name, position in positions.items() if position is not None}


def _search_batches(context: JobContext, read_batch: int, state: ChangesState) -> Sequence[ReceivedSignal]:
    """Search new batches of the changes table for signals."""
    source, memory = context.source, context.signals
    if not context.listens_to_source or not isinstance(source, CarriesSignals):
        return ()
    after = max(memory.searched_through, read_batch)
    memory.searched_through = max(state.batch, after)
    if after >= state.batch:
        return ()
    collection = context.connector.signals.collection
    rows = context.changes.pending(after, state.batch, [collection], (record.CHANGE,))
    found = rows.orderBy("batch", "position").select("payload").collect()
    return source.parse_signals([bytes(row["payload"]) for row in found])


def take_blocking(context: JobContext, request: SnapshotRequest) -> SnapshotResult | None:
    """Copy the tables of a request like an initial snapshot, while nothing is captured.

    Rows that the source no longer has are removed from the mirrors of tables without a filter.

    Returns:
        The result, None if the request was refused. A job that is stopped meanwhile leaves the rest to the
        next one.
    """
    progress, state = _stored(context)
    if not request.started:
        request = replace(request, started=True)
        signals = progress.signals.with_request(request).with_outcome(request.id, "running")
        context.changes.set_offset(progress.with_signals(signals).to_offset(), state)
        context.record(_event("started", request))
    known = progress.snapshots
    left = [
        copy
        for copy in request.tables
        if not (
            (previous := known.get(copy.table))
            and previous.done
            and previous.started_us >= request.requested_us
        )
    ]
    shot: SnapshotResult | None = None
    try:
        for some in ([c for c in left if not c.where], [c for c in left if c.where]):
            if some and not context.stopping():
                filters = {copy.table: copy.where for copy in some if copy.where}
                tables = [copy.table for copy in some]
                one = snapshot(context, tables, again=True, replacing=not filters, filters=filters)
                shot = one if shot is None else one.joined(shot)
                context.snapshot = shot
    except Exception as error:
        refused = explain(error)
        if not isinstance(refused, ConfigurationError):
            raise
        end_request(context, request, refused, known)
        return None
    if context.stopping() and (shot is None or not shot.completed):
        return shot
    progress, state = _stored(context)
    signals = progress.signals.with_request(replace(request, tables=()))
    signals = signals.with_outcome(request.id, "done")
    context.changes.set_offset(progress.with_signals(signals).to_offset(), state)
    for copy in request.tables:
        rows = shot.rows_by_table.get(copy.table) if shot else None
        status: ScanStatus = "EMPTY" if rows == 0 else "SUCCEEDED"
        context.record(replace(_event("table_scanned", request), table=copy.table, rows=rows, status=status))
    context.record(_event("completed", request))
    return shot


def _event(kind: str, request: SnapshotRequest) -> SnapshotEvent:
    tables = tuple(copy.table for copy in request.tables)
    at_us = time.time_ns() // 1000
    return SnapshotEvent(kind, "blocking", request.id, tables=tables, at_us=at_us)  # type: ignore[arg-type]


def _stored(context: JobContext) -> tuple[Progress, ChangesState]:
    state = context.changes.state()
    return Progress.from_offset(state.offset), state
