"""Rows of logs of ScyllaDB."""

from __future__ import annotations

from typing import Any

from server_kit.scylla.timeuuids import EPOCH_TICKS
from tests.unit.server_kit.scylla.item import T, i
from tests.unit.sources.scylla.logged import LogRow

STREAM = bytes.fromhex("c000000000000000aacd159e24000051")
TRUE = b"\1"


def cdc_time(us: int, rest: bytes = b"\x80\x01\x7f\xff\x00\x02\xfe\x03") -> bytes:
    ticks = us * 10 + EPOCH_TICKS
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 0x1000
    return low.to_bytes(4, "big") + middle.to_bytes(2, "big") + high.to_bytes(2, "big") + rest


def rows(*given: dict[str, Any], at: int = T, key: str = "shop") -> list[LogRow]:
    """Write a change: of each row ``op``, perhaps ``ttl``, and what isn't null."""
    found: list[LogRow] = []
    for number, row in enumerate(given):
        values = {name: value for name, value in row.items() if name not in ("op", "ttl")}
        found.append(
            {
                "cdc$stream_id": STREAM,
                "cdc$time": cdc_time(at),
                "cdc$batch_seq_no": i(number),
                "cdc$operation": row["op"].to_bytes(1, "big", signed=True),
                "cdc$ttl": row["ttl"].to_bytes(8, "big") if "ttl" in row else None,
                "cdc$end_of_batch": TRUE if number == len(given) - 1 else None,
                key: i(7),
                **values,
            }
        )
    return found
