"""Events that are published are made batch by batch: the same sequence whatever comes after a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.sources.cassandra.events.changes import EventSettings
from airflow_cdc_provider.sources.cassandra.events.recording import _records, _source
from airflow_cdc_provider.sources.cassandra.events.records import build_events
from tests.unit.sources.cassandra.events.datastax_recording import NOW_NS
from tests.unit.sources.cassandra.events.reread_cluster import RECORDING, Cluster

FORMS: dict[str, dict[str, Any]] = {
    "log": {},
    "write_time": {"cassandra": {"order": "write_time"}},
    "before": {"cassandra": {"before": True}},
    "reread": {"envelope": "datastax", "cassandra": {"reread": True}},
    "whole rows": {"envelope": "datastax"},
}


def batches(through: int, first: int = 1) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a recording into batches of seven records, numbered from 1; leave out those before the first."""
    source = _source(Connector.from_dict({"name": "p", "source": {"type": "cassandra"}}), RECORDING)
    table = pa.Table.from_batches(_records(source, RECORDING, SkippedRecords(strict=True)))
    for number in range(first, through + 1):
        for batch in table.slice(7 * (number - 1), 7).combine_chunks().to_batches():
            yield number, batch


@cache
def made(form: str, through: int, first: int = 1) -> Mapping[int, list[str]]:
    """Return the lines of each batch, if batches from one up to another are read."""
    connector = Connector.from_dict(
        {"name": "p", "source": {"type": "cassandra"}, "publish": {"topic_prefix": "p", **FORMS[form]}}
    )
    source = _source(connector, RECORDING)
    cluster = Cluster(once=False)
    cluster.schemas = dict(source.schemas.tables)
    settings = EventSettings(connector, source, "c", NOW_NS, read_again=cluster.read_again, by_batch=True)
    lines: dict[int, list[str]] = {}
    numbers = []
    for one in build_events(settings, batches(through, first), SkippedRecords(strict=False)):
        numbers.append(one.batch)
        text = text_of(to_lines(one.records, ())).decode()
        lines.setdefault(one.batch, []).extend(text.splitlines())
    assert numbers == sorted(numbers), "batch after batch"
    return lines


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_has_the_same_events_whatever_follows_it(form: str) -> None:
    few, many = made(form, 3), made(form, 6)
    assert len(many) > 3
    assert {number: many.get(number) for number in few} == few


@pytest.mark.parametrize("form", ["log", "write_time", "reread"])
@pytest.mark.parametrize("first", [2, 4, 5])
def test_a_batch_has_the_same_events_whatever_precedes_it(form: str, first: int) -> None:
    """A run that resumes in the middle of a batch skips as many records as were sent."""
    whole, rest = made(form, 6), made(form, 6, first)
    assert rest
    assert rest == {number: lines for number, lines in whole.items() if number >= first}


def test_write_times_order_the_events_of_a_batch() -> None:
    for lines in made("write_time", 6).values():
        times = [json.loads(json.loads(line)["value"] or "null") for line in lines]
        of_batch = [value["source"]["ts_us"] for value in times if value]
        assert of_batch == sorted(of_batch)
    by_log, by_time = made("log", 6), made("write_time", 6)
    assert {n: sorted(lines) for n, lines in by_log.items()} == {
        n: sorted(lines) for n, lines in by_time.items()
    }


def test_rows_that_are_read_again_have_one_event_per_batch() -> None:
    logged = made("whole rows", 6)
    for number, lines in made("reread", 6).items():
        keys = [(event["topic"], event["key"]) for event in map(json.loads, lines)]
        assert len(keys) == len(set(keys))
        by_key = {(event["topic"], event["key"]): event["value"] for event in map(json.loads, logged[number])}
        assert set(keys) <= by_key.keys()
        # Rows of earlier batches that a deletion of their range took: a batch knows its own alone.
        assert {by_key[key] for key in by_key.keys() - set(keys)} <= {None}
