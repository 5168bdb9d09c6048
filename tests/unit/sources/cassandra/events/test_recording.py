"""Events and rows of recordings: against Debezium's, Cassandra's own reader and its SELECT JSON."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.cassandra.events.changes import cluster_name
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import event_lines, row_lines

FIXTURES = Path(__file__).parents[4] / "fixtures" / "cassandra"
DEBEZIUM = FIXTURES / "debezium-A"
PLAIN = FIXTURES / "A" / "v7-plain"
ENCRYPTED = FIXTURES / "A" / "v7-encrypted"
NOW_NS = 1_800_000_000_123_456_789
NOT_CAPTURED = {"cnt": "counters", "plain_nocdc": "no CDC", "twin_by_w": "a view"}


def recording(folder: Path, **more: Any) -> Recording:
    return Recording(folder / "cdc_raw", str(folder / "schema.cql"), **{"now_ns": NOW_NS, **more})


def printed(
    connector: Connector, source: Recording, skipped: SkippedRecords | None = None
) -> list[dict[str, Any]]:
    lines = event_lines(connector, source, skipped or SkippedRecords(strict=False))
    return [json.loads(line) for line in b"".join(text_of(chunk) for chunk in lines).splitlines()]


def plain_connector(**publish: Any) -> Connector:
    encryption = {"keystore": str(ENCRYPTED / "keystore.jceks"), "keystore_password": "cassandra"}
    source = {"type": "cassandra", "encryption": encryption}
    return Connector.from_dict({"name": "a", "source": source, "publish": publish})


@pytest.fixture(scope="module")
def debezium_connector() -> Connector:
    return from_debezium(
        {
            "connector.class": "io.debezium.connector.cassandra.CassandraConnector",
            "topic.prefix": "cdc",
            "key.converter.schemas.enable": "true",
            "value.converter.schemas.enable": "true",
        }
    ).connector


def without_variables(text: str) -> str:
    """Blank what depends on the run: the building time, Debezium's version, the cluster's name."""
    text = re.sub(r'("payload":\{"ts_ms":)\d+', r"\g<1>0", text)
    text = re.sub(r'"version":"[^"]*Final"', '"version":""', text)
    return re.sub(r'"cluster":"[^"]*"(?=,"file")', '"cluster":""', text)


@pytest.mark.recorded
@pytest.mark.covers(
    "CAS-READ-04",
    "CAS-EVT-01",
    "CAS-EVT-05",
    "CAS-EVT-11",
    "CAS-EVT-12",
    "CAS-EVT-13",
    "CAS-EVT-14",
    "CAS-EVT-16",
    "CAS-D3X-09",
    "CAS-TYPE-26",
    "DSX-EVT-04",
    "DSX-EVT-11",
    "DSX-CON-07",
    "DSX-CON-08",
)
def test_events_equal_debeziums_byte_for_byte(debezium_connector: Connector) -> None:
    ours = [
        without_variables(f'{{"topic":"{e["topic"]}","key":{e["key"]},"value":{e["value"]}}}')
        for e in printed(debezium_connector, recording(DEBEZIUM))
    ]
    with gzip.open(DEBEZIUM / "events.jsonl.gz", "rt") as lines:
        theirs = [without_variables(line.rstrip("\n")) for line in lines]
    # Ours: removing 'x' from a set doesn't look like adding it, and a static column has an event.
    (removal,) = [event for event in theirs if event not in ours]
    assert '"s":{"value":["x"],"deletion_ts":null,"set":true}' in removal
    mended = removal.replace('["x"],"deletion_ts":null', '["x"],"deletion_ts":1795247964838844')
    (static,) = [event for event in ours if event not in theirs and event != mended]
    assert '"c1":null,"c2":null,"v":null,"w":null,"st":{"value":42,"deletion_ts":null,"set":true}' in static
    assert json.loads(static)["key"]["payload"] == {"p1": "p", "p2": 1, "c1": None, "c2": None}
    assert [event for event in ours if event != static] == [
        mended if event == removal else event for event in theirs
    ]


@pytest.mark.recorded
@pytest.mark.covers("CAS-EVT-17")
def test_deletions_have_tombstones_only_on_request(debezium_connector: Connector) -> None:
    source = recording(DEBEZIUM)
    assert all(event["value"] for event in printed(debezium_connector, source))
    events = printed(plain_connector(tombstones=True), source)
    deletes = [i for i, e in enumerate(events) if e["value"] and json.loads(e["value"])["op"] == "d"]
    assert len(deletes) == 4
    for place in deletes:
        assert events[place + 1]["value"] is None
        assert events[place + 1]["key"] == events[place]["key"]


def cassandras_own(folder: Path, version: int) -> dict[tuple[str, int, str], Counter[str]]:
    """Count what each update holds, by Cassandra's own reader."""
    found: dict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    with gzip.open(folder / "updates.jsonl.gz", "rt") as lines:
        updates = [json.loads(line) for line in lines]
    for update in updates:
        if not update["cdc"] or update["table"] in NOT_CAPTURED:
            continue
        ops = found[f"CommitLog-{version}-{update['segment']}.log", update["end"], update["table"]]
        ops["d"] += "partition_deletion" in update
        ops["u"] += "static" in update
        for part in update["unfiltered"]:
            if "marker" in part:
                ops["r"] += bool(part.get("open"))
                continue
            deleted = part["deletion"][0] if part.get("deletion") else None
            ops["d"] += deleted is not None
            times = [cell[1] for cell in part["cells"]]
            times += [times_of[0] for _, times_of in part.get("complex_deletions", [])]
            if part.get("liveness") and (deleted is None or part["liveness"][0] > deleted):
                ops["i"] += 1
            elif deleted is None or any(time > deleted for time in times):
                ops["u"] += 1
    return found


@pytest.mark.recorded
@pytest.mark.covers("CAS-READ-04", "CAS-LIM-07")
@pytest.mark.parametrize(("variant", "version"), [("v7-plain", 7), ("v7-lz4", 7), ("v8-plain", 8)])
def test_every_part_of_every_update_has_its_event(variant: str, version: int) -> None:
    folder = FIXTURES / "A" / variant
    found: dict[tuple[str, int, str], Counter[str]] = defaultdict(Counter)
    places = []
    for event in printed(plain_connector(tombstones=False), recording(folder)):
        value = json.loads(event["value"])
        where = value["source"]
        found[where["file"], where["pos"], where["table"]][value["op"]] += 1
        places.append((where["file"], where["pos"]))
    theirs = cassandras_own(folder, version)
    # Cassandra's own reader knows the tables that exist, not the first life of this one.
    former = [place for place in found if place[2] == "reborn" and place not in theirs]
    assert [+found.pop(place) for place in former] == [Counter("i")] * 5
    # Nor does it evaluate cdc at the time of an update.
    uncaptured = [place for place in theirs if place[2] == "late_cdc" and place not in found]
    assert [+theirs.pop(place) for place in uncaptured] == [Counter("i")] * 3
    assert {place: +ops for place, ops in found.items()} == {p: +o for p, o in theirs.items() if +o}
    assert places == sorted(places)


@pytest.mark.recorded
@pytest.mark.covers("DSX-CON-10")
@pytest.mark.parametrize("envelope", ["debezium", "datastax"])
def test_writes_before_cdc_was_on_have_no_event(envelope: str) -> None:
    connector = plain_connector(tombstones=False, envelope=envelope)
    found = [
        e for e in printed(connector, recording(FIXTURES / "A" / "v7-plain")) if "late_cdc" in e["topic"]
    ]
    keys = {json.loads(event["key"])["k"] for event in found}
    mirrored = (FIXTURES / "A" / "v7-plain" / "rows" / "shop_a.late_cdc.jsonl.gz").read_bytes()
    rows = {json.loads(json.loads(line)["json"])["k"] for line in gzip.decompress(mirrored).splitlines()}
    # Rows 0 and 1 are in the log too, because other tables had CDC.
    assert {0, 1} <= rows
    assert keys == rows - {0, 1}


def latest_write(update: dict[str, Any]) -> int | None:
    """Return the greatest write time of an update, by Cassandra's own reader; None if it says nothing."""
    rows = [*([update["static"]] if "static" in update else ()), *update["unfiltered"]]
    times = [update["partition_deletion"][0]] if "partition_deletion" in update else []
    for row in rows:
        times += [row[name][0] for name in ("liveness", "deletion", "open", "close") if row.get(name)]
        times += [cell[1] for cell in row.get("cells", ())]
        times += [deletion[0] for _, deletion in row.get("complex_deletions", ())]
    return max(times, default=None)


@pytest.mark.recorded
@pytest.mark.covers("CAS-EVT-08")
@pytest.mark.parametrize(("variant", "version"), [("v7-plain", 7), ("v8-plain", 8)])
def test_events_have_the_greatest_write_time_of_their_update(variant: str, version: int) -> None:
    folder = FIXTURES / "A" / variant
    with gzip.open(folder / "updates.jsonl.gz", "rt") as lines:
        updates = [json.loads(line) for line in lines]
    expected: dict[tuple[str, int, str], set[int | None]] = defaultdict(set)
    for update in updates:
        place = (f"CommitLog-{version}-{update['segment']}.log", update["end"], update["table"])
        expected[place].add(latest_write(update))
    deletions = 0
    for event in printed(plain_connector(tombstones=False), recording(folder)):
        value = json.loads(event["value"])
        where = value["source"]
        place = (where["file"], where["pos"], where["table"])
        if where["table"] == "reborn" and place not in expected:
            continue  # of its first life, which Cassandra's own reader doesn't know
        assert where["ts_us"] in expected[place]
        assert (where["ts_ms"], where["ts_ns"]) == (where["ts_us"] // 1000, where["ts_us"] * 1000)
        times = {cell["deletion_ts"] for cell in value["after"].values() if cell and "deletion_ts" in cell}
        deletions += value["op"] == "d" and where["ts_us"] in times
    assert deletions > 50


@pytest.mark.recorded
@pytest.mark.covers("CAS-EVT-09")
def test_events_carry_the_moment_given_as_that_of_their_making() -> None:
    made = [
        {json.loads(e["value"])["ts_ms"] for e in printed(plain_connector(tombstones=False), source)}
        for source in (recording(DEBEZIUM), recording(DEBEZIUM, now_ns=7_000_000))
    ]
    assert made == [{NOW_NS // 1_000_000}, {7}]


def rows_by_table(folder: Path, **more: Any) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = defaultdict(list)
    lines = row_lines(plain_connector(), recording(folder, **more), SkippedRecords(strict=False))
    for line in b"".join(text_of(chunk) for chunk in lines).decode().splitlines():
        table = json.loads(line)["table"]
        rows[table].append(line.removeprefix(f'{{"table":"{table}","row":').removesuffix("}"))
    return rows


@pytest.mark.recorded
@pytest.mark.covers("CAS-LIM-03", "CAS-LIM-06", "CAS-GAP-09")
@pytest.mark.parametrize("folder", [PLAIN, ENCRYPTED], ids=["plain", "encrypted"])
def test_rows_equal_select_json(folder: Path) -> None:
    read_at = json.loads((folder / "rows" / "_index.json").read_text())["read_at_s"]
    ours = rows_by_table(folder, now_ns=read_at * 1_000_000_000)
    compared = 0
    for file in (folder / "rows").glob("*.jsonl.gz"):
        table = file.name.removesuffix(".jsonl.gz")
        if table.split(".")[1] in NOT_CAPTURED:
            assert table not in ours
            continue
        with gzip.open(file, "rt") as lines:
            theirs = [json.loads(line)["json"] for line in lines]
        assert sorted(ours.get(table, [])) == sorted(theirs), table
        compared += len(theirs)
    assert compared > 250


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-09")
def test_expired_rows_are_deleted_at_the_given_time() -> None:
    insert = 1_795_247_965
    before = rows_by_table(DEBEZIUM, now_ns=insert * 1_000_000_000)
    after = rows_by_table(DEBEZIUM, now_ns=(insert + 5000) * 1_000_000_000)
    assert any('"ttl"' in row for row in before["shop_e.scalars"])
    assert not any('"ttl"' in row for row in after["shop_e.scalars"])
    assert len(after["shop_e.scalars"]) == len(before["shop_e.scalars"]) - 1


def test_rows_of_one_table_can_be_selected() -> None:
    assert set(rows_by_table(PLAIN, table="shop_a.rng")) == {"shop_a.rng"}


def broken(tmp_path: Path) -> Recording:
    """Lay out the recording with one flipped byte in the middle of its entries."""
    shutil.copytree(DEBEZIUM, tmp_path / "a")
    (packed,) = (tmp_path / "a" / "cdc_raw").glob("*.log.gz")
    data = bytearray(gzip.decompress(packed.read_bytes()))
    data[14_000] ^= 0xFF
    packed.with_suffix("").write_bytes(data)
    packed.unlink()
    return recording(tmp_path / "a")


def test_corrupt_input_is_located_and_the_rest_is_captured(tmp_path: Path) -> None:
    skipped = SkippedRecords(strict=False)
    events = printed(plain_connector(tombstones=False), broken(tmp_path), skipped)
    assert len(events) == 34
    (place,) = skipped.undecodable
    assert re.match(r"node node, segment 1795247483877, position \d+: entry-checksum: ", place)


def test_strict_fails_at_the_first_corrupt_position(tmp_path: Path) -> None:
    connector = Connector.from_dict(
        {"name": "a", "source": {"type": "cassandra", "advanced": {"strict": True}}}
    )
    with pytest.raises(CdcError, match="entry-checksum"):
        printed(connector, broken(tmp_path), SkippedRecords(strict=True))


def faults_of_indexes(skipped: SkippedRecords) -> list[str]:
    return [place for place in skipped.undecodable if "its index" in place]


def test_an_index_without_its_segment_is_reported(tmp_path: Path) -> None:
    shutil.copytree(PLAIN / "cdc_raw", tmp_path / "a")
    sorted((tmp_path / "a").glob("*.log.gz"))[2].unlink()
    skipped = SkippedRecords(strict=False)
    source = replace(recording(PLAIN), path=tmp_path / "a")
    assert printed(plain_connector(), source, skipped)
    assert faults_of_indexes(skipped) == [
        "node node, segment 1795247392877: its index exists, but the segment is missing"
    ]


@pytest.mark.parametrize("text", [b"", b"x", b"\0\0\0", b"-5\nCOMPLETED", b"12\nCOMPLE", b"12 34\nCOMPLETED"])
def test_a_segment_with_a_broken_index_is_reported_and_read(text: bytes, tmp_path: Path) -> None:
    shutil.copytree(DEBEZIUM / "cdc_raw", tmp_path / "a")
    (packed,) = (tmp_path / "a").glob("*.log.gz")
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    (index,) = (tmp_path / "a").glob("*.idx")
    index.write_bytes(text)
    skipped = SkippedRecords(strict=False)
    source = replace(recording(DEBEZIUM), path=tmp_path / "a")
    assert len(printed(plain_connector(tombstones=False), source, skipped)) == 35
    (place,) = skipped.undecodable
    assert place.endswith("its index is broken; it was read to the end of its data")
    with pytest.raises(CorruptInput, match="its index is broken"):
        printed(plain_connector(), source, SkippedRecords(strict=True))


def test_an_incomplete_index_of_an_earlier_segment_is_reported(tmp_path: Path) -> None:
    shutil.copytree(PLAIN / "cdc_raw", tmp_path / "a")
    first = sorted((tmp_path / "a").glob("*.idx"))[0]
    first.write_text("500")
    skipped = SkippedRecords(strict=False)
    source = replace(recording(PLAIN), path=tmp_path / "a")
    assert printed(plain_connector(), source, skipped)
    assert faults_of_indexes(skipped) == [
        "node node, segment 1795247392875: its index is not COMPLETED; it was read to position 500"
    ]
    midway = replace(recording(PLAIN), path=PLAIN / "midway" / "cdc_raw")
    skipped = SkippedRecords(strict=False)
    assert printed(plain_connector(), midway, skipped)
    assert faults_of_indexes(skipped) == []


def test_segments_without_any_index_are_read_to_their_end(tmp_path: Path) -> None:
    shutil.copytree(DEBEZIUM, tmp_path / "a")
    for index in (tmp_path / "a" / "cdc_raw").glob("*.idx"):
        index.unlink()
    assert len(printed(plain_connector(tombstones=False), recording(tmp_path / "a"))) == 35


@pytest.mark.parametrize(
    ("path", "schema", "message"),
    [
        ("none", "schema.cql", "the folder of segments .* doesn't exist"),
        ("../A", "schema.cql", "there is no recording"),
        ("cdc_raw", "none.cql", "can't be read"),
    ],
)
def test_missing_input_is_reported(path: str, schema: str, message: str) -> None:
    source = Recording(DEBEZIUM / path, str(DEBEZIUM / schema) if schema else "", NOW_NS)
    with pytest.raises(ConfigurationError, match=message):
        printed(plain_connector(), source)


@pytest.mark.recorded
@pytest.mark.covers("CAS-GAP-08")
def test_recording_needs_a_schema_only_if_its_log_does_not_create_its_tables(tmp_path: Path) -> None:
    whole = printed(plain_connector(), recording(DEBEZIUM))
    assert printed(plain_connector(), Recording(DEBEZIUM / "cdc_raw", "", NOW_NS)) == whole

    segments = sorted((FIXTURES / "A" / "v7-plain" / "cdc_raw").glob("*.log.gz"))
    shutil.copy(segments[1], tmp_path)
    with pytest.raises(ConfigurationError, match="no schema found"):
        printed(plain_connector(), Recording(tmp_path, "", NOW_NS))


def test_a_schema_without_ids_is_distinguished_from_one_with_ids(tmp_path: Path) -> None:
    text = "CREATE KEYSPACE k WITH replication = {}; CREATE TABLE k.t (a int PRIMARY KEY);"
    (tmp_path / "schema.cql").write_text(text)
    source = Recording(DEBEZIUM / "cdc_raw", str(tmp_path / "schema.cql"), NOW_NS)
    with pytest.raises(ConfigurationError, match=r"WITH ID.*none for k\.t.*WITH INTERNALS"):
        printed(plain_connector(), source)


def test_the_clusters_name_is_read_from_the_segments_folder(tmp_path: Path) -> None:
    (tmp_path / "cdc_raw").mkdir()
    assert cluster_name(tmp_path / "cdc_raw") == ""
    (tmp_path / "cassandra.yaml").write_text("cluster_name: blue\n")
    assert cluster_name(tmp_path / "cdc_raw") == "blue"
