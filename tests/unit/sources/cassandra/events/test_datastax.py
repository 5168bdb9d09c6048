"""DataStax's form against its own converters: ``tests/fixtures/cassandra/datastax-A``."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.contribution import CONTRIBUTION_SCHEMA, ROW
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.order import event_order
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.events.datastax_records import replica_duplicates
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines, row_lines
from tests.unit.sources.cassandra.events.datastax_recording import FOLDER, NOW_NS, by_table, printed
from tests.unit.sources.cassandra.events.row_changes import Changes


def converted() -> dict[str, list[dict[str, Any]]]:
    """Return what DataStax's converters make of the rows that a SELECT gives after each statement."""
    tables = defaultdict(list)
    with gzip.open(FOLDER / "converted.jsonl.gz", "rt") as lines:
        for line in lines:
            event = json.loads(line)
            tables[event["table"]].append(event)
    # A batch is logged in the order of the clustering, which is descending.
    clustered = tables["shop_e.clustered"]
    clustered[9], clustered[10] = clustered[10], clustered[9]
    return tables


def without_removed(table: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what DataStax doesn't send: each row that a deletion of a range or partition took."""
    removed = {"shop_e.clustered": (8, 9, 10), "shop_f.stat": (7,)}.get(table, ())
    assert all(events[place]["value"] is None for place in removed)
    return [event for place, event in enumerate(events) if place not in removed]


def decoded(schema: dict[str, Any], data: str | None) -> Any:
    """Decode a value; sets come in any order from Java."""
    if data is None:
        return None
    record = fastavro.schemaless_reader(io.BytesIO(base64.b64decode(data)), plain(schema), None)
    assert isinstance(record, dict)
    if isinstance(record.get("s"), list):
        record["s"] = sorted(record["s"])
    return record


def plain(schema: Any) -> Any:
    """Drop logical types, and the empty namespace that only Java's parser gets along with."""
    if isinstance(schema, list):
        return [plain(member) for member in schema]
    if isinstance(schema, dict):
        dropped = ("logicalType", "doc") if schema.get("namespace") != "" else ("logicalType", "namespace")
        return {name: plain(value) for name, value in schema.items() if name not in dropped}
    return schema


@pytest.mark.recorded
@pytest.mark.covers("CAS-TYPE-26", "DSX-EVT-06", "DSX-EVT-07", "DSX-EVT-09", "DSX-CON-06")
def test_avro_equals_that_of_datastaxs_own_converters() -> None:
    ours = by_table(printed(key="avro", value="avro", schemas=True))
    theirs = converted()
    assert set(ours) == set(theirs)
    compared = same_bytes = 0
    for table, events in ours.items():
        events = without_removed(table, events)  # noqa: PLW2901
        assert len(events) == len(theirs[table])
        for event, other in zip(events, theirs[table], strict=True):
            assert json.dumps(event["key_schema"]) == json.dumps(json.loads(other["key_schema"]))
            assert json.dumps(event["value_schema"]) == json.dumps(json.loads(other["value_schema"]))
            if other["key"] is not None:  # of a row that is gone a SELECT shows no key
                assert event["key"] == other["key"]
            same_bytes += event["value"] == other["value"]
            if event["value"] != other["value"]:
                schema = event["value_schema"]
                assert decoded(schema, event["value"]) == decoded(schema, other["value"])
            compared += 1
    assert (compared, same_bytes) == (54, 46)


@pytest.mark.recorded
@pytest.mark.covers("DSX-CON-05", "DSX-EVT-06", "DSX-EVT-07", "DSX-EVT-09")
def test_json_equals_that_of_datastaxs_own_converters() -> None:
    ours, theirs = by_table(printed()), converted()
    compared = 0
    for table, events in ours.items():
        for event, other in zip(without_removed(table, events), theirs[table], strict=True):
            if other["key_json"] is not None:
                assert event["key"] == other["key_json"]
            if "json_error" in other:  # theirs can't write a duration inside a list
                continue
            if table == "shop_e.colls" and event["value"]:  # nor tuples, and sets come in any order
                row, expected = json.loads(event["value"]), json.loads(other["value_json"])
                assert expected["tp"] is None
                assert {**row, "tp": None, "s": None} == {**expected, "s": None}
                continue
            assert event["value"] == other["value_json"]
            compared += 1
    assert compared == 39


@pytest.mark.recorded
@pytest.mark.covers("DSX-CON-05")
def test_json_alone_holds_the_key_in_the_value() -> None:
    pairs = zip(printed(), printed(cassandra={"key_in_value": True}), strict=True)
    rows = 0
    for separate, together in pairs:
        assert together["key"] == separate["key"]
        if separate["value"] is None:
            assert together["value"] == "{}"
        elif None not in json.loads(separate["key"]).values():
            assert json.loads(together["value"]) == {
                **json.loads(separate["key"]),
                **json.loads(separate["value"]),
            }
            rows += 1
    assert rows > 25


@pytest.mark.recorded
@pytest.mark.covers("DSX-EVT-02")
@pytest.mark.parametrize("converter", ["json", "avro"])
def test_columns_left_out_of_values_stay_in_keys(converter: str) -> None:
    publish: dict[str, Any] = {
        "cassandra": {"key_in_value": converter == "json"},
        "exclude_columns": ["shop_e.clustered.c1", "shop_e.clustered.w"],
    }
    events = by_table(printed(key=converter, value=converter, schemas=converter == "avro", **publish))
    row = events["shop_e.clustered"][0]
    key = json.loads(row["key"]) if converter == "json" else decoded(row["key_schema"], row["key"])
    assert key == {"p1": "p", "p2": 1, "c1": 0, "c2": "x"}
    if converter == "json":
        assert json.loads(row["value"]) == {"p1": "p", "p2": 1, "c2": "x", "v": "v0", "st": None}
    else:
        assert [field["name"] for field in row["value_schema"]["fields"]] == ["v", "st"]


@pytest.mark.parametrize(
    ("excluded", "message"),
    [
        ("shop_e.none.v", r"shop_e\.none\.v, whose table is not captured"),
        ("shop_e.clustered.none", "excluded column none doesn't exist"),
        ("shop_f.nested.a.zip", r"field a\.zip can't be excluded"),
        ("v", "expected keyspace.table.column, or"),
    ],
)
def test_columns_that_are_not_there_are_refused(excluded: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        printed(exclude_columns=[excluded])


def test_the_write_time_goes_along_as_a_header() -> None:
    times = [dict(event["headers"])["writetime"] for event in printed()]
    assert '"1700000000000001"' in times  # USING TIMESTAMP
    assert all(1 <= int(json.loads(time)) < NOW_NS // 1000 for time in times)


def test_events_of_one_change_are_numbered_on_request() -> None:
    events = printed(event_index=True)
    numbers = [int(dict(event["headers"])["cdc.index"]) for event in events]
    assert set(numbers) == {0, 1}
    # A deletion of a partition, then the row that it took.
    assert [event["key"] for event in events[-2:]] == ['{"p":1,"c":null}', '{"p":1,"c":1}']
    assert numbers[-2:] == [0, 1]


def test_operations_can_not_be_skipped_where_events_have_none() -> None:
    with pytest.raises(ConfigurationError, match="for events that have an operation"):
        printed(skipped_operations=["d"])


def test_a_row_whose_time_is_over_is_gone() -> None:
    later = by_table(printed(now_ns=NOW_NS + 6000 * 10**9))["shop_e.scalars"]
    (row,) = [event for event in later if event["key"] == '{"k":3}']
    assert row["value"] is None


@pytest.mark.recorded
@pytest.mark.covers("DSX-EVT-07")
def test_the_last_event_of_each_row_is_the_row_that_stays() -> None:
    """On a recording of random writes whose final rows a SELECT returned."""
    folder = FOLDER.parent / "A" / "v7-plain"
    connector = Connector.from_dict({"name": "p", "source": {"type": "cassandra"}})
    read_at = json.loads((folder / "rows" / "_index.json").read_text())["read_at_s"]
    source = Recording(folder / "cdc_raw", str(folder / "schema.cql"), read_at * 10**9)
    rows: dict[str, int] = defaultdict(int)
    for chunk in row_lines(connector, source, SkippedRecords(strict=False)):
        for line in text_of(chunk).splitlines():
            rows[json.loads(line)["table"]] += 1
    last: dict[str, dict[str, Any]] = defaultdict(dict)
    for event in printed(folder, now_ns=read_at * 10**9):
        last[event["topic"].removeprefix("p.")][event["key"]] = event["value"]
    assert sum(rows.values()) > 250
    rows["shop_a.late_cdc"] -= 2  # were written before cdc was on
    # The first table of this name, whose v is an int, has events too; that it was dropped is none.
    dropped = [k for k, value in last["shop_a.reborn"].items() if isinstance(json.loads(value)["v"], int)]
    assert len(dropped) == 3
    for key in dropped:
        del last["shop_a.reborn"][key]
    for table, count in rows.items():
        keys = [json.loads(key) for key, value in last[table].items() if value is not None]
        alone = [key for key in keys if None in key.values()]  # static columns of a partition
        clustering = {name for key in alone for name, value in key.items() if value is None}

        def partitions(keys: list[dict[str, Any]], names: set[str] = clustering) -> set[str]:
            return {json.dumps({n: v for n, v in key.items() if n not in names}) for key in keys}

        with_rows = [key for key in keys if None not in key.values()]
        # A partition that has static columns only is a row too.
        assert len(with_rows) + len(partitions(alone) - partitions(with_rows)) == count, table


def test_events_of_all_tables_stay_in_the_logs_order_however_many_there_are() -> None:
    many = event_order(np.zeros(3_000_000, np.int64))
    assert np.all(np.diff(many) > 0)
    assert many[-1] < event_order(np.array([1]))[0], "the next change, of another table, comes after them"


@pytest.mark.recorded
@pytest.mark.covers("DSX-CON-02")
def test_a_write_that_several_nodes_logged_is_one_event(tmp_path: Path) -> None:
    """DataStax's connector remembers digests for a minute; here all that is looked at counts."""
    shutil.copy(FOLDER / "schema.cql", tmp_path)
    nodes = ("2e9143c7-14f1-4bcd-9c32-3bc85029f3b8", "8a2b3c1d-0000-4bcd-9c32-3bc85029f3b8")
    one = printed(node=nodes[0])
    for node in nodes:
        shutil.copytree(FOLDER / "cdc_raw", tmp_path / "cdc_raw" / node)
    skipped = SkippedRecords(strict=True)
    connector = Connector.from_dict(
        {"name": "p", "source": {"type": "cassandra"}, "publish": {"envelope": "datastax"}}
    )
    recording = Recording(tmp_path / "cdc_raw", str(tmp_path / "schema.cql"), NOW_NS)
    lines = [text_of(chunk) for chunk in event_lines(connector, recording, skipped)]
    several = [json.loads(line) for line in b"".join(lines).splitlines()]
    assert by_table(several) == by_table(one)
    assert skipped.by_kind["replica duplicate"] >= len(one) // 2 > 20
    cells = Connector.from_dict({"name": "p", "source": {"type": "cassandra"}})
    events = [
        json.loads(line)
        for chunk in event_lines(cells, recording, SkippedRecords(strict=True))
        for line in text_of(chunk).splitlines()
    ]
    assert len(events) == 2 * len({(e["topic"], e["key"], e["value"]) for e in events}), (
        "Debezium sends each replica duplicate"
    )


def test_what_differs_in_a_write_time_alone_is_no_copy() -> None:
    again = Changes().write("p", "a", "1", 10).write("p", "a", "1", 11).write("p", "a", "1", 10)
    table = pa.Table.from_pylist(again.rows, CONTRIBUTION_SCHEMA).combine_chunks().to_batches()[0]
    assert replica_duplicates(table, np.array(again.numbers), 4).tolist() == [False, False, True, False]
    several = Changes().write("p", "a", "1", 10, change=0).write("p", "b", "2", 10, change=0)
    several.write("p", "a", "1", 10, change=1).delete("p", ROW, 10, "b", change=2)
    several.write("p", "b", "2", 10, change=3).write("p", "a", "1", 10, change=3)
    table = pa.Table.from_pylist(several.rows, CONTRIBUTION_SCHEMA).combine_chunks().to_batches()[0]
    assert replica_duplicates(table, np.array(several.numbers), 4).tolist() == [False, False, False, True]
