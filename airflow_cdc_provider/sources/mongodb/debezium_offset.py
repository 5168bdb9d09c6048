"""Offsets that Debezium's connector for MongoDB has stored, as places of ours.

They are kept by Kafka Connect, or by Debezium Engine and Server in a file, and come in four forms::

    {"offsets": [{"partition": P, "offset": O}, ...]}     GET /connectors/NAME/offsets of Connect's REST API
    ["NAME", P] O                                         a line per record of the topic connect-offsets
    O                                                     one offset alone
    aced0005...                                           the file of FileOffsetBackingStore: a Java HashMap,
                                                          keys and values byte arrays with JSON as above

    P = {"server_id": topic.prefix}                       and "replicaSetName" up to Debezium 2.5
    O = {"sec": s, "ord": n, "resume_token": T, ...}      s and n are -1 where only a token is known
    T = base64 of the token's BSON                        earlier: its bare ``_data``

Of several records with one key the last counts; a null takes a key away.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.errors import BSONError

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPlace, token_time

INVALIDATION: Final = "internal.mongodb.allow.offset.invalidation"
"""Debezium's property that allows to give up offsets of single shards."""

_JAVA: Final = b"\xac\xed\x00\x05"
_WHOLE_CLUSTER: Final = "cluster"
"""What Debezium calls the replica set of a cluster that it reads as one."""
_HIGH_WATER: Final = "82"


@dataclass(frozen=True)
class StoredOffset:
    """One offset.

    Args:
        server: ``topic.prefix`` of the connector, empty if it isn't told.
        replica_set: The replica set that it is of, empty if it is of everything.
        value: Its members.
    """

    server: str
    replica_set: str
    value: Mapping[str, Any]


def is_debeziums(content: bytes) -> bool:
    """Tell whether a file holds an offset of Debezium, and not one of ours."""
    if content.startswith(_JAVA):
        return True
    try:
        first, _ = json.JSONDecoder().raw_decode(content.decode().lstrip())
    except ValueError:
        return False
    if isinstance(first, list):
        return True
    return isinstance(first, dict) and bool({"offsets", "partition", "resume_token", "sec"} & set(first))


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file.

    Raises:
        ConfigurationError: It has none of the forms.
    """
    try:
        if content.startswith(_JAVA):
            pairs = [(json.loads(key), json.loads(value)) for key, value in _java_map(content)]
        else:
            pairs = list(_pairs(content.decode()))
        found = {json.dumps(key, sort_keys=True): _stored(key, value) for key, value in pairs}
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigurationError(
            "this is no offset of Debezium's connector for MongoDB",
            expected="what GET /connectors/NAME/offsets gives, records of connect-offsets with keys, or "
            "the file of offset.storage.file.filename",
            found=str(error)[:200],
        ) from None
    return [offset for offset in found.values() if offset is not None]


def place_of(
    offsets: Sequence[StoredOffset],
    topic_prefix: str,
    *,
    shards: Callable[[], Sequence[str] | None],
    allow_invalidation: bool,
) -> StreamPlace | None:
    """Choose the place to go on after.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Whose offset it is, where there are those of several.
        shards: Gives the names of the deployment's shards, None if they are unknown; asked only for offsets
            of single shards that may be given up.
        allow_invalidation: Whether offsets of single shards may be given up for the oldest one's time.

    Returns:
        The place; None if it is unknown and an initial snapshot must be taken, as a shard has no offset.

    Raises:
        ConfigurationError: There is no offset for this connector, it holds no place, or offsets of single
            shards are not to be given up.
    """
    own = _of_server(offsets, topic_prefix)
    whole = [o for o in own if o.replica_set in ("", _WHOLE_CLUSTER)] or (own if len(own) == 1 else [])
    if whole:
        return _place(sorted(whole, key=lambda o: o.replica_set)[0].value)
    if not allow_invalidation:
        raise ConfigurationError(
            "these offsets are of single shards, which one stream of all of them can't go on from",
            expected=f"{INVALIDATION}, here --allow-offset-invalidation, to go on from the oldest one's time",
            found=", ".join(sorted(o.replica_set for o in own)),
        )
    if set(shards() or ()) - {o.replica_set for o in own}:
        return None
    oldest = min((_place(o.value) for o in own), key=lambda place: place.time)
    if not oldest.token:
        return oldest
    before = oldest.time - 1  # a shard's token says nothing to the router
    return StreamPlace(before >> 32, before & LAST_INDEX)


def remarks(offsets: Sequence[StoredOffset]) -> list[str]:
    """Tell what of Debezium's work was unfinished, in sentences for people."""
    told = []
    if any(o.value.get("initsync") for o in offsets):
        told.append(
            "Debezium's initial snapshot was not finished: take one, by snapshot.mode initial or "
            "CdcSnapshotOperator"
        )
    if any(o.value.get("incremental_snapshot_collections") for o in offsets):
        told.append("Debezium's incremental snapshot was not finished: read its collections again")
    return told


def _of_server(offsets: Sequence[StoredOffset], topic_prefix: str) -> list[StoredOffset]:
    servers = sorted({o.server for o in offsets})
    own = [o for o in offsets if o.server == topic_prefix] or (list(offsets) if len(servers) == 1 else [])
    if not own:
        raise ConfigurationError(
            "there is no offset of this connector",
            expected=f"one whose server_id is {topic_prefix}, the topic prefix",
            found=", ".join(servers) or "none at all",
            remedy="without one, an initial snapshot begins (snapshot.mode)",
        )
    return own


def _place(value: Mapping[str, Any]) -> StreamPlace:
    token = _token(value.get("resume_token"))
    seconds, increment = value.get("sec"), value.get("ord")
    known = token_time(bson.decode(token)) if token else 0
    if isinstance(seconds, int) and isinstance(increment, int) and seconds > 0 and increment >= 0:
        time = seconds << 32 | increment
    else:
        time = known
    if not time:
        raise ConfigurationError(
            "this offset of Debezium holds no place",
            expected="sec and ord, or a resume_token that tells a time",
            found=", ".join(sorted(value)),
        )
    if not token:  # Debezium starts at that time, not after it
        time -= 1
        return StreamPlace(time >> 32, time & LAST_INDEX)
    # Which of its time's events it is isn't known; those that follow get greater numbers.
    return StreamPlace(time >> 32, time & LAST_INDEX, 0, token)


def _token(text: Any) -> bytes:
    if not text:
        return b""
    try:
        if isinstance(text, str) and text.startswith(_HIGH_WATER) and _is_hexadecimal(text):
            return bson.encode({"_data": text})
        token = base64.b64decode(text, validate=True)
        bson.decode(token)
    except (binascii.Error, TypeError, ValueError, BSONError) as error:
        raise ConfigurationError(
            "resume_token of this offset is wrong",
            expected="BSON in base64, or hexadecimal digits",
            found=str(error)[:200],
        ) from None
    return token


def _is_hexadecimal(text: str) -> bool:
    return len(text) % 2 == 0 and set(text) <= set("0123456789ABCDEFabcdef")


def _stored(key: Any, value: Any) -> StoredOffset | None:
    """Make an offset of a record; None if the record takes it away."""
    partition = _payload(key)
    if isinstance(partition, list):
        partition = partition[-1]
    members = _payload(value)
    if members is None:
        return None
    return StoredOffset(
        str(partition.get("server_id", "")), str(partition.get("replicaSetName", "")), dict(members)
    )


def _payload(value: Any) -> Any:
    return value["payload"] if isinstance(value, dict) and set(value) == {"schema", "payload"} else value


def _pairs(text: str) -> Iterator[tuple[Any, Any]]:
    """Give partitions and offsets of the forms in JSON."""
    decoder = json.JSONDecoder()
    at = len(text) - len(text.lstrip())
    first, end = decoder.raw_decode(text, at)
    if isinstance(first, dict):
        if text[end:].strip():
            raise ValueError("something follows the first object")
        entries = first.get("offsets", [first])
        for entry in entries:
            yield (entry["partition"], entry["offset"]) if "partition" in entry else ({}, entry)
        return
    for line in filter(str.strip, text.splitlines()):
        key, end = decoder.raw_decode(line.strip())
        rest = line.strip()[end:].lstrip("\t :=|,")
        yield key, json.loads(rest)


def _java_map(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give keys and values of a serialised ``HashMap<byte[], byte[]>`` (Java Object Serialization, ch. 6).

    After the class description of HashMap with its two fields stand their values, a block with capacity and
    size, then keys and values in turn: arrays of bytes (TC_ARRAY), the first with its class description, the
    others with a reference to it.
    """
    body = content.index(b"\x77\x08") + 2  # TC_BLOCKDATA of eight bytes
    count = int.from_bytes(content[body + 4 : body + 8], "big")
    at = body + 8
    values: list[bytes] = []
    for _ in range(2 * count):
        if content[at] == 0x70:  # TC_NULL, a value that was taken away
            values.append(b"null")
            at += 1
            continue
        if content[at] != 0x75:
            raise ValueError(f"no array of bytes at byte {at}")
        if content[at + 1] == 0x72:  # TC_CLASSDESC
            at = content.index(b"\x78\x70", at) + 2
        elif content[at + 1] == 0x71:  # TC_REFERENCE
            at += 6
        else:
            raise ValueError(f"no class of an array at byte {at}")
        size = int.from_bytes(content[at : at + 4], "big")
        values.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    yield from zip(values[::2], values[1::2], strict=True)
