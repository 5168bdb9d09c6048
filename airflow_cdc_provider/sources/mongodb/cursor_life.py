"""Cursors that rest: a reader may wait for long between two replies, as its rows' consumer lets it.

A server ends a cursor that rested for 10 minutes, unless it was opened with ``noCursorTimeout``; and a
session that wasn't used for 30 minutes, with its cursors, whatever they were opened with. So a thread tells
the server of the session while its cursor is open.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from airflow_cdc_provider.exceptions import CdcError

log = logging.getLogger(__name__)


class Refreshed(Protocol):
    """What lives in a session."""

    def refresh(self) -> None:
        """Tell the server that the session is in use."""
        ...


@contextmanager
def kept_alive(cursor: Refreshed, every_seconds: float) -> Iterator[None]:
    """Keep a cursor's session alive inside the ``with``.

    A server that doesn't hear of it is told again at the next turn; what is lost by then, the next read
    shows.

    Args:
        cursor: The cursor.
        every_seconds: How often.
    """
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(every_seconds):
            try:
                cursor.refresh()
            except CdcError as error:
                log.info("a cursor's session couldn't be refreshed: %s", error)

    thread = threading.Thread(target=refresh, name="cdc-session-refresh", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
