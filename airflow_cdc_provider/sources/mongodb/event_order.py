"""What a stream's replies become: whole events, numbered and in order, and the place behind them.

Events come with cluster times alone. Their numbers among those of one cluster time are counted, from the last
event that came; a stream that was opened by a time and not behind a token begins with events that had come
before, which are passed over. Fragments of a large event are kept until it is whole, and the place moves with
whole events only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import bson
import numpy as np
from bson.errors import BSONError

from airflow_cdc_provider.changes.spans import Bytes
from airflow_cdc_provider.exceptions import TransientError
from airflow_cdc_provider.sources.mongodb.bson import Spans, as_bytes, find_in_all
from airflow_cdc_provider.sources.mongodb.change_event import Scan, scan
from airflow_cdc_provider.sources.mongodb.fragments import join_fragments
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPlace, describe, token_time
from airflow_cdc_provider.sources.mongodb.raw_cursor import RawBatch
from airflow_cdc_provider.sources.mongodb.stream_events import Events

log = logging.getLogger(__name__)

_TOKEN: Final = b"_id"
_NO_EVENT: Final = (0, -1)


class EventOrder:
    """Takes the replies of one change stream after the other.

    Args:
        target: What the stream watches, for the log.

    Attributes:
        place: Behind the last whole event, or where nothing more is to come before; None before it is set.
        newest: The last event, or fragment of one, that came.
    """

    def __init__(self, target: str) -> None:
        self.place: StreamPlace | None = None
        self.newest = b""
        self._target = target
        self._fragments: list[bytes] = []
        self._last_event = _NO_EVENT
        self._skip_through = _NO_EVENT

    @property
    def incomplete(self) -> bool:
        """Whether the rest of an event is still to come."""
        return bool(self._fragments)

    @property
    def last_seconds(self) -> int:
        """Cluster time of the last event, in whole seconds; 0 before the first."""
        return self._last_event[0] >> 32

    @property
    def _reached(self) -> StreamPlace:
        assert self.place is not None
        return self.place

    def left(self) -> None:
        """Forget fragments: the stream that is opened next gives them again."""
        self._fragments = []

    def opened(self, place: StreamPlace, *, comes_again: bool) -> None:
        """Count on from where a stream was opened.

        Args:
            place: Where.
            comes_again: Whether it was opened by a time whose events had come before.
        """
        self._last_event = self._skip_through = _NO_EVENT
        if place.index == LAST_INDEX:
            return
        if place.token or comes_again:
            self._last_event = (place.time, place.index)
        else:  # the stream begins with all events of that time
            self._skip_through = (place.time, place.index)

    def take(self, batch: RawBatch) -> Iterator[Events]:
        """Give a batch's whole events and move the place.

        Raises:
            TransientError: The stream went back, or lacks a fragment.
        """
        place = self._reached
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
                yield from self._whole(batch, found)
                return
            first = self._skipped(found)
            if first < count:
                yield Events(batch.data, spans, found.times, found.indexes).part(first, count)
                last_time, index = self._last_event
                place = StreamPlace(last_time >> 32, last_time & 0xFFFF_FFFF, index, batch.resume_token)
            if found.invalidate:
                log.warning(
                    "the change stream of %s ended with its collection and goes on after it",
                    self._target,
                )
        newest = time_of(batch.resume_token)
        if newest > place.time:
            place = StreamPlace(newest >> 32, newest & 0xFFFF_FFFF, LAST_INDEX, batch.resume_token)
        elif batch.resume_token and not count and self._skip_through == _NO_EVENT:
            if newest and newest < place.time:
                raise _went_back(place, newest)
            place = replace(place, token=batch.resume_token)
        self.place = place

    def _require_order(self, found: Scan) -> None:
        place = self._reached
        first = int(found.times[0])
        if first < place.time:
            raise _went_back(place, first)
        back = np.flatnonzero(found.times[1:] < found.times[:-1])
        if len(back):
            before = int(found.times[back[0]])
            reached = StreamPlace(before >> 32, before & 0xFFFF_FFFF)
            raise _went_back(reached, int(found.times[back[0] + 1]))

    def _skipped(self, found: Scan) -> int:
        """Count the events at the beginning that a start by time and index has passed already."""
        skip_time, skip_index = self._skip_through
        if skip_index < 0:
            return 0
        beyond = (found.times != skip_time) | (found.indexes > skip_index)
        if not beyond.any():
            return len(beyond)
        self._skip_through = _NO_EVENT
        return int(np.argmax(beyond))

    def _whole(self, batch: RawBatch, found: Scan) -> Iterator[Events]:
        """Give events one by one, joining fragments; the place moves with whole events only."""
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
                        remedy="run again: the stream starts at the last whole event",
                    )
                self._fragments.append(event.tobytes())
                if fragment < int(found.fragments_in_all[row]):
                    continue
                event = as_bytes(join_fragments(self._fragments))
                self._fragments = []
            moment = int(found.times[row]) or int(_event_time(event))
            index = int(found.indexes[row])
            skip_time, skip_index = self._skip_through
            if moment == skip_time and index <= skip_index:
                continue
            whole = Spans(np.array([0]), np.array([len(event)]), len(event))
            yield Events(event, whole, np.array([moment], np.uint64), np.array([index]))
            token = data[token_starts[row] : token_ends[row]].tobytes()
            self.place = StreamPlace(moment >> 32, moment & 0xFFFF_FFFF, index, token)


def _went_back(place: StreamPlace, time: int) -> TransientError:
    return TransientError(
        "the change stream went back",
        expected=f"nothing before {describe(place)}, which it had reached",
        found=describe(StreamPlace(time >> 32, time & 0xFFFF_FFFF)),
        remedy="run again; if it stays so, the deployment was restored from a backup or is another one: "
        "reset the offset and take a new snapshot",
    )


def _event_time(event: Bytes) -> int:
    return int(scan(event, Spans(np.array([0]), np.array([len(event)]), len(event)), *_NO_EVENT).times[0])


def time_of(token: bytes) -> int:
    """Read the cluster time from a resume token's BSON, 0 if it has none that can be told."""
    try:
        return token_time(bson.decode(token)) if token else 0
    except BSONError:
        return 0
