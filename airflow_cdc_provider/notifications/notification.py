"""A notification, and its JSON as Debezium's JsonConverter writes it.

Key ``{"id"}``, value ``{"id", "type", "aggregate_type", "additional_data", "timestamp"}``. The members of
``additional_data`` are in the order of Debezium's ``java.util.HashMap``, so texts can be compared byte for
byte; the order has no meaning for readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Notification:
    """A notification.

    Args:
        id: A random UUID; for an incremental snapshot the id of the signal that requested it.
        type: The event, such as ``STARTED``.
        aggregate_type: Its subject: ``Initial Snapshot`` or ``Incremental Snapshot``.
        additional_data: Further data, by name.
        timestamp_ms: Time of the event, ms since 1970.
    """

    id: str
    type: str
    aggregate_type: str
    additional_data: Mapping[str, str] = field(default_factory=dict)
    timestamp_ms: int = 0

    def key(self) -> dict[str, Any]:
        """Return the record's key."""
        return {"id": self.id}

    def value(self) -> dict[str, Any]:
        """Return the record's value, members in Debezium's order."""
        return {
            "id": self.id,
            "type": self.type,
            "aggregate_type": self.aggregate_type,
            "additional_data": in_java_order(self.additional_data),
            "timestamp": self.timestamp_ms,
        }

    def to_json(self) -> str:
        """Return the value as JSON."""
        return json.dumps(self.value(), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Notification:
        """Read the result of :meth:`to_json`."""
        value = json.loads(text)
        return cls(
            value["id"],
            value["type"],
            value["aggregate_type"],
            value["additional_data"] or {},
            value["timestamp"],
        )


def in_java_order(data: Mapping[str, str]) -> dict[str, str]:
    """Order members as a Java HashMap: a copy of one with all members but the last, which was put later.

    Members of one bucket are in insertion order.
    """
    copied = max(len(data) - 1, 0)
    buckets = 16
    if copied:
        buckets = 1 << (-(-copied * 4 // 3) - 1).bit_length()
        if len(data) > buckets * 3 // 4:
            buckets *= 2
    return dict(sorted(data.items(), key=lambda item: _java_hash(item[0]) & (buckets - 1)))


def _java_hash(text: str) -> int:
    code = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        code = (code * 31 + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return code ^ code >> 16
