"""A server's process: started, awaited, stopped in order or killed, always by its own id.

It is the child of a keeper (:mod:`server_kit.keeper`), which ends it, with all that it started, when this
process has ended, however that was: a killed test session leaves nothing running. The keeper also bounds its
logs.
"""

from __future__ import annotations

import glob
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit import keeper
from server_kit.cache import say

LOG_BYTES: Final = 64 << 20
_TAIL_BYTES: Final = 64 << 10


class ServerProcess:
    """One process of one server.

    Args:
        name: What the user calls it.
        log: The file that explains a failed start; its end goes into the error.
        more_logs: Patterns of the other files that it logs to.
        log_bytes: The most that each log may take.
    """

    def __init__(
        self, name: str, log: Path, more_logs: Sequence[Path] = (), log_bytes: int = LOG_BYTES
    ) -> None:
        self.name = name
        self.log = log
        self._more_logs = more_logs
        self._log_bytes = log_bytes
        self._keeper: subprocess.Popen[bytes] | None = None
        self._status: IO[bytes] | None = None
        self._pid = 0
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Id of the running process."""
        if not self.running:
            raise RuntimeError(f"{self.name} is not running")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return not self._ended(0)

    def start(
        self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the program.

        Args:
            command: Program and arguments.
            output: Where its stdout and stderr go, appended.
            environment: Variables to add to this process's.
        """
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        read, write = os.pipe()
        orders = {
            "parent": os.getpid(),
            "status": write,
            "environment": dict(environment or {}),
            "logs": [*{glob.escape(str(path)) for path in (output, self.log)}, *map(str, self._more_logs)],
            "log_bytes": self._log_bytes,
        }
        with output.open("ab") as stream:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(keeper.__file__), json.dumps(orders), *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                pass_fds=[write],
                start_new_session=True,  # Ctrl-C reaches the starter only, which stops servers in order
            )
        os.close(write)
        self._status = os.fdopen(read, "rb", buffering=0)
        self._code = None
        reported = self._status.readline()
        if not reported:
            raise self._failure(
                f"{self.name} did not start", f"exit code {self._keeper.wait()} of its keeper"
            )
        self._pid = int(reported)

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_seconds: float) -> float:
        """Wait until the server is ready, and say for what.

        Returns:
            How many seconds it took.

        Raises:
            ConfigurationError: It ended or wasn't ready in time; the process is killed, the message has the
                end of its log.
        """
        say(f"waiting for {self.name}: {what}")
        started = time.monotonic()
        while not ready():
            if not self.running:
                self.end()
                raise self._failure(f"{self.name} ended while starting", f"exit code {self._code}")
            if time.monotonic() - started > timeout_seconds:
                self.end()
                raise self._failure(f"{self.name} did not start", f"no {what} after {timeout_seconds:.0f} s")
            time.sleep(0.02)
        return time.monotonic() - started

    def stop(self, timeout_seconds: float = 60) -> None:
        """End it in order (SIGTERM), or kill it if that takes too long. One that isn't running is fine."""
        self._signal(signal.SIGTERM)
        if not self._ended(timeout_seconds):
            say(f"{self.name} did not stop within {timeout_seconds:.0f} s; killing it")
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        self._signal(signal.SIGKILL)
        self._ended(None)

    def end(self) -> None:
        """End it at once, with all that it started. One that isn't running is fine."""
        if self._keeper is not None:
            self._keeper.terminate()
            self._keeper.wait()
            self._ended(None)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(-min(_TAIL_BYTES, self.log.stat().st_size), os.SEEK_END)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def _signal(self, number: int) -> None:
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _ended(self, timeout_seconds: float | None) -> bool:
        """Return whether the process has ended, at the latest after a time; None: wait for its end."""
        if self._status is None:
            return True
        if not select.select([self._status], [], [], timeout_seconds)[0]:
            return False
        self._code = int(self._status.readline() or -signal.SIGKILL)
        self._status.close()
        self._status = None
        assert self._keeper is not None
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(0.2)  # longer if something that the server started still runs
        return True

    def _failure(self, message: str, found: str) -> ConfigurationError:
        tail = self.log_tail()
        if "No space left on device" in tail:
            remedy = "The disk is full: free some space, or set TMPDIR to another disk"
        elif "ddress already in use" in tail:
            remedy = "A port is taken: let the server pick free ones, or end who has it (ss -ltnp)"
        else:
            remedy = f"See {self.log}"
        return ConfigurationError(message, found=found, remedy=f"{remedy}. Its log ends with:\n{tail}")
