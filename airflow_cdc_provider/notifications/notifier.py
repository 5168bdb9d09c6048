"""Sends notifications to channels; a channel's failure is logged, and never stops the capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.notifications.channels import Channel
from airflow_cdc_provider.notifications.notification import Notification

log = logger("airflow_cdc_provider.notifications")


class Notifier:
    """All channels of a connector. Use it from one thread.

    Args:
        channels: The channels; may be empty.
    """

    def __init__(self, channels: Iterable[Channel] = ()) -> None:
        self._channels = tuple(channels)
        self.sent = 0
        """The number of notifications so far."""
        self.failed: Counter[str] = Counter()
        """The number of notifications that failed, by the channel's name."""

    def send(self, notification: Notification) -> None:
        """Send a notification to each channel."""
        self.sent += 1
        for channel in self._channels:
            try:
                channel.send(notification)
            except Exception as error:  # noqa: BLE001  # no failure of a channel stops the capture
                self._note(channel, 1, f"{notification.type} of {notification.aggregate_type}", error)

    def flush(self) -> None:
        """Flush the channels' buffers."""
        for channel in self._channels:
            waiting = channel.waiting
            try:
                channel.flush()
            except Exception as error:  # noqa: BLE001  # likewise
                self._note(channel, waiting, f"{waiting} of them", error)

    def _note(self, channel: Channel, count: int, what: str, error: Exception) -> None:
        self.failed[channel.name] += count
        log.warning("notification channel %s: %s could not be sent: %s", channel.name, what, error)
