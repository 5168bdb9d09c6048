"""Events of a recording of Cassandra have the same contents in every form of topics."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_cdc_provider.events.event_batches import EventRequest
from airflow_cdc_provider.events.framing import TopicSchema
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.events.sliced import SliceRows
from airflow_cdc_provider.jobs.comparing.cql_topics import row_form
from airflow_cdc_provider.jobs.comparing.reported_rows import reported_by
from airflow_cdc_provider.jobs.comparing.topics import topic_reader
from airflow_cdc_provider.kafka.consumer import MessageRange
from airflow_cdc_provider.kafka.settings import ClientSettings
from airflow_cdc_provider.sources.cassandra.events.recording import _source
from airflow_cdc_provider.sources.cql.schema import TableSchema
from airflow_cdc_provider.sources.debezium.reader import TopicSlice
from airflow_cdc_provider.sources.debezium.recorded_schemas import RecordedSchemas
from airflow_cdc_provider.sources.debezium.records import Messages, read_messages
from tests.unit.sources.cassandra.events.reread_cluster import RECORDING
from tests.unit.sources.debezium.registry_writers import Registered
from tests.unit.sources.lake_records import NOW_NS, cassandra

Contents = dict[str, list[Mapping[str, Any]]]


class Registry(Registered):
    """A registry in memory that also takes schemas in."""

    def schema_id(self, schema: TopicSchema) -> int:
        return self.add(schema.type, schema.text)


def compared_cells(text: bytes, left_out: Collection[str]) -> dict[str, Any]:
    """Read the cells of a row that are compared in any form."""
    cells = json.loads(text)
    return {name: cell for name, cell in cells.items() if cell is not None and name not in left_out}


def nests(schema: TableSchema) -> bool:
    """Return whether a table has collections in collections, which Protobuf doesn't know."""
    inner = [kind for column in schema.columns for kind in column.type.parameters]
    return any(kind.name in ("list", "set", "map", "vector") for kind in inner)


def contents(**publish: Any) -> Contents:
    """Return the contents of the recording's events, by topic."""
    registry = Registry()
    if publish.get("value", "json") != "json":
        publish["registry"] = {"url": "http://registry:8081"}
    captured = cassandra(**publish, field_names="avro", schema_names="avro")
    connector = captured.connector
    framed = replace(connector, publish=replace(connector.publish, value="protobuf"))
    schemas = _source(connector, RECORDING).schemas.tables
    flat = [name for name, schema in schemas.items() if not nests(schema)]
    kept = captured.rows.filter(pc.is_in(captured.rows["source_table"], value_set=pa.array(flat)))
    rows = SliceRows(kept.to_batches(max_chunksize=10_000))
    wanted = EventRequest(0, captured.through, NOW_NS, by_batch=True, registrar=registry)
    made = list(captured.build(rows.between(0, captured.through), wanted, SkippedRecords(strict=True)))
    records = pa.Table.from_batches([one.records for one in made])
    found: Contents = {}
    for topic in pc.unique(records["topic"]).to_pylist():
        own = records.filter(pc.equal(records["topic"], topic)).combine_chunks()
        count = own.num_rows
        keys, values = (own[name].combine_chunks().cast(pa.binary()) for name in ("key", "value"))
        places = np.arange(count)
        settings = ClientSettings({"bootstrap.servers": "none:9092"})
        reader = topic_reader(connector, settings, [topic], registry)
        feed = reader.feed(TopicSlice(MessageRange(topic, 0, 0, count), 0, 1, topic, 0))
        messages = Messages(keys, values, places, np.full(count, -1), np.zeros(count, np.bool_))
        read = read_messages(messages, feed, RecordedSchemas(), {})  # type: ignore[arg-type]
        read = read.filter(pc.equal(read["kind"], "change"))
        schema = schemas[topic.partition(".")[2]]
        form = row_form(connector, schema)
        left_out = row_form(framed, schema).left_out
        batch = reported_by(read["key"], read["payload"], np.arange(read.num_rows), form, of_mirror=False)
        found[topic] = [
            {**row, "key": json.loads(row["key"]), "cells": compared_cells(row["cells"], left_out)}
            for row in batch.drop_columns(["place", "partition"]).to_pylist()
        ]
    return found


@pytest.fixture(scope="module")
def as_json() -> Contents:
    return contents()


def test_the_recording_has_all_kinds_of_events(as_json: Contents) -> None:
    assert {row["what"] for rows in as_json.values() for row in rows} >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("converter", ["avro", "protobuf", "json_schema"])
def test_events_have_the_same_contents_in_every_format_with_a_registry(
    as_json: Contents, converter: str
) -> None:
    found = contents(key=converter, value=converter)
    assert set(found) == set(as_json)
    for topic, rows in as_json.items():
        assert found[topic] == rows, topic


def test_events_have_the_same_contents_with_schemas(as_json: Contents) -> None:
    assert contents(schemas=True) == as_json
