"""The systems that a job exchanges messages with, apart from its source and its lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.channels.notification_table import TableChannel
from airflow_cdc_provider.jobs.channels.notification_topic import topic_of_notifications
from airflow_cdc_provider.jobs.channels.signal_topic import topic_of_signals
from airflow_cdc_provider.jobs.context.job import Job
from airflow_cdc_provider.jobs.spec import KAFKA, NOTIFICATIONS_KAFKA, PULSAR, REGISTRY, SIGNALS_KAFKA
from airflow_cdc_provider.lake.iceberg import IcebergLake
from airflow_cdc_provider.notifications import channels as notification_channels
from airflow_cdc_provider.notifications.notifier import Notifier
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent
from airflow_cdc_provider.notifications.snapshots import InitialSnapshot, incremental_notification
from airflow_cdc_provider.signals.channels import Channel, ChannelContext, open_channels
from airflow_cdc_provider.signals.names import KAFKA as KAFKA_SIGNALS


@dataclass(frozen=True)
class Connections:
    """Values of connections; all of them are secret.

    Args:
        kafka: librdkafka settings to publish events with.
        pulsar: Values to publish events to Pulsar with.
        registry: Values of the schema registry.
        signals_kafka: librdkafka settings for signals.
        notifications_kafka: librdkafka settings for notifications.
    """

    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pulsar: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry: Mapping[str, Any] = field(default_factory=dict, repr=False)
    signals_kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    notifications_kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def split_off(cls, values: Mapping[str, Any]) -> tuple[Connections, dict[str, Any]]:
        """Split the values of a job into these connections and the values of the source's connection."""
        names = (KAFKA, PULSAR, REGISTRY, SIGNALS_KAFKA, NOTIFICATIONS_KAFKA)
        own = {name: value for name, value in values.items() if name not in names}
        return cls(*(values.get(name, {}) for name in names)), own


class Clients:
    """Clients of a job; each is opened on first use.

    Args:
        job: The job.
        lake: The lake, for notifications in a table.
        connections: Connection values.

    Attributes:
        connections: Connection values.
        heartbeats: The sender of heartbeats in this job, None if it sent none.
    """

    def __init__(self, job: Job, lake: IcebergLake, connections: Connections) -> None:
        self.connections = connections
        self.heartbeats: Heartbeats | None = None
        self._spec, self._connector, self._lake = job.spec, job.connector, lake

    @cached_property
    def notifier(self) -> Notifier:
        """Sends notifications of snapshots to the declared channels."""
        chosen = self._connector.notifications
        channels: list[notification_channels.Channel] = []
        for name in dict.fromkeys(chosen.channels):
            if name == "log":
                channels.append(notification_channels.LogChannel())
            elif name == "callback":
                channels.append(notification_channels.CallbackChannel.load(chosen.callback))
            elif name == "table":
                channels.append(TableChannel(self._lake, self._connector.notifications_table))
            elif name == "sink":
                broker, registry = self.connections.notifications_kafka, self.connections.registry
                channels.append(topic_of_notifications(self._connector, broker, registry))
            elif (path := self._spec.notifications_path) is not None:
                channels.append(notification_channels.FileChannel(path))
        return Notifier(channels)

    @cached_property
    def snapshot_notifier(self) -> InitialSnapshot:
        """Sends notifications of the snapshots that this job takes."""
        counts = self._connector.notifications.row_counts
        return InitialSnapshot(self.notifier, self._connector.topic_prefix, row_counts=counts)

    def notify(self, event: SnapshotEvent) -> None:
        """Send a notification of an event of a requested snapshot."""
        notification = incremental_notification(event, self._connector.topic_prefix)
        if notification is not None:
            self.notifier.send(notification)
            if event.kind in ("paused", "completed", "aborted", "skipped"):
                self.notifier.flush()

    @cached_property
    def channels(self) -> Sequence[Channel]:
        """The channels of signals except the source's feed.

        Raises:
            ConfigurationError: A channel can't be opened.
        """
        folder = str(self._spec.options.get("signals_path", ""))
        options = self._connector.signals
        places = ChannelContext(
            Path(folder) if folder else None, options.file, self._connector.name, options.settings
        )
        builders = {KAFKA_SIGNALS: lambda: topic_of_signals(self._connector, self.connections.signals_kafka)}
        return open_channels(options.channels, places, builders)

    def close(self) -> None:
        """Flush notifications, then close the channels of signals and the sender of heartbeats."""
        if "notifier" in vars(self):
            self.notifier.flush()
        for channel in vars(self).pop("channels", ()):
            channel.close()
        if self.heartbeats is not None:
            self.heartbeats.close()
