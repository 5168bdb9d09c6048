"""What every server of the kit has: a folder, a process, clients that end with it, a ``with`` statement."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from server_kit.process import ServerProcess

_ROOMY_BYTES: Final = 4 << 30


class Server(ABC):
    """One server. ``with`` starts it, stops it, and cleans up.

    Args:
        kind: What the user calls it.
        folder: Where it keeps everything. Default: a temporary folder that :meth:`close` removes. In a folder
            that was used before it starts with its data.
        host: Address to listen on.
        port: Port for clients.
        log: Its log, a path inside the folder.
        more_logs: Patterns of its other logs, likewise.
        parent: Where a temporary folder is made; default: where the machine has them.
    """

    def __init__(
        self,
        kind: str,
        folder: Path | None,
        *,
        host: str,
        port: int,
        log: str,
        more_logs: Sequence[str] = (),
        parent: Path | None = None,
    ) -> None:
        self._temporary = folder is None
        made = folder or Path(tempfile.mkdtemp(prefix=f"{kind.lower()}-", dir=parent))
        self.folder = made.absolute()
        self.host = host
        self.port = port
        self.log = self.folder / log
        others = [self.folder / pattern for pattern in more_logs]
        self._process = ServerProcess(f"{kind} on {host}:{port}", self.log, others)

    @property
    def pid(self) -> int:
        """Id of the running process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process.running

    @abstractmethod
    def start(self) -> Self:
        """Start it and wait until it serves clients.

        Raises:
            ConfigurationError: A taken port, a full disk, or a failed start with the end of its log.
        """

    def stop(self) -> None:
        """End it in order."""
        self._close_clients()
        self._process.stop()

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, nothing flushed."""
        self._close_clients()
        self._process.kill()

    def restart(self) -> Self:
        """Stop in order and start again on the same ports and data."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop, and remove the folder if it was a temporary one."""
        self.stop()
        self._process.end()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the process out: another one can be a client of the server, not start or stop it."""
        return {name: value for name, value in vars(self).items() if name != "_process"}

    def __enter__(self) -> Self:
        """Start."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop and clean up."""
        self.close()

    @abstractmethod
    def _close_clients(self) -> None:
        """End the clients that were handed out."""


def memory_disk() -> Path | None:
    """Return a disk in memory if there is a roomy one.

    vtcombo gives MySQL 30 seconds to make its files, which a busy disk doesn't always do. Cassandra waits for
    some hundred files to be on the disk when it drops a keyspace.
    """
    disk = Path("/dev/shm")  # noqa: S108  # folders in it have names that nobody can guess
    return disk if disk.is_dir() and shutil.disk_usage(disk).free > _ROOMY_BYTES else None
