"""Options of signals, and of the snapshots beside the stream that they ask for. Light: read by DAG files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.settings import wrong_topic, wrong_tuning
from airflow_cdc_provider.options import option
from airflow_cdc_provider.signals.names import KAFKA, check_names
from airflow_cdc_provider.sources.mongodb.options import MongodbOptions


def _namespace(value: str) -> str:
    database, _, collection = value.partition(".")
    return "" if not value or (database and collection) else "database.collection"


def _addresses(value: str) -> str:
    good = all(
        re.fullmatch(r"(PLAINTEXT://)?[\w.-]+(:\d{1,5})?|\[[0-9a-fA-F:]+\]:\d{1,5}", one.strip())
        for one in value.split(",")
    )
    return "" if not value or good else "host:port, with commas between several"


def _group(value: str) -> str:
    return "" if value.strip() else "a name"


@dataclass(frozen=True)
class SignalTopicOptions:
    """Where the topic of signals is, and how it is read."""

    connection: str = option(
        "Airflow connection of type kafka, whose extra has librdkafka's settings; default: "
        "publish.kafka.connection",
        "",
    )
    bootstrap_servers: str = option(
        "Brokers that ask for no login, in place of a connection: host:port, with commas",
        "",
        check=_addresses,
    )
    topic: str = option("The topic, of one partition; default: <topic prefix>-signal", "", check=wrong_topic)
    group_id: str = option(
        "Consumer group to which it is committed how far signals were read; what counts is kept in the lake. "
        "Connectors that share a topic should each have their own",
        "kafka-signal",
        check=_group,
    )
    poll_timeout_seconds: float = option("How long one poll waits for messages", 0.1, minimum=0.0)
    consumer: Mapping[str, Any] = option(
        "Settings of librdkafka for the consumer, passed on as they are. None that carries a secret. "
        "auto.offset.reset says where a connector begins that has read nothing: earliest, or latest",
        {},
    )


@dataclass(frozen=True)
class SignalOptions:
    """How a running connector is told what to do."""

    channels: tuple[str, ...] = option(
        "Ways by which signals come. source: documents inserted into `collection`; kafka: messages of a "
        "topic; file: lines of `file`; airflow: CdcSignalOperator and airflow cdc signal; "
        "package.module:Class: a channel of your own",
        ("source", "airflow"),
        check=check_names,
    )
    collection: str = option(
        "MongoDB's database.collection that channel source watches; captured whatever `tables` says",
        "",
        check=_namespace,
    )
    file: str = option(
        "File of channel file, on the machine of Spark's driver; a relative path lies in the connector's "
        "folder of the work folder",
        "file-signals.txt",
    )
    kafka: SignalTopicOptions = option("Where the messages of channel kafka are", SignalTopicOptions)
    poll_interval_seconds: float = option(
        "How often channels but source are read while a stream runs", 5.0, minimum=0.0
    )
    settings: Mapping[str, Any] = option("Settings of channels of your own", {})

    def conn_id(self, published: str) -> str:
        """Return the Airflow connection of the topic of signals; empty where none is needed.

        Args:
            published: The one that events are published by, which stands for it.
        """
        if KAFKA not in self.channels or self.kafka.bootstrap_servers:
            return ""
        return self.kafka.connection or published


@dataclass(frozen=True)
class IncrementalOptions:
    """How a snapshot beside the stream reads."""

    chunk_size: int = option("Rows asked of the source at a time", 1024, minimum=1)
    chunks_per_commit: int = option(
        "Chunks that one commit takes; 0: as many as it reads in some seconds", 0, minimum=0
    )
    seconds_per_run: float = option(
        "How long a sync reads at most, before it merges and ends; the next one goes on. 0: until all is "
        "read. A stream reads as long as its commit interval, then captures and merges",
        0.0,
        minimum=0.0,
    )
    watermarks: Literal["none", "insert_insert", "insert_delete"] = option(
        "Documents written to signals.collection around each chunk: a user needs the right to. none: the "
        "order of events needs none",
        "none",
    )


def refuse_signals_that_cannot_come(
    source: object, signals: SignalOptions, incremental: IncrementalOptions
) -> None:
    """Refuse options of which signals would never arrive, or whose snapshots could not be taken.

    Raises:
        ConfigurationError: With what goes together.
    """
    if incremental.watermarks != "none" and not signals.collection:
        raise ConfigurationError(
            f"option snapshot.incremental.watermarks: {incremental.watermarks} needs a place to write to",
            expected="signals.collection",
        )
    if not signals.collection:
        return
    if not isinstance(source, MongodbOptions):
        raise ConfigurationError(
            "option signals.collection is for source mongodb", expected="signals by channel file or airflow"
        )
    database = signals.collection.partition(".")[0]
    if source.scope == "database" and database != source.target:
        raise ConfigurationError(
            "option signals.collection is outside of what the change stream watches",
            expected=f"a collection of the database {source.target}",
            found=signals.collection,
        )
    if source.scope == "collection" and signals.collection != source.target:
        raise ConfigurationError(
            "option signals.collection is outside of what the change stream watches",
            expected="source.scope deployment or database, or signals by channel file or airflow",
            found=f"scope collection of {source.target}",
        )


def refuse_signal_topic(signals: SignalOptions, published: str) -> None:
    """Refuse a topic of signals that can't be found, or that nobody would read.

    Args:
        signals: The choices.
        published: The Airflow connection that events are published by.

    Raises:
        ConfigurationError: With what goes together.
    """
    topic = signals.kafka
    if KAFKA not in signals.channels:
        if topic != SignalTopicOptions():
            raise ConfigurationError(
                "options of signals.kafka say nothing without their channel",
                expected="kafka among signals.channels",
            )
        return
    if expected := wrong_tuning(topic.consumer):  # what was found may be a secret
        raise ConfigurationError("option signals.kafka.consumer is wrong", expected=expected)
    if topic.connection and topic.bootstrap_servers:
        raise ConfigurationError(
            "options signals.kafka.connection and signals.kafka.bootstrap_servers exclude each other",
            expected="the connection, which has the address in its extra; or brokers that ask for no login",
        )
    if not (topic.connection or topic.bootstrap_servers or published):
        raise ConfigurationError(
            "channel kafka needs a broker to read signals from",
            expected="signals.kafka.connection, signals.kafka.bootstrap_servers or publish.kafka.connection",
        )
