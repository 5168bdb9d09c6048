"""Events that are printed of a recording of Cassandra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.jobs.events.skipped_records import SkippedRecords
from airflow_cdc_provider.jobs.offline.recordings import Recording, event_lines

FIXTURES = Path(__file__).parents[3] / "fixtures" / "cassandra"
FOLDER = FIXTURES / "debezium-A"
NOW_NS = 1_800_000_000_123_456_789


def printed(
    skipped: SkippedRecords | None = None,
    folder: Path = FOLDER,
    source: dict[str, Any] | None = None,
    **publish: Any,
) -> list[dict[str, Any]]:
    publish = {"tombstones": False, **publish}
    connector = Connector.from_dict(
        {"name": "p", "source": {"type": "cassandra", **(source or {})}, "publish": publish}
    )
    recording = Recording(folder / "cdc_raw", str(folder / "schema.cql"), NOW_NS)
    lines = event_lines(connector, recording, skipped or SkippedRecords(strict=False))
    return [json.loads(line) for line in b"".join(text_of(chunk) for chunk in lines).splitlines()]


def values(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(event["value"]) for event in events]
