"""Offsets that Debezium's connector for Vitess has stored, as positions of ours, and back.

Kafka Connect and Debezium Engine keep one per connector, or per task (:mod:`.task_offsets`); the forms of
files are :mod:`..connect_offsets`'::

    P = {"server": topic.prefix}                          and "task_key" where tasks keep offsets of their own
    O = {"vgtid": TEXT, "transaction_epoch": TEXT, "connector_generation": n, ...}
                                                          epochs, generation: with ordered transactions
    vgtid = [{"keyspace": k, "shard": s, "gtid": g, "table_p_ks": [...]}, ...]    as JSON, a text in JSON
    transaction_epoch = {"-80": 1, ...}                   likewise

A ``table_p_ks`` that isn't empty says that a copy was under way. Debezium keeps last keys as text, which
damages those that are no UTF-8, and forgets which tables were finished: a copy can't be gone on with safely,
so it is told and a snapshot must be taken. Where a shard has ``current`` or nothing, Debezium knew no place.

Epochs that are taken over are 1 at least, as of a capture that began at ``current``: nothing that follows may
fall behind what such a one has kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.connect_offsets import Stored, is_stored_by_connect, read_stored
from airflow_cdc_provider.sources.vitess.gtid import GtidSet, is_real
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.position import Position, ShardPlace
from airflow_cdc_provider.sources.vitess.task_offsets import (
    Layout,
    ShardOffset,
    Shards,
    TaskKey,
    migrated,
    newest,
    require_change,
    shares,
)


@dataclass(frozen=True)
class StoredOffset:
    """One offset.

    Args:
        server: ``topic.prefix`` of the connector, empty if it isn't told.
        task: Key of the task that it is of (``task0_2_1``), empty for the connector's own.
        value: Its members.
    """

    server: str
    task: str
    value: Mapping[str, Any]


def is_debeziums(content: bytes) -> bool:
    """Tell whether a file holds an offset of Debezium, and not one of ours."""
    return is_stored_by_connect(content, ("vgtid",))


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file; of several with one key the last counts.

    Raises:
        ConfigurationError: It has none of the forms.
    """
    return [
        StoredOffset(str(partition.get("server", "")), str(partition.get("task_key", "")), offset)
        for partition, offset in read_stored(content, "Vitess")
    ]


def layout_of(options: VitessOptions) -> Layout | None:
    """Return how Debezium's tasks keep offsets by the options; None: they don't."""
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
    """Choose the position to go on from.

    With offsets per task (``source.task_offsets``) those of this generation and the one before count, as
    :func:`.task_offsets.migrated` says; without, the only offset, or what the last generation's tasks have.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Whose they are, where there are those of several connectors.
        options: The source's.
        topology: Gives the shards that there are, ``keyspace/shard``; asked only for offsets per task.

    Returns:
        The position, and what of Debezium's work was unfinished, in sentences.

    Raises:
        ConfigurationError: There is no offset of this connector, it holds no place, or the offsets of tasks
            don't fit what the options say of them.
    """
    own = _of_server(offsets, topic_prefix)
    if layout_of(options) is None:
        found = dict(newest(_by_task(own)))
    else:
        tasks = _of_tasks(own, options, topology())
        found = {shard: offset for share in tasks.values() for shard, offset in share.items()}
    if not found:
        raise ConfigurationError(
            "this offset of Debezium holds no place",
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
    places = {shard: _place(shard, offset, generation) for shard, offset in sorted(found.items())}
    return Position(places), remarks


def to_debezium(position: Position, topic_prefix: str, layout: Layout | None) -> list[Stored]:
    """Write a position as what Debezium stores with ordered transactions: one offset, or one of each task.

    Debezium doesn't start without the offsets of the generation before, so these are written too; what they
    hold it doesn't use.

    Raises:
        ConfigurationError: Debezium would refuse the number of tasks, as nothing has changed.
    """
    if layout is None:
        return [({"server": topic_prefix}, _offset(position))]
    tasks = {layout.generation: layout.tasks(position.shards)}
    if layout.generation > 0:
        tasks = {layout.generation - 1: layout.previous_tasks, **tasks}
        require_change(layout, position.shards, position.shards)
    return [
        (_partition(topic_prefix, TaskKey(generation, number, task)), _offset(position.of_shards(share)))
        for generation, number in tasks.items()
        for task, share in enumerate(shares(position.shards, number))
    ]


def _partition(topic_prefix: str, key: TaskKey) -> dict[str, str]:
    plain = {"server": topic_prefix}
    return plain if key == TaskKey.parse("") else {**plain, "task_key": str(key)}


def moved(
    offsets: Sequence[StoredOffset], topic_prefix: str, options: VitessOptions, topology: Collection[str]
) -> list[Stored]:
    """Move offsets of Debezium's tasks to the present generation, in Debezium's form.

    Debezium does so itself, but keeps positions alone: of an unfinished copy it forgets the last keys,
    and with them the rest of the copy.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Whose they are, where there are those of several connectors.
        options: The source's, with ``task_offsets.per_task``.
        topology: The shards that there are, ``keyspace/shard``.

    Raises:
        ConfigurationError: As of :func:`position_of`.
    """
    own = _of_server(offsets, topic_prefix)
    generation = _connector_generation(own, options)
    return [
        (_partition(topic_prefix, key), _written(share, generation))
        for key, share in _of_tasks(own, options, topology).items()
    ]


def _of_tasks(
    own: Sequence[StoredOffset], options: VitessOptions, topology: Collection[str]
) -> dict[TaskKey, dict[str, ShardOffset]]:
    layout = layout_of(options)
    if layout is None:
        raise ConfigurationError(
            "the connector's tasks keep no offsets of their own",
            expected="source.task_offsets.per_task: true (vitess.offset.storage.per.task)",
            found="false",
        )
    return migrated(_by_task(own), layout, topology, _configured(options))


def _offset(position: Position) -> dict[str, Any]:
    generation = max(place.generation for place in position.shards.values())
    shards = {s: ShardOffset(place.gtid, place.epoch) for s, place in position.shards.items()}
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
    told = json.dumps(epochs, separators=(",", ":"))
    return {**written, "transaction_epoch": told, "connector_generation": generation}


def _connector_generation(offsets: Sequence[StoredOffset], options: VitessOptions) -> int:
    """Return the generation that offsets are of; where they tell none, the present one, as for Debezium."""
    told = (offset.value.get("connector_generation") for offset in offsets)
    return max((int(number) for number in told if number is not None), default=options.generation)


def _of_server(offsets: Sequence[StoredOffset], topic_prefix: str) -> list[StoredOffset]:
    servers = {offset.server for offset in offsets}
    own = [o for o in offsets if o.server == topic_prefix] or (list(offsets) if len(servers) == 1 else [])
    if not own:
        raise ConfigurationError(
            "there is no offset of this connector",
            expected=f"one whose server is {topic_prefix}, the topic prefix",
            found=", ".join(sorted(servers)) or "none at all",
        )
    return own


def _by_task(offsets: Sequence[StoredOffset]) -> dict[TaskKey, Shards]:
    """Read offsets by task; the connector's own counts where no task of generation 0 has one."""
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
            raise _wrong_member("vgtid", entry) from None
    return found


def _configured(options: VitessOptions) -> dict[str, ShardOffset]:
    if not options.start_at.startswith("["):
        return {}
    entries = json.loads(options.start_at)
    return {
        f"{e['keyspace']}/{e['shard']}": ShardOffset(e["gtid"], options.epochs.get(e["shard"]))
        for e in entries
    }


def _place(shard: str, offset: ShardOffset, generation: int) -> ShardPlace:
    if not is_real(offset.gtid):
        raise ConfigurationError(
            f"this offset of Debezium holds no place of shard {shard}",
            expected="a GTID set",
            found=offset.gtid or "an empty gtid: its copy had not begun",
            remedy="start without it; a snapshot has what came before",
        )
    try:
        GtidSet.parse(offset.gtid)
    except CorruptInput as error:
        raise ConfigurationError(
            f"the place of shard {shard} is wrong", expected=error.expected, found=error.found
        ) from None
    return ShardPlace(offset.gtid, max(offset.epoch or 0, 1), generation=generation)


def _json_member(value: Mapping[str, Any], name: str, default: Any) -> Any:
    text = value.get(name)
    if text in (None, ""):
        return default
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        found = None
    if not isinstance(found, type(default)):
        raise _wrong_member(name, text)
    return found


def _wrong_member(name: str, found: object) -> ConfigurationError:
    return ConfigurationError(
        f"{name} of this offset is wrong", expected="JSON as Debezium writes it", found=str(found)[:200]
    )
