"""Converts offsets that Debezium's connector for MongoDB has stored to positions.

:mod:`.connect` describes the file formats. An offset::

    P = {"server_id": topic.prefix}                       and "replicaSetName" up to Debezium 2.5
    O = {"sec": s, "ord": n, "resume_token": T, ...}      s and n are -1 where only a token is known
    T = base64 of the token's BSON                        earlier: its bare ``_data``
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.errors import BSONError

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.connect import is_connect_offset_file, read_connect_offsets
from airflow_cdc_provider.migration.offsets.conversion import ConnectOffsets, ImportedOffset, OffsetFile
from airflow_cdc_provider.sources.mongodb.driver.shards import shard_names
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition, token_time

INVALIDATION: Final = "internal.mongodb.allow.offset.invalidation"
"""Debezium's property that permits invalidating offsets of single shards."""

_WHOLE_CLUSTER: Final = "cluster"
"""Debezium's name for the replica set of a cluster that it reads as one."""
_HIGH_WATER: Final = "82"


@dataclass(frozen=True)
class StoredOffset:
    """One stored offset.

    Args:
        server: ``topic.prefix`` of the connector, empty if unknown.
        replica_set: The replica set of the offset, empty for the whole deployment.
        value: The offset's members.
    """

    server: str
    replica_set: str
    value: Mapping[str, Any]


class MongodbOffsets(ConnectOffsets):
    """Offsets of Debezium's connector for MongoDB."""

    @staticmethod
    def recognizes(content: bytes) -> bool:
        """Return whether a file holds an offset of Debezium and not one of this provider."""
        return is_connect_offset_file(content, ("resume_token", "sec"))

    def imported(self, file: OffsetFile) -> ImportedOffset:
        """Convert an offset of a deployment, or, if they may be invalidated, offsets of shards."""
        offsets = read_offsets(file.content)
        position = position_of(
            offsets,
            self.connector.topic_prefix,
            shards=self._shards,
            allow_invalidation=file.allow_invalidation,
        )
        notes = tuple(remarks(offsets))
        if position is None:
            return ImportedOffset(
                None, (*notes, "a shard has no offset: capture starts over with a snapshot")
            )
        return ImportedOffset(position.to_offset(), notes)

    def _shards(self) -> list[str] | None:
        with self.open_source() as client:
            return shard_names(client)


def read_offsets(content: bytes) -> list[StoredOffset]:
    """Read all offsets of a file.

    Raises:
        ConfigurationError: The file has none of the known formats.
    """
    return [
        StoredOffset(str(partition.get("server_id", "")), str(partition.get("replicaSetName", "")), offset)
        for partition, offset in read_connect_offsets(content, "MongoDB")
    ]


def position_of(
    offsets: Sequence[StoredOffset],
    topic_prefix: str,
    *,
    shards: Callable[[], Sequence[str] | None],
    allow_invalidation: bool,
) -> StreamPosition | None:
    """Return the position after which to resume.

    Args:
        offsets: From :func:`read_offsets`.
        topic_prefix: Selects the connector if there are offsets of several.
        shards: Returns the names of the deployment's shards, None if they are unknown; called only for
            offsets of single shards that may be invalidated.
        allow_invalidation: Whether offsets of single shards may be replaced by the oldest one's time.

    Returns:
        The position; None if a shard has no offset, so that an initial snapshot must be taken.

    Raises:
        ConfigurationError: There is no offset of this connector, the offset has no position, or offsets of
            single shards must not be invalidated.
    """
    own = _of_server(offsets, topic_prefix)
    whole = [o for o in own if o.replica_set in ("", _WHOLE_CLUSTER)] or (own if len(own) == 1 else [])
    if whole:
        return _position(sorted(whole, key=lambda o: o.replica_set)[0].value)
    if not allow_invalidation:
        raise ConfigurationError(
            "these are offsets of single shards, from which one stream of all shards can't resume",
            expected=f"{INVALIDATION}, here --allow-offset-invalidation, to resume from the oldest time",
            found=", ".join(sorted(o.replica_set for o in own)),
        )
    if set(shards() or ()) - {o.replica_set for o in own}:
        return None
    oldest = min((_position(o.value) for o in own), key=lambda position: position.time)
    if not oldest.token:
        return oldest
    before = oldest.time - 1  # the router doesn't accept a shard's token
    return StreamPosition(before >> 32, before & LAST_INDEX)


def remarks(offsets: Sequence[StoredOffset]) -> list[str]:
    """Return a message for each of Debezium's snapshots that was not finished."""
    unfinished = []
    if any(o.value.get("initsync") for o in offsets):
        unfinished.append(
            "Debezium's initial snapshot was not finished: take one, by snapshot.mode initial or "
            "CdcSnapshotOperator"
        )
    if any(o.value.get("incremental_snapshot_collections") for o in offsets):
        unfinished.append("Debezium's incremental snapshot was not finished: re-read its collections")
    return unfinished


def _of_server(offsets: Sequence[StoredOffset], topic_prefix: str) -> list[StoredOffset]:
    servers = sorted({o.server for o in offsets})
    own = [o for o in offsets if o.server == topic_prefix] or (list(offsets) if len(servers) == 1 else [])
    if not own:
        raise ConfigurationError(
            "there is no offset of this connector",
            expected=f"one whose server_id is {topic_prefix}, the topic prefix",
            found=", ".join(servers) or "no offsets",
            remedy="without one, capture starts with an initial snapshot (snapshot.mode)",
        )
    return own


def _position(value: Mapping[str, Any]) -> StreamPosition:
    token = _token(value.get("resume_token"))
    seconds, increment = value.get("sec"), value.get("ord")
    known = token_time(bson.decode(token)) if token else 0
    if isinstance(seconds, int) and isinstance(increment, int) and seconds > 0 and increment >= 0:
        time = seconds << 32 | increment
    else:
        time = known
    if not time:
        raise ConfigurationError(
            "the Debezium offset has no position",
            expected="sec and ord, or a resume_token with a cluster time",
            found=", ".join(sorted(value)),
        )
    if not token:  # Debezium starts at that time, not after it
        time -= 1
        return StreamPosition(time >> 32, time & LAST_INDEX)
    # The event's index within its cluster time is unknown; later events get greater indexes.
    return StreamPosition(time >> 32, time & LAST_INDEX, 0, token)


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
            "invalid resume_token in the Debezium offset",
            expected="BSON in base64, or hexadecimal digits",
            found=str(error)[:200],
        ) from None
    return token


def _is_hexadecimal(text: str) -> bool:
    return len(text) % 2 == 0 and set(text) <= set("0123456789ABCDEFabcdef")
