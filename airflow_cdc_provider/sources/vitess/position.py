"""Positions of a Vitess capture: per shard a GTID set, an epoch and the shard's ancestors.

The offset has one entry per shard::

    {"shop/-80": {"v": 1, "gtid": "MySQL56/...:1-41", "epoch": 1, "parents": []}, ...}

Inside a shard, transactions are ordered by epoch and by how many transactions the shard's GTID set has
(:attr:`.gtid.GtidSet.count`; Debezium's rank where sets have no gaps). The epoch rises

* by one with the first real position, after ``current`` or none: it is then 1;
* by one when the new set lacks a server of the old one, because counts may then decrease;
* above the epochs of all parents, for a shard that a reshard created;
* by one in all shards when ``source.generation`` differs from the offset's; if it isn't 0, each entry has a
  member ``generation``.

Shards are named by key ranges, ``-80`` or ``40-80``: a new shard's parents are the shards that it overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.vitess.gtid import CURRENT, GtidSet, is_real
from airflow_cdc_provider.sources.vitess.protocol import VGtid, parse

_FORMAT: Final = 1
_MEMBERS: Final = {"v", "gtid", "epoch", "parents", "generation"}
LAST_ROW: Final = 0xFFFF_FFFF
"""Row number that sorts after all rows of a transaction."""

MAX_TRANSACTIONS: Final = 0xFFFF_FFFF_FFFF_FFFF
"""More transactions than a shard has in an epoch."""


@dataclass(frozen=True)
class ShardPosition:
    """Position of one shard.

    Args:
        gtid: Its GTID set as VTGate wrote it; ``current`` for the server's current position.
        epoch: Its epoch, 0 before the first real position.
        parents: Its direct and indirect ancestors (``keyspace/shard``).
        generation: The connector's generation (``source.generation``) of the epoch.
    """

    gtid: str
    epoch: int = 0
    parents: tuple[str, ...] = ()
    generation: int = 0

    @property
    def set(self) -> GtidSet:
        """The parsed GTID set."""
        return GtidSet.parse(self.gtid)

    @property
    def key(self) -> bytes:
        """Epoch and number of transactions as 12 sortable bytes."""
        return position_key(self.epoch, self.set.count)

    def moved(self, gtid: str) -> ShardPosition:
        """Return the position with another GTID set; without one the position stays.

        Raises:
            CorruptInput: The new GTID set is ``current`` or empty, but the old one isn't; or it is invalid.
        """
        epoch = next_epoch(self.epoch, self.gtid, gtid)
        return replace(self, gtid=gtid or self.gtid, epoch=epoch)


def position_key(epoch: int, count: int) -> bytes:
    """Encode an epoch and a number of transactions as 12 sortable bytes."""
    return epoch.to_bytes(4, "big") + count.to_bytes(8, "big")


def epoch_of(position: bytes) -> int:
    """Return the epoch of a record's position."""
    return int.from_bytes(position[:4], "big")


def copy_key(key: bytes, planned_us: int) -> bytes:
    """Return the prefix of the positions of a copy's rows: after the changes at a key and earlier copies."""
    return key + LAST_ROW.to_bytes(4, "big") + planned_us.to_bytes(8, "big")


def next_epoch(epoch: int, before: str, after: str) -> int:
    """Return a shard's epoch after its GTID set changed.

    Raises:
        CorruptInput: It changed from a set to ``current`` or to nothing; or it is invalid.
    """
    if not is_real(after):
        if is_real(before):
            raise CorruptInput(
                "a shard's position went back to none",
                expected=f"a GTID set after {before[:200]}",
                found=after or "an empty text",
            )
        return epoch
    found = GtidSet.parse(after)
    return epoch if is_real(before) and found.has_servers_of(GtidSet.parse(before)) else epoch + 1


@dataclass(frozen=True)
class Position:
    """Position of a stream: the positions of all its shards by ``keyspace/shard``."""

    shards: Mapping[str, ShardPosition] = field(default_factory=dict)

    @property
    def is_real(self) -> bool:
        """Whether there is a shard, and every shard has a GTID set."""
        return bool(self.shards) and all(is_real(position.gtid) for position in self.shards.values())

    def has(self, head: Position) -> bool:
        """Return whether the position contains all transactions of all shards of a head.

        A shard that was resharded since the head was taken had all its transactions before the reshard.
        """
        ended = {parent for position in self.shards.values() for parent in position.parents}
        return all(
            self.shards[shard].set.contains(position.set) if shard in self.shards else shard in ended
            for shard, position in head.shards.items()
        )

    def of_shards(self, shards: Iterable[str]) -> Position:
        """Return the positions of some shards."""
        return Position({shard: self.shards[shard] for shard in shards})

    def of_generation(self, generation: int) -> Position:
        """Return the position in a generation of the connector; a change increments each epoch."""
        return Position(
            {
                shard: position
                if position.generation == generation
                else replace(position, epoch=position.epoch + 1, generation=generation)
                for shard, position in self.shards.items()
            }
        )

    def to_offset(self) -> dict[str, Any]:
        """Convert the position to an offset."""
        return {
            shard: {
                "v": _FORMAT,
                "gtid": position.gtid,
                "epoch": position.epoch,
                "parents": list(position.parents),
                **({"generation": position.generation} if position.generation else {}),
            }
            for shard, position in sorted(self.shards.items())
        }

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Position:
        """Parse an offset.

        Raises:
            ConfigurationError: The offset is invalid.
        """
        shards = {}
        for shard, value in offset.items():
            if not isinstance(value, Mapping) or value.get("v") != _FORMAT or not all(shard.partition("/")):
                raise _invalid(f"{shard}: {value!r}"[:200])
            if unknown := set(value) - _MEMBERS:
                raise _invalid(f"unknown members {sorted(unknown)} of {shard}")
            gtid, epoch, parents = value.get("gtid"), value.get("epoch", 0), value.get("parents", ())
            generation = value.get("generation", 0)
            for name, number in (("epoch", epoch), ("generation", generation)):
                if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 32:
                    raise _invalid(f"{name} {number!r} of {shard}")
            if not isinstance(parents, list | tuple) or not all(isinstance(p, str) for p in parents):
                raise _invalid(f"parents {parents!r} of {shard}")
            if not isinstance(gtid, str) or not gtid:
                raise _invalid(f"gtid {gtid!r} of {shard}")
            if gtid != CURRENT:
                try:
                    GtidSet.parse(gtid)
                except CorruptInput as error:
                    raise _invalid(f"gtid {error.found} of {shard}") from error
            shards[shard] = ShardPosition(gtid, epoch, tuple(parents), generation)
        if not shards:
            raise _invalid("no shard")
        return cls(shards)

    @classmethod
    def of_vgtid(cls, message: bytes) -> Position:
        """Parse the shards of a ``VGtid`` message, without epochs."""
        return cls({shard: ShardPosition(gtid) for shard, gtid in vgtid_shards(message).items()})

    def to_vgtid(self) -> Any:
        """Convert the position to a ``VGtid`` message for a request."""
        vgtid = VGtid()
        for shard, position in self.shards.items():
            keyspace, _, name = shard.partition("/")
            vgtid.shard_gtids.add(keyspace=keyspace, shard=name, gtid=position.gtid)
        return vgtid

    def after(self, gtids: Mapping[str, str]) -> tuple[Position, tuple[str, ...]]:
        """Return the position after a VGTID, and its new shards.

        New shards are children of the shards that they overlap, and start above their epochs.

        Args:
            gtids: GTID sets of all shards of the stream, by shard.

        Raises:
            CorruptInput: A shard has no position any more, or an invalid one; a new shard overlaps no known
                one; or there is no shard.
        """
        if not gtids:
            raise CorruptInput("a VGTID contains no shard", expected=", ".join(self.shards))
        shards: dict[str, ShardPosition] = {}
        new = [shard for shard in gtids if shard not in self.shards]
        for shard, gtid in gtids.items():
            before = self.shards.get(shard)
            if before is None:
                shards[shard] = self._child(shard, gtid)
            else:
                shards[shard] = before if before.gtid == gtid else before.moved(gtid)
        return Position(shards), tuple(new)

    def resharded(self, participants: Iterable[str], targets: Mapping[str, str]) -> Position:
        """Return the position after a journal: participants are replaced by the target shards."""
        children = {shard: self._child(shard, gtid) for shard, gtid in targets.items()}
        ended = set(participants)
        return Position({s: position for s, position in self.shards.items() if s not in ended} | children)

    def ancestors_of(self, shard: str) -> tuple[str, ...]:
        """Return the shards that a new shard overlaps, and their ancestors."""
        parents = [known for known in self.shards if overlap(known, shard)]
        older = (line for parent in parents for line in self.shards[parent].parents)
        return tuple(dict.fromkeys([*parents, *older]))

    def _child(self, shard: str, gtid: str) -> ShardPosition:
        parents = [known for known in self.shards if overlap(known, shard)]
        if not parents:
            raise CorruptInput(
                f"the stream contains shard {shard}, which overlaps none of its shards",
                expected=", ".join(self.shards),
                found=shard,
            )
        epoch = 1 + max(self.shards[parent].epoch for parent in parents)
        generation = max(self.shards[parent].generation for parent in parents)
        if gtid != CURRENT:
            GtidSet.parse(gtid)
        return ShardPosition(gtid, epoch, self.ancestors_of(shard), generation)


def vgtid_shards(message: bytes) -> dict[str, str]:
    """Return the GTID set of each shard (``keyspace/shard``) of a ``VGtid`` message.

    Raises:
        CorruptInput: It is invalid.
    """
    return {f"{s.keyspace}/{s.shard}": s.gtid for s in parse(VGtid, message).shard_gtids}


def overlap(one: str, other: str) -> bool:
    """Return whether two shards share keys; ``0`` and other names without a range cover all keys."""
    keyspace, _, name = one.partition("/")
    other_keyspace, _, other_name = other.partition("/")
    if keyspace != other_keyspace or not (name and other_name):
        return False
    (start, end), (other_start, other_end) = key_range(name), key_range(other_name)
    return (not other_end or start < other_end) and (not end or other_start < end)


def key_range(shard: str) -> tuple[bytes, bytes]:
    """Return the first key of a shard and the key after its last one; empty if unbounded.

    ``40`` and ``4000`` are the same bound: trailing zero bytes aren't significant.

    Raises:
        CorruptInput: The name isn't a key range.
    """
    start, dash, end = shard.partition("-")
    if not dash:
        return b"", b""
    try:
        return bytes.fromhex(start).rstrip(b"\0"), bytes.fromhex(end).rstrip(b"\0")
    except ValueError as error:
        raise CorruptInput(
            "a shard's name isn't a key range", expected="such as -80, 40-80 or 0", found=shard
        ) from error


def require_known(stored: Position, head: Position) -> None:
    """Reject a position with transactions that the server doesn't have: its stream would stall.

    Args:
        stored: The position.
        head: The current position of the server.

    Raises:
        PositionLost: A shard lacks transactions of the position.
    """
    for shard, position in stored.shards.items():
        current = head.shards.get(shard)
        if current is not None and is_real(position.gtid) and not current.set.contains(position.set):
            raise PositionLost(
                f"{shard} lacks transactions of the stored offset, so its stream would stall",
                expected=f"a subset of {current.gtid}",
                found=position.gtid,
                remedy="the shard was restored from a backup, or the connection leads to another cluster: "
                "reset the offset and take a new snapshot",
            )


def _invalid(found: str) -> ConfigurationError:
    return ConfigurationError(
        "not a valid Vitess offset",
        expected='{"keyspace/shard": {"v": 1, "gtid": "MySQL56/...", "epoch": number, "parents": [...]}}',
        found=found,
    )
