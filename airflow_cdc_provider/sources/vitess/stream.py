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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.exceptions import CdcError, CorruptInput, TransientError
from airflow_cdc_provider.sources.base import Plan, ReadLimit
from airflow_cdc_provider.sources.pauses import pauses
from airflow_cdc_provider.sources.stream_numbers import StreamNumbers
from airflow_cdc_provider.sources.vitess.cutting import Cutter
from airflow_cdc_provider.sources.vitess.failures import ParticipantsApart
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.read_ahead import ReadAhead, StreamEnded, Waiting
from airflow_cdc_provider.sources.vitess.requests import room_of, stream_request
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import HEARTBEAT, JOURNAL, BrokenMessage

log = logging.getLogger(__name__)

_SILENT_INTERVALS: Final = 3
_MOST_AT_ONCE: Final = 1 << 20
_LEAST_CHANGE_BYTES: Final = 64
"""What a transaction of one change takes in a stream at least, about."""


class ChangeStream:
    """One VStream. It stays open between plans that follow each other.

    Args:
        client: The client, made when it is first needed.
        options: The source's options.
        filters: Gives the filter (``binlogdata.Filter``) when the stream is opened.
        selects: Tells whether ``keyspace.table`` is captured.
        knows: Tells whether the fields of a table, by name and ``schema_id``, are recorded already.
        sleep: Pauses for some seconds, or until the job is asked to stop.
        stopping: Tells whether it is: a plan then ends with what was read.
    """

    def __init__(
        self,
        client: Callable[[], VtgateClient],
        options: VitessOptions,
        filters: Callable[[], Any],
        selects: Callable[[str], bool],
        knows: Callable[[str, str], bool],
        sleep: Callable[[float], None] = time.sleep,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._options = options
        self._filters = filters
        self._selects = selects
        self._knows = knows
        self._sleep = sleep
        self._stopping = stopping
        self.resharded: Position | None = None
        """Where the stream would go on behind the reshard at which it has ended."""
        self._ahead: ReadAhead | None = None
        self._cutter: Cutter | None = None
        self._place = Position()
        self._waiting = Waiting()
        self._counts = StreamNumbers(
            queue_bytes_limit=options.advanced.read_ahead_bytes,
            queue_events_limit=options.advanced.read_ahead_events,
        )

    @property
    def counts(self) -> StreamNumbers:
        """What the stream met so far."""
        position = {shard: place.gtid for shard, place in self._place.shards.items()}
        return replace(
            self._counts,
            connected=self._ahead is not None,
            position=position,
            queue_events=self._waiting.events,
            queue_bytes=self._waiting.bytes,
            queue_events_max=self._waiting.most_events,
            queue_bytes_max=self._waiting.most_bytes,
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

    def close(self) -> None:
        """End the stream."""
        self._leave()

    def _read_on(self, head: Position, limit: ReadLimit) -> Plan:
        slices, records = [], []
        read_bytes = changes = 0
        left = pauses(self._options.advanced)
        moved_at = time.monotonic()
        while not (at_head := self._place.has(head)):
            if read_bytes >= limit.bytes or changes >= limit.changes or self._stopping():
                break
            try:
                cutter = self._take_next(_at_once(limit, read_bytes, changes))
            except ParticipantsApart:
                raise  # the same stream would be refused again
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

    def _take_next(self, most_bytes: int) -> Cutter:
        """Take the responses that wait, or the next one, opening the stream if it isn't.

        Args:
            most_bytes: How many bytes to take of several.

        Returns:
            The cutter, with what came; with nothing new if the job is asked to stop meanwhile.

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
        responses = self._ahead.take(silent_seconds, most_bytes, self._stopping)
        taken = time.perf_counter()
        self._counts.waited_seconds += taken - began
        if not responses and self._stopping():
            return self._cutter
        if not responses:
            raise TransientError(
                "VTGate's stream is silent",
                expected=f"a word after {self._options.stream.heartbeat_seconds} s at the latest",
                found=f"none for {silent_seconds} s",
            )
        self._take(self._cutter, responses)
        self._counts.parsed_seconds += time.perf_counter() - taken
        return self._cutter

    def _take(self, cutter: Cutter, responses: Sequence[bytes]) -> None:
        """Hand responses to the cutter; where one can't be read, one by one."""
        try:
            events = cutter.take_all(responses, _now_us())
        except BrokenMessage as error:
            if len(responses) == 1:
                self._pass_over(responses[0], error)
                return
            for response in responses:
                if cutter.resharded is None:
                    self._take(cutter, [response])
            return
        told = len(np.unique(events.messages[events.types != HEARTBEAT]))
        self._counts.replies += len(responses)
        if told < len(responses):
            self._counts.empty_replies += len(responses) - told
            self._counts.last_empty_reply_at = time.time()
        if told:
            now = time.time()
            self._counts.events += len(events.changes)
            self._counts.journals += int((events.types == JOURNAL).sum())
            self._counts.bytes += sum(map(len, responses))
            self._counts.last_event_at = now
            if committed := int(events.timestamps.max()):  # 0 where the server tells none, as in a copy
                self._counts.behind_seconds = max(now - committed, 0.0)

    def _pass_over(self, response: bytes, error: BrokenMessage) -> None:
        """Set a message apart that can't be read.

        Raises:
            CorruptInput: With ``strict``.
        """
        assert self._cutter is not None
        places = self._cutter.place.shards.items()
        behind = ", ".join(f"{shard} at {place.gtid}" for shard, place in places)
        if self._options.advanced.strict:
            raise CorruptInput(
                f"a message of VTGate's stream behind {behind} can't be read",
                found=error.found,
                remedy="without the option source.advanced.strict it is set apart and the rest goes on; the "
                "tables need a new snapshot then",
            ) from error
        self._cutter.set_apart(response, error.found, _now_us())
        if self._options.advanced.warn_of_broken:
            log.warning(
                "a message of VTGate's stream (%d bytes) behind %s can't be read and is set apart, with what "
                "it held, perhaps a whole transaction: %s",
                len(response),
                behind,
                error.found,
            )

    def _open(self) -> None:
        request = stream_request(self._place.to_vgtid(), self._filters(), self._options)
        self._ahead = ReadAhead(
            self._client().vstream(request.SerializeToString()), room_of(self._options), self._waiting
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


def _at_once(limit: ReadLimit, read_bytes: int, changes: int) -> int:
    """Return how many bytes of responses to take together without going far beyond a limit."""
    left = min(limit.bytes - read_bytes, (limit.changes - changes) * _LEAST_CHANGE_BYTES)
    return min(left, _MOST_AT_ONCE)


def _now_us() -> int:
    return time.time_ns() // 1000
