"""Who is told of snapshots: the option ``notifications``. Light: read by DAG files."""

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
    """Who is told when snapshots begin, go on and end."""

    channels: tuple[ChannelName, ...] = option(
        "log: the job's log; airflow: the task that runs the job, in its log, its XCom and the metric "
        "cdc.notifications; table: a table of the lake, <connector>_notifications; callback: a function of "
        "yours, called in the job's driver; sink: a topic of Kafka",
        (),
    )
    topic: str = option(
        "With channel sink: the topic, to which notifications go in Debezium's form, written as events are",
        "",
        check=wrong_topic,
    )
    connection: str = option(
        "With channel sink: Airflow connection of type kafka; default: publish.kafka.connection", ""
    )
    callback: str = option(
        "With channel callback: the function, package.module:function. It gets a notification as a mapping; "
        "the capture waits for it",
        "",
        check=_function,
    )
    row_counts: bool = option(
        "Tell total_rows_scanned of tables of initial snapshots; false leaves it out, as Debezium does", True
    )

    @property
    def to_topic(self) -> bool:
        """Whether they go to a topic."""
        return "sink" in self.channels

    def __post_init__(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ConfigurationError: With what goes together.
        """
        if ("callback" in self.channels) != bool(self.callback):
            raise ConfigurationError(
                "options notifications.channels and notifications.callback go together",
                expected="the function, and callback among the channels",
                found=self.callback or "no function",
            )
        if self.to_topic != bool(self.topic) or (self.connection and not self.to_topic):
            raise ConfigurationError(
                "options of notifications for a topic go together",
                expected="notifications.topic, and sink among notifications.channels",
                found=f"topic {self.topic}" if self.topic else "no topic",
            )
