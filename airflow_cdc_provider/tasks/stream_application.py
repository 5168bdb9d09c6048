"""Observes and stops a connector's continuous application through its folder.

One folder per connector, ``<work folder>/<connector>/stream``, has the application's spec, the state file
that it writes after each round (see :mod:`airflow_cdc_provider.jobs.stream`), its log and its result.
Everything that starts, watches or stops the application uses this folder; Airflow stores nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from airflow_cdc_provider.exceptions import CdcError, TransientError, error_from_text

_CLOCK_SECONDS: Final = 60.0
"""A process' start is computed from the time of the machine's start, which moves when a clock is set."""
Status = Literal["absent", "running", "silent", "dead", "stopped", "failed"]


@dataclass(frozen=True)
class Health:
    """Health of a continuous application.

    Args:
        status: ``absent``: never started; ``running``; ``silent``: its process runs but sends no heartbeat;
            ``dead``: it ended without reporting a status; ``stopped``: it ended normally; ``failed``: it
            reported an error.
        state: The last state that it wrote.
        silent_seconds: Time since its last heartbeat.
    """

    status: Status
    state: Mapping[str, Any] = field(default_factory=dict)
    silent_seconds: float = 0.0

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self.status in ("running", "silent")

    def numbers(self) -> dict[str, Any]:
        """Return the values for XCom."""
        names = ("name", "pid", "host", "started_at", "rounds", "batch", "changes", "lag_seconds", "metrics")
        return {"status": self.status, **{name: self.state[name] for name in names if name in self.state}}


@dataclass(frozen=True)
class StreamFolder:
    """The folder of one connector's continuous application."""

    path: Path

    @property
    def state_path(self) -> Path:
        """The state file, which the application writes."""
        return self.path / "state.json"

    @property
    def stop_path(self) -> Path:
        """The file that requests the application to stop."""
        return self.path / "stop"

    @property
    def log_path(self) -> Path:
        """The application's log."""
        return self.path / "stream.log"

    @property
    def spec_path(self) -> Path:
        """The application's spec; the path also identifies its process."""
        return self.path / "spec.json"

    def health(self, heartbeat_timeout_seconds: float) -> Health:
        """Return the application's health.

        Args:
            heartbeat_timeout_seconds: The longest allowed time between heartbeats; longer than its longest
                round.
        """
        try:
            state = json.loads(self.state_path.read_text())
        except (FileNotFoundError, ValueError):
            return Health("absent")
        silent = max(time.time() - float(state["heartbeat_at"]), 0.0)
        if state["status"] != "running":
            return Health("failed" if state["status"] == "failed" else "stopped", state, silent)
        here = state["host"] == socket.gethostname()
        if here and self._process(state) is None:
            return Health("dead", state, silent)
        if silent <= heartbeat_timeout_seconds:
            return Health("running", state, silent)
        return Health("silent" if here else "dead", state, silent)

    def processes(self, application: str) -> list[Any]:
        """List this host's processes of an application, which need not have reported yet."""
        import psutil  # type: ignore[import-untyped]  # comes with Airflow

        command = [application, str(self.spec_path)]
        return [one for one in psutil.process_iter() if _own_command(one)[-2:] == command]

    def request_stop(self) -> None:
        """Request a stop after the application's current commit: by signal on its own host, and by file."""
        with contextlib.suppress(OSError):
            self.stop_path.touch(mode=0o600)
        import psutil

        with contextlib.suppress(FileNotFoundError, ValueError, psutil.Error):
            state = json.loads(self.state_path.read_text())
            if state["status"] == "running" and state["host"] == socket.gethostname():
                process = self._process(state)
                if process is not None:
                    process.terminate()

    def failure(self, health: Health, max_lag_seconds: float | None = None) -> CdcError | None:
        """Return the application's error; None if it is healthy.

        Args:
            health: Its health.
            max_lag_seconds: The greatest allowed lag; None for any.
        """
        name = self.path.parent.name
        text = str(health.state.get("error", ""))
        if health.status == "running" and text:
            return error_from_text(text) or CdcError(text)
        if health.status == "failed":
            reported = error_from_text(text)
            if reported is None or isinstance(reported, TransientError):
                # Transient for the application, which retried; for the observer it has ended.
                return CdcError(f"the continuous application of {name} failed", found=text)
            return reported
        if health.status in ("dead", "silent", "absent"):
            return CdcError(
                f"the continuous application of {name} is {health.status}",
                expected="a heartbeat after each round",
                found=f"none for {health.silent_seconds:.0f} s" if health.state else "no state file",
                remedy=f"see {self.log_path}; a new run of its DAG starts it again",
            )
        lag = health.state.get("lag_seconds")
        if health.status == "running" and max_lag_seconds is not None and (lag or 0) > max_lag_seconds:
            return CdcError(
                f"the continuous application of {name} is behind its source",
                expected=f"a lag of at most {max_lag_seconds:.0f} s",
                found=f"{lag:.0f} s",
                remedy="give it more cores or memory, or find the slow round in its log",
            )
        return None

    def _process(self, state: Mapping[str, Any]) -> Any:
        """Return the process on this host that wrote a state; None if it has ended.

        Another process that has got its number started after the last heartbeat.
        """
        import psutil

        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(state["pid"]))
            started_before = process.create_time() < float(state["heartbeat_at"]) + _CLOCK_SECONDS
            if started_before and str(self.spec_path) in _own_command(process):
                return process
        return None


def _own_command(process: Any) -> list[str]:
    """Return a process' command line; none if it has ended, or is another user's: anyone may use the same."""
    import psutil

    with contextlib.suppress(psutil.Error):
        if process.uids().effective == os.geteuid():
            command: list[str] = process.cmdline()
            return command
    return []
