"""Debezium's events by its options: ``tests/fixtures/cassandra/debezium-B``."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines

FOLDER = Path(__file__).parents[4] / "fixtures" / "cassandra" / "debezium-B"
OPTIONS = {
    "string": {
        "decimal.handling.mode": "string",
        "varint.handling.mode": "string",
        "tombstones.on.delete": "true",
    },
    "precise": {"decimal.handling.mode": "precise", "varint.handling.mode": "precise"},
    "exclude": {
        "field.exclude.list": "shop_e.colls.m,shop_e.scalars.c_int,shop_e.clustered.v",
        "topic.delimiter": "-",
    },
}


def without_variables(text: str) -> str:
    """Blank what depends on the run: the building time, Debezium's version, the cluster's name."""
    text = re.sub(r'("payload":\{"ts_ms":)\d+', r"\g<1>0", text)
    text = re.sub(r'"version":"[^"]*Final"', '"version":""', text)
    return re.sub(r'"cluster":"[^"]*"(?=,"file")', '"cluster":""', text)


def ours(mode: str) -> list[str]:
    connector = from_debezium(
        {
            "connector.class": "io.debezium.connector.cassandra.Cassandra5Connector",
            "topic.prefix": "cdc",
            "key.converter.schemas.enable": "true",
            "value.converter.schemas.enable": "true",
            **OPTIONS[mode],
        }
    ).connector
    source = Recording(FOLDER / "cdc_raw", str(FOLDER / "schema.cql"), 1_800_000_000_000_000_000)
    lines = event_lines(connector, source, SkippedRecords(strict=True))
    events = [json.loads(line) for line in b"".join(map(text_of, lines)).splitlines()]
    return [
        without_variables(f'{{"topic":"{e["topic"]}","key":{e["key"]},"value":{e["value"] or "null"}}}')
        for e in events
    ]


def theirs(mode: str) -> list[str]:
    with gzip.open(FOLDER / f"{mode}.jsonl.gz", "rt") as lines:
        return [without_variables(line.rstrip("\n")) for line in lines]


def without_static_columns(events: list[str]) -> list[str]:
    """Leave out events of static columns, which Debezium doesn't have."""
    return [event for event in events if '"c1":null,"c2":null,"v":null,"w":null,"st":{' not in event]


def shown_as_added(event: str) -> str:
    """Change the one event where Debezium shows an element removed from a set as added."""
    if '"s":{"value":["x"],"deletion_ts":null' not in event or '"l":null,"m":null' not in event:
        return event
    time = re.search(r'"ts_us":(\d+)', event)
    assert time is not None
    return event.replace('["x"],"deletion_ts":null', f'["x"],"deletion_ts":{time[1]}')


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-07", "CAS-CFG-27", "CAS-EVT-17")
def test_numbers_as_text_and_tombstones_equal_debeziums_byte_for_byte() -> None:
    wanted = [shown_as_added(event) for event in theirs("string")]
    assert without_static_columns(ours("string")) == wanted
    assert sum(event.endswith('"value":null}') for event in wanted) == 5


@pytest.mark.recorded
@pytest.mark.covers("CAS-CFG-28", "CAS-D3X-11")
def test_columns_left_out_and_topics_equal_debeziums_byte_for_byte() -> None:
    assert without_static_columns(ours("exclude")) == [shown_as_added(event) for event in theirs("exclude")]


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-07")
def test_precise_numbers_equal_debeziums_but_may_be_null() -> None:
    """Debezium's schema of exact numbers forbids null, so it fails on deletions and on null cells."""

    def required(event: str) -> str:
        for name in ("io.debezium.data.VariableScaleDecimal", "org.apache.kafka.connect.data.Decimal"):
            event = event.replace(f'"optional":true,"name":"{name}"', f'"optional":false,"name":"{name}"')
        return event

    failed = 0
    for event, other in zip(without_static_columns(ours("precise")), theirs("precise"), strict=True):
        if '"error":' in other:
            failed += 1
            assert "Invalid value: null used for required field" in other
        else:
            assert required(event) == shown_as_added(other)
    assert failed == 3
