"""Options of snapshot notifications. Imports little: read when DAG files are parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import wrong_topic
from airflow_cdc_provider.options import option

ChannelName = Literal["log", "airflow", "table", "callback", "sink"]


def _function(value: str) -> str:
    return "" if not value or re.fullmatch(r"[\w.]+:\w+", value) else "package.module:function"


@dataclass(frozen=True)
class NotificationOptions:
    """Channels for notifications about the progress of snapshots."""

    channels: tuple[ChannelName, ...] = option(
        "log: log of the job; airflow: log and XCom of the Airflow task, and metric cdc.notifications; "
        "table: table <connector>_notifications in the lake; callback: a Python function, called in the "
        "Spark driver; sink: a Kafka topic",
        (),
    )
    topic: str = option(
        "Channel sink: topic of the notifications, which have Debezium's format and the converters of events",
        "",
        check=wrong_topic,
    )
    connection: str = option(
        "Channel sink: Airflow connection of type kafka; default: publish.kafka.connection", ""
    )
    callback: str = option(
        "Channel callback: package.module:function, called synchronously with the notification as a mapping",
        "",
        check=_function,
    )
    row_counts: bool = option(
        "Include total_rows_scanned for tables of initial snapshots; false omits it, as Debezium does", True
    )

    @property
    def to_topic(self) -> bool:
        """Whether notifications are sent to a topic."""
        return "sink" in self.channels

    def __post_init__(self) -> None:
        """Validate combinations of options.

        Raises:
            ConfigurationError: Options contradict each other.
        """
        if ("callback" in self.channels) != bool(self.callback):
            raise ConfigurationError(
                "options notifications.channels and notifications.callback require each other",
                expected="the function, and callback among the channels",
                found=self.callback or "no function",
            )
        if self.to_topic != bool(self.topic) or (self.connection and not self.to_topic):
            raise ConfigurationError(
                "options notifications.channels and notifications.topic require each other",
                expected="notifications.topic, and sink among notifications.channels",
                found=f"topic {self.topic}" if self.topic else "no topic",
            )
