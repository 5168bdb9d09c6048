"""Streams: their ids, which partition is in which, and what is refused by its timestamp."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from server_kit.scylla.cluster import token_of_key
from server_kit.scylla.errors import InvalidRequest
from server_kit.scylla.generations import (
    HIGHEST_TOKEN,
    LOWEST_TOKEN,
    StreamSet,
    Timeline,
    check_timestamp,
    difference,
    make_generation,
    make_stream_set,
    resized,
    shard_of,
    stream_id,
    token_of,
)
from tests.unit.server_kit.scylla.item import ITEM, PAIRS, i

SECOND_US = 1_000_000


def test_a_stream_id_has_token_randomness_index_and_version() -> None:
    made = stream_id(-4611686018427387904, 5, 0x2AB3456789)
    assert made.hex() == "c000000000000000aacd159e24000051"
    low = int.from_bytes(made[8:], "big")
    assert (low & 0xF, low >> 4 & 0x3FFFFF, low >> 26) == (1, 5, 0x2AB3456789)
    assert token_of(made) == -4611686018427387904


def test_a_ring_has_a_stream_for_each_vnode_and_shard() -> None:
    chance = random.Random(5)
    tokens = [chance.getrandbits(64) - (1 << 63) for _ in range(4 * 16)]
    generation = make_generation(1000, tokens, 72, chance)
    assert len(set(generation.streams)) == 4 * 16 * 72
    indexes = Counter(int.from_bytes(s[8:], "big") >> 4 & 0x3FFFFF for s in generation.streams)
    assert indexes == dict.fromkeys(range(4 * 16), 72)


def test_a_partition_is_in_the_stream_of_its_vnode_and_shard() -> None:
    chance = random.Random(6)
    ends = sorted(chance.getrandbits(64) - (1 << 63) for _ in range(8))
    generation = make_generation(1000, ends, 3, chance)
    edges = [LOWEST_TOKEN + 1, HIGHEST_TOKEN, *ends, *(end + 1 for end in ends)]
    for token in [*edges, *(chance.getrandbits(64) - (1 << 63) for _ in range(2000))]:
        stream = generation.stream_for(token)
        index = int.from_bytes(stream[8:], "big") >> 4 & 0x3FFFFF
        low, high = ends[index - 1], ends[index]
        assert low < token <= high if index else token <= high or token > low
        # The log's partition lies in the same vnode, and on the same shard, as the base's.
        assert low < token_of(stream) <= high if index else token_of(stream) <= high or token_of(stream) > low
        assert shard_of(token_of(stream), 3) == shard_of(token, 3)


def test_a_shard_without_a_token_in_a_small_vnode_has_its_end() -> None:
    generation = make_generation(0, [HIGHEST_TOKEN - 1, HIGHEST_TOKEN], 3, random.Random(1), ignored_bits=0)
    assert [token_of(stream) for stream in generation.vnodes[1].streams] == [HIGHEST_TOKEN] * 3


def test_tablets_have_streams_at_their_last_tokens_and_index_0() -> None:
    streams = make_stream_set(0, 4, random.Random(1))
    assert [token_of(s) for s in streams.streams] == [-(1 << 62) - 1, -1, (1 << 62) - 1, (1 << 63) - 1]
    assert {int.from_bytes(s[8:], "big") >> 4 & 0x3FFFFF for s in streams.streams} == {0}
    assert streams.stream_for(-1) == streams.streams[1]
    assert streams.stream_for(0) == streams.streams[2]
    assert streams.stream_for(HIGHEST_TOKEN) == streams.streams[3]


def test_a_split_closes_the_old_streams_and_opens_new_ones() -> None:
    before = make_stream_set(0, 2, random.Random(1))
    after = resized(before, 9, 4, random.Random(2))
    assert difference(before, after) == (list(before.streams), list(after.streams))
    kept = StreamSet(10, (before.streams[0], after.streams[3]))
    assert difference(before, kept) == ([before.streams[1]], [after.streams[3]])


def test_a_generation_works_from_its_millisecond_until_the_next() -> None:
    timeline: Timeline[StreamSet] = Timeline()
    first, second = StreamSet(10, ()), StreamSet(20, ())
    timeline.add(first)
    timeline.add(second)
    assert timeline.at(10_000) is timeline.at(19_999) is first
    assert timeline.at(20_000) is second
    with pytest.raises(InvalidRequest, match="no stream"):
        timeline.at(9_999)
    with pytest.raises(InvalidRequest, match="after 20"):
        timeline.add(StreamSet(20, ()))


NOW = 1_000 * SECOND_US
STARTED_MS = [100_000, 900_000]


@pytest.mark.parametrize("time_us", [NOW, NOW + 5 * SECOND_US, 900 * SECOND_US])
def test_timestamps_in_the_present_generation_and_the_near_future_are_taken(time_us: int) -> None:
    check_timestamp(STARTED_MS, time_us, NOW, tablets=False)


@pytest.mark.parametrize("time_us", [NOW + 5 * SECOND_US + 1, 900 * SECOND_US - 1, 99 * SECOND_US])
def test_timestamps_of_the_future_and_of_ended_generations_are_refused(time_us: int) -> None:
    with pytest.raises(InvalidRequest, match=r"from the (future|past)"):
        check_timestamp(STARTED_MS, time_us, NOW, tablets=False)


def test_a_generation_that_just_ended_takes_what_is_at_most_5_s_old() -> None:
    started = [100_000, 998_000]
    check_timestamp(started, NOW - 4 * SECOND_US, NOW, tablets=False)
    with pytest.raises(InvalidRequest, match="past"):
        check_timestamp(started, NOW - 5 * SECOND_US, NOW, tablets=False)


def test_tablets_take_any_past() -> None:
    check_timestamp(STARTED_MS, 200 * SECOND_US, NOW, tablets=True)


def test_a_partitions_token_is_murmur3_of_its_key() -> None:
    assert token_of_key(ITEM, (i(1),)) == -4069959284402364209  # as cqlsh's token(1) shows
    assert PAIRS.partition_key((i(1), i(2))) == b"\0\4\0\0\0\1\0\0\4\0\0\0\2\0"
