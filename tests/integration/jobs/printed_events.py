"""Events that the stage prints from a lake of ScyllaDB."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.integration.jobs.shop import Shop


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def printed(shop: Shop, directory: Path) -> list[dict[str, Any]]:
    """Print the events of all batches; return topic, key and value of each record."""
    path = directory / "events.jsonl"
    result = shop.stage("events", path=str(path))
    assert result.ok, result.error
    assert result.findings == ()
    records = map(json.loads, path.read_text().splitlines())
    return [
        {
            "topic": record["topic"],
            "key": json.loads(record["key"]),
            "value": record["value"] and json.loads(record["value"]),
        }
        for record in records
    ]
