"""Snapshots that were asked for, and the record of all signals: values that are stored with the offset.

What a signal does to them is a pure function (:func:`received`), so that a job can commit its outcome before
it tells the channel that the signal is done. The record says of each signal what became of it, and it is what
makes signals idempotent: an id that stands in it is not followed again. It keeps the newest
:data:`KEPT_RECORDS`.

Requests stand in the order in which they came. Incremental ones are worked off one table after the other, the
next request when all tables of the one before are done; blocking ones have precedence, since streaming waits
for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.notifications.snapshot_events import Happening, ScanStatus, SnapshotEvent
from airflow_cdc_provider.signals.signal import EXECUTE, LOG, PAUSE, STOP, Arrived, NoSignal, Signal
from airflow_cdc_provider.signals.wishes import SnapshotKind, Unclear, read_execute, read_stop

KEPT_RECORDS: Final = 50
_LONGEST_TEXT: Final = 300


@dataclass(frozen=True)
class TableCopy:
    """One table of a request, as far as it is read.

    Args:
        table: The table.
        where: The filter of the request, empty for none.
        begun: Whether its end was fixed, so that reading may go on.
        maximum: The source's largest key when it began, in base64.
        next: Where the next chunk begins, in base64; empty for the beginning.
        ranges: Of a source without chunks: the planned ranges that are not read, as
            :class:`~.planned_ranges.PlannedRanges` stores them.
        chunks: Chunks, or ranges, that were read.
        rows: Rows that were read.
    """

    table: str
    where: str = ""
    begun: bool = False
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
    """A snapshot that was asked for and is not done.

    Args:
        id: The signal's.
        kind: Beside the stream, or in its place.
        channel: How it was asked for.
        asked_us: When the signal was received, µs since 1970.
        tables: What is left of it, in order.
        done: How many tables are read.
        started: Whether anything of it was begun.
    """

    id: str
    kind: SnapshotKind
    channel: str
    asked_us: int
    tables: tuple[TableCopy, ...]
    done: int = 0
    started: bool = False


@dataclass(frozen=True)
class SignalRecord:
    """What became of a signal.

    Args:
        id: Its id.
        type: Its type, empty if it was none.
        channel: How it came.
        received_us: When, µs since 1970.
        outcome: ``queued``, ``running``, ``done``, ``stopped``, ``failed``; of what is done at once
            ``followed``; ``ignored``.
        detail: Why, in words.
    """

    id: str
    type: str
    channel: str
    received_us: int
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class SignalState:
    """What is asked of a connector.

    Args:
        requests: Snapshots that are not done, oldest first.
        paused: Whether incremental snapshots wait for a ``resume-snapshot``.
        records: The newest signals, oldest first.
        read_batch: The newest batch of the changes table that was looked through for signals; -1 before the
            first look.
        chunks: How many groups of chunks were ever committed: it numbers the next one.
        places: Up to where channels were read that keep a place, by the channel's name.
    """

    requests: tuple[SnapshotRequest, ...] = ()
    paused: bool = False
    records: tuple[SignalRecord, ...] = ()
    read_batch: int = -1
    chunks: int = 0
    places: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def incremental(self) -> SnapshotRequest | None:
        """The incremental snapshot whose turn it is, unless all are paused."""
        if self.paused:
            return None
        return next((r for r in self.requests if r.kind == "incremental"), None)

    @property
    def blocking(self) -> SnapshotRequest | None:
        """The oldest blocking snapshot that is asked for."""
        return next((r for r in self.requests if r.kind == "blocking"), None)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON for :meth:`from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any] | None) -> SignalState:
        """Read what :meth:`to_plain` gave."""
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
        """Return a copy with a request in place of the one with its id; one without tables is gone."""
        kept = tuple(request if r.id == request.id else r for r in self.requests)
        return replace(self, requests=tuple(r for r in kept if r.tables))

    def with_outcome(self, identity: str, outcome: str, detail: str = "") -> SignalState:
        """Return a copy whose record says what became of a signal."""
        records = tuple(
            replace(r, outcome=outcome, detail=detail[:_LONGEST_TEXT] or r.detail) if r.id == identity else r
            for r in self.records
        )
        return replace(self, records=records)

    def knows(self, arrived: Arrived) -> bool:
        """Tell whether something arrived before."""
        same = (r for r in self.records if r.id == arrived.id[:_LONGEST_TEXT])
        return any(isinstance(arrived, NoSignal) or r.type for r in same)


@dataclass(frozen=True)
class Reception:
    """What came of signals.

    Args:
        state: The state with them.
        events: What happened by them.
        messages: What is to be logged, each as the id of its signal and its text.
        warnings: What was not followed, and why.
    """

    state: SignalState
    events: tuple[SnapshotEvent, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = field(default=())


def received(state: SignalState, arrived: Sequence[Arrived], tables: Sequence[str], now_us: int) -> Reception:
    """Follow signals, oldest first.

    Args:
        state: What is asked for so far.
        arrived: What channels brought.
        tables: The captured tables.
        now_us: The time, µs since 1970.
    """
    result = Reception(state)
    for one in arrived:
        if result.state.knows(one):
            told = f"signal {one.id} of channel {one.channel} came before: it is not followed again"
            result = replace(result, warnings=(*result.warnings, told))
        else:
            result = _followed(result, one, tables, now_us)
    return result


def _followed(result: Reception, one: Arrived, tables: Sequence[str], now_us: int) -> Reception:
    if isinstance(one, NoSignal):
        return _recorded(result, one, "", "ignored", one.reason, now_us)
    try:
        if one.type == EXECUTE:
            return _execute(result, one, tables, now_us)
        if one.type == STOP:
            return _stop(result, one, now_us)
    except Unclear as error:
        return _recorded(result, one, one.type, "ignored", str(error), now_us)
    if one.type == LOG:
        message = str(one.data.get("message", ""))
        recorded = _recorded(result, one, one.type, "followed", "", now_us)
        return replace(recorded, messages=(*recorded.messages, (one.id, message)))
    return _pause(result, one, now_us)


def _execute(result: Reception, signal: Signal, tables: Sequence[str], now_us: int) -> Reception:
    wish = read_execute(signal.data)
    chosen = [table for table in tables if wish.names.take(table)]
    if not chosen:
        raise Unclear(f"no captured table is meant by {', '.join(wish.names.patterns)}")
    copies = tuple(TableCopy(table, wish.filter_of(table)) for table in chosen)
    request = SnapshotRequest(signal.id, wish.kind, signal.channel, now_us, copies)
    detail = f"{wish.kind}: {', '.join(chosen)}"
    recorded = _recorded(result, signal, signal.type, "queued", detail, now_us)
    state = recorded.state
    return replace(recorded, state=replace(state, requests=(*state.requests, request)))


def _stop(result: Reception, signal: Signal, now_us: int) -> Reception:
    names = read_stop(signal.data)
    state = result.state
    running = [r for r in state.requests if r.kind == "incremental"]
    if not running:
        raise Unclear("no incremental snapshot is running")
    events: list[SnapshotEvent] = []
    stopped: list[str] = []
    for request in running:
        gone = tuple(t for t in request.tables if names is None or names.take(t.table))
        if not gone:
            continue
        stopped += [copy.table for copy in gone]
        left = replace(request, tables=tuple(t for t in request.tables if t not in gone))
        state = state.with_request(left)
        why = f"by signal {signal.id}"
        if left.tables:
            events += [_told("table_scanned", left, now_us, copy, "SKIPPED", why) for copy in gone]
        else:
            state = state.with_outcome(request.id, "stopped", why)
            events.append(_told("aborted", request, now_us, reason=why))
    if not stopped:
        raise Unclear("no table of the running incremental snapshot is meant")
    detail = f"stopped: {', '.join(stopped)}"
    recorded = _recorded(replace(result, state=state), signal, signal.type, "followed", detail, now_us)
    return replace(recorded, events=(*recorded.events, *events))


def _pause(result: Reception, signal: Signal, now_us: int) -> Reception:
    kind = str(signal.data.get("type") or "incremental").lower()
    if kind != "incremental":
        raise_text = f"only incremental snapshots can be paused and resumed, not {kind!r}"
        return _recorded(result, signal, signal.type, "ignored", raise_text, now_us)
    pausing = signal.type == PAUSE
    state = result.state
    running = next((r for r in state.requests if r.kind == "incremental"), None)
    if pausing and (running is None or state.paused):
        why = "it is paused already" if state.paused else "no incremental snapshot is running"
        return _recorded(result, signal, signal.type, "ignored", why, now_us)
    if not pausing and not state.paused:
        return _recorded(result, signal, signal.type, "ignored", "nothing is paused", now_us)
    changed = replace(result, state=replace(state, paused=pausing))
    recorded = _recorded(changed, signal, signal.type, "followed", "", now_us)
    if running is None:
        return recorded
    event = _told("paused" if pausing else "resumed", running, now_us, running.tables[0])
    return replace(recorded, events=(*recorded.events, event))


def _recorded(
    result: Reception, one: Arrived, kind: str, outcome: str, detail: str, now_us: int
) -> Reception:
    detail = detail[:_LONGEST_TEXT]
    entry = SignalRecord(one.id[:_LONGEST_TEXT], kind, one.channel, now_us, outcome, detail)
    state = replace(result.state, records=(*result.state.records, entry)[-KEPT_RECORDS:])
    warnings = result.warnings
    if outcome == "ignored":
        warnings = (*warnings, f"signal {one.id} of channel {one.channel} is ignored: {detail}")
    return replace(result, state=state, warnings=warnings)


def _told(
    kind: Happening,
    request: SnapshotRequest,
    now_us: int,
    copy: TableCopy | None = None,
    status: ScanStatus = "",
    reason: str = "",
) -> SnapshotEvent:
    return SnapshotEvent(
        kind,
        request.kind,
        request.id,
        table=copy.table if copy else "",
        tables=tuple(t.table for t in request.tables),
        rows=copy.rows if copy and kind == "table_scanned" else None,
        status=status,
        reason=reason,
        at_us=now_us,
    )
