"""Events that are printed of a recording of Cassandra."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines

FIXTURES = Path(__file__).parents[4] / "fixtures" / "cassandra"
FOLDER = FIXTURES / "debezium-A"
NOW_NS = 1_800_000_000_123_456_789


def printed(
    skipped: SkippedRecords | None = None,
    folder: Path = FOLDER,
    source: dict[str, Any] | None = None,
    **publish: Any,
) -> list[dict[str, Any]]:
    """Return a recording's events; encoded once per process, unless the caller counts what is skipped."""
    chosen = json.dumps([{"type": "cassandra", **(source or {})}, {"tombstones": False, **publish}])
    text = _cached(folder, chosen) if skipped is None else _printed(folder, chosen, skipped)
    return [json.loads(line) for line in text.splitlines()]


def _printed(folder: Path, declaration: str, skipped: SkippedRecords) -> bytes:
    source, publish = json.loads(declaration)
    connector = Connector.from_dict({"name": "p", "source": source, "publish": publish})
    recording = Recording(folder / "cdc_raw", str(folder / "schema.cql"), NOW_NS)
    return b"".join(text_of(chunk) for chunk in event_lines(connector, recording, skipped))


@cache
def _cached(folder: Path, declaration: str) -> bytes:
    return _printed(folder, declaration, SkippedRecords(strict=False))


def values(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(event["value"]) for event in events]
