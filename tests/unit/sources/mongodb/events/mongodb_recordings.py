"""Events that are printed of recordings of MongoDB, and those that Debezium wrote."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

from bson.codec_options import CodecOptions, DatetimeConversion

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines

FIXTURES = Path(__file__).parents[4] / "fixtures" / "mongodb"
PROFILES: dict[str, dict[str, str]] = json.loads((FIXTURES / "profiles.json").read_text())
RECORDED_BY = {
    "cs": "default",
    "post": "post_pre",
    "post_pre": "post_pre",
    "u_cs": "default",
    "u_add": "default",
}
WHOLE: Any = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
NOW_NS = 1_800_000_000_123_456_789


def recording(folder: Path, stream: str) -> Recording:
    """Lay a stream and all snapshots into a folder, as a user would record them."""
    for file in (FIXTURES / "raw").iterdir():
        if file.name.startswith("snapshot.") or file.name == f"{stream}.bson.gz":
            shutil.copy(file, folder)
    return Recording(folder, "", NOW_NS)


def printed(
    connector: Connector, source: Recording, skipped: SkippedRecords | None = None
) -> list[dict[str, Any]]:
    lines = event_lines(connector, source, skipped or SkippedRecords(strict=True))
    text = b"".join(text_of(chunk) for chunk in lines)
    return [json.loads(line) for line in text.splitlines()]


def debezium_records(profile: str) -> list[dict[str, Any]]:
    with gzip.open(FIXTURES / "events" / f"{profile}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def without_clock(value: str | None) -> str | None:
    """Blank values that depend on the time: the envelope's ts_ms, and the source times of snapshot reads."""
    if value is None:
        return None
    value = re.sub(r'("op":".","ts_ms":)\d+', r"\g<1>0", value)
    if '"op":"r"' in value:
        value = re.sub(r'("ts_ms":|"ts_us":|"ts_ns":)\d+', r"\g<1>0", value)
    return value


def raced_with_the_next_write(record: dict[str, Any]) -> bool:
    """Return whether updates are of one bulk write, whose look-ups by several streams may differ."""
    return record["key"] == '{"id":"1"}' and '"updatedFields":"{\\"b\\": 2}"' in (record["value"] or "")
