"""Plans a capture: which messages of each partition the next batch reads, and in which slices."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.sources.contract import Plan, ReadLimit
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions
from airflow_cdc_provider.sources.debezium.position import (
    DELETED,
    PartitionPosition,
    origin_of,
    partition_of,
    to_offset,
)
from airflow_cdc_provider.sources.debezium.reader import TopicSlice, table_of

log = logger(__name__)

_MAX_REPORTED: Final = 5


def plan_batch(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    begins: Mapping[str, int],
    options: DebeziumOptions,
    limit: ReadLimit,
) -> Plan:
    """Plan the next batch.

    Args:
        positions: The stored position of each partition of a selected topic that exists.
        target: Where to stop, for each partition that exists.
        begins: The first offset that each of these has.
        options: The source's options.
        limit: The size of the batch.
    """
    added = added_partitions(positions, target)
    current = dict(positions)
    if not added or all(current[o].offset == target[o].offset for o in _siblings(current, added)):
        current |= _next_epoch(current, target, begins, added)
        added = []
    budget = options.batch_messages or limit.changes
    remaining = {o: target[o].offset - position.offset for o, position in current.items()}
    shares = _shares({origin: count for origin, count in remaining.items() if count > 0}, budget)
    end = {o: replace(position, offset=position.offset + shares.get(o, 0)) for o, position in current.items()}
    slices = _slices(current, target, shares, options, max(1, limit.tasks))
    at_head = not added and all(end[o].offset == target[o].offset for o in end)
    return Plan(to_offset(end), slices, at_head)


def lost_topics(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    begins: Mapping[str, int],
) -> dict[str, str]:
    """Return the topics that no longer have all messages after their positions, with the reason."""
    lost: dict[str, str] = {}
    for origin, position in positions.items():
        if position.topic_id == DELETED:
            continue
        if reason := _loss(origin, position, target.get(origin), begins):
            topic, _ = partition_of(origin)
            lost[topic] = f"{lost[topic]}; {reason}" if topic in lost else reason
    return lost


def after_loss(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    begins: Mapping[str, int],
    topics: Collection[str],
) -> dict[str, PartitionPosition]:
    """Return the positions with which capture continues after messages of some topics were lost.

    Partitions that have all messages keep their position. The others resume at their start, in the next
    epoch. A topic that was deleted will do so when it is there again.
    """
    found = {o: position for o, position in positions.items() if partition_of(o)[0] not in topics}
    for topic in topics:
        own = {o: position for o, position in positions.items() if partition_of(o)[0] == topic}
        now = {o: position for o, position in target.items() if partition_of(o)[0] == topic}
        epoch = max((position.epoch for position in own.values()), default=-1) + 1
        kept = {o: p for o, p in own.items() if p.topic_id != DELETED and not _loss(o, p, now.get(o), begins)}
        found |= kept
        # If some were kept, partitions that are not in the positions were added.
        found |= {
            o: PartitionPosition(begins[o], epoch, p.topic_id)
            for o, p in now.items()
            if o not in kept and (o in own or not kept)
        }
        if not now:
            found |= {origin: PartitionPosition(0, epoch, DELETED) for origin in own}
    return found


def _loss(
    origin: str, position: PartitionPosition, now: PartitionPosition | None, begins: Mapping[str, int]
) -> str:
    """Return why messages after a position are lost; empty if they are not."""
    if now is None:
        return f"{origin} was deleted"
    if not is_same_topic(position, now):
        return f"{origin} is of a re-created topic"
    if position.offset > now.offset:
        return f"{origin} ends at {now.offset}, before {position.offset}"
    if position.offset < begins[origin]:
        return f"{origin} starts at {begins[origin]}, after {position.offset}"
    return ""


def is_same_topic(before: PartitionPosition, now: PartitionPosition) -> bool:
    """Return whether two positions are of the same topic, not of a re-created one."""
    return not before.topic_id or not now.topic_id or before.topic_id == now.topic_id


def _slices(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    shares: Mapping[str, int],
    options: DebeziumOptions,
    tasks: int,
) -> list[TopicSlice]:
    """Split the messages of a batch into slices; large partitions get several slices."""
    now_us = time.time_ns() // 1000
    counts: dict[str, int] = {}
    for origin in target:
        topic, _ = partition_of(origin)
        counts[topic] = counts.get(topic, 0) + 1
    each = max(options.advanced.slice_messages, -(-sum(shares.values()) // tasks))
    by_topic = options.tables_from == "topic"
    slices: list[TopicSlice] = []
    for origin, count in shares.items():
        topic, partition = partition_of(origin)
        table = table_of(topic) if by_topic else ""
        first = positions[origin].offset
        for begin in range(first, first + count, each):
            part = MessageRange(topic, partition, begin, min(begin + each, first + count))
            slices.append(TopicSlice(part, positions[origin].epoch, counts[topic], table, now_us))
    of_topic = Counter(one.range.topic for one in slices)
    return [replace(one, slices=of_topic[one.range.topic]) for one in slices]


@dataclass(frozen=True)
class AddedPartition:
    """A partition of a topic that isn't in the stored offset."""

    topic: str
    partition: int


def added_partitions(
    positions: Mapping[str, PartitionPosition], target: Mapping[str, PartitionPosition]
) -> list[AddedPartition]:
    """Return new partitions of known topics."""
    known = {partition_of(origin)[0] for origin in positions}
    new = [partition_of(origin) for origin in target if origin not in positions]
    return [AddedPartition(topic, number) for topic, number in new if topic in known]


def _siblings(positions: Mapping[str, PartitionPosition], added: Sequence[AddedPartition]) -> list[str]:
    """Return the known partitions of topics with new partitions."""
    topics = {one.topic for one in added}
    return [origin for origin in positions if partition_of(origin)[0] in topics]


def _next_epoch(
    positions: Mapping[str, PartitionPosition],
    target: Mapping[str, PartitionPosition],
    begins: Mapping[str, int],
    added: Sequence[AddedPartition],
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


def more_partitions(added: Sequence[AddedPartition]) -> ConfigurationError:
    """Return the error of partitions that were added."""
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
