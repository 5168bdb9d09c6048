"""Offsets that Debezium's connector for Vitess has stored, as positions of ours, and back.

Kafka Connect and Debezium Engine keep a map per connector, or per task (``taskI_N_G``)::

    {"offsets": [{"partition": P, "offset": O}, ...]}     GET /connectors/NAME/offsets of Connect's REST API
    ["NAME", P] O                                         a line per record of the topic connect-offsets
    O                                                     one offset alone

    P = {"server": topic.prefix}                          and "task_key" where tasks keep offsets of their own
    O = {"vgtid": TEXT, "transaction_epoch": TEXT, ...}   the epochs with ordered transactions alone
    vgtid = [{"keyspace": k, "shard": s, "gtid": g, "table_p_ks": [...]}, ...]    as JSON, a text in JSON
    transaction_epoch = {"-80": 1, ...}                   likewise

A ``table_p_ks`` that isn't empty says that a copy was under way. Debezium keeps last keys as text, which
damages those that are no UTF-8, and forgets which tables were finished: a copy can't be gone on with safely,
so it is told and a snapshot must be taken. Where a shard has ``current`` or nothing, Debezium knew no place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput
from airflow_cdc_provider.sources.vitess.gtid import GtidSet, is_real
from airflow_cdc_provider.sources.vitess.position import Position, ShardPlace


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
    try:
        first, _ = json.JSONDecoder().raw_decode(content.decode().lstrip())
    except ValueError:
        return False
    if isinstance(first, list):
        return True
    return isinstance(first, dict) and bool({"offsets", "partition", "vgtid"} & set(first))


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file; of several with one key the last counts.

    Raises:
        ConfigurationError: It has none of the forms.
    """
    found: dict[tuple[str, str], StoredOffset | None] = {}
    try:
        for partition, offset in _pairs(content.decode()):
            key = partition[-1] if isinstance(partition, list) else partition
            server, task = str(key.get("server", "")), str(key.get("task_key", ""))
            found[server, task] = None if offset is None else StoredOffset(server, task, dict(offset))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigurationError(
            "this is no offset of Debezium's connector for Vitess",
            expected="what GET /connectors/NAME/offsets gives, or records of connect-offsets with keys",
            found=str(error)[:200],
        ) from None
    return [offset for offset in found.values() if offset is not None]


def position_of(offsets: Sequence[StoredOffset], topic_prefix: str) -> tuple[Position, tuple[str, ...]]:
    """Choose the position to go on from: all shards that the connector's offsets name.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Whose they are, where there are those of several connectors.

    Returns:
        The position, and what of Debezium's work was unfinished, in sentences.

    Raises:
        ConfigurationError: There is no offset of this connector, it holds no place, or two tell of a shard.
    """
    servers = {offset.server for offset in offsets}
    own = [o for o in offsets if o.server == topic_prefix] or (list(offsets) if len(servers) == 1 else [])
    # Per-task offsets stand beside the plain one that they were made of; they are newer.
    own = [o for o in own if o.task] or own
    if not own:
        raise ConfigurationError(
            "there is no offset of this connector",
            expected=f"one whose server is {topic_prefix}, the topic prefix",
            found=", ".join(sorted(servers)) or "none at all",
        )
    shards: dict[str, ShardPlace] = {}
    remarks: list[str] = []
    for offset in own:
        epochs = _json_member(offset.value, "transaction_epoch", {})
        for entry in _json_member(offset.value, "vgtid", []):
            shard = f"{entry['keyspace']}/{entry['shard']}"
            if shard in shards:
                raise ConfigurationError(
                    f"two offsets tell of shard {shard}",
                    expected="those of one generation of tasks",
                    found=", ".join(sorted(o.task or "the connector's own" for o in own)),
                    remedy="leave out those of earlier generations",
                )
            shards[shard] = _place(shard, entry, epochs)
            if entry.get("table_p_ks"):
                tables = ", ".join(str(one.get("table_name")) for one in entry["table_p_ks"])
                remarks.append(
                    f"Debezium's copy of shard {shard} was not finished ({tables}): take a snapshot"
                )
    if not shards:
        raise ConfigurationError(
            "this offset of Debezium holds no place",
            expected="a vgtid with shards",
            found=", ".join(sorted(own[0].value)) or "nothing",
        )
    return Position(shards), tuple(remarks)


def to_debezium(position: Position) -> dict[str, str]:
    """Write a position as the map that Debezium stores with ordered transactions."""
    entries = []
    epochs = {}
    for shard, place in position.shards.items():
        keyspace, _, name = shard.partition("/")
        entries.append({"keyspace": keyspace, "shard": name, "gtid": place.gtid, "table_p_ks": []})
        epochs[name] = place.epoch
    return {
        "vgtid": json.dumps(entries, separators=(",", ":")),
        "transaction_epoch": json.dumps(epochs, separators=(",", ":")),
    }


def _place(shard: str, entry: Mapping[str, Any], epochs: Mapping[str, Any]) -> ShardPlace:
    gtid = str(entry.get("gtid", ""))
    if not is_real(gtid):
        raise ConfigurationError(
            f"this offset of Debezium holds no place of shard {shard}",
            expected="a GTID set",
            found=gtid or "an empty gtid: its copy had not begun",
            remedy="start without it; a snapshot has what came before",
        )
    try:
        GtidSet.parse(gtid)
    except CorruptInput as error:
        raise ConfigurationError(
            f"the place of shard {shard} is wrong", expected=error.expected, found=error.found
        ) from None
    epoch = epochs.get(str(entry["shard"]), 1)
    return ShardPlace(gtid, max(int(epoch), 1))


def _json_member(value: Mapping[str, Any], name: str, default: Any) -> Any:
    text = value.get(name)
    if text in (None, ""):
        return default
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        found = None
    if not isinstance(found, type(default)):
        raise ConfigurationError(
            f"{name} of this offset is wrong",
            expected="JSON as Debezium writes it",
            found=str(text)[:200],
        )
    return found


def _pairs(text: str) -> Iterator[tuple[Any, Any]]:
    decoder = json.JSONDecoder()
    first, end = decoder.raw_decode(text.lstrip())
    if isinstance(first, dict):
        if text.lstrip()[end:].strip():
            raise ValueError("something follows the first object")
        for entry in first.get("offsets", [first]):
            yield (entry["partition"], entry["offset"]) if "partition" in entry else ({}, entry)
        return
    for line in filter(str.strip, text.splitlines()):
        key, end = decoder.raw_decode(line.strip())
        yield key, json.loads(line.strip()[end:].lstrip("\t :=|,"))
