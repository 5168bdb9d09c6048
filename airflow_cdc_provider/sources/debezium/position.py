"""The encode_positions of a capture in its topics: the offset of the next message per partition.

The connector's offset, by origin ``topic/partition``::

    {"v": 1, "offset": 1200, "epoch": 0, "topic_id": "..."}

A encode_position in the changes table, which is also a row's version: epoch (u32) and offset (u64),
big-endian. All messages of a key are in one partition, so encode_positions order them. A new epoch starts
where this no longer holds: the offsets of a re-created topic restart at 0, and added partitions move keys to
other partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.formats.arrow_bytes import binary_buffer, fixed_width_binary
from airflow_cdc_provider.formats.kernels import Ints
from airflow_cdc_provider.sources.contract import Offset

OFFSET_FORMAT: Final = 1
POSITION_BYTES: Final = 12
DELETED: Final = "deleted"
"""In place of the id of a topic that was deleted: a new topic of its name continues in the epoch."""

AFTER_MESSAGE: Final = b"\x01"
"""Suffix of the position of a record that follows the message at the same offset."""


@dataclass(frozen=True)
class PartitionPosition:
    """The position of a capture in one partition.

    Args:
        offset: Offset of the next message.
        epoch: Epoch of the next messages.
        topic_id: The broker's id of the topic, empty if it reports none.
    """

    offset: int
    epoch: int = 0
    topic_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"v": OFFSET_FORMAT, "offset": self.offset, "epoch": self.epoch, "topic_id": self.topic_id}


Positions = Mapping[str, PartitionPosition]
"""Positions by origin."""


def origin_of(topic: str, partition: int) -> str:
    """Return the origin name of a partition."""
    return f"{topic}/{partition}"


def partition_of(origin: str) -> tuple[str, int]:
    """Return topic and number of a partition."""
    topic, _, number = origin.rpartition("/")
    return topic, int(number)


def to_offset(positions: Positions) -> Offset:
    """Return positions as the connector's offset."""
    return {origin: positions[origin].to_json() for origin in sorted(positions)}


def from_offset(offset: Offset) -> dict[str, PartitionPosition]:
    """Parse an offset.

    Raises:
        ConfigurationError: The offset is invalid.
    """
    positions = {}
    for origin, value in offset.items():
        topic, _, number = origin.rpartition("/")
        is_valid = (
            topic
            and number.isdecimal()
            and isinstance(value, Mapping)
            and value.get("v") == OFFSET_FORMAT
            and _is_count(value.get("offset"), 63)
            and _is_count(value.get("epoch", 0), 32)
            and isinstance(value.get("topic_id", ""), str)
        )
        if not is_valid:
            raise ConfigurationError(
                f"invalid offset of {origin!r}",
                expected='{"topic/partition": {"v": 1, "offset": 0, "epoch": 0, "topic_id": ""}}',
                found=repr(value)[:200],
            )
        positions[origin] = PartitionPosition(
            value["offset"], value.get("epoch", 0), value.get("topic_id", "")
        )
    return positions


def _is_count(value: object, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits


def encode_positions(epoch: int, offsets: Ints) -> pa.Array:
    """Encode the positions of messages."""
    out = np.empty((len(offsets), POSITION_BYTES), np.uint8)
    out[:, :4] = np.frombuffer(epoch.to_bytes(4, "big"), np.uint8)
    out[:, 4:] = offsets.astype(">u8").view(np.uint8).reshape(-1, 8)
    return fixed_width_binary(out)


def epoch_of(written: bytes) -> int:
    """Return the epoch of an encoded position."""
    return int.from_bytes(written[:4], "big")


def offsets_of(written: pa.Array) -> Ints:
    """Return the offsets in encoded positions."""
    data, starts, _ = binary_buffer(written)
    low = data[starts[:, None] + np.arange(4, POSITION_BYTES)]
    return low.view(">u8").astype(np.int64).ravel()


def encode_position(epoch: int, offset: int) -> bytes:
    """Encode the position of one message."""
    return epoch.to_bytes(4, "big") + offset.to_bytes(8, "big")
