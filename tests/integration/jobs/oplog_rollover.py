"""Fills an oplog until its oldest entries are removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_cdc_provider.sources.mongodb.position import StreamPosition

if TYPE_CHECKING:
    pass


def roll_over(client: Any, offset: Any) -> None:
    """Write until the oplog begins after an offset."""
    stored = StreamPosition.from_offset(offset)
    deadline = time.monotonic() + 60
    while True:
        status = client.admin.command("serverStatus", oplog=1)["oplog"]["earliestOptime"]
        if (status.time << 32 | status.inc) > stored.time:
            return
        assert time.monotonic() < deadline
        client.rolling.big.insert_many([{"s": "x" * 100_000} for _ in range(40)])
        time.sleep(0.1)
