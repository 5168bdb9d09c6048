"""Streams of the log, and how they change while the cluster does.

With vnodes a *generation* is the set of streams of all tables from a moment on, one for each vnode and shard.
With tablets each table has stream sets of its own, one stream for each tablet. Either way the write's
timestamp and the token of its partition key give the stream (scylla docs, CDC stream changes; scylla source,
cdc/generation.cc and cdc/metadata.cc).
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from server_kit.scylla.errors import InvalidRequest

VERSION = 1
TOKENS = 1 << 64
LOWEST_TOKEN, HIGHEST_TOKEN = -(1 << 63), (1 << 63) - 1
LEEWAY_US = 5_000_000
"""How far a client's timestamp may lie in the future, or in a generation that has ended."""
IGNORED_BITS = 12
"""``murmur3_partitioner_ignore_msb_bits``, the server's default."""


def stream_id(token: int, index: int, randomness: int) -> bytes:
    """Make a stream id.

    ======== ===== ==========================================
    bits     width meaning, from the top, big-endian
    ======== ===== ==========================================
    127..64  64    token, signed
    63..26   38    random
    25..4    22    index of the vnode; 0 with tablets
    3..0     4     version, 1
    ======== ===== ==========================================

    (scylla source, cdc/generation.cc, constructor of ``stream_id``)
    """
    low = (randomness & (1 << 38) - 1) << 26 | (index & (1 << 22) - 1) << 4 | VERSION
    return token.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big")


def token_of(stream: bytes) -> int:
    """Return the token of a stream: also of its partition in the log table."""
    return int.from_bytes(stream[:8], "big", signed=True)


def shard_of(token: int, shards: int, ignored_bits: int = IGNORED_BITS) -> int:
    """Return the shard of a node that owns a token (scylla source, dht/token.cc, ``zero_based_shard_of``)."""
    place = (token + (1 << 63)) << ignored_bits & TOKENS - 1
    return place * shards >> 64


def first_token_of_shard(start: int, end: int, shard: int, shards: int, ignored_bits: int) -> int:
    """Return the first token after ``start``, on the ring, of a shard; ``end`` if no token up to it is.

    (scylla source, dht/token.cc, ``find_first_token_for_shard``)
    """
    begin = start + 1 if start < HIGHEST_TOKEN else LOWEST_TOKEN + 1
    if start < end:
        return min(_next_of_shard(begin, shard, shards, ignored_bits), end)
    if start < HIGHEST_TOKEN:
        found = _next_of_shard(begin, shard, shards, ignored_bits)
        if found <= HIGHEST_TOKEN:
            return found
    return min(_next_of_shard(LOWEST_TOKEN + 1, shard, shards, ignored_bits), end)


def _next_of_shard(token: int, shard: int, shards: int, ignored_bits: int) -> int:
    """Return the first token of a shard at or after one; one past the highest for none."""
    if shard_of(token, shards, ignored_bits) == shard:
        return token
    span = TOKENS >> ignored_bits
    place = token + (1 << 63)
    start_in_span = -(-(shard << 64) // shards) >> ignored_bits
    while shard_of(start_in_span - (1 << 63), shards, ignored_bits) != shard:
        start_in_span += 1  # rounding
    found = place // span * span + start_in_span
    if found < place:
        found += span
    return min(found, TOKENS) - (1 << 63)


@dataclass(frozen=True)
class Vnode:
    """A range of the ring that ends with a token: a stream for each shard of the node that owns it."""

    end: int
    streams: tuple[bytes, ...]
    ignored_bits: int = IGNORED_BITS


@dataclass(frozen=True)
class Generation:
    """The streams of all tables from a moment on.

    Args:
        time_ms: From when, inclusive.
        vnodes: By their ends, ascending.
    """

    time_ms: int
    vnodes: tuple[Vnode, ...]

    @property
    def streams(self) -> list[bytes]:
        """All of them."""
        return [stream for vnode in self.vnodes for stream in vnode.streams]

    def stream_for(self, token: int) -> bytes:
        """Return the stream of partitions with a token: its vnode's, and there its shard's."""
        at = bisect.bisect_left([vnode.end for vnode in self.vnodes], token)
        vnode = self.vnodes[at % len(self.vnodes)]  # beyond the last end the ring continues with the first
        return vnode.streams[shard_of(token, len(vnode.streams), vnode.ignored_bits)]


def make_generation(
    time_ms: int,
    tokens: Iterable[int],
    shards: int,
    chance: random.Random,
    ignored_bits: int = IGNORED_BITS,
) -> Generation:
    """Make the generation of a ring.

    The stream of a shard has the first token of the vnode that the shard owns; if it owns none, the vnode's
    end (scylla source, cdc/generation.cc, ``create_stream_ids``).

    Args:
        time_ms: From when it works.
        tokens: Ends of the vnodes.
        shards: Shards of each node.
        chance: For the ids' random bits.
        ignored_bits: As the nodes' configuration has it.
    """
    ends = sorted(set(tokens))
    vnodes = []
    for index, end in enumerate(ends):
        start = ends[index - 1]
        streams = tuple(
            stream_id(
                first_token_of_shard(start, end, shard, shards, ignored_bits), index, chance.getrandbits(38)
            )
            for shard in range(shards)
        )
        vnodes.append(Vnode(end, streams, ignored_bits))
    return Generation(time_ms, tuple(vnodes))


@dataclass(frozen=True)
class StreamSet:
    """The streams of one table with tablets from a moment on, by their tokens: the last of each tablet."""

    time_ms: int
    streams: tuple[bytes, ...]

    def stream_for(self, token: int) -> bytes:
        """Return the stream of the tablet that a token is in (scylla source, cdc/metadata.cc)."""
        return self.streams[bisect.bisect_left([token_of(stream) for stream in self.streams], token)]


def make_stream_set(time_ms: int, tablets: int, chance: random.Random) -> StreamSet:
    """Cut the ring into as many equal tablets, a power of two, each with a new stream."""
    return StreamSet(time_ms, tuple(stream_id(t, 0, chance.getrandbits(38)) for t in tablet_ends(tablets)))


def tablet_ends(tablets: int) -> list[int]:
    """Return the last tokens of equal tablets."""
    return [LOWEST_TOKEN + (number + 1) * TOKENS // tablets - 1 for number in range(tablets)]


def resized(present: StreamSet, time_ms: int, tablets: int, chance: random.Random) -> StreamSet:
    """Split or merge tablets: all of them get new streams, as tablets double or halve together."""
    if len(present.streams) == tablets:
        raise InvalidRequest(f"expected another number of tablets than {tablets}")
    return make_stream_set(time_ms, tablets, chance)


def difference(before: StreamSet, after: StreamSet) -> tuple[list[bytes], list[bytes]]:
    """Return the streams that a new set closes and those that it opens."""
    closed = [stream for stream in before.streams if stream not in after.streams]
    return closed, [stream for stream in after.streams if stream not in before.streams]


Streams = TypeVar("Streams", Generation, StreamSet)


@dataclass
class Timeline(Generic[Streams]):
    """Stream sets by the moments from which they work."""

    sets: list[Streams] = field(default_factory=list)

    def add(self, streams: Streams) -> None:
        """Add a later one."""
        if self.sets and streams.time_ms <= self.sets[-1].time_ms:
            raise InvalidRequest(f"expected a generation after {self.sets[-1].time_ms} ms")
        self.sets.append(streams)

    def at(self, time_us: int) -> Streams:
        """Return what works at a moment.

        Raises:
            InvalidRequest: There is none yet: in the first minute of a cluster writes fail.
        """
        at = bisect.bisect_right([s.time_ms * 1000 for s in self.sets], time_us)
        if not at:
            raise InvalidRequest(f"no stream for timestamp {time_us}: expected a generation before it")
        return self.sets[at - 1]


def check_timestamp(times_ms: Sequence[int], time_us: int, now_us: int, *, tablets: bool) -> None:
    """Refuse a write by its timestamp.

    It may lie up to 5 s in the future. With vnodes it may lie in a generation that has ended only if it is at
    most 5 s old; in the present one any timestamp will do, back to its start (scylla source, cdc/metadata.cc,
    ``get_vnode_stream`` and ``get_tablet_stream_set``).

    Raises:
        InvalidRequest: It is refused.
    """
    if time_us > now_us + LEEWAY_US:
        raise InvalidRequest(f"cdc: a stream from the future: timestamp {time_us}, now {now_us}")
    if tablets or time_us > now_us - LEEWAY_US:
        return
    # The generation that the timestamp is in must still be working.
    working = max((t for t in times_ms if t * 1000 <= now_us), default=None)
    if working is None or time_us < working * 1000:
        raise InvalidRequest(f"cdc: a stream from the past: timestamp {time_us}, now {now_us}")
