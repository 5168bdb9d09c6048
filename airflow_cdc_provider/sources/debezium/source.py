"""The source of Debezium's topics: Kafka partitions behind the interface of :mod:`..contract`.

There are no snapshots: the topics contain the rows of Debezium's own snapshot, as events ``r``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError, PositionLost, SchemaUnknown
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.partitions import ClusterTopics, Topic, require_patterns
from airflow_cdc_provider.kafka.registry import Registry, RegistrySettings, RetryTimeouts, client_settings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.contract import Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan, Source
from airflow_cdc_provider.sources.debezium.check import check_topics
from airflow_cdc_provider.sources.debezium.codec import DebeziumCodec
from airflow_cdc_provider.sources.debezium.decode import Form
from airflow_cdc_provider.sources.debezium.options import EARLIEST, LATEST, SOURCE_REGISTRY, DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import (
    PartitionPosition,
    from_offset,
    origin_of,
    partition_of,
    to_offset,
)
from airflow_cdc_provider.sources.debezium.quarantine import UNKNOWN_SCHEMA, UnknownSchemaReader
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, table_of
from airflow_cdc_provider.sources.debezium.states import spellings
from airflow_cdc_provider.sources.debezium.tables import TableRows

log = logging.getLogger(__name__)

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
        self._remembers_seconds = remembers_seconds
        self._opened_cluster: ClusterTopics | None = None
        self._records: list[dict[str, Any]] = []
        self._start: dict[str, PartitionPosition] = {}
        self._counts: dict[str, int] = {}

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
        return check_topics(self._settings, self._options, reader)

    def tables(self) -> list[str]:
        """Return the selected tables with captured rows, sorted."""
        found = {one["source_table"] for one in self._records}
        return sorted(table for table in found if self._selects(table))

    def learn(self, records: pa.Table) -> None:
        """Load all records of kind ``schema``."""
        self._records = records.to_pylist()

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
        """Return the decoder of a table for all recorded schemas of its rows."""
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
        topics = self._require_topics()
        begins, ends = self._cluster.begins(_partitions(topics)), self._cluster.ends(_partitions(topics))
        found = _positions(topics, begins)
        for origin, position in found.items():
            before = self._start.get(origin)
            if before is None:
                continue
            if (
                _same_topic(before, position)
                and position.offset <= before.offset <= ends[partition_of(origin)]
            ):
                found[origin] = replace(position, offset=before.offset, epoch=before.epoch)
            else:
                found[origin] = replace(position, epoch=before.epoch + 1)
        return to_offset(found)

    def head(self) -> Offset:
        """Return the current end of the partitions."""
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
            PositionLost: A partition no longer has the next messages, or its topic was re-created.
            ConfigurationError: A topic got more partitions, and option ``on_partitions_added`` is ``fail``.
        """
        target = from_offset(head)
        positions = from_offset(start) if start is not None else {}
        self._start = dict(positions)
        begins = {
            origin_of(*one): offset
            for one, offset in self._cluster.begins(partition_of(origin) for origin in target).items()
        }
        _require_kept(positions, target, begins, self._options.topics)
        added = _added(positions, target)
        if added and self._options.on_partitions_added == "fail":
            raise _more_partitions(added)
        current = {origin: position for origin, position in positions.items() if origin in target}
        if not added or all(current[o].offset == target[o].offset for o in _siblings(current, added)):
            current |= _next_epoch(current, target, begins, added)
            added = []
        budget = self._options.batch_messages or limit.changes
        remaining = {o: target[o].offset - position.offset for o, position in current.items()}
        shares = _shares({origin: count for origin, count in remaining.items() if count > 0}, budget)
        end = {
            o: replace(position, offset=position.offset + shares.get(o, 0)) for o, position in current.items()
        }
        slices = self._slices(current, target, shares, max(1, limit.tasks))
        at_head = not added and all(end[o].offset == target[o].offset for o in end)
        return Plan(to_offset(end), slices, at_head)

    def _slices(
        self,
        positions: Mapping[str, PartitionPosition],
        target: Mapping[str, PartitionPosition],
        shares: Mapping[str, int],
        tasks: int,
    ) -> list[TopicSlice]:
        """Split the messages of a batch into slices; large partitions get several slices."""
        now_us = time.time_ns() // 1000
        counts: dict[str, int] = {}
        for origin in target:
            topic, _ = partition_of(origin)
            counts[topic] = counts.get(topic, 0) + 1
        each = max(self._options.advanced.slice_messages, -(-sum(shares.values()) // tasks))
        by_topic = self._options.tables_from == "topic"
        slices = []
        for origin, count in shares.items():
            topic, partition = partition_of(origin)
            table = table_of(topic) if by_topic else ""
            first = positions[origin].offset
            for begin in range(first, first + count, each):
                part = MessageRange(topic, partition, begin, min(begin + each, first + count))
                slices.append(TopicSlice(part, positions[origin].epoch, counts[topic], table, now_us))
        return slices

    def reader(self) -> SliceReader:
        """Return the reader of slices."""
        advanced = self._options.advanced
        return self._reader(
            RetryTimeouts(advanced.schema_lookup_timeout_seconds, advanced.retry_timeout_seconds)
        )

    def _reader(self, patience: RetryTimeouts) -> SliceReader:
        known = frozenset((one["source_table"], one["schema_id"] or "") for one in self._records)
        registry = self._registry_for(patience)
        return SliceReader(self._settings, self._options, self._selects, known, registry)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Raise ``ConfigurationError``: topics can't be queried for a table's rows."""
        raise ConfigurationError(
            f"snapshots from topics are not supported: {table}",
            remedy="take an ad-hoc snapshot with a signal to Debezium: its events are written to the topic",
        )

    def close(self) -> None:
        """Release the connection, which ends its threads."""
        self._opened_cluster = None

    def _require_topics(self) -> dict[str, Topic]:
        topics = self._cluster.topics(self._options.topics)
        if self._options.tables_from == "topic":
            topics = {name: one for name, one in topics.items() if self._selects(table_of(name))}
        require_patterns(self._options.topics, topics, self._settings.servers)
        self._counts = {name: len(topic.partitions) for name, topic in topics.items()}
        return topics


@dataclass(frozen=True)
class _Added:
    """A partition of a topic that isn't in the stored offset."""

    topic: str
    partition: int


def _partitions(topics: Mapping[str, Topic]) -> list[tuple[str, int]]:
    return [(name, number) for name, topic in topics.items() for number in topic.partitions]


def _positions(
    topics: Mapping[str, Topic], offsets: Mapping[tuple[str, int], int]
) -> dict[str, PartitionPosition]:
    return {
        origin_of(topic, number): PartitionPosition(offset, 0, topics[topic].id)
        for (topic, number), offset in offsets.items()
    }


def _same_topic(before: PartitionPosition, now: PartitionPosition) -> bool:
    return not before.topic_id or not now.topic_id or before.topic_id == now.topic_id


def _require_kept(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    begins: Mapping[str, int],
    patterns: Sequence[str],
) -> None:
    """Raise an error if messages after a position are lost.

    Raises:
        PositionLost: Messages of some partitions are lost.
    """
    lost = []
    for origin, position in positions.items():
        topic, _ = partition_of(origin)
        now = target.get(origin)
        if now is None:
            if any(re.fullmatch(one, topic) for one in patterns):
                lost.append(f"{origin} was deleted")
            else:
                log.info("%s is no longer selected", origin)
        elif not _same_topic(position, now):
            lost.append(f"{origin} is of a re-created topic")
        elif position.offset > now.offset:
            lost.append(f"{origin} ends at {now.offset}, before {position.offset}")
        elif position.offset < begins[origin]:
            lost.append(f"{origin} starts at {begins[origin]}, after {position.offset}")
    if lost:
        more = f" and {len(lost) - _MAX_REPORTED} more" if len(lost) > _MAX_REPORTED else ""
        raise PositionLost(
            "the topics no longer have the messages after the stored offset",
            found="; ".join(lost[:_MAX_REPORTED]) + more,
            remedy="snapshot.on_lost_position: continue reads the remaining messages, fail_once does so from "
            "the next run on; take a snapshot of the tables with Debezium, which is written to the topics. "
            "Rows that were deleted meanwhile remain: drop the mirrors to start over",
        )


def _added(
    positions: Mapping[str, PartitionPosition], target: Mapping[str, PartitionPosition]
) -> list[_Added]:
    """Return new partitions of known topics."""
    known = {partition_of(origin)[0] for origin in positions}
    new = [partition_of(origin) for origin in target if origin not in positions]
    return [_Added(topic, number) for topic, number in new if topic in known]


def _siblings(positions: Mapping[str, PartitionPosition], added: Sequence[_Added]) -> list[str]:
    """Return the known partitions of topics with new partitions."""
    topics = {one.topic for one in added}
    return [origin for origin in positions if partition_of(origin)[0] in topics]


def _next_epoch(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    begins: Mapping[str, int],
    added: Sequence[_Added],
) -> dict[str, PartitionPosition]:
    """Return the positions of new partitions and of their siblings, which start the next epoch with them."""
    siblings = _siblings(positions, added)
    epochs: dict[str, int] = {}
    for origin in siblings:
        topic, _ = partition_of(origin)
        epochs[topic] = max(epochs.get(topic, 0), positions[origin].epoch + 1)
    next_epoch = {o: replace(positions[o], epoch=epochs[partition_of(o)[0]]) for o in siblings}
    for origin, position in target.items():
        if origin not in positions:
            epoch = epochs.get(partition_of(origin)[0], 0)
            next_epoch[origin] = PartitionPosition(begins[origin], epoch, position.topic_id)
    if added:
        log.warning("partitions were added to topics; all further events count as newer: %s", sorted(epochs))
    return next_epoch


def _more_partitions(added: Sequence[_Added]) -> ConfigurationError:
    names = ", ".join(origin_of(one.topic, one.partition) for one in added[:_MAX_REPORTED])
    return ConfigurationError(
        "partitions were added to a topic, so events of a key are in several partitions",
        found=names,
        remedy="set source.on_partitions_added: follow; then later messages are newer than all earlier ones. "
        "Keys that changed between the addition and this run may have an outdated row until they change "
        "again: stop Debezium and let a run read to the end before adding partitions",
    )


def _shares(remaining: Mapping[str, int], budget: int) -> dict[str, int]:
    """Divide a budget of messages among partitions; unused shares go to other partitions."""
    shares = {}
    rest = max(budget, len(remaining))
    for number, (origin, count) in enumerate(sorted(remaining.items(), key=lambda one: one[1])):
        shares[origin] = min(count, rest // (len(remaining) - number))
        rest -= shares[origin]
    return {origin: shares[origin] for origin in remaining}
