"""Trigger on the health of a continuous application, whose folder the triggerer must see."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from airflow_cdc_provider.hooks.stream_application import StreamFolder
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class StreamHealthTrigger(ObservingTrigger):
    """Fires when a continuous application has ended well or was watched long enough; errors when it ails.

    Args:
        folder: Its folder.
        heartbeat_timeout_seconds: How long it may be without a word.
        max_lag_seconds: The greatest lag allowed, None for any.
        watch_until: Epoch seconds after which watching ends, None for its whole life.
        stop_on_kill: Stop the application when a user kills the waiting task.
        poll_seconds: Pause between looks.
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
        """Look at the state file."""
        return await asyncio.to_thread(self._look)

    async def on_kill(self) -> None:
        """Stop the application, if that was asked for."""
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
