"""Options of signals and incremental snapshots. Imports little: read when DAG files are parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import wrong_topic, wrong_tuning
from airflow_cdc_provider.options import option
from airflow_cdc_provider.signals.names import KAFKA, SOURCE, check_names


def _namespace(value: str) -> str:
    database, _, collection = value.partition(".")
    return "" if not value or (database and collection) else "database.collection"


def _addresses(value: str) -> str:
    good = all(
        re.fullmatch(r"(PLAINTEXT://)?[\w.-]+(:\d{1,5})?|\[[0-9a-fA-F:]+\]:\d{1,5}", one.strip())
        for one in value.split(",")
    )
    return "" if not value or good else "comma-separated host:port"


def _group(value: str) -> str:
    return "" if value.strip() else "a non-empty name"


@dataclass(frozen=True)
class SignalTopicOptions:
    """Options of the signal topic."""

    connection: str = option(
        "Airflow connection of type kafka; its extra has librdkafka settings. Default: "
        "publish.kafka.connection",
        "",
    )
    bootstrap_servers: str = option(
        "Brokers without authentication, instead of a connection: comma-separated host:port",
        "",
        check=_addresses,
    )
    topic: str = option(
        "Signal topic with one partition; default: <topic prefix>-signal", "", check=wrong_topic
    )
    group_id: str = option(
        "Consumer group for committed offsets, which are informational: the position is stored in the lake. "
        "Connectors that share a topic should use different groups",
        "kafka-signal",
        check=_group,
    )
    poll_timeout_seconds: float = option("Timeout of one poll", 0.1, minimum=0.0)
    consumer: Mapping[str, Any] = option(
        "librdkafka settings of the consumer, passed through. Secrets are not allowed. auto.offset.reset: "
        "where a new connector starts, earliest or latest",
        {},
    )


@dataclass(frozen=True)
class SignalOptions:
    """Channels that accept signals."""

    channels: tuple[str, ...] = option(
        "Signal channels. source: documents inserted into `collection`; kafka: messages of a topic; file: "
        "lines of `file`; airflow: CdcSignalOperator and airflow cdc signal; package.module:Class: a custom "
        "channel",
        ("source", "airflow"),
        check=check_names,
    )
    collection: str = option(
        "MongoDB: database.collection of channel source; always captured, regardless of `tables`",
        "",
        check=_namespace,
    )
    file: str = option(
        "File of channel file on the Spark driver's machine; relative paths refer to the connector's "
        "folder in the work folder",
        "file-signals.txt",
    )
    kafka: SignalTopicOptions = option("Topic of channel kafka", SignalTopicOptions)
    poll_interval_seconds: float = option(
        "Interval between reads of all channels except source, while a stream runs", 5.0, minimum=0.0
    )
    unrestricted_filters: bool = option(
        "Allow signals any filter of rows: code that MongoDB's server runs ($where, $function), "
        "and CQL or SQL beyond comparisons of columns. Whoever writes to a channel chooses the filters",
        False,
    )
    settings: Mapping[str, Any] = option(
        "Settings of custom channels; secrets as ${env:NAME} or ${file:PATH}", {}, secret=True
    )

    @property
    def listens_to_source(self) -> bool:
        """Whether signals arrive in the source's own feed."""
        return SOURCE in self.channels and bool(self.collection)

    def conn_id(self, published: str) -> str:
        """Return the Airflow connection of the signal topic; empty if none is needed.

        Args:
            published: Airflow connection for publishing, used by default.
        """
        if KAFKA not in self.channels or self.kafka.bootstrap_servers:
            return ""
        return self.kafka.connection or published


@dataclass(frozen=True)
class IncrementalOptions:
    """Options of incremental snapshots."""

    chunk_size: int = option("Rows per chunk", 1024, minimum=1)
    chunks_per_commit: int = option(
        "Chunks per commit; 0: as many as are read within a few seconds", 0, minimum=0
    )
    max_seconds_per_run: float = option(
        "Maximum time that a sync reads before it merges and ends; the next sync continues. 0: until the "
        "snapshot is complete. A stream reads for its commit interval, then captures and merges",
        0.0,
        minimum=0.0,
    )
    watermarks: Literal["none", "insert_insert", "insert_delete"] = option(
        "Watermark documents written to signals.collection around each chunk, which requires write access. "
        "none: correct order doesn't depend on them",
        "none",
    )


def validate_signals(signals: SignalOptions, incremental: IncrementalOptions) -> None:
    """Validate options of signals and incremental snapshots.

    Raises:
        ConfigurationError: Incremental snapshots are impossible.
    """
    if incremental.watermarks != "none" and not signals.collection:
        raise ConfigurationError(
            f"option snapshot.incremental.watermarks: {incremental.watermarks} requires a collection for "
            "watermarks",
            expected="signals.collection",
        )


def validate_signal_topic(signals: SignalOptions, published: str) -> None:
    """Validate options of the signal topic.

    Args:
        signals: The options.
        published: Airflow connection for publishing.

    Raises:
        ConfigurationError: The topic has no brokers, or its channel is disabled.
    """
    topic = signals.kafka
    if KAFKA not in signals.channels:
        if topic != SignalTopicOptions():
            raise ConfigurationError(
                "options of signals.kafka have no effect without their channel",
                expected="kafka among signals.channels",
            )
        return
    if expected := wrong_tuning(topic.consumer):  # the value may be a secret
        raise ConfigurationError("invalid value for option signals.kafka.consumer", expected=expected)
    if topic.connection and topic.bootstrap_servers:
        raise ConfigurationError(
            "options signals.kafka.connection and signals.kafka.bootstrap_servers exclude each other",
            expected="the connection, with brokers in its extra; or brokers without authentication",
        )
    if not (topic.connection or topic.bootstrap_servers or published):
        raise ConfigurationError(
            "channel kafka has no brokers",
            expected="signals.kafka.connection, signals.kafka.bootstrap_servers or publish.kafka.connection",
        )
