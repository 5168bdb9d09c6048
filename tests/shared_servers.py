"""Servers that all workers of a run use: the first that asks starts one, and stops it after all others ended.

A broker takes 7 CPU s to start, and 2 % of a core while it waits.
"""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from server_kit.server import Server

_Server = TypeVar("_Server", bound=Server)


@contextmanager
def shared(make: Callable[[], _Server], folder: Path) -> Iterator[_Server]:
    """Yield a running server: one of this process, or that of another process with the same folder.

    Args:
        make: Makes a server that isn't started.
        folder: A folder of this run and this kind of server.
    """
    folder.mkdir(exist_ok=True)
    running = folder / "running"
    with (folder / "users").open("w") as users, (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if running.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield pickle.loads(running.read_bytes())  # written by this run
            return
        with make() as server:
            running.write_bytes(pickle.dumps(server))
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield server
            fcntl.flock(lock, fcntl.LOCK_EX)
            running.unlink()
            fcntl.flock(lock, fcntl.LOCK_UN)
            fcntl.flock(users, fcntl.LOCK_EX)  # when all others have ended
