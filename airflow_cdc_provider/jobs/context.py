"""The context that the stages of one application share: session, source and lake tables."""

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
from airflow_cdc_provider.signals.channels import Channel, ChannelContext, open_channels
from airflow_cdc_provider.signals.names import KAFKA as KAFKA_SIGNALS
from airflow_cdc_provider.signals.names import SOURCE
from airflow_cdc_provider.sources.abilities import Cancellable, HasSchemaHistory, ReadMetrics
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
    """State of signals that a job keeps from round to round; a new job starts without it.

    Args:
        searched_through: The newest batch of the changes table that was searched for signals.
        polled_at: When channels were last polled within a round, by the monotonic clock.
        chunks: Number of chunks in the next commit of an incremental snapshot.
        errors: By channel, the error of the last poll.
    """

    searched_through: int = -1
    polled_at: float = 0.0
    chunks: int = 8
    errors: dict[str, str] = field(default_factory=dict)


@dataclass
class JobContext:
    """Everything that a stage works with.

    Args:
        spec: The job's specification.
        connector: The declaration.
        spark: The session.
        lake: The lake.
        changes: The connector's changes table.
        source: The source.
        stopping: Returns whether a clean stop was requested; long loops check it between steps.
        snapshot: Progress of the snapshot that this job takes, None without one; also if it fails.
        uncommitted: Feeds whose segments were in a batch that could not be committed.
        reading: Read metrics of tasks, for all captures of this job.
        last_transactions: By feed, the last transaction that was captured.
        incremental: Progress of the newest incremental snapshot, None without one.
        signals: State of signals.
        heartbeats: The sender of heartbeats in this job, None if it sent none.
        kafka: librdkafka settings of the connection to publish events with; secret.
        pulsar: Values of the connection to publish events to Pulsar with; secret.
        registry: Values of the schema registry's connection; secret.
        signals_kafka: librdkafka settings of the connection for signals; secret.
        notifications_kafka: librdkafka settings of the connection for notifications; secret.
        callbacks: Called after the job's result is written; they can't fail the job.
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
    reading: ReadMetrics = field(default_factory=Counter)
    last_transactions: dict[str, str] = field(default_factory=dict)
    incremental: IncrementalResult | None = None
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    pulsar: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry: Mapping[str, Any] = field(default_factory=dict, repr=False)
    signals_kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    notifications_kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    signals: SignalsMemory = field(default_factory=SignalsMemory, init=False)
    heartbeats: Heartbeats | None = field(default=None, init=False, repr=False)
    callbacks: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False)
    _channels: list[Channel] | None = field(default=None, init=False, repr=False)
    _learned_through: int = field(default=-1, init=False, repr=False)

    @cached_property
    def notifier(self) -> Notifier:
        """Sends notifications of snapshots to the declared channels."""
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
    def snapshot_notifier(self) -> InitialSnapshot:
        """Sends notifications of the snapshots that this job takes."""
        counts = self.connector.notifications.row_counts
        return InitialSnapshot(self.notifier, self.connector.topic_prefix, row_counts=counts)

    def record(self, event: SnapshotEvent) -> None:
        """Log an event of a requested snapshot, count it and send a notification of it."""
        log.info("snapshot %s of signal %s: %s", event.kind, event.request_id, event.table or event.tables)
        self.incremental = after(self.incremental, event)
        notification = incremental_notification(event, self.connector.topic_prefix)
        if notification is not None:
            self.notifier.send(notification)
            if event.kind in ("paused", "completed", "aborted", "skipped"):
                self.notifier.flush()

    @property
    def channels(self) -> Sequence[Channel]:
        """The channels of signals except the source's feed; they are opened on first use.

        Raises:
            ConfigurationError: A channel can't be opened.
        """
        if self._channels is None:
            folder = str(self.spec.options.get("signals_path", ""))
            options = self.connector.signals
            places = ChannelContext(
                Path(folder) if folder else None, options.file, self.connector.name, options.settings
            )
            builders = {KAFKA_SIGNALS: lambda: topic_of_signals(self.connector, self.signals_kafka)}
            self._channels = open_channels(options.channels, places, builders)
        return self._channels

    @property
    def listens_to_source(self) -> bool:
        """Whether signals arrive in the source's own feed."""
        options = self.connector.signals
        return SOURCE in options.channels and bool(options.collection)

    def close(self) -> None:
        """Flush notifications, then close the channels of signals and the sender of heartbeats."""
        if "notifier" in vars(self):
            self.notifier.flush()
        for channel in self._channels or ():
            channel.close()
        self._channels = None
        if self.heartbeats is not None:
            self.heartbeats.close()

    def learn(self, through: int = 0) -> None:
        """Pass the recorded schema to the source, unless it has that already.

        Args:
            through: The batch up to which the source must have the schema; 0 for any batch.
        """
        if through > self._learned_through and isinstance(self.source, HasSchemaHistory):
            self._learned_through = self.changes.state().batch
            if self.changes.table.exists():
                self.source.learn(self.changes.lasting(record.SCHEMA).drop("batch").toArrow())

    def tables(self) -> list[str]:
        """List the tables that this job is for.

        Raises:
            ConfigurationError: The spec names a table that the source doesn't have or the declaration
                excludes; or two tables would have the same lake table.
        """
        self.learn()
        known = self.source.tables()
        self._require_own_names(known)
        selected = list(self.spec.tables)
        missing = sorted(set(selected) - set(known))
        if missing:
            raise ConfigurationError(
                f"the job names unknown tables: {', '.join(missing)}",
                expected=f"tables of the connector {self.connector.name}: {', '.join(known) or 'none'}",
                remedy="check the name, and the connector's tables and exclude_tables",
            )
        return selected or known

    def require_within_guardrail(self) -> None:
        """Enforce the declared limit on the number of tables.

        Raises:
            ConfigurationError: There are more tables, and the declared action is to fail.
        """
        guardrail = self.connector.guardrail
        if not guardrail.max_tables:
            return
        self.learn()
        text = self.connector.guardrail_message(self.source.tables())
        if text and guardrail.action == "fail":
            raise ConfigurationError(
                text, remedy="check tables and exclude_tables, or raise the limit; nothing was captured"
            )
        if text:
            log.warning("%s: %s", self.connector.name, text)

    def mirror(self, table: str) -> Mirror:
        """Return the mirror of a source table."""
        in_table = self.connector.lake.static_columns == "table"
        return Mirror(self.lake, self.connector.mirror_table(table), static_columns_table=in_table)

    def _require_own_names(self, tables: Sequence[str]) -> None:
        """Refuse tables whose mirrors, or the tables next to them, would have the same name."""
        name = self.connector.name
        owners = {
            self.connector.changes_table: f"the changes table of {name}",
            self.connector.quarantine_table: f"the quarantine of {name}",
            self.connector.notifications_table: f"the notifications of {name}",
            self.connector.published_table: f"the published positions of {name}",
            self.connector.dead_letters_table: f"the dead letters of {name}",
        }
        for table in tables:
            mirror = self.mirror(table)
            others = (
                [mirror.tombstones, mirror.static_columns]
                if mirror.static_columns_table
                else [mirror.tombstones]
            )
            for kept in (mirror.table, *others):
                if owners.setdefault(kept.name, table) != table:
                    raise ConfigurationError(
                        f"{owners[kept.name]} and {table} would both be stored in {kept.name}",
                        expected="a distinct name for each",
                        remedy="capture one of them with another connector that has another lake.namespace",
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
                "source.advanced.latest_segment_only is for inspecting a log: a job would lose changes",
                remedy="remove it; airflow cdc events supports it",
            )
        from airflow_cdc_provider.sources.cassandra.source import CassandraSource

        return CassandraSource(connector.source, connection, connector.selects, names=connector.names)
    if isinstance(connector.source, ScyllaOptions):
        from airflow_cdc_provider.sources.scylla.check import RequiredImages
        from airflow_cdc_provider.sources.scylla.source import ScyllaSource

        images = RequiredImages(*connector.publish.scylla.images())
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


def on_finished(context: JobContext) -> None:
    """Run the callbacks of a job whose result is written; errors are logged."""
    for callback in context.callbacks:
        try:
            callback()
        except CdcError as error:
            log.warning("after the job: %s", error)


@contextmanager
def job_context(spec: JobSpec, stopping: Callable[[], bool]) -> Iterator[JobContext]:
    """Open the resources of a job and close them at the end.

    Raises:
        ConfigurationError: The declaration, the connection, Java or the lake's classes are invalid.
    """
    connector = Connector.from_dict(spec.connector)
    values = spec.connection.resolve()
    kafka, registry = values.pop(KAFKA, {}), values.pop(REGISTRY, {})
    pulsar = values.pop(PULSAR, {})
    signals_kafka, notifications_kafka = values.pop(SIGNALS_KAFKA, {}), values.pop(NOTIFICATIONS_KAFKA, {})
    source = build_source(connector, values)
    if isinstance(source, Cancellable):
        source.cancel_when(stopping)
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
