"""The source of Debezium's topics: partitions of Kafka behind the contract of :mod:`..base`.

There are no snapshots: what Debezium's own snapshot read stands in the topics, as events ``r``.
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
from airflow_cdc_provider.kafka.registry import Patience, Registry, RegistrySettings, client_settings
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.base import Codec, Finding, Lag, Offset, Plan, ReadLimit, SnapshotPlan
from airflow_cdc_provider.sources.debezium.check import check_topics
from airflow_cdc_provider.sources.debezium.codec import DebeziumCodec
from airflow_cdc_provider.sources.debezium.contributions import Form
from airflow_cdc_provider.sources.debezium.options import EARLIEST, LATEST, SOURCE_REGISTRY, DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import (
    Place,
    from_offset,
    origin_of,
    partition_of,
    to_offset,
)
from airflow_cdc_provider.sources.debezium.reader import SliceReader, TopicSlice, table_of
from airflow_cdc_provider.sources.debezium.reread import AWAITED, AwaitingReader
from airflow_cdc_provider.sources.debezium.states import spellings
from airflow_cdc_provider.sources.debezium.tables import TableRows
from airflow_cdc_provider.sources.planned_ranges import PlannedRanges

log = logging.getLogger(__name__)

_MOST_TOLD: Final = 5


class DebeziumSource:
    """Topics of one cluster. Connections are made when first needed, so decoding works without any.

    Args:
        options: The source's options.
        connection: Values of the Airflow connection, whose extra has librdkafka's settings.
        selects: Tells whether a table belongs to the capture. Picklable.
        remembers_seconds: How long deletions are remembered, and messages wait for their schemas; None for
            ever.
    """

    type = "debezium"
    planned_ranges = PlannedRanges({})
    feed_is_whole = True

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
        self._cluster_made: ClusterTopics | None = None
        self._records: list[dict[str, Any]] = []
        self._start: dict[str, Place] = {}
        self._counts: dict[str, int] = {}

    @property
    def _settings(self) -> ClientSettings:
        advanced = self._options.advanced
        return ClientSettings(
            dict(self._connection.get("extra", {})),
            consumer=advanced.consumer,
            retry_seconds=advanced.retry_seconds,
        )

    def _registry_for(self, patience: Patience) -> Registry | None:
        """Return what has the schemas of messages, where converters keep them in a registry."""
        where = self._options.registry
        if not where.enabled:
            return None
        known = self._connection.get(SOURCE_REGISTRY, {})
        return Registry(RegistrySettings(client_settings(known, where.url)), patience=patience)

    @property
    def _cluster(self) -> ClusterTopics:
        if self._cluster_made is None:
            self._cluster_made = ClusterTopics(self._settings, self._options.isolation)
        return self._cluster_made

    @property
    def _form(self) -> Form:
        return Form(
            self._options.envelope == "unwrapped", spellings(self._options.advanced.unavailable_value)
        )

    def check(self) -> list[Finding]:
        """Look at the brokers, the topics and the last message of each partition."""
        registry = self._registry_for(Patience())
        reader = SliceReader(self._settings, self._options, self._selects, registry=registry)
        return check_topics(self._settings, self._options, reader)

    def tables(self) -> list[str]:
        """List the selected tables of which rows were seen, sorted."""
        found = {one["source_table"] for one in self._records}
        return sorted(table for table in found if self._selects(table))

    def learn(self, records: pa.Table) -> None:
        """Take in all records of kind ``schema`` that there are."""
        self._records = records.to_pylist()

    def schema_records(self) -> Iterator[Mapping[str, Any]]:
        """Give none: messages bring their schemas."""
        return iter(())

    def resumed_at(self, table: str) -> int:
        """Return 0: nothing is read beside the topics."""
        del table
        return 0

    def schema_findings(self) -> list[str]:
        """Tell what of the schema keeps mirrors from following: nothing."""
        return []

    def may_land(self, reason: str) -> bool:
        """Tell whether a record in quarantine may be read later: where the registry learns of its schema."""
        return reason == AWAITED and self._options.registry.enabled

    def quarantine_reader(self) -> Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return what reads records of kind ``quarantine`` again, which asks once for each schema."""
        if not self._options.registry.enabled:
            return _as_they_are
        before_us = 0
        if self._remembers_seconds is not None:
            before_us = int((time.time() - self._remembers_seconds) * 1_000_000)
        return AwaitingReader(self._reader(Patience(0, 0)), dict(self._counts), before_us)

    def codec(self, table: str, memory: Mapping[str, Any] | None = None) -> Codec:
        """Return the decoder of a table by all schemas that its rows came with.

        Raises:
            SchemaUnknown: No row of it was seen.
        """
        rows = TableRows.of(table, self._records)
        if not rows.known:
            raise SchemaUnknown(f"no row of {table} was ever seen", expected="an event of it", found="none")
        return DebeziumCodec.of(rows, self._form, self._options.advanced.most_inferred_columns, memory)

    def remember(self, codec: Codec) -> Mapping[str, Any]:
        """Return what the mirror keeps: its columns."""
        assert isinstance(codec, DebeziumCodec)
        return codec.remember()

    def reserve(self, codec: Codec, memory: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the memory with columns that all rows are yet to be shown by."""
        assert isinstance(codec, DebeziumCodec)
        return codec.reserve(memory)

    def start(self) -> Offset | None:
        """Return where a new connector begins, by option ``start``."""
        start = self._options.start
        if start == EARLIEST:
            return None
        topics = self._require_topics()
        asked = _partitions(topics)
        if start == LATEST:
            found = self._cluster.ends(asked)
        else:
            found = self._cluster.at(asked, int(datetime.fromisoformat(start).timestamp() * 1000))
        return to_offset(_places(topics, found))

    def after_loss(self) -> Offset:
        """Return where capture goes on: where it stood, but for partitions that lost what follows."""
        topics = self._require_topics()
        begins, ends = self._cluster.begins(_partitions(topics)), self._cluster.ends(_partitions(topics))
        found = _places(topics, begins)
        for origin, place in found.items():
            before = self._start.get(origin)
            if before is None:
                continue
            if _same_topic(before, place) and place.offset <= before.offset <= ends[partition_of(origin)]:
                found[origin] = replace(place, offset=before.offset, epoch=before.epoch)
            else:
                found[origin] = replace(place, epoch=before.epoch + 1)
        return to_offset(found)

    def head(self) -> Offset:
        """Return where the partitions end now."""
        topics = self._require_topics()
        return to_offset(_places(topics, self._cluster.ends(_partitions(topics))))

    def earliest(self) -> Offset:
        """Return where the partitions begin now."""
        topics = self._require_topics()
        return to_offset(_places(topics, self._cluster.begins(_partitions(topics))))

    def lag(self, offset: Offset | None) -> Lag:
        """Tell by how many offsets a capture is behind."""
        head = from_offset(self.head())
        before = from_offset(offset) if offset is not None else from_offset(self.earliest())
        behind = {
            origin: max(0, place.offset - before[origin].offset) if origin in before else place.offset
            for origin, place in head.items()
        }
        details = {
            origin: {"head": head[origin].offset, "messages": count} for origin, count in behind.items()
        }
        return Lag(None if any(behind.values()) else 0.0, None, details)

    def validate_offset(self, offset: Offset) -> None:
        """Refuse an offset of a wrong form.

        Raises:
            ConfigurationError: With what is expected.
        """
        from_offset(offset)

    def plan(self, start: Offset | None, head: Offset, limit: ReadLimit) -> Plan:
        """Cut the next batch.

        Raises:
            PositionLost: A partition no longer has what follows, or its topic was made anew.
            ConfigurationError: A topic got more partitions, and option ``partitions_added`` doesn't say to
                go on.
        """
        target = from_offset(head)
        places = from_offset(start) if start is not None else {}
        self._start = dict(places)
        begins = {
            origin_of(*one): offset
            for one, offset in self._cluster.begins(partition_of(origin) for origin in target).items()
        }
        _require_kept(places, target, begins, self._options.topics)
        added = _added(places, target)
        if added and self._options.partitions_added == "fail":
            raise _more_partitions(added)
        current = {origin: place for origin, place in places.items() if origin in target}
        if not added or all(current[o].offset == target[o].offset for o in _siblings(current, added)):
            current |= _entering(current, target, begins, added)
            added = []
        budget = self._options.batch_messages or limit.changes
        left = {o: target[o].offset - place.offset for o, place in current.items()}
        taken = _shares({origin: count for origin, count in left.items() if count > 0}, budget)
        end = {o: replace(place, offset=place.offset + taken.get(o, 0)) for o, place in current.items()}
        slices = self._slices(current, target, taken, max(1, limit.tasks))
        at_head = not added and all(end[o].offset == target[o].offset for o in end)
        return Plan(to_offset(end), slices, at_head)

    def _slices(
        self, places: Mapping[str, Place], target: Mapping[str, Place], taken: Mapping[str, int], tasks: int
    ) -> list[TopicSlice]:
        """Cut what a batch takes of each partition, the larger ones for several tasks."""
        now_us = time.time_ns() // 1000
        counts: dict[str, int] = {}
        for origin in target:
            topic, _ = partition_of(origin)
            counts[topic] = counts.get(topic, 0) + 1
        each = max(self._options.advanced.slice_messages, -(-sum(taken.values()) // tasks))
        by_topic = self._options.tables_from == "topic"
        slices = []
        for origin, count in taken.items():
            topic, partition = partition_of(origin)
            table = table_of(topic) if by_topic else ""
            first = places[origin].offset
            for begin in range(first, first + count, each):
                part = MessageRange(topic, partition, begin, min(begin + each, first + count))
                slices.append(TopicSlice(part, places[origin].epoch, counts[topic], table, now_us))
        return slices

    def reader(self) -> SliceReader:
        """Return the picklable function that reads slices."""
        advanced = self._options.advanced
        return self._reader(Patience(advanced.schema_seconds, advanced.retry_seconds))

    def _reader(self, patience: Patience) -> SliceReader:
        known = frozenset((one["source_table"], one["schema_id"] or "") for one in self._records)
        registry = self._registry_for(patience)
        return SliceReader(self._settings, self._options, self._selects, known, registry)

    def plan_snapshot(self, table: str, where: str | None = None) -> SnapshotPlan:
        """Refuse: topics can't be asked for a table's rows.

        Raises:
            ConfigurationError: Always.
        """
        del where
        raise ConfigurationError(
            f"a snapshot of {table} can't be read from topics",
            remedy="have Debezium take one (an ad-hoc snapshot by its signals): its events come by the topic",
        )

    def snapshot_reader(self) -> Callable[[Any], Iterator[pa.RecordBatch]]:
        """Return nothing that is ever called: there are no snapshots."""
        return _nothing

    def row_count(self, table: str) -> int | None:
        """Tell that nothing counts the rows."""
        del table
        return None

    def close(self) -> None:
        """Forget the connection; its threads end with it."""
        self._cluster_made = None

    def _require_topics(self) -> dict[str, Topic]:
        topics = self._cluster.topics(self._options.topics)
        if self._options.tables_from == "topic":
            topics = {name: one for name, one in topics.items() if self._selects(table_of(name))}
        require_patterns(self._options.topics, topics, self._settings.servers)
        self._counts = {name: len(topic.partitions) for name, topic in topics.items()}
        return topics


@dataclass(frozen=True)
class _Added:
    """A partition that a topic has and the stored offset doesn't."""

    topic: str
    partition: int


def _partitions(topics: Mapping[str, Topic]) -> list[tuple[str, int]]:
    return [(name, number) for name, topic in topics.items() for number in topic.partitions]


def _places(topics: Mapping[str, Topic], offsets: Mapping[tuple[str, int], int]) -> dict[str, Place]:
    return {
        origin_of(topic, number): Place(offset, 0, topics[topic].id)
        for (topic, number), offset in offsets.items()
    }


def _same_topic(before: Place, now: Place) -> bool:
    return not before.topic_id or not now.topic_id or before.topic_id == now.topic_id


def _require_kept(
    places: Mapping[str, Place],
    target: Mapping[str, Place],
    begins: Mapping[str, int],
    patterns: Sequence[str],
) -> None:
    """Refuse to go on where what follows is gone.

    Raises:
        PositionLost: With the partitions.
    """
    lost = []
    for origin, place in places.items():
        topic, _ = partition_of(origin)
        now = target.get(origin)
        if now is None:
            if any(re.fullmatch(one, topic) for one in patterns):
                lost.append(f"{origin} is gone")
            else:
                log.info("%s is no longer selected", origin)
        elif not _same_topic(place, now):
            lost.append(f"{origin} is of a topic that was made anew")
        elif place.offset > now.offset:
            lost.append(f"{origin} ends at {now.offset}, before {place.offset}")
        elif place.offset < begins[origin]:
            lost.append(f"{origin} begins at {begins[origin]}, after {place.offset}")
    if lost:
        more = f" and {len(lost) - _MOST_TOLD} more" if len(lost) > _MOST_TOLD else ""
        raise PositionLost(
            "the topics no longer have what follows the stored offset",
            found="; ".join(lost[:_MOST_TOLD]) + more,
            remedy="snapshot.on_lost_position: go_on reads what there is, or fail_once from the next run on; "
            "have Debezium take a snapshot of the tables, which comes by the topics. Rows that were deleted "
            "meanwhile stay: drop the mirrors to begin anew",
        )


def _added(places: Mapping[str, Place], target: Mapping[str, Place]) -> list[_Added]:
    """List partitions that are new in a topic that is known."""
    known = {partition_of(origin)[0] for origin in places}
    new = [partition_of(origin) for origin in target if origin not in places]
    return [_Added(topic, number) for topic, number in new if topic in known]


def _siblings(places: Mapping[str, Place], added: Sequence[_Added]) -> list[str]:
    """List the known partitions of topics that got more."""
    topics = {one.topic for one in added}
    return [origin for origin in places if partition_of(origin)[0] in topics]


def _entering(
    places: Mapping[str, Place],
    target: Mapping[str, Place],
    begins: Mapping[str, int],
    added: Sequence[_Added],
) -> dict[str, Place]:
    """Return the places of new partitions; and of their siblings, which enter the next epoch with them."""
    siblings = _siblings(places, added)
    epochs: dict[str, int] = {}
    for origin in siblings:
        topic, _ = partition_of(origin)
        epochs[topic] = max(epochs.get(topic, 0), places[origin].epoch + 1)
    entering = {o: replace(places[o], epoch=epochs[partition_of(o)[0]]) for o in siblings}
    for origin, place in target.items():
        if origin not in places:
            epoch = epochs.get(partition_of(origin)[0], 0)
            entering[origin] = Place(begins[origin], epoch, place.topic_id)
    if added:
        log.warning("topics got more partitions, all their events are newer from here on: %s", sorted(epochs))
    return entering


def _more_partitions(added: Sequence[_Added]) -> ConfigurationError:
    names = ", ".join(origin_of(one.topic, one.partition) for one in added[:_MOST_TOLD])
    return ConfigurationError(
        "a topic has got more partitions, so events of a key stand in several of them",
        found=names,
        remedy="set source.partitions_added: follow; then what comes from now on is newer than all before. "
        "Keys that changed between the new partitions and this run may show the older of their last rows "
        "until they change again: stop Debezium and let a run reach the end before partitions are added",
    )


def _shares(left: Mapping[str, int], budget: int) -> dict[str, int]:
    """Share a budget of messages among partitions; what one doesn't need goes to the others."""
    taken = {}
    rest = max(budget, len(left))
    for number, (origin, count) in enumerate(sorted(left.items(), key=lambda one: one[1])):
        taken[origin] = min(count, rest // (len(left) - number))
        rest -= taken[origin]
    return {origin: taken[origin] for origin in left}


def _as_they_are(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield records


def _nothing(part: object) -> Iterator[pa.RecordBatch]:
    del part
    return iter(())
