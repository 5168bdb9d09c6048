"""Events that are printed of recordings of Vitess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.migration.settings_file import load_connector_file
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines

FIXTURES = Path(__file__).parents[4] / "fixtures" / "vitess"
NOW_NS = 1_800_000_000_123_456_789


def declared(name: str, **publish: Any) -> Connector:
    """Import a recording's properties, with further choices under ``publish``."""
    imported = load_connector_file(FIXTURES / "config" / f"{name}.properties").connector.to_dict()
    own = {**imported["publish"].get("vitess", {}), **publish.pop("vitess", {})}
    publish_options = {**imported["publish"], "version": "3.5.0.Final", **publish, "vitess": own}
    return Connector.from_dict({**imported, "publish": publish_options})


def records(connector: Connector, path: Path, skipped: SkippedRecords | None = None) -> list[dict[str, Any]]:
    """Print a recording's events and read the lines."""
    lines = event_lines(connector, Recording(path, "", NOW_NS), skipped or SkippedRecords(strict=True))
    return [json.loads(line) for part in lines for line in text_of(part).splitlines()]


def events(name: str, **publish: Any) -> list[dict[str, Any]]:
    """Print a recording's events without schemas, keys and values parsed."""
    found = records(declared(name, **{"schemas": False, **publish}), FIXTURES / "vstream" / f"{name}.vstream")
    return [
        {**record, **{side: record[side] and json.loads(record[side]) for side in ("key", "value")}}
        for record in found
    ]


def rows(found: list[dict[str, Any]], table: str, op: str = "c") -> dict[Any, dict[str, Any]]:
    """Return rows after (before, of deletes) by their ``id``."""
    values = [r["value"] for r in found if r["topic"] == f"cdc.shop.{table}" and r["value"]]
    side = "before" if op == "d" else "after"
    return {value[side]["id"]: value[side] for value in values if value["op"] == op}
