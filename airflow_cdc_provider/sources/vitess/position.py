"""Where a capture of Vitess stands: a GTID set per shard, its epoch and what it came from.

The offset has one entry per shard::

    {"shop/-80": {"v": 1, "gtid": "MySQL56/...:1-41", "epoch": 1, "parents": []}, ...}

Inside a shard, transactions are ordered by epoch and by how many transactions the shard's GTID set has
(:attr:`.gtid.GtidSet.count`; Debezium's rank where sets have no gaps). The epoch rises

* by one when the first real position comes, after ``current`` or none: it is 1 then;
* by one when the new set lacks a server that the old one had, so that counts can fall;
* above those of all parents, for a shard that a reshard made;
* by one in all shards when ``source.generation`` is another one than the offset's: it is a member
  ``generation`` of each entry then, where it isn't 0.

Shards are named by key ranges, ``-80`` or ``40-80``: a new shard's parents are the shards that it overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, GtidSet, is_real
from airflow_cdc_provider.sources.vitess.protocol import VGtid

_FORMAT: Final = 1
_MEMBERS: Final = {"v", "gtid", "epoch", "parents", "generation"}
LAST_ROW: Final = 0xFFFF_FFFF
"""Number of what comes behind all rows of a transaction."""

MOST_TRANSACTIONS: Final = 0xFFFF_FFFF_FFFF_FFFF
"""More than a shard has in an epoch."""


@dataclass(frozen=True)
class ShardPlace:
    """Where one shard stands.

    Args:
        gtid: Its GTID set as VTGate wrote it; ``current`` where the server is to tell.
        epoch: Its epoch, 0 before the first real position.
        parents: The shards (``keyspace/shard``) that a reshard made it of, and theirs.
        generation: The connector's generation (``source.generation``) that the epoch is of.
    """

    gtid: str
    epoch: int = 0
    parents: tuple[str, ...] = ()
    generation: int = 0

    @property
    def set(self) -> GtidSet:
        """The transactions that it has."""
        return GtidSet.parse(self.gtid)

    @property
    def key(self) -> bytes:
        """Epoch and count, 12 bytes that sort."""
        return place_key(self.epoch, self.set.count)

    def moved(self, gtid: str) -> ShardPlace:
        """Return the place after a transaction.

        Raises:
            CorruptInput: The new position is none, where there was one before.
        """
        return replace(self, gtid=gtid, epoch=next_epoch(self.epoch, self.gtid, gtid))


def place_key(epoch: int, count: int) -> bytes:
    """Write epoch and count of transactions as 12 bytes that sort."""
    return epoch.to_bytes(4, "big") + count.to_bytes(8, "big")


def epoch_of(position: bytes) -> int:
    """Return the epoch of a record's position."""
    return int.from_bytes(position[:4], "big")


def copy_key(place: bytes, planned_us: int) -> bytes:
    """Write what the positions of a copy's rows begin with: behind a place's changes and earlier copies."""
    return place + LAST_ROW.to_bytes(4, "big") + planned_us.to_bytes(8, "big")


def next_epoch(epoch: int, before: str, after: str) -> int:
    """Return a shard's epoch after its GTID set changed.

    Raises:
        CorruptInput: It goes back from a set to ``current`` or to nothing.
    """
    if not is_real(after):
        if is_real(before):
            raise CorruptInput(
                "a shard's position went back to none",
                expected=f"a GTID set after {before[:200]}",
                found=after or "an empty text",
            )
        return epoch
    if not is_real(before):
        return epoch + 1
    return epoch if GtidSet.parse(after).has_servers_of(GtidSet.parse(before)) else epoch + 1


@dataclass(frozen=True)
class Position:
    """Where all shards of a stream stand, by ``keyspace/shard``."""

    shards: Mapping[str, ShardPlace] = field(default_factory=dict)

    @property
    def is_real(self) -> bool:
        """Whether every shard has a real position, and there is one."""
        return bool(self.shards) and all(is_real(place.gtid) for place in self.shards.values())

    def has(self, head: Position) -> bool:
        """Tell whether each shard of a head is here and has all its transactions.

        One that has turned into others since the head was taken has had all of them before it did.
        """
        ended = {parent for place in self.shards.values() for parent in place.parents}
        return all(
            self.shards[shard].set.contains(place.set) if shard in self.shards else shard in ended
            for shard, place in head.shards.items()
        )

    def of_shards(self, shards: Iterable[str]) -> Position:
        """Return the places of some shards."""
        return Position({shard: self.shards[shard] for shard in shards})

    def of_generation(self, generation: int) -> Position:
        """Return the position under a generation of the connector: in another one each epoch is one more."""
        return Position(
            {
                shard: place
                if place.generation == generation
                else replace(place, epoch=place.epoch + 1, generation=generation)
                for shard, place in self.shards.items()
            }
        )

    def to_offset(self) -> dict[str, Any]:
        """Write the position as an offset."""
        return {
            shard: {
                "v": _FORMAT,
                "gtid": place.gtid,
                "epoch": place.epoch,
                "parents": list(place.parents),
                **({"generation": place.generation} if place.generation else {}),
            }
            for shard, place in sorted(self.shards.items())
        }

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Position:
        """Read an offset.

        Raises:
            ConfigurationError: It has another form.
        """
        shards = {}
        for shard, value in offset.items():
            if not isinstance(value, Mapping) or value.get("v") != _FORMAT or not all(shard.partition("/")):
                raise _wrong(f"{shard}: {value!r}"[:200])
            if unknown := set(value) - _MEMBERS:
                raise _wrong(f"unknown members {sorted(unknown)} of {shard}")
            gtid, epoch, parents = value.get("gtid"), value.get("epoch", 0), value.get("parents", ())
            generation = value.get("generation", 0)
            for name, number in (("epoch", epoch), ("generation", generation)):
                if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 32:
                    raise _wrong(f"{name} {number!r} of {shard}")
            if not isinstance(parents, list | tuple) or not all(isinstance(p, str) for p in parents):
                raise _wrong(f"parents {parents!r} of {shard}")
            if not isinstance(gtid, str) or not gtid:
                raise _wrong(f"gtid {gtid!r} of {shard}")
            if gtid != CURRENT:
                try:
                    GtidSet.parse(gtid)
                except CorruptInput as error:
                    raise _wrong(f"gtid {error.found} of {shard}") from error
            shards[shard] = ShardPlace(gtid, epoch, tuple(parents), generation)
        if not shards:
            raise _wrong("no shard")
        return cls(shards)

    @classmethod
    def of_vgtid(cls, message: bytes) -> Position:
        """Read the shards of a ``VGtid`` message, without epochs."""
        return cls({shard: ShardPlace(gtid) for shard, gtid in vgtid_shards(message).items()})

    def to_vgtid(self) -> Any:
        """Write the position as a ``VGtid`` message for a request."""
        vgtid = VGtid()
        for shard, place in self.shards.items():
            keyspace, _, name = shard.partition("/")
            vgtid.shard_gtids.add(keyspace=keyspace, shard=name, gtid=place.gtid)
        return vgtid

    def after(self, told: Mapping[str, str]) -> tuple[Position, tuple[str, ...]]:
        """Return the position after a VGTID, and which shards of it are new.

        New shards are children of those that they overlap, and begin above them.

        Args:
            told: GTID set by shard, all shards of the stream.

        Raises:
            CorruptInput: A shard went back to no position, or a new one has no parents here.
        """
        shards: dict[str, ShardPlace] = {}
        new = [shard for shard in told if shard not in self.shards]
        for shard, gtid in told.items():
            before = self.shards.get(shard)
            if before is None:
                shards[shard] = self._child(shard, gtid)
            else:
                shards[shard] = before if before.gtid == gtid else before.moved(gtid)
        return Position(shards), tuple(new)

    def resharded(self, participants: Iterable[str], targets: Mapping[str, str]) -> Position:
        """Return the position after a journal: shards without those that ended, with those they became."""
        children = {shard: self._child(shard, gtid) for shard, gtid in targets.items()}
        ended = set(participants)
        return Position({s: place for s, place in self.shards.items() if s not in ended} | children)

    def ancestors_of(self, shard: str) -> tuple[str, ...]:
        """Return the shards that a new one overlaps, and theirs before them."""
        parents = [known for known in self.shards if overlap(known, shard)]
        older = (line for parent in parents for line in self.shards[parent].parents)
        return tuple(dict.fromkeys([*parents, *older]))

    def _child(self, shard: str, gtid: str) -> ShardPlace:
        parents = [known for known in self.shards if overlap(known, shard)]
        if not parents:
            raise CorruptInput(
                f"the stream tells of a shard {shard} that none of its shards turned into",
                expected=", ".join(self.shards),
                found=shard,
            )
        epoch = 1 + max(self.shards[parent].epoch for parent in parents)
        generation = max(self.shards[parent].generation for parent in parents)
        return ShardPlace(gtid, epoch, self.ancestors_of(shard), generation)


def vgtid_shards(message: bytes) -> dict[str, str]:
    """Return the GTID set of each shard (``keyspace/shard``) of a ``VGtid`` message."""
    return {f"{s.keyspace}/{s.shard}": s.gtid for s in VGtid.FromString(message).shard_gtids}


def overlap(one: str, other: str) -> bool:
    """Tell whether two shards of a keyspace share keys; ``0`` and other names without a range have all."""
    keyspace, _, name = one.partition("/")
    other_keyspace, _, other_name = other.partition("/")
    if keyspace != other_keyspace:
        return False
    (start, end), (other_start, other_end) = key_range(name), key_range(other_name)
    return (not other_end or start < other_end) and (not end or other_start < end)


def key_range(shard: str) -> tuple[bytes, bytes]:
    """Return first key and key after the last of a shard; empty where there is no bound.

    ``40`` and ``4000`` are one bound: zero bytes at the end say nothing.
    """
    start, dash, end = shard.partition("-")
    if not dash:
        return b"", b""
    try:
        return bytes.fromhex(start).rstrip(b"\0"), bytes.fromhex(end).rstrip(b"\0")
    except ValueError as error:
        raise CorruptInput(
            "a shard's name is no key range", expected="such as -80, 40-80 or 0", found=shard
        ) from error


def require_known(stored: Position, head: Position) -> None:
    """Refuse a position with transactions that the server doesn't have: its stream would never go on.

    Raises:
        PositionLost: With the shard.
    """
    for shard, place in stored.shards.items():
        there = head.shards.get(shard)
        if there is not None and is_real(place.gtid) and not there.set.contains(place.set):
            raise PositionLost(
                f"{shard} lacks transactions of the stored offset, so its stream would stand still",
                expected=f"a subset of {there.gtid}",
                found=place.gtid,
                remedy="it was restored from a backup, or the connection leads to another cluster: reset the "
                "offset and take a new snapshot",
            )


def _wrong(found: str) -> ConfigurationError:
    return ConfigurationError(
        "this is no offset of a Vitess source",
        expected='{"keyspace/shard": {"v": 1, "gtid": "MySQL56/...", "epoch": number, "parents": [...]}}',
        found=found,
    )
