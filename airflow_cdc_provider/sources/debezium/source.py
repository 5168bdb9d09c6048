"""The source of Debezium's topics: Kafka partitions behind the interface of :mod:`..contract`.

There are no snapshots: the topics contain the rows of Debezium's own snapshot, as events ``r``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, SchemaUnknown
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Topic, require_patterns
from airflow_cdc_provider.kafka.registry import Registry, RegistrySettings, RetryTimeouts, client_settings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.patterns import matches
from airflow_cdc_provider.sources.contract import (
    Finding,
    Lag,
    Offset,
    Plan,
    ReadLimit,
    ReadMetrics,
    SnapshotPlan,
    Source,
)
from airflow_cdc_provider.sources.debezium.capture import (
    added_partitions,
    after_loss,
    lost_topics,
    more_partitions,
    plan_batch,
)
from airflow_cdc_provider.sources.debezium.check import check_topics, missing_topics
from airflow_cdc_provider.sources.debezium.codec import DebeziumCodec
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.options import EARLIEST, LATEST, SOURCE_REGISTRY, DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import (
    DELETED,
    PartitionPosition,
    from_offset,
    origin_of,
    partition_of,
    to_offset,
)
from airflow_cdc_provider.sources.debezium.quarantine import UNKNOWN_SCHEMA, UnknownSchemaReader
from airflow_cdc_provider.sources.debezium.reader import LOOKED_UP, NEW_SCHEMAS, SliceReader, table_of
from airflow_cdc_provider.sources.debezium.recorded_schemas import LEARNED, RecordedSchema, RecordedSchemas
from airflow_cdc_provider.sources.debezium.schema_history import TableRows, owners
from airflow_cdc_provider.sources.debezium.states import spellings
from airflow_cdc_provider.sources.findings import registry_findings

_MAX_REPORTED: Final = 5


class DebeziumSource(Source):
    """Topics of one cluster. Connections are opened on first use, so decoding works without any.

    Args:
        options: The source's options.
        connection: Values of the Airflow connection, with librdkafka's settings in its extra.
        selects: Returns whether a table is captured. Picklable.
        remembers_seconds: How long deletes are retained, and messages with unknown schemas are retried; None
            for unlimited.
    """

    has_schema_history = True
    schema_limits = LEARNED
    feed_is_complete = True

    def __init__(
        self,
        options: DebeziumOptions,
        connection: Mapping[str, Any],
        selects: Callable[[str], bool],
        remembers_seconds: int | None = None,
    ) -> None:
        self._options = options
        self._connection = connection
        self._selects = selects
        self.resumes_tables = options.tables_from == "topic"
        self._remembers_seconds = remembers_seconds
        self._opened_cluster: ClusterTopics | None = None
        self._records: list[dict[str, Any]] = []
        self._start: dict[str, PartitionPosition] = {}
        self._accepted: dict[str, str] = {}
        self._left_out: dict[str, ConfigurationError] = {}
        self._there: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}
        self._looked_up: dict[str, dict[int, bool]] = {}

    @property
    def _settings(self) -> ClientSettings:
        advanced = self._options.advanced
        return ClientSettings(
            dict(self._connection.get("extra", {})),
            consumer=advanced.consumer,
            retry_timeout_seconds=advanced.retry_timeout_seconds,
        )

    def _registry_for(self, patience: RetryTimeouts) -> Registry | None:
        """Return the schema registry, None if the converters don't use one."""
        where = self._options.registry
        if not where.enabled:
            return None
        known = self._connection.get(SOURCE_REGISTRY, {})
        return Registry(RegistrySettings(client_settings(known, where.url)), patience=patience)

    @property
    def _cluster(self) -> ClusterTopics:
        if self._opened_cluster is None:
            self._opened_cluster = ClusterTopics(self._settings, self._options.isolation)
        return self._opened_cluster

    @property
    def _form(self) -> Form:
        return Form(
            self._options.envelope == "unwrapped", spellings(self._options.advanced.unavailable_value)
        )

    def check(self) -> list[Finding]:
        """Check the brokers, the topics and the last messages of partitions."""
        registry = self._registry_for(RetryTimeouts())
        reader = SliceReader(self._settings, self._options, self._selects, registry=registry)
        findings = registry_findings(registry.settings.client, "source.registry") if registry else []
        return [*findings, *check_topics(self._settings, self._options, reader, self._form)]

    def tables(self) -> list[str]:
        """Return the selected tables with captured rows, sorted."""
        found = {one["source_table"] for one in self._records}
        return sorted(table for table in found if self._selects(table))

    def learn(self, records: pa.Table) -> None:
        """Load the records of kind ``schema``: one of each schema, as :attr:`schema_limits` says."""
        self._records = records.to_pylist()

    def schema_findings(self) -> list[str]:
        """Return messages about topics that don't exist, or have too many schemas."""
        topics = {partition_of(origin)[0] for origin in self._start} - self._there
        deleted = [
            f"topic {topic} was deleted: the mirror of {', '.join(sorted(self._tables_of(topic)))} is no "
            "longer updated. Let Debezium create the topic again, or exclude it"
            for topic in sorted(topics)
            if self._reads(topic)
        ]
        full = [
            f"topic {topic} has the most schemas that are kept of a topic: no further schema or table is read"
            for topic in RecordedSchemas(self._known).full_topics
        ]
        return [*deleted, *full, *missing_topics(self._options.topics, self._there)]

    def may_become_readable(self, reason: str) -> bool:
        """Return whether a quarantined record may become readable: when the registry has its schema."""
        return reason == UNKNOWN_SCHEMA and self._options.registry.enabled

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the function that retries records of kind ``quarantine``; it queries each schema once."""
        if not self._options.registry.enabled:
            return super().quarantine_reader()
        before_us = 0
        if self._remembers_seconds is not None:
            before_us = int((time.time() - self._remembers_seconds) * 1_000_000)
        return UnknownSchemaReader(self._reader(RetryTimeouts(0, 0)), dict(self._counts), before_us)

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> DebeziumCodec:
        """Return the decoder of a table for all recorded schemas of its rows.

        Raises:
            SchemaUnknown: No row of it was captured.
        """
        rows = TableRows.of(table, self._records)
        if not rows.known:
            raise SchemaUnknown(
                f"no row of {table} was captured yet", expected="an event of it", found="none"
            )
        return DebeziumCodec.of(rows, self._form, self._options.advanced.max_inferred_columns, memory)

    def start(self) -> Offset | None:
        """Return the start position of a new connector, by option ``start``."""
        start = self._options.start
        if start == EARLIEST:
            return None
        topics = self._require_topics()
        partitions = _partitions(topics)
        if start == LATEST:
            found = self._cluster.ends(partitions)
        else:
            found = self._cluster.at(partitions, int(datetime.fromisoformat(start).timestamp() * 1000))
        return to_offset(_positions(topics, found))

    def offset_after_loss(self) -> Offset:
        """Return where capture resumes: at its position, or at the start of partitions with lost messages."""
        target = from_offset(self.head())
        begins, unread = self._begins(target), self._unread()
        read = {origin: position for origin, position in self._start.items() if origin not in unread}
        lost = lost_topics(read, target, begins)
        return to_offset({**unread, **after_loss(read, target, begins, lost)})

    def head(self) -> Offset:
        """Return the current end of the partitions, to which a capture reads."""
        self._looked_up = {}
        topics = self._require_topics()
        return to_offset(_positions(topics, self._cluster.ends(_partitions(topics))))

    def earliest(self) -> Offset:
        """Return the current start of the partitions."""
        topics = self._require_topics()
        return to_offset(_positions(topics, self._cluster.begins(_partitions(topics))))

    def lag(self, offset: Offset | None) -> Lag:
        """Return by how many offsets a capture is behind."""
        head = from_offset(self.head())
        before = from_offset(offset) if offset is not None else from_offset(self.earliest())
        behind = {
            origin: max(0, position.offset - before[origin].offset) if origin in before else position.offset
            for origin, position in head.items()
        }
        details = {
            origin: {"head": head[origin].offset, "messages": count} for origin, count in behind.items()
        }
        return Lag(None if any(behind.values()) else 0.0, None, details)

    def validate_offset(self, offset: Offset) -> None:
        """Validate the format of an offset."""
        from_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Plan the next batch.

        Raises:
            PositionLost: Topics no longer have the next messages, or were deleted. It names their tables if
                there are other topics.
            ConfigurationError: All topics got more partitions, and ``on_partitions_added`` is ``fail``.
        """
        target = from_offset(head)
        positions = from_offset(start) if start is not None else {}
        self._start = dict(positions)
        begins, unread = self._begins(target), self._unread()
        read = {origin: position for origin, position in positions.items() if origin not in unread}
        lost = lost_topics(read, target, begins)
        if any(self._accepted.get(topic) != reason for topic, reason in lost.items()):
            raise self._position_lost(lost, {partition_of(origin)[0] for origin in {**read, **target}})
        there = {partition_of(origin)[0] for origin in target}
        back = {partition_of(o)[0] for o, at in read.items() if at.topic_id == DELETED} & there
        read = after_loss(read, target, begins, back.union(lost))
        unread |= {origin: at for origin, at in read.items() if partition_of(origin)[0] not in there}
        read = {origin: at for origin, at in read.items() if origin not in unread}
        if held := self._held_topics(read, target):
            unread |= {origin: at for origin, at in read.items() if partition_of(origin)[0] in held}
            read, target = (
                {origin: at for origin, at in part.items() if partition_of(origin)[0] not in held}
                for part in (read, target)
            )
        plan = plan_batch(read, target, begins, self._options, limit)
        return replace(plan, end=to_offset({**unread, **from_offset(plan.end)}))

    def _begins(self, target: Iterable[str]) -> dict[str, int]:
        found = self._cluster.begins(partition_of(origin) for origin in target)
        return {origin_of(*one): offset for one, offset in found.items()}

    def _held_topics(
        self, read: Mapping[str, PartitionPosition], target: Mapping[str, PartitionPosition]
    ) -> set[str]:
        """Return the topics that aren't read because they got more partitions.

        Raises:
            ConfigurationError: There are no other topics.
        """
        added = added_partitions(read, target) if self._options.on_partitions_added == "fail" else []
        held = {one.topic for one in added}
        if added and not {partition_of(origin)[0] for origin in target} - held:
            raise more_partitions(added)
        self._left_out = {
            table: more_partitions([one for one in added if one.topic == topic])
            for topic in held
            for table in self._tables_of(topic)
        }
        return held

    def left_out(self) -> Mapping[str, ConfigurationError]:
        """Return the tables of topics that got more partitions, unless these are followed."""
        return self._left_out

    def _position_lost(self, lost: Mapping[str, str], topics: Collection[str]) -> PositionLost:
        """Return the error of lost messages; the next plan continues with other topics if there are any."""
        reasons = list(lost.values())
        more = f" and {len(reasons) - _MAX_REPORTED} more" if len(reasons) > _MAX_REPORTED else ""
        error = PositionLost(
            "the topics no longer have the messages after the stored offset",
            found="; ".join(reasons[:_MAX_REPORTED]) + more,
            remedy="snapshot.on_lost_position: continue reads the remaining messages, fail_once does so from "
            "the next run on; take a snapshot of the tables with Debezium, which is written to the topics. "
            "Rows that were deleted meanwhile remain: drop the mirrors to start over",
        )
        if set(topics) - lost.keys():
            error.tables = sorted({table for topic in lost for table in self._tables_of(topic)})
            self._accepted = dict(lost)
        return error

    @property
    def _known(self) -> dict[RecordedSchema, int]:
        """The bytes of each recorded schema."""
        return {
            (partition_of(one["origin"])[0], one["source_table"], one["schema_id"] or ""): len(
                one["payload"] or b""
            )
            for one in self._records
        }

    def _tables_of(self, topic: str) -> set[str]:
        """Return the captured tables of a topic."""
        if self._options.tables_from == "topic":
            return {table_of(topic)}
        found = {r["source_table"] for r in self._records if partition_of(r["origin"])[0] == topic}
        return {table for table in found if self._selects(table)} or {table_of(topic)}

    def reader(self) -> SliceReader:
        """Return the reader of slices."""
        advanced = self._options.advanced
        return self._reader(
            RetryTimeouts(advanced.schema_lookup_timeout_seconds, advanced.retry_timeout_seconds)
        )

    def on_batch_read(self, metrics: ReadMetrics) -> bool:
        """Keep which ids have a schema: if some have none, they and new schemas bound the next batch."""
        is_new = metrics.counts[NEW_SCHEMAS] > 0
        for there, beginning in LOOKED_UP.items():
            for name in metrics.counts:
                if name.startswith(beginning):
                    number, _, topic = name.removeprefix(beginning).partition(" ")
                    known = self._looked_up.setdefault(topic, {})
                    if int(number) not in known:
                        known[int(number)] = there
                        is_new |= False in known.values()
        return is_new

    def _reader(self, patience: RetryTimeouts) -> SliceReader:
        return SliceReader(
            self._settings,
            self._options,
            self._selects,
            self._known,
            owners(self._records),
            self._registry_for(patience),
            {topic: dict(ids) for topic, ids in self._looked_up.items()},
        )

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Raise ``ConfigurationError``: topics can't be queried for a table's rows."""
        raise ConfigurationError(
            "snapshots from topics are not supported",
            remedy="take an ad-hoc snapshot with a signal to Debezium: its events are written to the topic",
        )

    def close(self) -> None:
        """Release the connection, which ends its threads."""
        self._opened_cluster = None

    def _unread(self) -> dict[str, PartitionPosition]:
        """Return the positions of topics that aren't selected; once they are again, they resume there."""
        return {
            origin: position
            for origin, position in self._start.items()
            if not self._reads(partition_of(origin)[0])
        }

    def _reads(self, topic: str) -> bool:
        chosen = any(matches(pattern, topic) for pattern in self._options.topics)
        return chosen and (self._options.tables_from != "topic" or self._selects(table_of(topic)))

    def _require_topics(self) -> dict[str, Topic]:
        topics = self._cluster.topics(self._options.topics)
        self._there = frozenset(topics)
        topics = {name: one for name, one in topics.items() if self._reads(name)}
        require_patterns(self._options.topics, topics, self._settings.servers)
        self._counts = {name: len(topic.partitions) for name, topic in topics.items()}
        return topics


def _partitions(topics: Mapping[str, Topic]) -> list[tuple[str, int]]:
    return [(name, number) for name, topic in topics.items() for number in topic.partitions]


def _positions(
    topics: Mapping[str, Topic], offsets: Mapping[tuple[str, int], int]
) -> dict[str, PartitionPosition]:
    return {
        origin_of(topic, number): PartitionPosition(offset, 0, topics[topic].id)
        for (topic, number), offset in offsets.items()
    }
