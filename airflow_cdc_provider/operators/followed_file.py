"""Files that a job appends lines to while its task waits for it, followed in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 1.0


@contextmanager
def following(path: Path, take: Callable[[Sequence[bytes]], None]) -> Iterator[None]:
    """Follow a file until the block ends.

    Args:
        path: The file; it need not exist yet, or ever.
        take: Gets the lines that are new, once a second at most, and once more at the end. It is called in
            another thread; what it raises is logged, and the job goes on.
    """
    follower = _Follower(path, take)
    ended = threading.Event()
    thread = threading.Thread(target=follower.follow, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Follower:
    def __init__(self, path: Path, take: Callable[[Sequence[bytes]], None]) -> None:
        self._path = path
        self._take = take
        self._at = 0

    def follow(self, ended: threading.Event) -> None:
        """Look once a second, and once more at the end."""
        last = False
        while not last:
            last = ended.wait(_POLL_SECONDS)
            try:
                if lines := self._new_lines():
                    self._take(lines)
            except Exception as error:  # noqa: BLE001  # the job goes on, whatever becomes of what it tells
                log.warning("What the job tells in %s can't be passed on: %s", self._path.name, error)

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
