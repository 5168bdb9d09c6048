"""Converts offsets stored by Debezium's connector for Vitess to positions, and back.

Kafka Connect and Debezium Engine store one offset per connector, or per task
(:mod:`airflow_cdc_provider.sources.vitess.task_offsets`); for the file formats see :mod:`.connect`::

    P = {"server": topic.prefix}                          and "task_key" if each task stores its own offset
    O = {"vgtid": TEXT, "transaction_epoch": TEXT, "connector_generation": n, ...}
                                                          epochs, generation: with ordered transactions
    vgtid = [{"keyspace": k, "shard": s, "gtid": g, "table_p_ks": [...]}, ...]    as JSON, a text in JSON
    transaction_epoch = {"-80": 1, ...}                   likewise

A non-empty ``table_p_ks`` means that a copy was in progress. Debezium stores last keys as text, which
corrupts keys that aren't UTF-8, and doesn't store which tables were finished. A copy can't be resumed safely,
so it is reported, and a new snapshot is required. For a shard with ``current`` or nothing Debezium had no
position.

Imported epochs are at least 1, as in a capture that started at ``current``: later changes must not sort
before changes that such a capture stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.migration.offsets.connect import (
    Stored,
    is_connect_offset_file,
    read_connect_offsets,
    to_rest,
)
from airflow_cdc_provider.migration.offsets.conversion import ConnectOffsets, ImportedOffset, OffsetFile
from airflow_cdc_provider.sources.vitess.gtid import GtidSet, is_real
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition
from airflow_cdc_provider.sources.vitess.task_offsets import (
    Layout,
    ShardOffset,
    Shards,
    TaskKey,
    assign_shards,
    migrated,
    newest,
    require_change,
)


@dataclass(frozen=True)
class StoredOffset:
    """One stored offset.

    Args:
        server: ``topic.prefix`` of the connector, empty if unknown.
        task: Key of its task (``task0_2_1``), empty for the offset of the connector.
        value: Members of the offset.
    """

    server: str
    task: str
    value: Mapping[str, Any]


class VitessOffsets(ConnectOffsets):
    """Offsets of Debezium's connector for Vitess."""

    @staticmethod
    def recognizes(content: bytes) -> bool:
        """Return whether a file contains an offset of Debezium rather than of this package."""
        return is_connect_offset_file(content, ("vgtid",))

    def imported(self, file: OffsetFile) -> ImportedOffset:
        """Convert the offset of the connector, or those of its tasks."""
        position, remarks = position_of(
            read_offsets(file.content), self.connector.topic_prefix, self._options, self._shards
        )
        return ImportedOffset(position.to_offset(), remarks)

    def exported(self, offset: Mapping[str, Any]) -> str:
        """Convert an offset to one of Debezium, or one per task."""
        position = Position.from_offset(offset)
        if not position.is_real:
            raise ConfigurationError("shards have no position yet", remedy="run a capture first")
        return to_rest(to_debezium(position, self.connector.topic_prefix, layout_of(self._options)))

    def moved_to_generation(self, content: bytes) -> str:
        """Convert offsets of Debezium's tasks to the generation in the declaration."""
        return to_rest(
            moved(read_offsets(content), self.connector.topic_prefix, self._options, self._shards())
        )

    @property
    def _options(self) -> VitessOptions:
        assert isinstance(self.connector.source, VitessOptions)
        return self.connector.source

    def _shards(self) -> list[str]:
        """Return the captured shards as ``keyspace/shard``: those configured, else all serving shards."""
        from airflow_cdc_provider.sources.vitess.requests import serving_shards

        options = self._options
        if options.shards:
            return [f"{options.keyspace}/{shard}" for shard in options.shards]
        with self.open_source() as client:
            return serving_shards(client, options)


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file; of several with the same key the last one is used.

    Raises:
        ConfigurationError: The file has no supported format.
    """
    return [
        StoredOffset(str(partition.get("server", "")), str(partition.get("task_key", "")), offset)
        for partition, offset in read_connect_offsets(content, "Vitess")
    ]


def layout_of(options: VitessOptions) -> Layout | None:
    """Return how Debezium's tasks store offsets according to the options; None if they don't."""
    tasks = options.task_offsets
    if not tasks.per_task:
        return None
    return Layout(tasks.generation, options.streams, tasks.previous_tasks)


def position_of(
    offsets: Sequence[StoredOffset],
    topic_prefix: str,
    options: VitessOptions,
    topology: Callable[[], Collection[str]],
) -> tuple[Position, tuple[str, ...]]:
    """Return the position to resume from.

    With offsets per task (``source.task_offsets``), offsets of this generation and the previous one are used
    (:func:`.task_offsets.migrated`); otherwise the only offset, or those of the last generation's tasks.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Selects the connector, if there are offsets of several.
        options: The source's options.
        topology: Returns the existing shards, ``keyspace/shard``; only called for offsets per task.

    Returns:
        The position, and a remark for each copy that Debezium didn't finish.

    Raises:
        ConfigurationError: There is no offset of this connector, it contains no position, or the offsets of
            tasks contradict the options.
    """
    own = _of_server(offsets, topic_prefix)
    if layout_of(options) is None:
        found = dict(newest(_by_task(own)))
    else:
        tasks = _of_tasks(own, options, topology())
        found = {shard: offset for assignment in tasks.values() for shard, offset in assignment.items()}
    if not found:
        raise ConfigurationError(
            "this Debezium offset contains no position",
            expected="a vgtid with shards",
            found=", ".join(sorted(own[0].value)) or "nothing",
        )
    generation = _connector_generation(own, options)
    remarks = tuple(
        f"Debezium's copy of shard {shard} was not finished "
        f"({', '.join(str(one.get('table_name')) for one in offset.copying)}): take a snapshot"
        for shard, offset in sorted(found.items())
        if offset.copying
    )
    shards = {shard: _shard_position(shard, offset, generation) for shard, offset in sorted(found.items())}
    return Position(shards), remarks


def to_debezium(position: Position, topic_prefix: str, layout: Layout | None) -> list[Stored]:
    """Convert a position to Debezium's format with ordered transactions: one offset, or one per task.

    Debezium doesn't start without the offsets of the previous generation, so these are written too, although
    it doesn't use their contents.

    Args:
        position: The position.
        topic_prefix: ``topic.prefix`` of the connector.
        layout: How Debezium's tasks store offsets; None for one offset of the connector.

    Raises:
        ConfigurationError: Debezium would reject the number of tasks, because nothing has changed.
    """
    if layout is None:
        return [({"server": topic_prefix}, _offset(position))]
    tasks = {layout.generation: layout.tasks(position.shards)}
    if layout.generation > 0:
        tasks = {layout.generation - 1: layout.previous_tasks, **tasks}
        require_change(layout, position.shards, position.shards)
    return [
        (_partition(topic_prefix, TaskKey(generation, number, task)), _offset(position.of_shards(assignment)))
        for generation, number in tasks.items()
        for task, assignment in enumerate(assign_shards(position.shards, number))
    ]


def _partition(topic_prefix: str, key: TaskKey) -> dict[str, str]:
    plain = {"server": topic_prefix}
    return plain if key == TaskKey.parse("") else {**plain, "task_key": str(key)}


def moved(
    offsets: Sequence[StoredOffset], topic_prefix: str, options: VitessOptions, topology: Collection[str]
) -> list[Stored]:
    """Migrate offsets of Debezium's tasks to the current generation, in Debezium's format.

    Debezium's own migration keeps only positions: it drops the last keys of unfinished copies, and with them
    the rest of the copy.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Selects the connector, if there are offsets of several.
        options: The source's options, with ``task_offsets.per_task``.
        topology: The existing shards, ``keyspace/shard``.

    Raises:
        ConfigurationError: As for :func:`position_of`.
    """
    own = _of_server(offsets, topic_prefix)
    generation = _connector_generation(own, options)
    return [
        (_partition(topic_prefix, key), _written(assignment, generation))
        for key, assignment in _of_tasks(own, options, topology).items()
    ]


def _of_tasks(
    own: Sequence[StoredOffset], options: VitessOptions, topology: Collection[str]
) -> dict[TaskKey, dict[str, ShardOffset]]:
    layout = layout_of(options)
    if layout is None:
        raise ConfigurationError(
            "the connector's tasks don't store offsets",
            expected="source.task_offsets.per_task: true (vitess.offset.storage.per.task)",
            found="false",
        )
    return migrated(_by_task(own), layout, topology, _configured(options))


def _offset(position: Position) -> dict[str, Any]:
    generation = max(known.generation for known in position.shards.values())
    shards = {s: ShardOffset(known.gtid, known.epoch) for s, known in position.shards.items()}
    return _written(shards, generation)


def _written(shards: Shards, generation: int) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    epochs: dict[str, int] = {}
    for full_name, offset in sorted(shards.items()):
        keyspace, _, shard = full_name.partition("/")
        copying = list(offset.copying)
        entries.append({"keyspace": keyspace, "shard": shard, "gtid": offset.gtid, "table_p_ks": copying})
        if offset.epoch is not None:
            epochs[shard] = offset.epoch
    written = {"vgtid": json.dumps(entries, separators=(",", ":"), ensure_ascii=False)}
    if not epochs:
        return written
    epoch_text = json.dumps(epochs, separators=(",", ":"))
    return {**written, "transaction_epoch": epoch_text, "connector_generation": generation}


def _connector_generation(offsets: Sequence[StoredOffset], options: VitessOptions) -> int:
    """Return the generation of offsets; if they have none, the current one, as Debezium does."""
    stored = (offset.value.get("connector_generation") for offset in offsets)
    return max((int(number) for number in stored if number is not None), default=options.generation)


def _of_server(offsets: Sequence[StoredOffset], topic_prefix: str) -> list[StoredOffset]:
    servers = {offset.server for offset in offsets}
    own = [o for o in offsets if o.server == topic_prefix] or (list(offsets) if len(servers) == 1 else [])
    if not own:
        raise ConfigurationError(
            "there is no offset of this connector",
            expected=f"an offset whose server is {topic_prefix}, the topic prefix",
            found=", ".join(sorted(servers)) or "none",
        )
    return own


def _by_task(offsets: Sequence[StoredOffset]) -> dict[TaskKey, Shards]:
    """Return offsets by task; the connector's offset is used if no task of generation 0 has one."""
    stored: dict[TaskKey, Shards] = {
        TaskKey.parse(offset.task): _shards(offset.value) for offset in offsets if offset.task
    }
    plain = next((offset for offset in offsets if not offset.task), None)
    if plain is not None and all(key.generation for key in stored):
        stored[TaskKey.parse("")] = _shards(plain.value)
    return stored


def _shards(value: Mapping[str, Any]) -> dict[str, ShardOffset]:
    epochs = _json_member(value, "transaction_epoch", {})
    found = {}
    for entry in _json_member(value, "vgtid", []):
        try:
            shard = f"{entry['keyspace']}/{entry['shard']}"
            epoch = epochs.get(entry["shard"])
            copying = tuple(entry.get("table_p_ks") or ())
            found[shard] = ShardOffset(
                str(entry.get("gtid", "")), None if epoch is None else int(epoch), copying
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _invalid_member("vgtid", entry) from None
    return found


def _configured(options: VitessOptions) -> dict[str, ShardOffset]:
    if not options.start_at.startswith("["):
        return {}
    entries = json.loads(options.start_at)
    return {
        f"{e['keyspace']}/{e['shard']}": ShardOffset(e["gtid"], options.epochs.get(e["shard"]))
        for e in entries
    }


def _shard_position(shard: str, offset: ShardOffset, generation: int) -> ShardPosition:
    if not is_real(offset.gtid):
        raise ConfigurationError(
            f"this Debezium offset contains no position of shard {shard}",
            expected="a GTID set",
            found=offset.gtid or "an empty gtid: its copy had not started",
            remedy="start without the offset; a snapshot covers earlier changes",
        )
    try:
        GtidSet.parse(offset.gtid)
    except CorruptInput as error:
        raise ConfigurationError(
            f"invalid position of shard {shard}", expected=error.expected, found=error.found
        ) from None
    return ShardPosition(offset.gtid, max(offset.epoch or 0, 1), generation=generation)


def _json_member(value: Mapping[str, Any], name: str, default: Any) -> Any:
    text = value.get(name)
    if text in (None, ""):
        return default
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        found = None
    if not isinstance(found, type(default)):
        raise _invalid_member(name, text)
    return found


def _invalid_member(name: str, found: object) -> ConfigurationError:
    return ConfigurationError(
        f"invalid {name} in this offset", expected="JSON as Debezium writes it", found=str(found)[:200]
    )
