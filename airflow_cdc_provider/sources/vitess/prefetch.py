"""Prefetches responses of an open stream: at a limit, gRPC's flow control applies backpressure to VTGate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from airflow_cdc_provider.formats.kernels import Bytes, Int, walker
from airflow_cdc_provider.formats.protobuf_wire import LEN, next_field
from airflow_cdc_provider.sources.prefetch import BufferedStats, BufferLimit, Prefetch

_EVENT: Final = 1
"""Field of ``VStreamResponse``: an event."""
_ROW_EVENT: Final = 5
"""Field of ``VEvent``: the body of a ROW event."""
_ROW_CHANGE: Final = 2
"""Field of ``RowEvent``: a row change."""


class Responses(Protocol):
    """An open stream, such as :class:`.vtgate.RawStream`."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield responses as they arrive."""
        ...

    def cancel(self) -> None:
        """Cancel the stream. Safe to call from any thread."""
        ...


class StreamEnded(Exception):
    """The server ended the stream without an error."""


def prefetch(
    responses: Responses, limit: BufferLimit, buffered: BufferedStats | None = None
) -> Prefetch[bytes]:
    """Fetch responses until the limit is reached, in bytes and row changes.

    Args:
        responses: The stream; closing the result cancels it. At its end, the result raises
            :class:`StreamEnded`.
        limit: Limit of the buffer.
        buffered: Statistics to update; None for new ones.
    """
    arriving = iter(responses)

    def fetch() -> bytes:
        for response in arriving:
            return response
        raise StreamEnded("VTGate ended the stream")

    return Prefetch(fetch, _size, limit, buffered, cancel=responses.cancel)


def _size(response: bytes) -> tuple[int, int]:
    return int(_count_changes(np.frombuffer(response, np.uint8))), len(response)


@walker
def _count_changes(data: Bytes) -> Int:
    """Count the row changes of a response, up to the first invalid byte; the parser reports that one."""
    count = np.int64(0)
    at = np.int64(0)
    while at < len(data):
        number, kind, _, event, after = next_field(data, at, len(data))
        if number < 0:
            break
        if number == _EVENT and kind == LEN:
            while event < after:
                inner, kind, _, row, end = next_field(data, event, after)
                if inner < 0:
                    break
                if inner == _ROW_EVENT and kind == LEN:
                    while row < end:
                        member, kind, _, _, last = next_field(data, row, end)
                        if member < 0:
                            break
                        if member == _ROW_CHANGE and kind == LEN:
                            count += 1
                        row = last
                event = end
        at = after
    return count
