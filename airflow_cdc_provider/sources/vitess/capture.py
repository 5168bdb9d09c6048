"""Capture: one VStream of all shards, read up to a head in bounded plans of raw bytes.

The driver reads only the types and byte ranges of events, and passes the bytes in slices of whole
transactions (:mod:`.assembler`) to executors, which convert them to records. A plan contains its data. Read
again from the same offset, the stream delivers the same transactions of each shard at the same positions; the
order between shards may differ.

A plan is at its head when each shard has all transactions of the head. A shard that is already at the head is
idle and isn't waited for.

After a lost connection, a race of a tablet with a DDL statement, or a silent stream, the stream is reopened
after the last whole transaction, and no event is lost. VTGate sends a heartbeat after each
``heartbeat_seconds`` without an event; after three intervals without any message the connection counts as
lost. A stream that sends only heartbeats although the head is ahead fails after ``stall_timeout_seconds``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from airflow_cdc_provider.exceptions import CdcError, CorruptInput, TransientError
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.backoff import pauses
from airflow_cdc_provider.sources.contract import Plan, ReadLimit
from airflow_cdc_provider.sources.prefetch import BufferedStats, Prefetch
from airflow_cdc_provider.sources.stream_metrics import StreamMetrics
from airflow_cdc_provider.sources.vitess.assembler import TransactionAssembler
from airflow_cdc_provider.sources.vitess.failures import PartialReshard, UnreadableTable
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position
from airflow_cdc_provider.sources.vitess.prefetch import StreamEnded, prefetch
from airflow_cdc_provider.sources.vitess.requests import buffer_limit, stream_request
from airflow_cdc_provider.sources.vitess.vtgate import VtgateClient
from airflow_cdc_provider.sources.vitess.wire import HEARTBEAT, JOURNAL, ROW, BrokenMessage

log = logger(__name__)

_SILENT_INTERVALS: Final = 3
_TABLE_ATTEMPTS: Final = 5
"""With the default pauses, tablets have 15 s to track a statement that ran just now."""
_MAX_BATCH_BYTES: Final = 1 << 20
_MIN_CHANGE_BYTES: Final = 64
"""Approximate minimum size of a transaction of one row change."""


class ChangeStream:
    """One VStream. It stays open between consecutive plans.

    Args:
        client: Returns the client; called when it is first needed.
        options: The source's options.
        filters: Returns the filter (``binlogdata.Filter``); called when the stream is opened.
        selects: Returns whether ``keyspace.table`` is captured.
        is_recorded: Returns whether the fields of a table, by name and ``schema_id``, are recorded already.
        sleep: Pauses for some seconds, or until the job is stopped.
        stopping: Returns whether the job is being stopped: a plan then ends with what was read.
    """

    def __init__(
        self,
        client: Callable[[], VtgateClient],
        options: VitessOptions,
        filters: Callable[[], Any],
        selects: Callable[[str], bool],
        is_recorded: Callable[[str, str], bool],
        sleep: Callable[[float], None] = time.sleep,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._options = options
        self._filters = filters
        self._selects = selects
        self._is_recorded = is_recorded
        self._sleep = sleep
        self._stopping = stopping
        self.resharded: Position | None = None
        """Position from which to resume after the reshard that ended the stream."""
        self._prefetch: Prefetch[bytes] | None = None
        self._assembler: TransactionAssembler | None = None
        self._position = Position()
        self._buffered = BufferedStats()
        self._counts = StreamMetrics(
            queue_bytes_limit=options.advanced.read_ahead_bytes,
            queue_events_limit=options.advanced.read_ahead_events,
        )

    @property
    def counts(self) -> StreamMetrics:
        """Statistics of the stream so far."""
        position = {shard: known.gtid for shard, known in self._position.shards.items()}
        return replace(
            self._counts,
            connected=self._prefetch is not None,
            position=position,
            queue_events=self._buffered.events,
            queue_bytes=self._buffered.bytes,
            queue_events_max=self._buffered.max_events,
            queue_bytes_max=self._buffered.max_bytes,
        )

    def plan(self, start: Position, head: Position, limit: ReadLimit) -> Plan:
        """Read from a position to the head or the limit, whichever comes first.

        Args:
            start: Position of the last plan's end, or another one.
            head: Position to read to.
            limit: Size at which the plan ends.

        Returns:
            The plan, with slices of whole transactions and schema records.

        Raises:
            PositionLost: The server no longer has the transactions after ``start``.
            TransientError: The server can't be reached; nothing is changed.
        """
        self.resharded = None
        if self._position != start or self._assembler is None:
            self._close_stream()
            self._position = start
        try:
            return self._read_to(head, limit)
        except CdcError:
            self._close_stream()  # the stream is ahead of the position
            raise

    def close(self) -> None:
        """Close the stream."""
        self._close_stream()

    def _read_to(self, head: Position, limit: ReadLimit) -> Plan:
        slices, records = [], []
        read_bytes = changes = unreadable = 0
        left = pauses(self._options.advanced)
        moved_at = time.monotonic()
        while not (at_head := self._position.has(head)):
            if read_bytes >= limit.bytes or changes >= limit.changes or self._stopping():
                break
            try:
                assembler = self._read_next(_batch_bytes(limit, read_bytes, changes))
            except PartialReshard:
                raise  # VTGate would refuse the same stream again
            except (TransientError, StreamEnded) as error:
                unreadable = unreadable + 1 if isinstance(error, UnreadableTable) else 0
                if unreadable == _TABLE_ATTEMPTS:
                    raise
                drained, schema_records = self._drain()
                slices += drained
                records += schema_records
                self._pause_after_loss(error, left)
                continue
            if assembler.position != self._position:
                self._position = assembler.position
                moved_at = time.monotonic()
                left = pauses(self._options.advanced)
            elif time.monotonic() - moved_at > self._options.advanced.stall_timeout_seconds:
                raise self._stall_error(head)
            read_bytes, changes = assembler.size, assembler.changes
            if assembler.resharded is not None:
                self.resharded = assembler.resharded
                break
        drained, schema_records = self._drain()
        if self.resharded is not None:
            self._close_stream()
        return Plan(self._position.to_offset(), [*slices, *drained], at_head, [*records, *schema_records])

    def _drain(self) -> tuple[list[Any], list[Any]]:
        """Drain the complete transactions from the assembler."""
        if self._assembler is None:
            return [], []
        self._position = self._assembler.position
        return self._assembler.drain(_now_us())

    def _read_next(self, max_bytes: int) -> TransactionAssembler:
        """Read the buffered responses, or the next one, and open the stream if necessary.

        Args:
            max_bytes: Maximum total size, if there is more than one response.

        Returns:
            The assembler, with the responses added; with nothing new if the job is stopped meanwhile.

        Raises:
            TransientError: The stream is lost, or silent.
            StreamEnded: The server ended the stream.
        """
        if self._prefetch is None or self._assembler is None:
            self._open()
        assert self._prefetch is not None
        assert self._assembler is not None
        silent_seconds = _SILENT_INTERVALS * self._options.stream.heartbeat_seconds
        started = time.perf_counter()
        responses = self._prefetch.take(silent_seconds, max_bytes, self._stopping)
        received = time.perf_counter()
        self._counts.waited_seconds += received - started
        if not responses and self._stopping():
            return self._assembler
        if not responses:
            raise TransientError(
                "VTGate's stream is silent",
                expected=f"a heartbeat every {self._options.stream.heartbeat_seconds} s",
                found=f"no message for {silent_seconds} s",
            )
        self._add(self._assembler, responses)
        self._counts.parsed_seconds += time.perf_counter() - received
        return self._assembler

    def _add(self, assembler: TransactionAssembler, responses: Sequence[bytes]) -> None:
        """Add responses to the assembler; one by one if one of them can't be parsed."""
        try:
            events = assembler.add_all(responses, _now_us())
        except BrokenMessage as error:
            if len(responses) == 1:
                self._quarantine(responses[0], error)
                return
            for response in responses:
                if assembler.resharded is None:
                    self._add(assembler, [response])
            return
        with_events = len(np.unique(events.messages[events.types != HEARTBEAT]))
        self._counts.replies += len(responses)
        if with_events < len(responses):
            self._counts.empty_replies += len(responses) - with_events
            self._counts.last_empty_reply_at = time.time()
        if with_events:
            now = time.time()
            self._counts.events += len(events.changes)
            self._counts.journals += int((events.types == JOURNAL).sum())
            self._counts.bytes += sum(map(len, responses))
            self._counts.last_event_at = now
            # 0 if the server sends none, as in a copy; transactions of other tables come without ROW events
            if committed := int(events.timestamps[events.types == ROW].max(initial=0)):
                self._counts.behind_seconds = max(now - committed, 0.0)

    def _quarantine(self, response: bytes, error: BrokenMessage) -> None:
        """Quarantine a message that can't be parsed.

        Raises:
            CorruptInput: Option ``strict`` is set.
        """
        assert self._assembler is not None
        shards = self._assembler.position.shards.items()
        after = ", ".join(f"{shard} at {known.gtid}" for shard, known in shards)
        if self._options.advanced.strict:
            raise CorruptInput(
                f"a message of VTGate's stream after {after} can't be parsed",
                found=error.found,
                remedy="unset the option source.advanced.strict to quarantine the message and continue; then "
                "take a new snapshot of the tables",
            ) from error
        self._assembler.quarantine(response, error.found, _now_us())
        if self._options.advanced.log_quarantined_events:
            log.warning(
                "Quarantined a message of VTGate's stream (%d bytes) after %s that can't be parsed, and "
                "may contain a whole transaction: %s",
                len(response),
                after,
                error.found,
            )

    def _open(self) -> None:
        request = stream_request(self._position.to_vgtid(), self._filters(), self._options)
        self._prefetch = prefetch(
            self._client().vstream(request.SerializeToString()), buffer_limit(self._options), self._buffered
        )
        self._assembler = TransactionAssembler(
            self._position,
            self._selects,
            self._is_recorded,
            slice_bytes=self._options.advanced.slice_bytes,
            keep_empty=self._options.stream.empty_transactions,
            stops_at_journals=self._options.stream.stop_on_reshard,
        )

    def _pause_after_loss(self, error: Exception, left: Iterator[float]) -> None:
        """Close a lost stream and pause before the next attempt.

        Raises:
            TransientError: All attempts failed.
        """
        self._close_stream()
        self._counts.disconnects += 1
        pause = next(left, None)
        if pause is None:
            if isinstance(error, StreamEnded):
                raise TransientError("VTGate ended the stream repeatedly", found=str(error)) from error
            raise error
        log.warning("Lost VTGate's stream, reopening it in %.1f s: %s", pause, error)
        self._sleep(pause)

    def _stall_error(self, head: Position) -> TransientError:
        behind = [
            f"{shard} at {self._position.shards[shard].gtid if shard in self._position.shards else 'nothing'}"
            for shard, target in head.shards.items()
            if shard not in self._position.shards or not self._position.shards[shard].set.contains(target.set)
        ]
        return TransientError(
            "VTGate's stream delivered no transaction for "
            f"{self._options.advanced.stall_timeout_seconds:g} s",
            expected=", ".join(f"{shard} at {target.gtid}" for shard, target in head.shards.items()),
            found=", ".join(behind),
            remedy="check replication to the tablets of source.tablet_type",
        )

    def _close_stream(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
        self._prefetch = None
        self._assembler = None


def _batch_bytes(limit: ReadLimit, read_bytes: int, changes: int) -> int:
    """Return how many bytes of responses to read in one step without exceeding the limit by much."""
    left = min(limit.bytes - read_bytes, (limit.changes - changes) * _MIN_CHANGE_BYTES)
    return min(left, _MAX_BATCH_BYTES)


def _now_us() -> int:
    return time.time_ns() // 1000
