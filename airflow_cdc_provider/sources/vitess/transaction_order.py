"""What orders the transactions of a shard: epoch and rank, as Debezium's ordered metadata tell them.

``rank`` is the sum of the last numbers of all servers in the shard's GTIDs (:attr:`.gtid.GtidSet.rank`);
``epoch`` rises as :mod:`.position` says. Events of one row are compared by epoch, then rank, then their
number in the transaction.

A shard that a reshard made begins above its parents. Debezium shows so only if it is asked to
(``vitess.inherit.epoch``); else it shows the epochs of such a shard from 0 on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from airflow_cdc_provider.changes.spans import Ints
from airflow_cdc_provider.sources.vitess.gtid import GtidSet, is_real
from airflow_cdc_provider.sources.vitess.position import Position, ShardPlace, vgtid_shards


class Order(NamedTuple):
    """Per transaction.

    Args:
        epochs: int64.
        ranks: Whole numbers as big-endian two's complement of the fewest bytes.
    """

    epochs: pa.Array
    ranks: pa.Array


@dataclass
class TransactionOrder:
    """Orders transactions of a stream, one batch after the other.

    Args:
        position: Where the stream stands; by default before all, so that the first set of a shard is of epoch
            1, as of a stream that began with a copy or at ``current``.
        inherits: Whether epochs of a shard that a reshard made are shown above those of its parents.
        births: The first epochs of such shards (``keyspace/shard``), as far as they are known; several of
            one whose name came again.
    """

    position: Position = field(default_factory=Position)
    inherits: bool = True
    births: dict[str, set[int]] = field(default_factory=dict)

    def known(self, transactions: Iterable[tuple[bytes, str]], epochs: Ints) -> Order:
        """Order transactions whose epochs are known."""
        told = list(transactions)
        ranks = [_rank_bytes(vgtid_shards(message).get(shard, "")) for message, shard in told]
        shown = [self._shown(shard, epoch) for (_, shard), epoch in zip(told, epochs.tolist(), strict=True)]
        return Order(pa.array(shown, pa.int64()), pa.array(ranks, pa.binary()))

    def next(self, transactions: Iterable[tuple[bytes, str]]) -> Order:
        """Go on by some transactions.

        Args:
            transactions: The ``VGtid`` message of each, and its shard as ``keyspace/shard``.

        Raises:
            CorruptInput: A VGTID goes back to no position, or names a shard that comes from none.
        """
        epochs: list[int] = []
        ranks: list[bytes] = []
        for message, shard in transactions:
            told = vgtid_shards(message)
            if not self.position.shards:
                self.position = Position(dict.fromkeys(told, ShardPlace("")))
            self.position, new = self.position.after(told)
            for child in new:
                self.births.setdefault(child, set()).add(self.position.shards[child].epoch)
            place = self.position.shards[shard]
            epochs.append(self._shown(shard, place.epoch))
            ranks.append(_rank_bytes(place.gtid))
        return Order(pa.array(epochs, pa.int64()), pa.array(ranks, pa.binary()))

    def _shown(self, shard: str, epoch: int) -> int:
        """Return the epoch that events tell."""
        if self.inherits:
            return epoch
        return epoch - max((birth for birth in self.births.get(shard, ()) if birth <= epoch), default=0)


def _rank_bytes(gtid: str) -> bytes:
    rank = GtidSet.parse(gtid).rank if is_real(gtid) else 0
    return rank.to_bytes(rank.bit_length() // 8 + 1, "big")
