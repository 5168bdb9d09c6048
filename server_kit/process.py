"""A server's process: started, awaited, stopped in order or killed, always by its own id.

The kernel ends a server whose starter has died (``setpriv --pdeathsig``), so a killed test session leaves
nothing running. The price: a server ends with the thread that started it, so start it in the main thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_cdc_provider.exceptions import ConfigurationError
from server_kit.cache import say


class ServerProcess:
    """One process of one server.

    Args:
        name: What the user calls it.
        log: The file that explains a failed start; its end goes into the error.
    """

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Id of the running process."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

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
        setpriv = shutil.which("setpriv")
        leash = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        with output.open("ab") as stream:
            self._process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the starter only, which stops servers in order
            )

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
                raise self._failure(f"{self.name} ended while starting", f"exit code {self._returncode()}")
            if time.monotonic() - started > timeout_seconds:
                self.kill()
                raise self._failure(f"{self.name} did not start", f"no {what} after {timeout_seconds:.0f} s")
            time.sleep(0.02)
        return time.monotonic() - started

    def stop(self, timeout_seconds: float = 60) -> None:
        """End it in order (SIGTERM), or kill it if that takes too long. One that isn't running is fine."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            say(f"{self.name} did not stop within {timeout_seconds:.0f} s; killing it")
            self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _returncode(self) -> int | None:
        return self._process.returncode if self._process else None

    def _failure(self, message: str, found: str) -> ConfigurationError:
        tail = self.log_tail()
        if "No space left on device" in tail:
            remedy = "The disk is full: free some space, or set TMPDIR to another disk"
        elif "ddress already in use" in tail:
            remedy = "A port is taken: let the server pick free ones, or end who has it (ss -ltnp)"
        else:
            remedy = f"See {self.log}"
        return ConfigurationError(message, found=found, remedy=f"{remedy}. Its log ends with:\n{tail}")
