"""Follows a file in a thread, to which a job appends lines while its task waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from airflow_cdc_provider.logs import logger

log = logger(__name__)

_POLL_SECONDS: Final = 1.0


@contextmanager
def following(path: Path, on_lines: Callable[[Sequence[bytes]], None]) -> Iterator[None]:
    """Follow a file until the block ends.

    Args:
        path: The file; it need not exist yet, or ever.
        on_lines: Receives new lines, at most once a second, and a last time at the end. It runs in another
            thread; its exceptions are logged, and the job continues.
    """
    follower = _Follower(path, on_lines)
    ended = threading.Event()
    thread = threading.Thread(target=follower.follow, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Follower:
    def __init__(self, path: Path, on_lines: Callable[[Sequence[bytes]], None]) -> None:
        self._path = path
        self._on_lines = on_lines
        self._at = 0

    def follow(self, ended: threading.Event) -> None:
        """Poll once a second, and a last time at the end."""
        last = False
        while not last:
            last = ended.wait(_POLL_SECONDS)
            try:
                if lines := self._new_lines():
                    self._on_lines(lines)
            except Exception as error:  # noqa: BLE001  # the job continues even if its lines can't be processed
                log.warning("Lines of %s can't be processed: %s", self._path.name, error)

    def _new_lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        if not newline:
            return []
        self._at += len(whole) + 1
        return whole.splitlines()
