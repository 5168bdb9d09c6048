"""Capture: one VStream of all shards, read to a head in bounded plans of raw bytes.

The driver looks at kinds and places of events only, and hands the bytes on in slices of whole transactions
(:mod:`.cutting`) for executors to turn into records. Such a plan holds its data. Read again from the same
offset, the stream gives the same transactions of each shard at the same positions; those of different shards
may come in another order.

A plan is at its head when each shard has all transactions of the head's. A shard that stands there already is
idle and not waited for.

A lost connection, a tablet's race with a DDL statement and a stream that falls silent cost a reopening behind
the last whole transaction, and no event. VTGate tells of itself after each ``heartbeat_seconds`` without an
event: three times as long without a word, and the connection counts as lost. A stream that tells only that it
lives, while its head is ahead, is given ``stall_seconds``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import CdcError, TransientError
from airflow_cdc_provider.sources.base import Plan, ReadLimit
from airflow_cdc_provider.sources.pauses import pauses
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers
from airflow_cdc_provider.sources.vitess.cutting import Cutter
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.read_ahead import ReadAhead, StreamEnded
from airflow_cdc_provider.sources.vitess.requests import stream_request
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import HEARTBEAT, JOURNAL

log = logging.getLogger(__name__)

_SILENT_INTERVALS: Final = 3


class ChangeStream:
    """One VStream. It stays open between plans that follow each other.

    Args:
        client: The client, made when it is first needed.
        options: The source's options.
        filters: Gives the filter (``binlogdata.Filter``) when the stream is opened.
        selects: Tells whether ``keyspace.table`` is captured.
        knows: Tells whether the fields of a table, by name and ``schema_id``, are recorded already.
        sleep: Pauses for some seconds; by default until :meth:`stop`.
    """

    def __init__(
        self,
        client: Callable[[], VtgateClient],
        options: VitessOptions,
        filters: Callable[[], Any],
        selects: Callable[[str], bool],
        knows: Callable[[str, str], bool],
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._filters = filters
        self._selects = selects
        self._knows = knows
        self._stopping = threading.Event()
        self._sleep = sleep or self._stopping.wait
        self.resharded: Position | None = None
        """Where the stream would go on behind the reshard at which it has ended."""
        self._ahead: ReadAhead | None = None
        self._cutter: Cutter | None = None
        self._place = Position()
        self._counts = StreamNumbers(queue_bytes_limit=options.advanced.read_ahead_bytes)

    @property
    def counts(self) -> StreamNumbers:
        """What the stream met so far."""
        position = {shard: place.gtid for shard, place in self._place.shards.items()}
        waiting = self._ahead.waiting_bytes if self._ahead is not None else 0
        return replace(
            self._counts, connected=self._ahead is not None, position=position, queue_bytes=waiting
        )

    def plan(self, start: Position, head: Position, limit: ReadLimit) -> Plan:
        """Read on from a position to the head or the limit, whichever comes first.

        Raises:
            PositionLost: The server no longer has the transactions after ``start``.
            TransientError: The server can't be reached; nothing is changed.
        """
        self.resharded = None
        if self._place != start or self._cutter is None:
            self._leave()
            self._place = start
        try:
            return self._read_on(head, limit)
        except CdcError:
            self._leave()  # the stream is ahead of what was taken
            raise

    def stop(self) -> None:
        """Have a plan that another thread reads end soon, for good."""
        self._stopping.set()

    def close(self) -> None:
        """End the stream."""
        self._leave()

    def _read_on(self, head: Position, limit: ReadLimit) -> Plan:
        slices, records = [], []
        read_bytes = changes = 0
        left = pauses(self._options.advanced)
        moved_at = time.monotonic()
        while not (at_head := self._place.has(head)) and not self._stopping.is_set():
            if read_bytes >= limit.bytes or changes >= limit.changes:
                break
            try:
                cutter = self._take_next()
            except (TransientError, StreamEnded) as error:
                given, beside = self._give()
                slices += given
                records += beside
                self._lost(error, left)
                continue
            if cutter.place != self._place:
                self._place = cutter.place
                moved_at = time.monotonic()
                left = pauses(self._options.advanced)
            elif time.monotonic() - moved_at > self._options.advanced.stall_seconds:
                raise self._stalled(head)
            read_bytes, changes = cutter.size, cutter.changes
            if cutter.resharded is not None:
                self.resharded = cutter.resharded
                break
        given, beside = self._give()
        if self.resharded is not None:
            self._leave()
        return Plan(self._place.to_offset(), [*slices, *given], at_head, [*records, *beside])

    def _give(self) -> tuple[list[Any], list[Any]]:
        """Take what the cutter has of whole transactions."""
        if self._cutter is None:
            return [], []
        self._place = self._cutter.place
        return self._cutter.give(_now_us())

    def _take_next(self) -> Cutter:
        """Take the next response, opening the stream if it isn't.

        Raises:
            TransientError: The stream is lost, or silent.
            StreamEnded: The server has ended it.
        """
        if self._ahead is None or self._cutter is None:
            self._open()
        assert self._ahead is not None
        assert self._cutter is not None
        silent_seconds = _SILENT_INTERVALS * self._options.stream.heartbeat_seconds
        began = time.perf_counter()
        response = self._ahead.next(silent_seconds)
        taken = time.perf_counter()
        self._counts.waited_seconds += taken - began
        if response is None:
            raise TransientError(
                "VTGate's stream is silent",
                expected=f"a word after {self._options.stream.heartbeat_seconds} s at the latest",
                found=f"none for {silent_seconds} s",
            )
        events = self._cutter.take(response, _now_us())
        self._counts.parsed_seconds += time.perf_counter() - taken
        self._counts.replies += 1
        if len(events) == 0 or (events.types == HEARTBEAT).all():
            self._counts.empty_replies += 1
            self._counts.last_empty_reply_at = time.time()
        else:
            now = time.time()
            self._counts.events += len(events.changes)
            self._counts.journals += int((events.types == JOURNAL).sum())
            self._counts.bytes += len(response)
            self._counts.last_event_at = now
            if committed := int(events.timestamps.max()):  # 0 where the server tells none, as in a copy
                self._counts.behind_seconds = max(now - committed, 0.0)
        return self._cutter

    def _open(self) -> None:
        request = stream_request(self._place.to_vgtid(), self._filters(), self._options)
        self._ahead = ReadAhead(
            self._client().vstream(request.SerializeToString()), self._options.advanced.read_ahead_bytes
        )
        self._cutter = Cutter(
            self._place,
            self._selects,
            self._knows,
            slice_bytes=self._options.advanced.slice_bytes,
            keep_empty=self._options.stream.empty_transactions,
            stops_at_journals=self._options.stream.stop_on_reshard,
        )

    def _lost(self, error: Exception, left: Iterator[float]) -> None:
        """Leave a lost stream and pause.

        Raises:
            TransientError: It was tried often enough.
        """
        self._leave()
        self._counts.disconnects += 1
        pause = next(left, None)
        if pause is None:
            if isinstance(error, StreamEnded):
                raise TransientError("VTGate ends the stream again and again", found=str(error)) from error
            raise error
        log.warning("VTGate's stream is lost, opened again in %.1f s: %s", pause, error)
        self._sleep(pause)

    def _stalled(self, head: Position) -> TransientError:
        behind = [
            f"{shard} at {self._place.shards[shard].gtid if shard in self._place.shards else 'nothing'}"
            for shard, place in head.shards.items()
            if shard not in self._place.shards or not self._place.shards[shard].set.contains(place.set)
        ]
        return TransientError(
            f"VTGate's stream has given no transaction for {self._options.advanced.stall_seconds:g} s",
            expected=", ".join(f"{shard} at {place.gtid}" for shard, place in head.shards.items()),
            found=", ".join(behind),
            remedy="see that replication to tablets of source.tablet_type works",
        )

    def _leave(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None
        self._cutter = None


def _now_us() -> int:
    return time.time_ns() // 1000
