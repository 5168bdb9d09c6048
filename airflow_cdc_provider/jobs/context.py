"""What the stages of one application share: session, source and lake tables."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.changes import record
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError
from airflow_cdc_provider.jobs.channels.heartbeats import Heartbeats
from airflow_cdc_provider.jobs.channels.notification_table import TableChannel
from airflow_cdc_provider.jobs.channels.notification_topic import topic_of_notifications
from airflow_cdc_provider.jobs.channels.signal_topic import topic_of_signals
from airflow_cdc_provider.jobs.metrics.incremental import after
from airflow_cdc_provider.jobs.spark.session import build_lake, build_session
from airflow_cdc_provider.jobs.spec import (
    KAFKA,
    NOTIFICATIONS_KAFKA,
    PULSAR,
    REGISTRY,
    SIGNALS_KAFKA,
    IncrementalResult,
    JobSpec,
    SnapshotResult,
)
from airflow_cdc_provider.lake.changes_table import ChangesTable
from airflow_cdc_provider.lake.mirror import Mirror
from airflow_cdc_provider.notifications import channels as notification_channels
from airflow_cdc_provider.notifications.notifier import Notifier
from airflow_cdc_provider.notifications.snapshot_events import SnapshotEvent
from airflow_cdc_provider.notifications.snapshots import InitialSnapshot, incremental_notification
from airflow_cdc_provider.signals.channels import Channel, ChannelPlaces, open_channels
from airflow_cdc_provider.signals.names import KAFKA as KAFKA_SIGNALS
from airflow_cdc_provider.signals.names import SOURCE
from airflow_cdc_provider.sources.abilities import HearsStop, LearnsSchemas, ReadingCounts
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.scylla.options import ScyllaOptions
from airflow_cdc_provider.sources.vitess.options import VitessOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_cdc_provider.lake.iceberg import IcebergLake
    from airflow_cdc_provider.sources.base import Source

log = logging.getLogger("airflow_cdc_provider.jobs")


@dataclass
class SignalsMemory:
    """What a job remembers of signals from round to round; a new job needs none of it.

    Args:
        looked_through: The newest batch of the changes table that was looked through for signals.
        polled_at: When channels were last asked in between, by the monotonic clock.
        chunks: How many chunks the next commit of a snapshot beside the stream takes.
        troubles: By channel, why it could not be read when it was last asked.
    """

    looked_through: int = -1
    polled_at: float = 0.0
    chunks: int = 8
    troubles: dict[str, str] = field(default_factory=dict)


@dataclass
class JobContext:
    """Everything that a stage works with.

    Args:
        spec: What was asked.
        connector: The declaration.
        spark: The session.
        lake: The lake.
        changes: The connector's changes table.
        source: The source.
        stopping: Tells whether a clean stop was asked for; long loops look at it between steps.
        snapshot: How far the snapshot came that this job makes, None without one; also when it fails.
        uncommitted: Feeds whose segments were in a batch that could not be committed.
        reading: What tasks did to read for all captures of this job.
        last_transactions: By feed, the last transaction that was captured.
        incremental: How far the newest snapshot beside the stream came, None without one.
        signals: What it remembers of signals.
        heartbeats: What has sent heartbeats in this job, None if nothing has.
        kafka: Librdkafka's settings of the connection that events are published by; shown nowhere.
        pulsar: Values of the connection that events are published to Pulsar by; shown nowhere.
        registry: Values of the schema registry's connection; shown nowhere.
        signals_kafka: Librdkafka's settings of the connection that signals come by; shown nowhere.
        notifications_kafka: Likewise of the one that notifications go by.
        afterwards: What is to be done when the job's result is written; it can't fail the job.
    """

    spec: JobSpec
    connector: Connector
    spark: SparkSession
    lake: IcebergLake
    changes: ChangesTable
    source: Source
    stopping: Callable[[], bool] = field(default=lambda: False)
    snapshot: SnapshotResult | None = None
    uncommitted: Sequence[str] = ()
    reading: ReadingCounts = field(default_factory=Counter)
    last_transactions: dict[str, str] = field(default_factory=dict)
    incremental: IncrementalResult | None = None
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pulsar: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry: Mapping[str, Any] = field(default_factory=dict, repr=False)
    signals_kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    notifications_kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    signals: SignalsMemory = field(default_factory=SignalsMemory, init=False)
    heartbeats: Heartbeats | None = field(default=None, init=False, repr=False)
    afterwards: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False)
    _channels: list[Channel] | None = field(default=None, init=False, repr=False)
    _learned_through: int = field(default=-1, init=False, repr=False)

    @cached_property
    def notifier(self) -> Notifier:
        """Who is told of snapshots."""
        chosen = self.connector.notifications
        channels: list[notification_channels.Channel] = []
        for name in dict.fromkeys(chosen.channels):
            if name == "log":
                channels.append(notification_channels.LogChannel())
            elif name == "callback":
                channels.append(notification_channels.CallbackChannel.load(chosen.callback))
            elif name == "table":
                channels.append(TableChannel(self.lake, self.connector.notifications_table))
            elif name == "sink":
                broker, registry = self.notifications_kafka, self.registry
                channels.append(topic_of_notifications(self.connector, broker, registry))
            elif (path := self.spec.notifications_path) is not None:
                channels.append(notification_channels.FileChannel(path))
        return Notifier(channels)

    @cached_property
    def tells_of_snapshots(self) -> InitialSnapshot:
        """What tells of the snapshots that this job takes."""
        counts = self.connector.notifications.row_counts
        return InitialSnapshot(self.notifier, self.connector.topic_prefix, row_counts=counts)

    def happened(self, event: SnapshotEvent) -> None:
        """Log what became of a snapshot that was asked for, count it and notify of it."""
        log.info("snapshot %s of signal %s: %s", event.kind, event.request_id, event.table or event.tables)
        self.incremental = after(self.incremental, event)
        notification = incremental_notification(event, self.connector.topic_prefix)
        if notification is not None:
            self.notifier.send(notification)
            if event.kind in ("paused", "completed", "aborted", "skipped"):
                self.notifier.flush()

    @property
    def channels(self) -> Sequence[Channel]:
        """The ways by which signals come, but the source's feed; they are opened when first asked for.

        Raises:
            ConfigurationError: One can't be built.
        """
        if self._channels is None:
            folder = str(self.spec.options.get("signals_path", ""))
            options = self.connector.signals
            places = ChannelPlaces(
                Path(folder) if folder else None, options.file, self.connector.name, options.settings
            )
            makers = {KAFKA_SIGNALS: lambda: topic_of_signals(self.connector, self.signals_kafka)}
            self._channels = open_channels(options.channels, places, makers)
        return self._channels

    @property
    def listens_to_source(self) -> bool:
        """Whether signals come in the source's own feed."""
        options = self.connector.signals
        return SOURCE in options.channels and bool(options.collection)

    def close(self) -> None:
        """End the channels of signals and what sends heartbeats; notifications are kept first."""
        if "notifier" in vars(self):
            self.notifier.flush()
        for channel in self._channels or ():
            channel.close()
        self._channels = None
        if self.heartbeats is not None:
            self.heartbeats.close()

    def learn(self, through: int = 0) -> None:
        """Teach the source what is recorded of its schema, unless it has learned that already.

        Args:
            through: The batch up to which it must know; 0: it is enough that it has learned at all.
        """
        if through > self._learned_through and isinstance(self.source, LearnsSchemas):
            self._learned_through = self.changes.state().batch
            if self.changes.table.exists():
                self.source.learn(self.changes.lasting(record.SCHEMA).drop("batch").toArrow())

    def tables(self) -> list[str]:
        """List the tables that this job is for.

        Raises:
            ConfigurationError: The spec names a table that the source doesn't have or the declaration leaves
                out; or two tables would be kept under one name.
        """
        self.learn()
        known = self.source.tables()
        self._require_own_names(known)
        wanted = list(self.spec.tables)
        missing = sorted(set(wanted) - set(known))
        if missing:
            raise ConfigurationError(
                f"the job asks for {', '.join(missing)}",
                expected=f"tables of the connector {self.connector.name}: {', '.join(known) or 'none'}",
                remedy="check the name, and the connector's tables and exclude_tables",
            )
        return wanted or known

    def require_within_guardrail(self) -> None:
        """Refuse to go on with more tables than the declaration allows, where it says so.

        Raises:
            ConfigurationError: There are more.
        """
        guardrail = self.connector.guardrail
        if not guardrail.max_tables:
            return
        self.learn()
        text = self.connector.beyond_guardrail(self.source.tables())
        if text and guardrail.action == "fail":
            raise ConfigurationError(
                text, remedy="check tables and exclude_tables, or raise the limit; nothing was captured"
            )
        if text:
            log.warning("%s: %s", self.connector.name, text)

    def mirror(self, table: str) -> Mirror:
        """Return the mirror of a source table."""
        apart = self.connector.lake.statics == "table"
        return Mirror(self.lake, self.connector.mirror_table(table), statics_apart=apart)

    def _require_own_names(self, tables: Sequence[str]) -> None:
        """Refuse tables of which one's mirror, or what stands beside it, is called as another's."""
        name = self.connector.name
        owners = {
            self.connector.changes_table: f"the changes table of {name}",
            self.connector.quarantine_table: f"the quarantine of {name}",
            self.connector.notifications_table: f"the notifications of {name}",
            self.connector.published_table: f"where publishing of {name} stands",
            self.connector.refused_table: f"the refused records of {name}",
        }
        for table in tables:
            mirror = self.mirror(table)
            beside = [mirror.side, mirror.statics] if mirror.statics_apart else [mirror.side]
            for kept in (mirror.table, *beside):
                if owners.setdefault(kept.name, table) != table:
                    raise ConfigurationError(
                        f"{owners[kept.name]} and {table} would both be kept in {kept.name}",
                        expected="a name of its own for each",
                        remedy="capture one of them by another connector, whose lake.namespace is another",
                    )


def build_source(connector: Connector, connection: Mapping[str, Any]) -> Source:
    """Build the connector's source.

    Args:
        connector: The declaration.
        connection: The Airflow connection's values; empty for offline input.
    """
    if isinstance(connector.source, CassandraOptions):
        if connector.source.advanced.latest_segment_only:
            raise ConfigurationError(
                "source.advanced.latest_segment_only is for looking at a log: a job would lose changes",
                remedy="leave it out; airflow cdc events takes it",
            )
        from airflow_cdc_provider.sources.cassandra.source import CassandraSource

        return CassandraSource(connector.source, connection, connector.selects, names=connector.names)
    if isinstance(connector.source, ScyllaOptions):
        from airflow_cdc_provider.sources.scylla.check import WantedImages
        from airflow_cdc_provider.sources.scylla.source import ScyllaSource

        images = WantedImages(*connector.publish.scylla.images())
        return ScyllaSource(
            connector.source, connection, connector.selects, names=connector.names, images=images
        )
    if isinstance(connector.source, VitessOptions):
        from airflow_cdc_provider.sources.vitess.source import VitessSource

        return VitessSource(connector.source, connection, connector.selects)
    if isinstance(connector.source, DebeziumOptions):
        from airflow_cdc_provider.sources.debezium.source import DebeziumSource

        return DebeziumSource(
            connector.source, connection, connector.selects, connector.lake.tombstone_retention_seconds
        )
    from airflow_cdc_provider.sources.mongodb.selection import Selection
    from airflow_cdc_provider.sources.mongodb.source import MongodbSource

    # The patterns themselves, not a function, so that the server can filter by them.
    selection = Selection(connector.tables, connector.exclude_tables, connector.signals.collection)
    return MongodbSource(connector.source, connection, selection)


def do_afterwards(context: JobContext) -> None:
    """Do what waits for the job's result to be written; what fails is logged."""
    for work in context.afterwards:
        try:
            work()
        except CdcError as error:
            log.warning("after the job: %s", error)


@contextmanager
def job_context(spec: JobSpec, stopping: Callable[[], bool]) -> Iterator[JobContext]:
    """Open what a job needs and close it at the end.

    Raises:
        ConfigurationError: The declaration, the connection, Java or the lake's classes are not right.
    """
    connector = Connector.from_dict(spec.connector)
    values = spec.connection.resolve()
    kafka, registry = values.pop(KAFKA, {}), values.pop(REGISTRY, {})
    pulsar = values.pop(PULSAR, {})
    signals_kafka, notifications_kafka = values.pop(SIGNALS_KAFKA, {}), values.pop(NOTIFICATIONS_KAFKA, {})
    source = build_source(connector, values)
    if isinstance(source, HearsStop):
        source.stop_when(stopping)
    try:
        spark = build_session(connector, f"cdc {connector.name} {spec.stage}")
        try:
            lake = build_lake(spark, connector)
            lake.create_namespace(connector.namespace)
            changes = ChangesTable(lake, connector)
            with closing(
                JobContext(
                    spec,
                    connector,
                    spark,
                    lake,
                    changes,
                    source,
                    stopping,
                    kafka=kafka,
                    pulsar=pulsar,
                    registry=registry,
                    signals_kafka=signals_kafka,
                    notifications_kafka=notifications_kafka,
                )
            ) as context:
                yield context
        finally:
            spark.stop()
    finally:
        source.close()
