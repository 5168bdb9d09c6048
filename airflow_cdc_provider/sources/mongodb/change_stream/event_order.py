"""Turns a stream's replies into complete, indexed events, checks their order and tracks the position.

Events have cluster times only. Their indexes within one cluster time are counted from the previous event; a
stream that was opened by a time and not after a token starts with events that were read before, which are
skipped. Fragments of a large event are buffered until it is complete, and the position advances with complete
events only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import bson
import numpy as np
from bson.errors import BSONError

from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.formats.bson import Spans, as_bytes, find_in_all
from airflow_cdc_provider.formats.kernels import Bytes
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.mongodb.change_stream.change_event import Scan, scan
from airflow_cdc_provider.sources.mongodb.change_stream.fragments import join_fragments
from airflow_cdc_provider.sources.mongodb.change_stream.stream_events import Events
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawBatch
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition, describe, token_time

log = logger(__name__)

_TOKEN: Final = b"_id"
_NO_EVENT: Final = (0, -1)


class EventOrder:
    """Processes the replies of one change stream in sequence.

    Args:
        target: What the stream watches, for the log.

    Attributes:
        position: After the last complete event, or the latest position before which no event follows; None
            until it is set.
        newest: The last event, or fragment of one, that was received.
    """

    def __init__(self, target: str) -> None:
        self.position: StreamPosition | None = None
        self.newest = b""
        self._target = target
        self._fragments: list[bytes] = []
        self._last_event = _NO_EVENT
        self._skip_through = _NO_EVENT

    @property
    def incomplete(self) -> bool:
        """Whether fragments of an event are still missing."""
        return bool(self._fragments)

    @property
    def last_seconds(self) -> int:
        """Cluster time of the last event, in whole seconds; 0 before the first."""
        return self._last_event[0] >> 32

    @property
    def _current(self) -> StreamPosition:
        assert self.position is not None
        return self.position

    def drop_fragments(self) -> None:
        """Drop fragments: the stream that is opened next returns them again."""
        self._fragments = []

    def opened(self, position: StreamPosition, *, replays: bool) -> None:
        """Reset the index counters for a stream that was opened at a position.

        Args:
            position: The position.
            replays: Whether the stream replays events of its first cluster time that were read before.
        """
        self._last_event = self._skip_through = _NO_EVENT
        if position.index == LAST_INDEX:
            return
        if position.token or replays:
            self._last_event = (position.time, position.index)
        else:  # the stream starts with all events of that time
            self._skip_through = (position.time, position.index)

    def take(self, batch: RawBatch) -> Iterator[Events]:
        """Yield a batch's complete events and advance the position.

        Raises:
            TransientError: The stream went back, or a fragment is missing.
        """
        position = self._current
        spans = batch.documents
        count = len(spans)
        if spans.stopped_at != len(batch.data) and count == 0 and not batch.resume_token:
            return
        if count:
            found = scan(batch.data, spans, *self._last_event)
            self._require_order(found)
            self.newest = batch.data[spans.starts[-1] : spans.ends[-1]].tobytes()
            self._last_event = (int(found.times[-1]), int(found.indexes[-1]))
            if found.fragments.any() or self._fragments:
                yield from self._complete_events(batch, found)
                return
            first = self._skipped(found)
            if first < count:
                yield Events(batch.data, spans, found.times, found.indexes).part(first, count)
                last_time, index = self._last_event
                position = StreamPosition(last_time >> 32, last_time & 0xFFFF_FFFF, index, batch.resume_token)
            if found.invalidate:
                log.warning(
                    "the change stream of %s was invalidated by a drop or rename; resuming after it",
                    self._target,
                )
        newest = time_of(batch.resume_token)
        if newest > position.time:
            position = StreamPosition(newest >> 32, newest & 0xFFFF_FFFF, LAST_INDEX, batch.resume_token)
        elif batch.resume_token and not count and self._skip_through == _NO_EVENT:
            if newest and newest < position.time:
                raise _went_back(position, newest)
            position = replace(position, token=batch.resume_token)
        self.position = position

    def _require_order(self, found: Scan) -> None:
        position = self._current
        first = int(found.times[0])
        if first < position.time:
            raise _went_back(position, first)
        back = np.flatnonzero(found.times[1:] < found.times[:-1])
        if len(back):
            before = int(found.times[back[0]])
            previous = StreamPosition(before >> 32, before & 0xFFFF_FFFF)
            raise _went_back(previous, int(found.times[back[0] + 1]))

    def _skipped(self, found: Scan) -> int:
        """Return the number of leading events that were read before a start by time and index."""
        skip_time, skip_index = self._skip_through
        if skip_index < 0:
            return 0
        is_new = (found.times != skip_time) | (found.indexes > skip_index)
        if not is_new.any():
            return len(is_new)
        self._skip_through = _NO_EVENT
        return int(np.argmax(is_new))

    def _complete_events(self, batch: RawBatch, found: Scan) -> Iterator[Events]:
        """Yield events one by one, joining fragments; the position advances with complete events only."""
        data = batch.data
        spans = batch.documents
        _, token_starts, token_ends = find_in_all(data, spans.starts, spans.ends, _TOKEN)
        for row in range(len(spans)):
            event = data[spans.starts[row] : spans.ends[row]]
            fragment = int(found.fragments[row])
            if fragment:
                if fragment != len(self._fragments) + 1:
                    raise TransientError(
                        "a fragment of a large change event is missing",
                        expected=f"fragment {len(self._fragments) + 1}",
                        found=f"fragment {fragment}",
                        remedy="run again: the stream resumes after the last complete event",
                    )
                self._fragments.append(event.tobytes())
                if fragment < int(found.fragment_counts[row]):
                    continue
                event = as_bytes(join_fragments(self._fragments))
                self._fragments = []
            time = int(found.times[row]) or int(_event_time(event))
            index = int(found.indexes[row])
            skip_time, skip_index = self._skip_through
            if time == skip_time and index <= skip_index:
                continue
            whole = Spans(np.array([0]), np.array([len(event)]), len(event))
            yield Events(event, whole, np.array([time], np.uint64), np.array([index]))
            token = data[token_starts[row] : token_ends[row]].tobytes()
            self.position = StreamPosition(time >> 32, time & 0xFFFF_FFFF, index, token)


def _went_back(position: StreamPosition, time: int) -> TransientError:
    return TransientError(
        "the change stream went back",
        expected=f"no events before {describe(position)}, which was already read",
        found=describe(StreamPosition(time >> 32, time & 0xFFFF_FFFF)),
        remedy="run again; if the error persists, the deployment was restored from a backup or is another "
        "one: reset the offset and take a new snapshot",
    )


def _event_time(event: Bytes) -> int:
    return int(scan(event, Spans(np.array([0]), np.array([len(event)]), len(event)), *_NO_EVENT).times[0])


def time_of(token: bytes) -> int:
    """Return the cluster time of a resume token's BSON, 0 if it has none."""
    try:
        return token_time(bson.decode(token)) if token else 0
    except BSONError:
        return 0
