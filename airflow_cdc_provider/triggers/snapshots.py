"""Trigger of the snapshots of a connector's tables, as its runs stored them in Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_cdc_provider.tasks.state import stored_async
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class SnapshotsDoneTrigger(ObservingTrigger):
    """Fires when the snapshots of tables are complete.

    Args:
        connector: Name of the connector.
        tables: The tables; empty for all tables of which its runs take snapshots.
        since: Only count snapshots that started at or after this time, epoch seconds; None for all.
        poll_seconds: Pause between observations.
    """

    def __init__(
        self,
        *,
        connector: str,
        tables: Sequence[str] = (),
        since: float | None = None,
        poll_seconds: float = 30.0,
    ) -> None:
        super().__init__(poll_seconds=poll_seconds, connector=connector, tables=list(tables), since=since)
        self.connector = connector
        self.tables = tuple(tables)
        self.since = since

    async def given(self) -> Given:
        """Return the snapshots that the connector's runs reported."""
        return Given(snapshots=await stored_async(self.connector, "snapshots"))

    async def observe(self, given: Given) -> Observation:
        """Compare the requested tables with the complete snapshots."""
        reported = given.snapshots or {}
        known: Mapping[str, Any] = reported.get("tables", {})
        selected = self.tables or tuple(sorted(known))
        done = [table for table in selected if table in known and self._counts(known[table])]
        left = [table for table in selected if table not in done]
        # Tables whose snapshots haven't started aren't reported by name yet.
        started = reported.get("remaining") == 0 or bool(self.tables)
        return Observation(started and not left, {"done": done, "remaining": left})

    def _counts(self, snapshot: Mapping[str, Any]) -> bool:
        return bool(snapshot["done"]) and (self.since is None or float(snapshot["started_at"]) >= self.since)
