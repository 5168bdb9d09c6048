"""A recording whose events DataStax's converters made, and ours of it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines

FOLDER = Path(__file__).parents[4] / "fixtures" / "cassandra" / "datastax-A"
NOW_NS = 1_795_293_300_000_000_000
"""Soon after the recording, while its TTLs run."""


def printed(
    folder: Path = FOLDER, *, now_ns: int = NOW_NS, node: str = "", **publish: Any
) -> list[dict[str, Any]]:
    source_options = {"type": "cassandra", "node": node}
    connector = Connector.from_dict(
        {"name": "p", "source": source_options, "publish": {"envelope": "datastax", **publish}}
    )
    source = Recording(folder / "cdc_raw", str(folder / "schema.cql"), now_ns)
    lines = event_lines(connector, source, SkippedRecords(strict=folder == FOLDER))
    return [json.loads(line) for line in b"".join(text_of(chunk) for chunk in lines).splitlines()]


def by_table(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    tables = defaultdict(list)
    for event in events:
        tables[event["topic"].removeprefix("p.")].append(event)
    return tables
