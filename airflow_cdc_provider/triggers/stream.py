"""Trigger of the health of a continuous application, to whose folder the triggerer must have access."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from airflow_cdc_provider.tasks.stream_application import StreamFolder
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class StreamHealthTrigger(ObservingTrigger):
    """Fires when a continuous application stops normally or after ``watch_until``; errors if it is unhealthy.

    Args:
        folder: Its folder.
        heartbeat_timeout_seconds: The longest allowed time between heartbeats.
        max_lag_seconds: The greatest allowed lag; None for no limit.
        watch_until: Epoch seconds at which monitoring ends; None for the application's whole life.
        stop_on_kill: Stop the application if a user kills the waiting task.
        poll_seconds: Pause between observations.
    """

    def __init__(
        self,
        *,
        folder: str,
        heartbeat_timeout_seconds: float,
        max_lag_seconds: float | None = None,
        watch_until: float | None = None,
        stop_on_kill: bool = False,
        poll_seconds: float = 30.0,
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds,
            folder=folder,
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
            max_lag_seconds=max_lag_seconds,
            watch_until=watch_until,
            stop_on_kill=stop_on_kill,
        )
        self.folder = folder
        self.heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self.max_lag_seconds = max_lag_seconds
        self.watch_until = watch_until
        self.stop_on_kill = stop_on_kill

    async def observe(self, given: Given) -> Observation:
        """Read the application's state file."""
        return await asyncio.to_thread(self._look)

    async def on_kill(self) -> None:
        """Stop the application if ``stop_on_kill``."""
        if self.stop_on_kill:
            await asyncio.to_thread(StreamFolder(Path(self.folder)).request_stop)

    def _look(self) -> Observation:
        folder = StreamFolder(Path(self.folder))
        health = folder.health(self.heartbeat_timeout_seconds)
        failure = folder.failure(health, self.max_lag_seconds)
        if failure is not None:
            raise failure
        over = self.watch_until is not None and time.time() >= self.watch_until
        return Observation(over or health.status == "stopped", health.numbers())
