"""Keeps idle cursors alive: a slow consumer may pause a reader for long between two replies.

A server closes a cursor that was idle for 10 minutes, unless it was opened with ``noCursorTimeout``. It also
expires a session that was idle for 30 minutes, with all its cursors. So a thread refreshes the session while
its cursor is open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from airflow_cdc_provider.exceptions import CdcError
from airflow_cdc_provider.logs import logger

log = logger(__name__)


class Refreshable(Protocol):
    """An object with a server session."""

    def refresh(self) -> None:
        """Refresh the session on the server."""
        ...


@contextmanager
def kept_alive(cursor: Refreshable, every_seconds: float) -> Iterator[None]:
    """Keep a cursor's session alive inside the ``with``.

    A failed refresh is logged and repeated after the interval. If the session has expired by then, the next
    read fails.

    Args:
        cursor: The cursor.
        every_seconds: Interval of the refreshes.
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
