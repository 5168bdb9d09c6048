"""Whole rows of events that are read again at the source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of, to_lines
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.cassandra.events.changes import EventSettings
from airflow_cdc_provider.sources.cassandra.events.recording import _records, _source
from airflow_cdc_provider.sources.cassandra.events.records import build_events
from tests.recorded_lines import event_lines
from tests.unit.sources.cassandra.events.datastax_recording import NOW_NS, by_table, printed
from tests.unit.sources.cassandra.events.reread_cluster import RECORDING, TABLE, Cluster

CONNECTOR = Connector.from_dict(
    {
        "name": "p",
        "source": {"type": "cassandra"},
        "publish": {"envelope": "datastax", "cassandra": {"reread": True}},
    }
)


def read_again(cluster: Cluster) -> list[dict[str, Any]]:
    source = _source(CONNECTOR, RECORDING)
    cluster.schemas = dict(source.schemas.tables)
    skipped = SkippedRecords(strict=True)
    settings = EventSettings(CONNECTOR, source, "c", NOW_NS, read_again=cluster.read_again)
    batches = ((0, batch) for batch in _records(source, RECORDING, skipped))
    lines = [to_lines(made.records, ()) for made in build_events(settings, batches, skipped)]
    return [json.loads(line) for line in b"".join(map(text_of, lines)).splitlines()]


def test_each_changed_row_has_one_event_with_the_sources_current_values() -> None:
    cluster = Cluster()
    now, logged = by_table(read_again(cluster)), by_table(printed())

    assert set(now) == set(logged)
    for table, events in now.items():
        keys = [event["key"] for event in events]
        assert len(keys) == len(set(keys)), "once, however often it changed"
        last = {event["key"]: n for n, event in enumerate(logged[table])}
        assert keys == sorted(last, key=last.__getitem__), "where it changed last"
        assert all(len(asked) == len(set(asked)) for asked in cluster.asked.values())
    assert sum(map(len, now.values())) < sum(map(len, logged.values()))

    there = {"p1": "p", "p2": 1, "c1": 0, "c2": "x"}
    for event in (event for events in now.values() for event in events):
        key = json.loads(event["key"])
        if key == there:
            assert json.loads(event["value"]) == {"v": "now", "w": None, "st": 7}
        elif key == {**there, "c1": None, "c2": None}:
            assert json.loads(event["value"]) == {"st": 7}, "a change of static columns has them alone"
        else:
            assert event["value"] is None, "what isn't there any more is deleted"
    assert there in [json.loads(event["key"]) for event in now[TABLE]]


def test_a_cluster_that_is_away_fails_the_command() -> None:
    cluster = Cluster()
    cluster.away = True
    with pytest.raises(TransientError, match="doesn't answer"):
        read_again(cluster)


def test_a_recording_can_not_be_read_again() -> None:
    with pytest.raises(ConfigurationError, match="a recording can't be read from the source"):
        list(event_lines(CONNECTOR, RECORDING, SkippedRecords(strict=True)))


@pytest.mark.parametrize("envelope", ["debezium", "datastax-cells"])
def test_other_formats_have_the_logged_values_and_reject_the_option(envelope: str) -> None:
    publish = {"envelope": envelope, "cassandra": {"reread": True}}
    with pytest.raises(ConfigurationError, match=r"publish\.cassandra\.reread has no effect in envelope"):
        Connector.from_dict({"name": "p", "source": {"type": "cassandra"}, "publish": publish})
