"""Base of triggers of a database's change feed after a connector's stored offset, for all databases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from airflow_cdc_provider.tasks.state import stored_offset_async
from airflow_cdc_provider.triggers.observing import Given, Observation, ObservingTrigger

if TYPE_CHECKING:
    from airflow_cdc_provider.hooks.source import CdcHook


class LagReport(Protocol):
    """Result of a check of a feed; XCom has all its fields."""

    @property
    def lag_seconds(self) -> float | None:
        """Age of the oldest uncaptured change; None if unknown."""
        ...


class Pending(LagReport, Protocol):
    """Result of a check for new changes."""

    @property
    def news(self) -> bool:
        """Whether there are changes after the stored offset, or there is no offset yet."""
        ...


class FeedTrigger(ObservingTrigger):
    """Checks a feed for changes after the stored offset.

    Args:
        source_conn_id: The database's connection.
        connector: Name of the connector whose stored offset is used.
        feed: Arguments of the database's ``Feed``.
        poll_seconds: Pause between observations.
        arguments: The subclass's arguments.
    """

    def __init__(
        self,
        *,
        source_conn_id: str,
        connector: str,
        feed: Mapping[str, Any],
        poll_seconds: float,
        **arguments: Any,
    ) -> None:
        super().__init__(
            poll_seconds=poll_seconds,
            source_conn_id=source_conn_id,
            connector=connector,
            feed=dict(feed),
            **arguments,
        )
        self.source_conn_id = source_conn_id
        self.connector = connector
        self.feed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in feed.items()}

    @abstractmethod
    def hook(self) -> CdcHook:
        """Return the hook of the connection."""

    @abstractmethod
    async def look(self, given: Given) -> LagReport:
        """Check once."""

    async def given(self) -> Given:
        """Look up the connection and the stored offset."""
        return Given(await self.hook().connection_values_async(), await stored_offset_async(self.connector))


class NewsTrigger(FeedTrigger):
    """Fires when there are changes after the stored offset. Arguments as for :class:`FeedTrigger`."""

    def __init__(self, *, poll_seconds: float = 10.0, **arguments: Any) -> None:
        super().__init__(poll_seconds=poll_seconds, **arguments)

    @abstractmethod
    async def look(self, given: Given) -> Pending:
        """Check once."""

    async def observe(self, given: Given) -> Observation:
        """Check for the first new change."""
        pending = await self.look(given)
        return Observation(pending.news, dict(vars(pending)))


class LagTrigger(FeedTrigger):
    """Fires when the oldest uncaptured change is at most ``max_lag_seconds`` old.

    Args:
        max_lag_seconds: The greatest allowed age.
        poll_seconds: Pause between observations.
        arguments: Further arguments, as for :class:`FeedTrigger`.
    """

    def __init__(self, *, max_lag_seconds: float, poll_seconds: float = 30.0, **arguments: Any) -> None:
        super().__init__(poll_seconds=poll_seconds, max_lag_seconds=max_lag_seconds, **arguments)
        self.max_lag_seconds = max_lag_seconds

    async def observe(self, given: Given) -> Observation:
        """Measure the lag."""
        pending = await self.look(given)
        near = pending.lag_seconds is not None and pending.lag_seconds <= self.max_lag_seconds
        return Observation(near, dict(vars(pending)))
