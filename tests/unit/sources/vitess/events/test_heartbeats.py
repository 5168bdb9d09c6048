"""Heartbeats of Vitess as events: heartbeats of VTGate in idle streams, with the current position."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_cdc_provider.jobs.resuming.progress import Progress, stored_offset
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.vitess.events.source_events import VitessSourceEvents
from airflow_cdc_provider.sources.vitess.options import VitessOptions
from airflow_cdc_provider.sources.vitess.protocol import EVENT_TYPES, VGtid, VStreamResponse
from airflow_cdc_provider.sources.vitess.requests import stream_request
from tests.unit.sources.vitess.events.vitess_recordings import FIXTURES, NOW_NS, declared, records
from tests.unit.vitess_stream import NOT_NULL, PRIMARY, SERVER, Stream, column

PROPERTIES = {
    "connector.class": "io.debezium.connector.vitess.VitessConnector",
    "name": "cdc",
    "topic.prefix": "cdc",
    "vitess.keyspace": "shop",
}
ID = column("id", "INT64", "bigint", PRIMARY | NOT_NULL)


def beat(stream: Stream) -> None:
    """Have VTGate say that it lives: of no keyspace and shard."""
    message = VStreamResponse()
    message.events.add(type=EVENT_TYPES["HEARTBEAT"], timestamp=stream.seconds)
    stream.messages.append(message)


def recorded(tmp_path: Path) -> Path:
    """A stream with heartbeats before its first position, between and inside transactions, and at its end."""
    stream = Stream(shards=("-80", "80-")).fields("t", ID, shard="-80")
    beat(stream)
    stream.change("t", None, [b"1"], shard="-80")
    beat(stream)
    stream.begin("-80").row("t", None, [b"2"], shard="-80")
    beat(stream)
    stream.commit("-80")
    beat(stream)
    beat(stream)
    return stream.write(tmp_path / "made.vstream")


def printed(tmp_path: Path, **properties: str) -> list[dict[str, Any]]:
    connector = from_debezium({**PROPERTIES, **properties}).connector
    return records(connector, recorded(tmp_path))


def vgtid(last: int) -> list[dict[str, Any]]:
    return [
        {"keyspace": "shop", "shard": "-80", "gtid": f"MySQL56/{SERVER}:1-{last}", "table_p_ks": []},
        {"keyspace": "shop", "shard": "80-", "gtid": "", "table_p_ks": []},
    ]


@pytest.mark.covers("VIT-HBT-01")
def test_enabled_heartbeats_have_the_current_vgtid_and_the_time(tmp_path: Path) -> None:
    interval = {"heartbeat.interval.ms": "3000"}
    options = from_debezium({**PROPERTIES, **interval}).connector.source
    assert isinstance(options, VitessOptions)
    assert stream_request(VGtid(), None, options).flags.heartbeat_interval == 3

    found = printed(tmp_path, **interval)

    beats = [record for record in found if record["topic"] == "__debezium-heartbeat.cdc"]
    values = [json.loads(record["value"]) for record in beats]
    assert [list(value) for value in values] == [["vgtid", "ts_ms"]] * 4, "none before the first position"
    assert {value["ts_ms"] for value in values} == {NOW_NS // 1_000_000}
    # The third one came inside of a transaction that was not committed.
    assert [json.loads(value["vgtid"]) for value in values] == [vgtid(n) for n in (1, 1, 2, 2)]
    assert [record["topic"].startswith("__") for record in found] == [False, True, True, False, True, True]


def test_heartbeats_have_a_key_no_headers_and_partition_0(tmp_path: Path) -> None:
    found = printed(tmp_path, **{"heartbeat.interval.ms": "3000", "heartbeat.topics.prefix": "beat"})

    beats = [record for record in found if record["topic"] == "beat.cdc"]
    assert len(beats) == 4
    assert all(json.loads(record["key"]) == {"serverName": "cdc"} for record in beats)
    assert all((record["partition"], record["headers"]) == (0, []) for record in beats)


def test_their_schemas_are_debeziums(tmp_path: Path) -> None:
    found = printed(tmp_path, **{"heartbeat.interval.ms": "3000", "value.converter.schemas.enable": "true"})

    (record, *_) = (r for r in found if r["topic"].startswith("__debezium"))
    schema = json.loads(record["value"])["schema"]
    assert (schema["name"], schema["version"]) == ("io.debezium.connector.vitess.Heartbeat", 1)
    assert [(f["field"], f["type"], f["optional"]) for f in schema["fields"]] == [
        ("vgtid", "string", False),
        ("ts_ms", "int64", False),
    ]


@pytest.mark.parametrize("interval", ["0", ""])
def test_without_an_interval_there_are_none(tmp_path: Path, interval: str) -> None:
    properties = {"heartbeat.interval.ms": interval} if interval else {}
    assert {record["topic"] for record in printed(tmp_path, **properties)} == {"cdc.shop.t"}


def test_one_to_kafka_has_the_stored_offset_once_its_batch_is_published() -> None:
    properties = {**PROPERTIES, "heartbeat.interval.ms": "3000"}
    offset = {"shop/-80": {"v": 1, "gtid": f"MySQL56/{SERVER}:1-7", "epoch": 1, "parents": []}}

    def reported(source: dict[str, Any] | None, published: int | None) -> list[dict[str, Any]]:
        state = SimpleNamespace(batch=5, offset=Progress(source).to_offset())
        connector = from_debezium(properties).connector
        changes: Any = SimpleNamespace(state=lambda: state)
        beats = VitessSourceEvents().heartbeat_records(
            connector, partial(stored_offset, changes, published), NOW_NS
        )
        return beats.to_pylist()

    assert reported(offset, 4) == reported(None, 5) == []
    for published in (5, None):
        (record,) = reported(offset, published)
        value = json.loads(record["value"])
        assert record["topic"] == "__debezium-heartbeat.cdc"
        assert [one["gtid"] for one in json.loads(value["vgtid"])] == [f"MySQL56/{SERVER}:1-7"]
        assert value["ts_ms"] == NOW_NS // 1_000_000


def test_heartbeats_dont_change_the_events_of_a_recording() -> None:
    path = FIXTURES / "vstream" / "default.vstream"
    without = records(declared("default", headers=False), path)
    found = records(declared("default", headers=False, vitess={"heartbeats": True}), path)

    assert [record for record in found if not record["topic"].startswith("__debezium")] == without
