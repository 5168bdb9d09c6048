"""Triggers on what a database's feed has after a connector's stored offset, whichever database it is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from airflow_cdc_provider.hooks.state import stored_offset_async
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger

if TYPE_CHECKING:
    from airflow_cdc_provider.hooks.source import CdcHook


class TellsLag(Protocol):
    """What a look at a feed tells; all of it goes to XCom."""

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest change that isn't captured; None if it isn't known."""
        ...


class Pending(TellsLag, Protocol):
    """What a look tells that finds changes."""

    @property
    def news(self) -> bool:
        """Whether there are changes after the stored offset, or no offset yet."""
        ...


class FeedTrigger(ObservingTrigger):
    """Looks at a feed after the stored offset.

    Args:
        source_conn_id: The database's connection.
        connector: Name of the connector whose stored offset counts.
        feed: What of the database is looked at: arguments of its ``Feed``.
        poll_seconds: Pause between looks.
        question: The subclass's arguments.
    """

    def __init__(
        self,
        *,
        source_conn_id: str,
        connector: str,
        feed: Mapping[str, Any],
        poll_seconds: float,
        **question: Any,
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds,
            source_conn_id=source_conn_id,
            connector=connector,
            feed=dict(feed),
            **question,
        )
        self.source_conn_id = source_conn_id
        self.connector = connector
        self.feed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in feed.items()}

    @abstractmethod
    def hook(self) -> CdcHook:
        """Return the hook of the connection."""

    @abstractmethod
    async def look(self, given: Given) -> TellsLag:
        """Look once."""

    async def given(self) -> Given:
        """Look up the connection and the stored offset."""
        return Given(await self.hook().connection_values_async(), await stored_offset_async(self.connector))


class NewsTrigger(FeedTrigger):
    """Fires when there are changes after the stored offset. Arguments as for :class:`FeedTrigger`."""

    def __init__(self, *, poll_seconds: float = 10.0, **looked_at: Any) -> None:
        super().__init__(poll_seconds=poll_seconds, **looked_at)

    @abstractmethod
    async def look(self, given: Given) -> Pending:
        """Look once."""

    async def observe(self, given: Given) -> Observation:
        """Look for the first change."""
        pending = await self.look(given)
        return Observation(pending.news, dict(vars(pending)))


class LagTrigger(FeedTrigger):
    """Fires when the oldest change not captured is young enough.

    Args:
        max_lag_seconds: The greatest age allowed.
        poll_seconds: Pause between looks.
        looked_at: Further arguments as for :class:`FeedTrigger`.
    """

    def __init__(self, *, max_lag_seconds: float, poll_seconds: float = 30.0, **looked_at: Any) -> None:
        super().__init__(poll_seconds=poll_seconds, max_lag_seconds=max_lag_seconds, **looked_at)
        self.max_lag_seconds = max_lag_seconds

    async def observe(self, given: Given) -> Observation:
        """Measure the lag."""
        pending = await self.look(given)
        near = pending.lag_seconds is not None and pending.lag_seconds <= self.max_lag_seconds
        return Observation(near, dict(vars(pending)))
