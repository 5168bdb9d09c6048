"""Runs a server as a child, and ends it, with all that it started, when the process that wants it is gone.

``setpriv --pdeathsig`` reaches one process, and only until that changes its user. This program becomes the
parent of all orphans below it (``PR_SET_CHILD_SUBREAPER``), so nothing escapes by forks or sessions. It waits
for the end of the process that wants the server, however that ends, by a pidfd. Should it be killed itself,
the kernel kills the server.

It also bounds logs: of a file that has grown too large, only the end is kept.

Usage: ``python -I -S keeper.py JSON PROGRAM ARGUMENT...``, the JSON with the fields of :class:`Orders`.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PDEATHSIG, _SUBREAPER = 1, 36
_LOOK_SECONDS = 1.0
_KEPT_BYTES = 64 << 10
_STRAGGLERS_SECONDS = 60.0
"""How long what a server started may outlive it: MySQL ends in order after Vitess."""


class Orders:
    """What to do.

    Args:
        parent: The process that wants the server.
        status: File descriptor that gets the server's process id, and its exit code at its end.
        environment: Variables to add to the server's.
        logs: Patterns of log files.
        log_bytes: The most of a disk that each of them may take.
    """

    def __init__(
        self, parent: int, status: int, environment: dict[str, str], logs: list[str], log_bytes: int
    ) -> None:
        self.parent = parent
        self.status = status
        self.environment = environment
        self.logs = logs
        self.log_bytes = log_bytes


class Keeper:
    """The server's parent.

    Args:
        orders: What to do.
        command: Program and arguments.
    """

    def __init__(self, orders: Orders, command: list[str]) -> None:
        self._orders = orders
        self._libc = ctypes.CDLL(None)
        self._libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        self._unwanted = False
        self._give_up = float("inf")
        os.set_inheritable(orders.status, False)
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _ENDING:
            signal.signal(number, self._end)
        self._parent = os.pidfd_open(orders.parent)
        if os.getppid() != orders.parent:
            sys.exit()
        started, starts = os.pipe()
        self._server = os.fork()
        if self._server == 0:
            self._become(command)
        os.close(starts)
        os.read(started, 1)  # the program's start closes it: before, a signal would be lost
        os.close(started)
        self._report(self._server)

    def keep(self) -> None:
        """Wait until the server and all that it started have ended, or end them if they aren't wanted."""
        while self._reap():
            if self._unwanted or time.monotonic() > self._give_up:
                for pid in _descendants():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            ready, _, _ = select.select([self._parent, self._woken], [], [], _LOOK_SECONDS)
            if self._parent in ready:
                self._unwanted = True
                time.sleep(0.01)  # it stays ready
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 10)
            for pattern in self._orders.logs:
                for path in glob.glob(pattern):
                    with suppress(OSError):
                        bound(path, self._orders.log_bytes)

    def _end(self, *_: object) -> None:
        self._unwanted = True

    def _become(self, command: list[str]) -> NoReturn:
        try:
            self._libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.set_wakeup_fd(-1)
            for number in (*_ENDING, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(command[0], command, {**os.environ, **self._orders.environment})  # noqa: S606
        except OSError as error:
            os.write(2, f"{command[0]} can't be started: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _reap(self) -> bool:
        """Collect ended children; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._server:
                self._give_up = time.monotonic() + _STRAGGLERS_SECONDS
                self._report(os.waitstatus_to_exitcode(status))

    def _report(self, number: int) -> None:
        with suppress(OSError):  # nobody reads it any more
            os.write(self._orders.status, b"%d\n" % number)


def bound(path: str, most_bytes: int) -> None:
    """Keep only the end of a file that takes too much of the disk."""
    if os.stat(path).st_blocks * 512 <= most_bytes:
        return
    with open(path, "rb") as file:
        file.seek(-_KEPT_BYTES, os.SEEK_END)
        end = file.read()
    os.truncate(path, 0)
    with open(path, "ab") as file:
        file.write(b"[the log had become too large, and was cut]\n" + end)


def _descendants() -> list[int]:
    """Return all processes below this one."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
    found, rest = [], [os.getpid()]
    while rest:
        own = children.get(rest.pop(), [])
        found += own
        rest += own
    return found


if __name__ == "__main__":
    Keeper(Orders(**json.loads(sys.argv[1])), sys.argv[2:]).keep()
