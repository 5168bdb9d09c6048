"""Where a capture stands in its topics: per partition the offset of the next message.

An offset of the connector, by origin ``topic/partition``::

    {"v": 1, "offset": 1200, "epoch": 0, "topic_id": "..."}

A position in the changes table, which is a row's version too: epoch (u32) and offset (u64), big-endian. All
messages of a key are in one partition, so their order is that of positions. An epoch begins where that ends:
a topic that was made anew counts from 0 again, and one that got more partitions has its keys elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_cdc_provider.changes.spans import binary_buffer, fixed_width_binary
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.base import Offset

OFFSET_FORMAT: Final = 1
POSITION_BYTES: Final = 12

BESIDE: Final = b"\x01"
"""Ends the position of a record that stands behind the message at the same offset."""


@dataclass(frozen=True)
class Place:
    """Where a capture stands in one partition.

    Args:
        offset: Of the next message.
        epoch: Of the messages from here on.
        topic_id: The broker's name of the topic, empty where it tells none.
    """

    offset: int
    epoch: int = 0
    topic_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"v": OFFSET_FORMAT, "offset": self.offset, "epoch": self.epoch, "topic_id": self.topic_id}


Places = Mapping[str, Place]
"""Places by origin."""


def origin_of(topic: str, partition: int) -> str:
    """Return the name of a partition."""
    return f"{topic}/{partition}"


def partition_of(origin: str) -> tuple[str, int]:
    """Return topic and number of a partition."""
    topic, _, number = origin.rpartition("/")
    return topic, int(number)


def to_offset(places: Places) -> Offset:
    """Return places as an offset of the connector."""
    return {origin: places[origin].to_json() for origin in sorted(places)}


def from_offset(offset: Offset) -> dict[str, Place]:
    """Read an offset.

    Raises:
        ConfigurationError: It has another form.
    """
    places = {}
    for origin, value in offset.items():
        topic, _, number = origin.rpartition("/")
        sound = (
            topic
            and number.isdecimal()
            and isinstance(value, Mapping)
            and value.get("v") == OFFSET_FORMAT
            and _is_count(value.get("offset"), 63)
            and _is_count(value.get("epoch", 0), 32)
            and isinstance(value.get("topic_id", ""), str)
        )
        if not sound:
            raise ConfigurationError(
                f"the offset of {origin!r} has another form",
                expected='{"topic/partition": {"v": 1, "offset": 0, "epoch": 0, "topic_id": ""}}',
                found=repr(value)[:200],
            )
        places[origin] = Place(value["offset"], value.get("epoch", 0), value.get("topic_id", ""))
    return places


def _is_count(value: object, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits


def positions(epoch: int, offsets: npt.NDArray[np.int64]) -> pa.Array:
    """Write the positions of messages."""
    out = np.empty((len(offsets), POSITION_BYTES), np.uint8)
    out[:, :4] = np.frombuffer(epoch.to_bytes(4, "big"), np.uint8)
    out[:, 4:] = offsets.astype(">u8").view(np.uint8).reshape(-1, 8)
    return fixed_width_binary(out)


def epoch_of(written: bytes) -> int:
    """Return the epoch of a position."""
    return int.from_bytes(written[:4], "big")


def offsets_of(written: pa.Array) -> npt.NDArray[np.int64]:
    """Return the offsets of messages by their positions."""
    data, starts, _ = binary_buffer(written)
    low = data[starts[:, None] + np.arange(4, POSITION_BYTES)]
    return low.view(">u8").astype(np.int64).ravel()


def position(epoch: int, offset: int) -> bytes:
    """Write the position of one message."""
    return epoch.to_bytes(4, "big") + offset.to_bytes(8, "big")
