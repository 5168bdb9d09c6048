"""Orders the transactions of a shard by epoch and rank, as in Debezium's ordered transaction metadata.

``rank`` is the sum of the last numbers of all servers in the shard's GTIDs (:attr:`.gtid.GtidSet.rank`);
``epoch`` rises as :mod:`.position` says. Events of one row are compared by epoch, then rank, then their
number in the transaction.

A shard that a reshard created starts above the epochs of its parents. Debezium does so only with
``vitess.inherit.epoch``; otherwise the epochs of such a shard start from 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.vitess.gtid import GtidSet, is_real
from airflow_cdc_provider.sources.vitess.position import Position, ShardPosition, vgtid_shards


class Order(NamedTuple):
    """Order of transactions, one item each.

    Args:
        epochs: Epochs, int64.
        ranks: Ranks as minimal big-endian two's complement.
    """

    epochs: pa.Array
    ranks: pa.Array


@dataclass
class TransactionOrder:
    """Orders transactions of a stream, in consecutive batches.

    Args:
        position: Position of the stream; by default before its start, so that the first set of a shard has
            epoch 1, as in a stream that started with a copy or at ``current``.
        inherits: Whether epochs of a shard that a reshard created start above those of its parents.
        first_epochs: The known first epochs of such shards (``keyspace/shard``); several if a shard name was
            reused.
    """

    position: Position = field(default_factory=Position)
    inherits: bool = True
    first_epochs: dict[str, set[int]] = field(default_factory=dict)

    def known(self, transactions: Iterable[tuple[bytes, str]], epochs: Ints) -> Order:
        """Order transactions whose epochs are known."""
        pairs = list(transactions)
        ranks = [_rank_bytes(vgtid_shards(message).get(shard, "")) for message, shard in pairs]
        event_epochs = [
            self._event_epoch(shard, epoch) for (_, shard), epoch in zip(pairs, epochs.tolist(), strict=True)
        ]
        return Order(pa.array(event_epochs, pa.int64()), pa.array(ranks, pa.binary()))

    def next(self, transactions: Iterable[tuple[bytes, str]]) -> Order:
        """Order the next transactions, and advance the position.

        Args:
            transactions: The ``VGtid`` message of each, and its shard as ``keyspace/shard``.

        Raises:
            CorruptInput: A shard of a VGTID has no position any more, or overlaps no known shard.
        """
        epochs: list[int] = []
        ranks: list[bytes] = []
        for message, shard in transactions:
            gtids = vgtid_shards(message)
            if not self.position.shards:
                self.position = Position(dict.fromkeys(gtids, ShardPosition("")))
            self.position, new = self.position.after(gtids)
            for child in new:
                self.first_epochs.setdefault(child, set()).add(self.position.shards[child].epoch)
            shard_position = self.position.shards[shard]
            epochs.append(self._event_epoch(shard, shard_position.epoch))
            ranks.append(_rank_bytes(shard_position.gtid))
        return Order(pa.array(epochs, pa.int64()), pa.array(ranks, pa.binary()))

    def _event_epoch(self, shard: str, epoch: int) -> int:
        """Return the epoch in events."""
        if self.inherits:
            return epoch
        return epoch - max((birth for birth in self.first_epochs.get(shard, ()) if birth <= epoch), default=0)


def _rank_bytes(gtid: str) -> bytes:
    rank = GtidSet.parse(gtid).rank if is_real(gtid) else 0
    return rank.to_bytes(rank.bit_length() // 8 + 1, "big")
