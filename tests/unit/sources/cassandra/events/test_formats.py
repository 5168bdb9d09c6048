"""Every form of commit log that releases 3.11 to 5.0 write, recorded: its rows are those of SELECT JSON.

tests/fixtures/cassandra/B has one small recording per form, made by tools/record_commit_log.py with the same
statements: collections, static columns, range deletes, TTLs, ties, TRUNCATE, dropped columns, LWT, counters.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.changes.record import CHANGE, QUARANTINE
from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import text_of
from airflow_cdc_provider.events.skipped_records import SkippedRecords
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.commit_log.sections import Section, walk_sections
from airflow_cdc_provider.sources.cassandra.commit_log.segments import (
    Descriptor,
    SegmentBytes,
    list_segments,
    read_descriptor,
)
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.cassandra.payload import Position
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Offset, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.recordings import Recording
from tests.recorded_lines import row_lines

FIXTURES = Path(__file__).parents[4] / "fixtures" / "cassandra"
FORMS = FIXTURES / "B"
KEYSTORE = FIXTURES / "A" / "v7-encrypted" / "keystore.jceks"
SEGMENT_BYTES = 1 << 20
NOT_CAPTURED = ("shop.visits", "shop.quiet")

COMPRESSED = [
    *(("v6", name) for name in ("LZ4", "Snappy", "Deflate")),
    *(("v7", name) for name in ("Snappy", "Deflate", "Noop")),  # LZ4 and Zstd are in folder A
    *(("v8", name) for name in ("LZ4", "Snappy", "Deflate", "Zstd")),
]


def declaration(form: str, **advanced: Any) -> Connector:
    rules = {"rules": "3.11"} if form.startswith("v6") else {}
    source: dict[str, Any] = {"type": "cassandra", "advanced": {**rules, **advanced}}
    if form.endswith("encrypted"):
        source["encryption"] = {"keystore": str(KEYSTORE), "keystore_password": "cassandra"}
    return Connector.from_dict({"name": "c", "source": source})


@dataclass
class Shown:
    rows: Mapping[str, list[str]]
    skipped: list[str]


def rows_of(form: str, folder: str = "cdc_raw", **advanced: Any) -> Shown:
    skipped = SkippedRecords(strict=False)
    at = json.loads((FORMS / form / "rows" / "_index.json").read_text())["read_at_s"]
    recording = Recording(FORMS / form / folder, str(FORMS / form / "schema.cql"), at * 1_000_000_000)
    rows: dict[str, list[str]] = defaultdict(list)
    lines = row_lines(declaration(form, **advanced), recording, skipped)
    for line in b"".join(text_of(chunk) for chunk in lines).decode().splitlines():
        table = json.loads(line)["table"]
        rows[table].append(line.removeprefix(f'{{"table":"{table}","row":').removesuffix("}"))
    return Shown({table: sorted(found) for table, found in rows.items()}, skipped.undecodable)


def selected(form: str) -> dict[str, list[str]]:
    """What SELECT JSON gave of the captured tables."""
    found = {}
    for file in (FORMS / form / "rows").glob("*.jsonl.gz"):
        with gzip.open(file, "rt") as lines:
            rows = sorted(json.loads(line)["json"] for line in lines)
        if rows and file.name.removesuffix(".jsonl.gz") not in NOT_CAPTURED:
            found[file.name.removesuffix(".jsonl.gz")] = rows
    return found


def assert_rows_equal_select(form: str, folder: str = "cdc_raw") -> None:
    shown = rows_of(form, folder)
    assert shown.rows == selected(form)
    assert shown.skipped == []
    assert sum(map(len, shown.rows.values())) > 60


def headers(form: str) -> list[Descriptor]:
    """Headers of the segments that hold something."""
    found = []
    for file in list_segments(FORMS / form / "cdc_raw", recorded=True)["node"]:
        with SegmentBytes(file.path) as source:
            if any(source.read(20, 8)):
                found.append(read_descriptor(source.read(0, 1 << 17), file.path))
    return found


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-07", "CAS-C50-03")
@pytest.mark.parametrize(("version", "name"), COMPRESSED)
def test_every_compressor_is_read_in_every_version(version: str, name: str) -> None:
    form = f"{version}-{name.lower()}"
    for header in headers(form):
        assert (header.version, header.compression) == (int(version[1]), f"{name}Compressor")
    assert_rows_equal_select(form)


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-08")
@pytest.mark.parametrize("form", ["v6-encrypted", "v8-encrypted"])
def test_encrypted_logs_of_every_version_are_read(form: str) -> None:
    for header in headers(form):
        assert (header.version, header.encryption) == (int(form[1]), "AES/CBC/PKCS5Padding")
    assert_rows_equal_select(form)


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-06", "CAS-C50-03")
@pytest.mark.parametrize(
    ("form", "direct"), [("v7-direct", True), ("v8-direct", True), ("v7-auto", True), ("v7-mmap", False)]
)
def test_direct_and_mapped_segments_are_read(form: str, direct: bool) -> None:
    for file in list_segments(FORMS / form / "cdc_raw", recorded=True)["node"]:
        with SegmentBytes(file.path) as source:
            # Mapped files have their full length from the start; direct ones grow by blocks.
            assert (source.length < SEGMENT_BYTES) == direct
            assert source.length % 4096 == 0
    assert_rows_equal_select(form)


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-06", "CAS-C50-03")
def test_a_log_of_a_cluster_that_is_upgrading_neither_mapped_nor_direct_is_read() -> None:
    assert {header.version for header in headers("v8-standard")} == {8}
    assert_rows_equal_select("v8-standard")


@pytest.mark.recorded
@pytest.mark.covers("CAS-D3X-01")
@pytest.mark.parametrize(
    ("form", "version"),
    [("v6-plain", 6), ("v7-4.0", 7), ("v7-4.1", 7), ("v7-mmap", 7), ("v8-standard", 8)],
    ids=["3.11", "4.0", "4.1", "5.0", "5.0-upgrading"],
)
def test_logs_of_every_release_from_3_11_on_are_read(form: str, version: int) -> None:
    assert {header.version for header in headers(form)} == {version}
    assert_rows_equal_select(form)


def test_ties_go_by_the_rules_of_the_release_that_wrote_them() -> None:
    """A plain and an expiring value, 0x7f and 0x80, and two expiries: 3.11 takes the others."""
    of_3, of_4 = selected("v6-plain")["shop.ties"], selected("v7-4.0")["shop.ties"]
    assert of_3 != of_4 == selected("v8-lz4")["shop.ties"]
    assert rows_of("v6-plain", rules="3.11").rows["shop.ties"] == of_3
    assert rows_of("v6-plain", rules="4.0").rows["shop.ties"] == of_4


@pytest.mark.recorded
@pytest.mark.covers("CAS-C40-01")
def test_segments_of_3_11_arrive_whole_once_they_are_flushed_also_after_a_crash() -> None:
    for form in ("v6-plain", "v6-killed"):
        assert list((FORMS / form / "cdc_raw").glob("*.idx")) == []
        assert all(file.complete for file in list_segments(FORMS / form / "cdc_raw", recorded=True)["node"])
    assert_rows_equal_select("v6-killed")


def test_archived_segments_are_read_without_any_index() -> None:
    assert list((FORMS / "v7-archived" / "cdc_raw").glob("*.idx")) == []
    assert_rows_equal_select("v7-archived")


def unpack(folder: Path, target: Path) -> None:
    """Lay segments out as a live node has them."""
    target.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.suffix == ".gz":
            (target / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        else:
            shutil.copyfile(path, target / path.name)


def source(form: str, cdc_raw: Path, **advanced: Any) -> CassandraSource:
    """A source that captures without a connection from a folder that may still change."""
    connector = declaration(form, **advanced)
    assert isinstance(connector.source, CassandraOptions)
    options = CassandraOptions(
        cdc_raw=str(cdc_raw),
        node="host",
        schema_file=str(FORMS / form / "schema.cql"),
        advanced=connector.source.advanced,
    )
    return CassandraSource(options, {}, lambda table: True)


def capture(made: CassandraSource, start: Offset | None = None) -> tuple[list[bytes], Offset, list[str]]:
    """Read up to the head: positions of changes, the offset, and reasons of quarantined records."""
    plan = made.plan(start, made.head(), ReadLimit())
    assert plan.at_head
    rows = [
        row
        for batch in made.reader().read(plan.partitions, ReadMetrics())
        for row in batch.select(["kind", "position", "reason"]).to_pylist()
    ]
    positions = [row["position"] for row in rows if row["kind"] == CHANGE]
    return positions, plan.end, [row["reason"] for row in rows if row["kind"] == QUARANTINE]


@pytest.mark.recorded
@pytest.mark.covers("CAS-C40-04")
@pytest.mark.parametrize("form", ["v7-killed", "v7-killed-lz4"])
def test_a_killed_nodes_log_is_read_once_before_and_after_its_restart(form: str, tmp_path: Path) -> None:
    unpack(FORMS / form / "killed", tmp_path / "raw")
    bare = [file for file in list_segments(tmp_path / "raw")["node"] if file.index is None]
    assert bare, "links without index stay"
    made = source(form, tmp_path / "raw")
    before, offset, broken = capture(made)
    assert len(before) > 300
    assert broken == []
    ((segment, end),) = offset["host"]["open"].items()

    unpack(FORMS / form / "cdc_raw", tmp_path / "raw")
    (index,) = [f.index for f in list_segments(tmp_path / "raw")["node"] if f.segment == int(segment)]
    length = (tmp_path / "raw" / f"CommitLog-7-{segment}.log").stat().st_size
    assert index is not None
    assert (index.completed, index.end) == (True, length), "the restart leaves the file's length"
    assert (length < end) == form.endswith("lz4"), "which says nothing of where the data end"
    after, offset, broken = capture(made, offset)
    assert broken == []
    assert not set(before) & set(after)

    unpack(FORMS / form / "cdc_raw", tmp_path / "alone")
    alone, _, _ = capture(source(form, tmp_path / "alone"))
    assert sorted(before + after) == sorted(alone)
    assert int(segment) not in map(int, offset["host"]["open"])
    assert_rows_equal_select(form)
    assert_rows_equal_select(form, "killed")


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """A live folder whose index is behind the marker chain: that far the log is durable."""
    unpack(FORMS / "v7-killed" / "killed", tmp_path / "raw")
    (index,) = (tmp_path / "raw").glob("*.idx")
    segment = index.with_name(index.name.replace("_cdc.idx", ".log"))
    sections = _sections(segment)
    index.write_text(str(sections[-3].end))
    return tmp_path / "raw"


def _sections(path: Path) -> Sequence[Section]:
    with SegmentBytes(str(path)) as found:
        return walk_sections(
            found, read_descriptor(found.read(0, 1 << 17), str(path)), complete=False
        ).sections


@pytest.mark.recorded
@pytest.mark.covers("CAS-C40-05")
def test_what_is_not_durable_is_read_on_request_only(growing: Path) -> None:
    (index,) = growing.glob("*.idx")
    durable, _, _ = capture(source("v7-killed", growing))
    visible, _, _ = capture(source("v7-killed", growing, beyond_index=True))
    assert 0 < len(durable) < len(visible)
    assert max(Position.unpack(position).end for position in durable) <= int(index.read_text())
    assert visible[: len(durable)] == durable

    index.unlink()
    (growing / "CommitLog-7-1_cdc.idx").write_text("0")  # some index there is: a node's own folder
    assert capture(source("v7-killed", growing))[0] == []
    assert capture(source("v7-killed", growing, beyond_index=True))[0] == visible


@pytest.mark.recorded
@pytest.mark.covers("CAS-C41-03")
def test_a_marker_without_checksum_is_trusted_on_request_only(growing: Path) -> None:
    (index,) = growing.glob("*.idx")
    segment = index.with_name(index.name.replace("_cdc.idx", ".log"))
    sections = _sections(segment)
    data = bytearray(segment.read_bytes())
    middle = len(sections) - 6
    data[sections[middle].start - 4 : sections[middle].start] = bytes(4)
    segment.write_bytes(data)
    plain, _, _ = capture(source("v7-killed", growing))
    trusting, _, broken = capture(source("v7-killed", growing, trust_zero_checksum=True))
    assert max(Position.unpack(position).end for position in plain) <= sections[middle - 1].end
    assert max(Position.unpack(position).end for position in trusting) > sections[middle].end
    assert broken == []


def test_an_index_that_is_half_written_reads_no_further_than_it_says(growing: Path) -> None:
    (index,) = growing.glob("*.idx")
    whole, _, _ = capture(source("v7-killed", growing))
    text = index.read_text()
    for half in ("", text[:-1], text[:-2]):
        index.write_text(half)
        positions, offset, broken = capture(source("v7-killed", growing))
        assert broken == []
        assert positions == whole[: len(positions)]
        assert len(positions) < len(whole)
        index.write_text(text)
        rest, _, _ = capture(source("v7-killed", growing), offset)
        assert positions + rest == whole


def test_a_keystore_is_needed_for_encrypted_logs_of_every_version(tmp_path: Path) -> None:
    for form in ("v6-encrypted", "v8-encrypted"):
        unpack(FORMS / form / "cdc_raw", tmp_path / form)
        without = source(form, tmp_path / form)
        without.plan(None, without.head(), ReadLimit())
        (error,) = without.left_out().values()
        assert isinstance(error, ConfigurationError)
        assert "is encrypted with key cdc:1" in str(error)
