"""Offsets that Debezium has stored are converted to positions."""

from __future__ import annotations

import base64
import json
from typing import Any

import bson
import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.offsets.mongodb import (
    MongodbOffsets,
    position_of,
    read_offsets,
    remarks,
)
from airflow_cdc_provider.sources.mongodb.position import LAST_INDEX, StreamPosition

SECONDS = 1795256806
DATA = "826B016DE6000000012B0229296E04"
TOKEN = bson.encode({"_data": DATA})
OFFSET = {"sec": SECONDS, "ord": 1, "resume_token": base64.b64encode(TOKEN).decode()}
AFTER = StreamPosition(SECONDS, 1, 0, TOKEN)

JAVA_FILE = base64.b64decode(
    "rO0ABXNyABFqYXZhLnV0aWwuSGFzaE1hcAUH2sHDFmDRAwACRgAKbG9hZEZhY3RvckkACXRocmVzaG9sZHhwP0AAAAAAAAx3CAAAABAA"
    "AAACdXIAAltCrPMX+AYIVOACAAB4cAAAAB9bInNob3AiLCB7InNlcnZlcl9pZCI6ICJzaG9wIn1ddXEAfgACAAAAcXsic2VjIjogMTc5"
    "NTI1NjgwNiwgIm9yZCI6IDEsICJyZXN1bWVfdG9rZW4iOiAiTHdBQUFBSmZaR0YwWVFBZkFBQUFPREkyUWpBeE5rUkZOakF3TURBd01E"
    "QXhNa0l3TWpJNU1qazJSVEEwQUFBPSJ9dXEAfgACAAAAIVsib3RoZXIiLCB7InNlcnZlcl9pZCI6ICJvdGhlciJ9XXVxAH4AAgAAABR7"
    "InNlYyI6IDEsICJvcmQiOiAxfXg="
)
"""Written by Java's ObjectOutputStream: a HashMap of byte arrays, of connectors ``shop`` and ``other``."""


def rest(*entries: tuple[dict[str, str], dict[str, Any]]) -> bytes:
    return json.dumps({"offsets": [{"partition": p, "offset": o} for p, o in entries]}).encode()


def read_position(content: bytes, prefix: str = "shop", **choices: Any) -> StreamPosition | None:
    assert MongodbOffsets.recognizes(content)
    given = {"shards": lambda: ["s1", "s2"], "allow_invalidation": False, **choices}
    return position_of(read_offsets(content), prefix, **given)


@pytest.mark.covers("MDB-OFF-01")
@pytest.mark.parametrize(
    "content",
    [
        rest(({"server_id": "shop"}, OFFSET), ({"server_id": "other"}, {"sec": 1, "ord": 1})),
        json.dumps({"partition": {"server_id": "shop"}, "offset": OFFSET}).encode(),
        json.dumps(OFFSET).encode(),
        b'["shop",{"server_id":"shop"}]\t{"sec":1,"ord":1}\n'
        b'["o",{"server_id":"o"}]\t{"sec":3,"ord":1}\n'
        b'["o",{"server_id":"o"}]\tnull\n'
        b'["shop",{"server_id":"shop"}]\t' + json.dumps(OFFSET).encode() + b"\n",
        JAVA_FILE,
    ],
)
def test_each_form_of_a_stored_offset_is_read(content: bytes) -> None:
    assert read_position(content) == AFTER


@pytest.mark.covers("MDB-OFF-01")
def test_a_token_alone_has_its_time_and_a_time_alone_begins_with_it() -> None:
    idle = {"sec": -1, "ord": -1, "resume_token": OFFSET["resume_token"]}
    from_token = StreamPosition(0x6B016DE6, 1, 0, TOKEN)
    assert read_position(json.dumps(idle).encode()) == from_token
    bare = {"sec": -1, "ord": -1, "resume_token": DATA}
    assert read_position(json.dumps(bare).encode()) == from_token
    by_time = read_position(json.dumps({"sec": SECONDS, "ord": 5, "resume_token": None}).encode())
    assert by_time == StreamPosition(SECONDS, 4, LAST_INDEX)
    assert by_time.start_time == bson.Timestamp(SECONDS, 5)
    restored = StreamPosition.from_offset(AFTER.to_offset())
    assert restored == AFTER


@pytest.mark.covers("MDB-OFF-02")
@pytest.mark.parametrize("name", ["rs0", "cluster"])
def test_an_older_offset_of_a_replica_set_or_of_a_whole_cluster_is_taken(name: str) -> None:
    assert read_position(rest(({"server_id": "shop", "replicaSetName": name}, OFFSET))) == AFTER
    both = rest(
        ({"server_id": "shop", "replicaSetName": "s1"}, {"sec": 5, "ord": 1}),
        ({"server_id": "shop", "replicaSetName": "cluster"}, OFFSET),
    )
    assert read_position(both) == AFTER


@pytest.mark.covers("MDB-OFF-04")
def test_offsets_of_shards_are_given_up_for_the_oldest_time_only_where_that_is_allowed() -> None:
    shards = rest(
        ({"server_id": "shop", "replicaSetName": "s1"}, OFFSET),
        ({"server_id": "shop", "replicaSetName": "s2"}, {"sec": SECONDS - 9, "ord": 2}),
    )
    with pytest.raises(ConfigurationError, match=r"internal\.mongodb\.allow\.offset\.invalidation"):
        read_position(shards)
    oldest = read_position(shards, allow_invalidation=True)
    assert oldest is not None
    assert (oldest.start_time, oldest.token) == (bson.Timestamp(SECONDS - 9, 2), b"")
    assert read_position(shards, allow_invalidation=True, shards=lambda: ["s1", "s2", "s3"]) is None


@pytest.mark.covers("MDB-OFF-05")
def test_a_file_without_this_connectors_offset_is_an_error() -> None:
    two = rest(({"server_id": "a"}, OFFSET), ({"server_id": "b"}, OFFSET))
    with pytest.raises(
        ConfigurationError, match=r"server_id is shop, the topic prefix, found a, b.*snapshot"
    ):
        read_position(two)
    assert read_position(rest(({"server_id": "a"}, OFFSET))) == AFTER, "there is but one"
    with pytest.raises(ConfigurationError, match="has no position"):
        read_position(json.dumps({"sec": -1, "ord": -1, "initsync": True}).encode())


@pytest.mark.parametrize(
    "content",
    [b'["shop"] {', b"{} {}", b'{"offsets": [{"partition": {}}]}', JAVA_FILE[:150], b'["a", 1]\t{}'],
)
def test_what_is_no_stored_offset_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not a valid offset of Debezium"):
        read_offsets(content)


def test_a_broken_token_is_refused() -> None:
    for token in ("%%", base64.b64encode(b"no bson").decode(), 5):
        with pytest.raises(ConfigurationError, match="resume_token"):
            read_position(json.dumps({"sec": 5, "ord": 1, "resume_token": token}).encode())


def test_our_own_offsets_are_not_taken_for_debeziums() -> None:
    assert not MongodbOffsets.recognizes(json.dumps(AFTER.to_offset()).encode())
    assert not MongodbOffsets.recognizes(b"\xff\xfe no text")


def test_unfinished_work_is_reported() -> None:
    unfinished = {**OFFSET, "initsync": True, "incremental_snapshot_collections": "[]"}
    assert len(remarks(read_offsets(json.dumps(unfinished).encode()))) == 2
    assert remarks(read_offsets(JAVA_FILE)) == []


@pytest.mark.covers("MDB-PERM-03")
def test_the_shards_are_read_only_if_needed() -> None:
    requests: list[str] = []

    def unknown() -> None:
        requests.append("config.shards")

    whole = rest(({"server_id": "shop"}, OFFSET))
    assert read_position(whole, shards=unknown, allow_invalidation=True) == AFTER
    single = [({"server_id": "shop", "replicaSetName": name}, OFFSET) for name in ("s1", "s2")]
    with pytest.raises(ConfigurationError):
        read_position(rest(*single), shards=unknown)
    assert not requests
    found = read_position(rest(*single), shards=unknown, allow_invalidation=True)
    assert found is not None, "whether there are other shards is unknown, and the import continues"
    assert requests == ["config.shards"]
