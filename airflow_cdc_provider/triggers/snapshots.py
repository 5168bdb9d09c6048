"""Trigger on the snapshots of a connector's tables, by what its runs stored in Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_cdc_provider.hooks.state import stored_snapshots_async
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger


class SnapshotsDoneTrigger(ObservingTrigger):
    """Fires when tables are read in full.

    Args:
        connector: Name of the connector.
        tables: The tables; none: all that its runs take snapshots of.
        since: Only snapshots that began at this time or later count, epoch seconds; None for any.
        poll_seconds: Pause between looks.
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
        """Look up what the connector's runs told of snapshots."""
        return Given(snapshots=await stored_snapshots_async(self.connector))

    async def observe(self, given: Given) -> Observation:
        """Tell which tables are read in full."""
        told = given.snapshots or {}
        known: Mapping[str, Any] = told.get("tables", {})
        wanted = self.tables or tuple(sorted(known))
        done = [table for table in wanted if table in known and self._counts(known[table])]
        left = [table for table in wanted if table not in done]
        # Tables whose turn hasn't come aren't told by name yet.
        begun = told.get("remaining") == 0 or bool(self.tables)
        return Observation(begun and not left, {"done": done, "left": left})

    def _counts(self, snapshot: Mapping[str, Any]) -> bool:
        return bool(snapshot["done"]) and (self.since is None or float(snapshot["began_at"]) >= self.since)
