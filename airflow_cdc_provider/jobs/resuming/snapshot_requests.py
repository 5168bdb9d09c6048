"""Requested snapshots, and the record of all signals: values that are stored with the offset.

A pure function (:func:`received`) computes the effect of signals, so that a job can commit it before it
acknowledges the signals to their channel. The record has the outcome of each signal and makes signals
idempotent: a signal whose id is in it is ignored. It keeps the newest :data:`KEPT_RECORDS`.

Requests are in order of arrival. Incremental ones are processed table by table, each after all tables of the
one before; blocking ones have precedence, since streaming waits only for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import listed, printable
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent, SnapshotEventKind
from airflow_cdc_provider.signals.payloads import (
    InvalidSignal,
    Matching,
    SnapshotKind,
    read_execute,
    read_stop,
)
from airflow_cdc_provider.signals.signal import (
    EXECUTE,
    LOG,
    PAUSE,
    STOP,
    MalformedSignal,
    ReceivedSignal,
    Signal,
)

KEPT_RECORDS: Final = 50
_MOST_TABLES: Final = 10_000
"""Number of tables of all requests, which are stored with each offset."""
_MOST_QUEUED: Final = 1 << 20
"""Characters of their names and filters."""
_LONGEST_TEXT: Final = 300
_LONGEST_MESSAGE: Final = 10_000


@dataclass(frozen=True)
class TableCopy:
    """One table of a request, and its progress.

    Args:
        table: The table.
        where: The filter of the request, empty for none.
        started: Whether its end is fixed, so that reading may continue.
        maximum: The source's largest key at its start, in base64.
        next: Start of the next chunk, in base64; empty for the first.
        ranges: For a source without chunks: the planned ranges that are not read, as
            :class:`~.planned_ranges.PlannedRanges` stores them.
        chunks: Number of chunks, or ranges, that were read.
        rows: Number of rows that were read.
    """

    table: str
    where: str = ""
    started: bool = False
    maximum: str = ""
    next: str = ""
    ranges: tuple[Mapping[str, Any], ...] = ()
    chunks: int = 0
    rows: int = 0

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> TableCopy:
        """Read a table of :meth:`SignalState.to_plain`."""
        return cls(**{**values, "ranges": tuple(values["ranges"])})


@dataclass(frozen=True)
class SnapshotRequest:
    """A requested snapshot that is not done.

    Args:
        id: Id of the signal.
        kind: ``incremental`` or ``blocking``.
        channel: The channel of the signal.
        requested_us: When the signal was received, µs since 1970.
        tables: The remaining tables, in order.
        done: Number of completed tables; for a blocking one of ranges that were read when its attempt began.
        started: Whether it has started.
        failures: Number of attempts that began and didn't end well since it last read something.
        before: For a blocking one that has started: by table, the progress of the snapshot before it.
    """

    id: str
    kind: SnapshotKind
    channel: str
    requested_us: int
    tables: tuple[TableCopy, ...]
    done: int = 0
    started: bool = False
    failures: int = 0
    before: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class SignalRecord:
    """The outcome of a signal.

    Args:
        id: Its id.
        type: Its type, empty if it was not a valid signal.
        channel: Its channel.
        received_us: When it was received, µs since 1970.
        outcome: ``queued``, ``running``, ``done``, ``stopped``, ``failed``; ``followed`` for signals with
            immediate effect; ``ignored``.
        detail: The reason, as text.
    """

    id: str
    type: str
    channel: str
    received_us: int
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class SignalState:
    """The state of a connector's signals.

    Args:
        requests: Snapshots that are not done, oldest first.
        paused: Whether incremental snapshots are paused until a ``resume-snapshot``.
        records: The newest signals, oldest first.
        read_batch: The newest batch of the changes table that was searched for signals; -1 before the first
            search.
        chunks: Number of groups of chunks committed so far: the number of the next one.
        positions: Positions of channels that have one, by the channel's name.
    """

    requests: tuple[SnapshotRequest, ...] = ()
    paused: bool = False
    records: tuple[SignalRecord, ...] = ()
    read_batch: int = -1
    chunks: int = 0
    positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def incremental(self) -> SnapshotRequest | None:
        """The current incremental snapshot, unless all are paused."""
        if self.paused:
            return None
        return next((r for r in self.requests if r.kind == "incremental"), None)

    @property
    def blocking(self) -> SnapshotRequest | None:
        """The oldest requested blocking snapshot."""
        return next((r for r in self.requests if r.kind == "blocking"), None)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON for :meth:`from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any] | None) -> SignalState:
        """Read what :meth:`to_plain` returned."""
        if not values:
            return cls()
        requests = tuple(
            SnapshotRequest(
                **{**one, "tables": tuple(TableCopy.from_plain(table) for table in one["tables"])}
            )
            for one in values["requests"]
        )
        records = tuple(SignalRecord(**one) for one in values["records"])
        return cls(**{**values, "requests": requests, "records": records})

    def with_request(self, request: SnapshotRequest) -> SignalState:
        """Return a copy with a request replaced by id; a request without tables is removed."""
        kept = tuple(request if r.id == request.id else r for r in self.requests)
        return replace(self, requests=tuple(r for r in kept if r.tables))

    def with_outcome(self, identity: str, outcome: str, detail: str = "") -> SignalState:
        """Return a copy with the outcome of a signal in its record."""
        records = tuple(
            replace(r, outcome=outcome, detail=detail[:_LONGEST_TEXT] or r.detail) if r.id == identity else r
            for r in self.records
        )
        return replace(self, records=records)

    def knows(self, arrived: ReceivedSignal) -> bool:
        """Return whether a signal was received before."""
        same = (r for r in self.records if r.id == arrived.id)
        known = any(isinstance(arrived, MalformedSignal) or r.type for r in same)
        return known or any(r.id == arrived.id for r in self.requests)


@dataclass(frozen=True)
class Reception:
    """The effect of signals.

    Args:
        state: The new state.
        events: Events of snapshots caused by the signals.
        messages: Messages to log, each as the id of its signal and its text.
        warnings: Ignored signals, with reasons.
    """

    state: SignalState
    events: tuple[SnapshotEvent, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = field(default=())


def received(
    state: SignalState,
    arrived: Sequence[ReceivedSignal],
    tables: Sequence[str],
    now_us: int,
    refused_filter: Callable[[str], str],
) -> Reception:
    """Apply signals, oldest first. Whatever one contains, it is recorded, and the next one is applied.

    Args:
        state: The state before.
        arrived: Signals of channels.
        tables: The captured tables.
        now_us: The time, µs since 1970.
        refused_filter: Returns why a filter is refused; empty if it isn't.
    """
    result, matching = Reception(state), Matching(tables)
    for given in arrived:
        one = replace(given, id=printable(str(given.id))[:_LONGEST_TEXT])
        if result.state.knows(one):
            warning = f"signal {one.id} of channel {one.channel} is a duplicate: it is ignored"
            result = replace(result, warnings=(*result.warnings, warning))
        else:
            result = _followed(result, one, matching, now_us, refused_filter)
    return result


def _followed(
    result: Reception,
    one: ReceivedSignal,
    matching: Matching,
    now_us: int,
    refused_filter: Callable[[str], str],
) -> Reception:
    if isinstance(one, MalformedSignal):
        return _recorded(result, one, "", "ignored", one.reason, now_us)
    try:
        return _applied(result, one, matching, now_us, refused_filter)
    except InvalidSignal as error:
        return _recorded(result, one, one.type, "ignored", str(error), now_us)
    except Exception as error:  # noqa: BLE001 - the next run would meet the same signal again
        reason = f"{type(error).__name__}: {error}"
        return _recorded(result, one, one.type, "ignored", reason, now_us)


def _applied(
    result: Reception,
    one: Signal,
    matching: Matching,
    now_us: int,
    refused_filter: Callable[[str], str],
) -> Reception:
    if one.type == EXECUTE:
        return _execute(result, one, matching, now_us, refused_filter)
    if one.type == STOP:
        return _stop(result, one, matching, now_us)
    if one.type == LOG:
        message = str(one.data.get("message", ""))[:_LONGEST_MESSAGE]
        recorded = _recorded(result, one, one.type, "followed", "", now_us)
        return replace(recorded, messages=(*recorded.messages, (one.id, message)))
    return _pause(result, one, now_us)


def _execute(
    result: Reception,
    signal: Signal,
    matching: Matching,
    now_us: int,
    refused_filter: Callable[[str], str],
) -> Reception:
    requested = read_execute(signal.data, matching)
    matching.begin(matching.tables)
    chosen = [table for table in matching.tables if requested.names.take(table)]
    if not chosen:
        raise InvalidSignal(f"no captured table matches {listed(requested.names.texts)}")
    copies = tuple(TableCopy(table, requested.filter_of(table)) for table in chosen)
    for where in {copy.where for copy in copies if copy.where}:
        if reason := refused_filter(where):
            raise InvalidSignal(f"a filter is refused: {reason}")
    queued = [*copies, *(copy for request in result.state.requests for copy in request.tables)]
    size = sum(len(copy.table) + len(copy.where) for copy in queued)
    if len(queued) > _MOST_TABLES or size > _MOST_QUEUED:
        raise InvalidSignal("too many tables and filters wait already; stop a snapshot, or name fewer tables")
    matching.queue(len(copies))
    request = SnapshotRequest(signal.id, requested.kind, signal.channel, now_us, copies)
    detail = f"{requested.kind}: {listed(chosen)}"
    recorded = _recorded(result, signal, signal.type, "queued", detail, now_us)
    state = recorded.state
    return replace(recorded, state=replace(state, requests=(*state.requests, request)))


def _stop(result: Reception, signal: Signal, matching: Matching, now_us: int) -> Reception:
    kind, names = read_stop(signal.data, matching)
    state = result.state
    running = [r for r in state.requests if r.kind == kind]
    if not running:
        raise InvalidSignal(f"no {kind} snapshot is running")
    if names is not None:
        matching.begin(copy.table for request in running for copy in request.tables)
    events: list[SnapshotEvent] = []
    stopped: list[str] = []
    left: dict[str, SnapshotRequest] = {}
    reason = f"by signal {signal.id}"
    for request in running:
        removed = {t.table: t for t in request.tables if names is None or names.take(t.table)}
        if not removed:
            continue
        stopped += removed
        left[request.id] = replace(request, tables=tuple(t for t in request.tables if t.table not in removed))
        of_removed = replace(request, tables=tuple(removed.values()))
        if left[request.id].tables:
            events.append(_event("tables_stopped", of_removed, now_us, reason=reason))
        else:
            state = state.with_outcome(request.id, "stopped", reason)
            events.append(_event("aborted", of_removed, now_us, reason=reason))
    if not stopped:
        raise InvalidSignal(f"no table of the running {kind} snapshot matches")
    requests = (left.get(request.id, request) for request in state.requests)
    state = replace(state, requests=tuple(request for request in requests if request.tables))
    detail = f"stopped: {listed(stopped)}"
    recorded = _recorded(replace(result, state=state), signal, signal.type, "followed", detail, now_us)
    return replace(recorded, events=(*recorded.events, *events))


def _pause(result: Reception, signal: Signal, now_us: int) -> Reception:
    kind = str(signal.data.get("type") or "incremental").lower()[:40]
    if kind != "incremental":
        reason = f"only incremental snapshots can be paused and resumed, not {kind!r}"
        return _recorded(result, signal, signal.type, "ignored", reason, now_us)
    pausing = signal.type == PAUSE
    state = result.state
    running = next((r for r in state.requests if r.kind == "incremental"), None)
    if pausing and (running is None or state.paused):
        reason = "it is already paused" if state.paused else "no incremental snapshot is running"
        return _recorded(result, signal, signal.type, "ignored", reason, now_us)
    if not pausing and not state.paused:
        return _recorded(result, signal, signal.type, "ignored", "nothing is paused", now_us)
    changed = replace(result, state=replace(state, paused=pausing))
    recorded = _recorded(changed, signal, signal.type, "followed", "", now_us)
    if running is None:
        return recorded
    event = _event("paused" if pausing else "resumed", running, now_us, running.tables[0])
    return replace(recorded, events=(*recorded.events, event))


def _recorded(
    result: Reception, one: ReceivedSignal, kind: str, outcome: str, detail: str, now_us: int
) -> Reception:
    detail = printable(detail)[:_LONGEST_TEXT]
    entry = SignalRecord(one.id, kind, one.channel, now_us, outcome, detail)
    state = replace(result.state, records=(*result.state.records, entry)[-KEPT_RECORDS:])
    warnings = result.warnings
    if outcome == "ignored":
        warnings = (*warnings, f"signal {one.id} of channel {one.channel} is ignored: {detail}")
    return replace(result, state=state, warnings=warnings)


def _event(
    kind: SnapshotEventKind,
    request: SnapshotRequest,
    now_us: int,
    copy: TableCopy | None = None,
    reason: str = "",
) -> SnapshotEvent:
    return SnapshotEvent(
        kind,
        request.kind,
        request.id,
        table=copy.table if copy else "",
        tables=tuple(t.table for t in request.tables),
        reason=reason,
        at_us=now_us,
    )
