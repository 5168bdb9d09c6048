"""Rows that a snapshot has read, told to Airflow while it runs.

The job appends lines to a file (:mod:`airflow_cdc_provider.jobs.scanned`); each becomes the gauge
``cdc.snapshot.rows`` of its table, and what they add up to goes to whoever asked for it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_cdc_provider.operators.metrics import emit_rows

if TYPE_CHECKING:
    from airflow_cdc_provider.connector import Connector

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0

Push = Callable[[Mapping[str, int]], None]


@contextmanager
def following_rows(path: Path, connector: Connector, push: Push | None) -> Iterator[None]:
    """Follow a job's file of rows until the block ends, and tell what it says.

    Args:
        path: The file; it need not exist yet, or ever.
        connector: Whose tables they are.
        push: Gets the rows read of all tables so far, once a second at most; None for nobody.
    """
    follower = _Follower(path, connector, push)
    ended = threading.Event()
    thread = threading.Thread(target=follower.follow, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Follower:
    def __init__(self, path: Path, connector: Connector, push: Push | None) -> None:
        self._path = path
        self._connector = connector
        self._push = push
        self._at = 0
        self._rows: dict[str, int] = {}

    def follow(self, ended: threading.Event) -> None:
        """Look once a second, and once more at the end."""
        last = False
        while not last:
            last = ended.wait(_POLL_SECONDS)
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  # the job goes on, whatever becomes of its numbers
                log.warning("The rows that the snapshot reads can't be told: %s", error)

    def _look(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        if not newline:
            return
        self._at += len(whole) + 1
        for line in whole.splitlines():
            told = json.loads(line)
            table, rows = str(told["table"]), int(told["rows"])
            self._rows.pop(table, None)  # the last told stand last
            self._rows[table] = rows
            emit_rows(self._connector, table, rows)
        if self._push is not None:
            self._push(dict(self._rows))
