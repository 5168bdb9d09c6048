"""Whoever may write to one node's folder can't stop the capture of the others, nor reach another file."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import gzip
import hashlib
import json
import os
import pickle
import random
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_cdc_provider.changes.record import QUARANTINE
from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost, TransientError
from airflow_cdc_provider.feeds.cassandra import list_segments as list_for_sensors
from airflow_cdc_provider.feeds.cassandra import measure_nodes
from airflow_cdc_provider.feeds.cassandra_offset import has_new_changes, is_captured
from airflow_cdc_provider.lake.local_lock import locked
from airflow_cdc_provider.sources.cassandra.capture import (
    Faults,
    LogFolder,
    SegmentSlice,
    faults_by_node,
    head,
    lag,
    plan_segments,
)
from airflow_cdc_provider.sources.cassandra.check import check_segments
from airflow_cdc_provider.sources.cassandra.commit_log.compression import DECODERS, UNREADABLE
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentBytes, list_segments
from airflow_cdc_provider.sources.cassandra.gaps import find_gaps
from airflow_cdc_provider.sources.cassandra.position import MOST_KEPT_RANGES, MOST_RANGES
from airflow_cdc_provider.sources.cassandra.reader import read_segments
from airflow_cdc_provider.sources.contract import ReadLimit
from airflow_cdc_provider.transfer.chunks import ChunkedSegments, Manifest
from airflow_cdc_provider.transfer.disposal import CommitLogTransfer
from airflow_cdc_provider.transfer.errors import NOTE_SUFFIX, reports_loss
from airflow_cdc_provider.transfer.layout import Vanished
from airflow_cdc_provider.transfer.openssh import OpenSshStore
from airflow_cdc_provider.transfer.s3 import S3Store
from airflow_cdc_provider.transfer.segments import Index, Segment
from airflow_cdc_provider.transfer.shipper import Settings, Shipper, alone
from airflow_cdc_provider.transfer.stores import FolderStore, is_name
from airflow_cdc_provider.transfer.transfer import Transfer, TransferCounts
from airflow_cdc_provider.transfer.whole import WholeSegments
from tests.bounded import bounded
from tests.security.hostile_files import IRREGULAR, OTHER_USER, replace, sparse
from tests.unit.sources.cassandra.commit_logs import header, marker, put_index, put_segment, segment
from tests.unit.sources.cassandra.numbered_writes import EVERYTHING, TABLES, keys, sections_of
from tests.unit.transfer.nodes import Node, chunked, noise, whole

GOOD, BAD, LATER = 1795247392874, 1795247392875, 1795247392876
SOUND: Final = [1, 2, 3]
"""Writes in sound segments: two of the hostile node, one of another."""


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the kernels before anything is timed."""
    area = _area(tmp_path_factory.mktemp("harmless"))
    body = struct.pack("<i", 3) + bytes(pa.Codec("lz4_raw").compress(b"abc"))
    DECODERS["LZ4Compressor"](body, 3)
    (area / "a" / f"CommitLog-7-{BAD}.log").write_bytes(_damaged(BAD))
    put_index(area / "a", BAD, "5000\nCOMPLETED")
    _capture(area)


def _area(tmp_path: Path) -> Path:
    """Make a landing area of two nodes with sound segments."""
    area = tmp_path / "landing"
    put_segment(area / "a", GOOD, segment(GOOD, sections_of(1, 1)))
    put_segment(area / "a", LATER, segment(LATER, sections_of(2, 1)))
    put_segment(area / "b", GOOD, segment(GOOD, sections_of(3, 1)))
    return area


def _damaged(number: int) -> bytes:
    start = header(number)
    return start + marker(number, len(start), len(start) + 100)[:4] + bytes(500)


def _capture(area: Path) -> tuple[list[int], Faults]:
    """Capture all there is, as a run does; return the numbers of the writes, and what was skipped."""
    folder, faults = LogFolder(str(area)), Faults()
    assert not find_gaps(folder, head(folder, faults), lambda origin: None)[0]
    plan = plan_segments(folder, None, head(folder, faults), EVERYTHING, faults)
    batches = [batch for part in plan.partitions for batch in read_segments(part, TABLES)]
    lag(folder, plan.end)
    assert not find_gaps(folder, plan.end, lambda origin: None)[0]
    found = sorted(keys(pa.Table.from_batches(batches)))
    again = plan_segments(folder, plan.end, head(folder, faults), EVERYTHING, faults)
    assert again.at_head
    assert not again.partitions, "nothing is read twice, nothing is planned for ever"
    return found, faults


@pytest.mark.parametrize("name", ["CommitLog-7-{}.log", "CommitLog-7-{}.log.gz", "CommitLog-6-{}.log"])
def test_what_is_no_file_is_named_and_all_other_segments_are_captured(name: str, tmp_path: Path) -> None:
    area = _area(tmp_path)
    for number, make in enumerate(IRREGULAR.values(), start=100):
        make(area / "a" / name.format(number))
        put_index(area / "a", number, "5000\nCOMPLETED")

    with bounded(seconds=1):
        found, faults = _capture(area)
        measured = measure_nodes(str(area))
        listed = list_for_sensors(str(area))

    assert found == SOUND
    expected = {("a", name.format(number)) for number in range(100, 100 + len(IRREGULAR))}
    assert {(origin, Path(path).name) for origin, path in faults} == expected
    assert name.format(100) in str(faults_by_node(faults)["a"])
    assert {space.host: space.segments for space in measured} == {"a": 2, "b": 1}
    assert len(listed) == 3
    (finding,) = check_segments(lambda: LogFolder(str(area)))
    assert finding.level == "error"
    assert name.format(100) in finding.message


def test_the_segments_of_a_single_node_are_captured_whatever_lies_next_to_them(tmp_path: Path) -> None:
    put_segment(tmp_path / "cdc_raw", GOOD, segment(GOOD, sections_of(1, 1)))
    for number, make in enumerate(IRREGULAR.values(), start=100):
        make(tmp_path / "cdc_raw" / f"CommitLog-7-{number}.log")
    with bounded(seconds=1):
        found, faults = _capture(tmp_path / "cdc_raw")
    assert found == [1]
    assert len(faults) == len(IRREGULAR)


def test_an_index_that_is_no_file_hides_its_segment_alone(tmp_path: Path) -> None:
    area = _area(tmp_path)
    for number, make in enumerate(IRREGULAR.values(), start=100):
        put_segment(area / "a", number, segment(number, sections_of(9, 1)))
        replace(area / "a" / f"CommitLog-7-{number}_cdc.idx", make)

    with bounded(seconds=1):
        found, faults = _capture(area)
        measured = measure_nodes(str(area))

    assert found == SOUND
    assert len(faults) == len(IRREGULAR)
    assert "CommitLog-7-100_cdc.idx" in str(faults_by_node(faults)["a"])
    assert {space.host: space.segments for space in measured} == {"a": 2 + len(IRREGULAR), "b": 1}


INDEXES: Final = {
    "5,000 digits": b"9" * 5000,
    "5,000 digits, completed": b"1" * 5000 + b"\nCOMPLETED",
    "beyond 31 bits": b"2147483648\nCOMPLETED",
    "beyond 63 bits": b"9223372036854775808",
    "negative": b"-1\nCOMPLETED",
    "no text": b"\xff\xfe\x00\x80",
    "other digits": "٣٤٥\nCOMPLETED".encode(),
    "no number": b"COMPLETED",
    "zeros": bytes(4096),
}


def test_an_impossible_index_hides_its_segment_alone(tmp_path: Path) -> None:
    area = _area(tmp_path)
    for number, text in enumerate(INDEXES.values(), start=100):
        put_segment(area / "a", number, segment(number, sections_of(9, 1)))
        (area / "a" / f"CommitLog-7-{number}_cdc.idx").write_bytes(text)
    with bounded(seconds=1):
        found, faults = _capture(area)
        list_for_sensors(str(area))
    assert found == SOUND
    assert len(faults) == len(INDEXES)


_TEXTS: Final = st.one_of(
    st.binary(max_size=200), st.from_regex(rb"[0-9]{0,30}(\s+COMPLETED)?\s*", fullmatch=True)
)


@settings(max_examples=10, deadline=None)
@given(texts=st.lists(_TEXTS, min_size=10, max_size=30))
def test_no_index_stops_the_others(texts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    area = _area(tmp_path_factory.mktemp("index"))
    for number, text in enumerate(texts, start=100):
        put_segment(area / "a", number, segment(number, sections_of(9, 1)))
        (area / "a" / f"CommitLog-7-{number}_cdc.idx").write_bytes(text)
        index = Index.parse(text.decode("ascii", "replace"))
        assert index is None or 0 <= index.end < 1 << 31
    found, _ = _capture(area)
    assert set(SOUND) <= set(found) <= {*SOUND, 9}


@pytest.mark.parametrize("index", [False, True])
def test_files_of_any_size_are_neither_read_whole_nor_captured(index: bool, tmp_path: Path) -> None:
    area = _area(tmp_path)
    put_segment(area / "a", BAD, segment(BAD, sections_of(9, 1)))
    name = f"CommitLog-7-{BAD}_cdc.idx" if index else f"CommitLog-7-{BAD}.log"
    replace(area / "a" / name, lambda path: sparse(path, (2 << 30) if index else (3 << 30)))
    with bounded(seconds=1):
        found, faults = _capture(area)
        list_for_sensors(str(area))
    assert (found, list(faults_by_node(faults))) == (SOUND, ["a"])


def test_many_broken_indexes_take_no_time_each(tmp_path: Path) -> None:
    area = _area(tmp_path)
    for number in range(1, 200):
        put_segment(area / "a", 100 + number, b"", completed=False)
        put_index(area / "a", 100 + number, "?")
    with bounded(seconds=2):
        assert _capture(area)[0] == SOUND
        list_for_sensors(str(area))


@pytest.fixture
def few_ranges(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bound the ranges of an offset to fewer."""
    assert MOST_RANGES == 256
    assert MOST_KEPT_RANGES > MOST_RANGES
    monkeypatch.setattr("airflow_cdc_provider.sources.cassandra.position.MOST_RANGES", 20)
    return 20


DAY_MS: Final = 86_400_000
_RANDOM: Final = random.Random(1)


def _junk(folder: Path, version: int, first: int, write: Callable[[int], bytes]) -> None:
    """Write more separate segments than an offset of these tests has ranges."""
    for number in range(first, first + 3 * 30, 3):
        path = put_segment(folder, number, write(number))
        path.rename(path.with_name(f"CommitLog-{version}-{number}.log"))
        if version != 7:
            (folder / f"CommitLog-7-{number}_cdc.idx").unlink()


JUNK: Final[dict[str, Callable[[Path], None]]] = {
    "no header": lambda folder: _junk(folder, 6, 900_000_000_000_000_000, lambda n: b"x" * 64),
    "no header, plausible": lambda folder: _junk(folder, 7, LATER + 1000, lambda n: b"x" * 64),
    "random bytes": lambda folder: _junk(folder, 6, LATER + 1000, lambda n: _RANDOM.randbytes(200)),
    "empty": lambda folder: _junk(folder, 6, LATER + 1000, lambda n: b""),
    "another's header": lambda folder: _junk(folder, 7, LATER + 1000, lambda n: segment(n + 1, [])),
    "another version's header": lambda folder: _junk(folder, 6, LATER + 1000, lambda n: segment(n, [])),
    "in the future": lambda folder: _junk(
        folder, 7, time.time_ns() // 10**6 + 2 * DAY_MS, lambda n: segment(n, [])
    ),
    "as a node writes them": lambda folder: _junk(folder, 7, LATER + 1000, lambda n: segment(n, [])),
}


@pytest.mark.parametrize("junk", JUNK)
def test_files_that_a_node_did_not_write_make_none_of_its_segments_count_as_captured(
    junk: str, tmp_path: Path, few_ranges: int
) -> None:
    area, folder = _area(tmp_path), LogFolder(str(tmp_path / "landing"))
    JUNK[junk](area / "a")
    offset: Any = None
    numbers = [LATER + 1, LATER + 2, LATER + 500, LATER + 900]
    for number in numbers:
        assert not is_captured(Segment("a", number, 7, None, 0, 0.0), offset)
        faults = Faults()
        plan = plan_segments(folder, offset, head(folder, faults), EVERYTHING, faults)
        offset = json.loads(json.dumps(plan.end))
        assert bool(faults) == (junk != "as a node writes them" and number in numbers[:2])
        for path in (area / "a").glob("Commit*") if number == numbers[1] else ():
            path.unlink()  # what was captured counts as captured once it is removed, and nothing else
        put_segment(area / "a", number, segment(number, sections_of(number - LATER, 1)))
        plan = plan_segments(folder, offset, head(folder, faults), EVERYTHING, faults)
        (part,) = plan.partitions
        assert keys(pa.Table.from_batches(list(read_segments(part, TABLES)))) == [number - LATER]
        offset = plan.end
        assert is_captured(Segment("a", number, 7, None, 0, 0.0), offset)
        assert offset["a"]["floor"] == 0
    assert len(offset["a"]["done"]) <= few_ranges + 2, "what is gone and the last batch"


def test_an_offset_is_bounded_however_many_segments_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_ranges: int
) -> None:
    monkeypatch.setattr("airflow_cdc_provider.sources.cassandra.capture.MOST_KEPT_RANGES", few_ranges + 5)
    area = _area(tmp_path)
    _junk(area / "a", 7, LATER + 1000, lambda number: segment(number, []))
    faults, folder = Faults(), LogFolder(str(area))
    plan = plan_segments(folder, None, head(folder, faults), EVERYTHING, faults)
    assert {part.origin for part in plan.partitions} == {"a", "b"}
    assert plan.at_head
    assert len(plan.end["a"]["done"]) == few_ranges + 6
    assert "remove captured segments" in str(faults_by_node(faults)["a"])
    for number in range(LATER + 1000, LATER + 1060, 3):
        (area / "a" / f"CommitLog-7-{number}.log").unlink()
    faults.clear()
    plan = plan_segments(folder, plan.end, head(folder, faults), EVERYTHING, faults)
    assert (len(faults), plan.at_head) == (0, True)
    assert is_captured(Segment("a", LATER + 1087, 7, None, 0, 0.0), plan.end)


def test_an_offset_is_bounded_however_many_segments_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_cdc_provider.sources.cassandra.capture.MOST_KEPT_RANGES", 10)
    area = _area(tmp_path)
    numbers = range(LATER + 1000, LATER + 1040)
    for number in numbers:
        data = segment(number, sections_of(9, 1))
        put_segment(area / "a", number, data, completed=False, end=len(data))
    faults, folder = Faults(), LogFolder(str(area))
    plan = plan_segments(folder, None, head(folder, faults), EVERYTHING, faults)
    assert plan.at_head
    assert {part.origin for part in plan.partitions} == {"a", "b"}
    assert len(plan.end["a"]["open"]) + len(plan.end["a"]["done"]) == 11
    assert len(faults) == 40 - 9
    put_index(area / "a", numbers[0], "5000\nCOMPLETED")
    faults.clear()
    plan = plan_segments(folder, plan.end, head(folder, faults), EVERYTHING, faults)
    assert is_captured(Segment("a", numbers[0], 7, None, 0, 0.0), plan.end), "those that are open go on"


def test_tiny_segments_and_large_headers_take_little_of_a_plan(tmp_path: Path) -> None:
    area = _area(tmp_path)
    large: dict[str, Any] = {f"p{number}": {} for number in range(3000)} | {"encKeyAlias": "x" * 9000}
    for number in range(LATER + 1, LATER + 101):
        put_segment(area / "a", number, segment(number, sections_of(9, 1), parameters=large))
    folder = LogFolder(str(area))
    with bounded(seconds=2, mebibytes=32):
        stop, offset, found = head(folder), None, 0
        for _ in range(100):
            plan = plan_segments(folder, offset, stop, ReadLimit(bytes=20 << 16))
            assert len(plan.partitions) <= 20
            assert all(len(pickle.dumps(part)) < 2000 for part in plan.partitions)
            found, offset = found + len(plan.partitions), plan.end
            if plan.at_head:
                break
    assert found == 103


@pytest.mark.parametrize("name", ["CommitLog-6-{}.log", "CommitLog-8-{}.log", "CommitLog-6-{}.log.gz"])
def test_several_files_of_one_segment_are_named_and_none_is_captured(name: str, tmp_path: Path) -> None:
    area = _area(tmp_path)
    put_segment(area / "a", BAD, segment(BAD, sections_of(9, 1)))
    (area / "a" / name.format(BAD)).write_bytes(b"x" * 64)
    found, faults = _capture(area)
    assert found == SOUND
    assert name.format(BAD) in str(faults_by_node(faults)["a"])


def test_an_index_of_another_version_is_not_the_segments(tmp_path: Path) -> None:
    area = _area(tmp_path)
    put_segment(area / "a", BAD, segment(BAD, sections_of(9, 1)), completed=False, end=20)
    (area / "a" / f"CommitLog-8-{BAD}_cdc.idx").write_text("20\nCOMPLETED")
    folder = LogFolder(str(area))
    plan = plan_segments(folder, None, head(folder), EVERYTHING)
    assert not is_captured(Segment("a", BAD, 7, None, 0, 0.0), plan.end)


def test_sensors_do_not_wake_a_run_for_an_id_that_no_node_can_have_given() -> None:
    done = Index(5, True, "5\nCOMPLETED")
    future = time.time_ns() // 10**6 + 2 * DAY_MS
    assert [has_new_changes(Segment("a", n, 7, done, 9, 0.0), None) for n in (LATER, future)] == [True, False]


def test_segments_that_vanish_before_they_are_read_stop_no_other_node(tmp_path: Path) -> None:
    area = _area(tmp_path)
    folder, faults = LogFolder(str(area)), Faults()
    for number in (BAD, LATER + 5):
        put_segment(area / "a", number, segment(number, sections_of(9, 1)), completed=number == BAD)
    stop = head(folder, faults)
    for path in (area / "a").glob(f"*{BAD}*"):
        path.unlink()
    (area / "a" / f"CommitLog-7-{LATER + 5}.log").unlink()
    plan = plan_segments(folder, None, stop, EVERYTHING, faults)
    assert sorted(part.origin for part in plan.partitions) == ["a", "a", "b"]
    (error,) = faults_by_node(faults).values()
    assert error.code == PositionLost.code
    assert str(BAD) in error.message


def test_a_segment_that_vanishes_after_a_part_of_it_was_read_stops_no_other_node(tmp_path: Path) -> None:
    area = _area(tmp_path)
    folder, faults = LogFolder(str(area)), Faults()
    data = segment(LATER + 5, sections_of(0, 1))
    read = put_segment(area / "a", LATER + 5, data, completed=False, end=len(data))
    seen = plan_segments(folder, None, head(folder, faults), EVERYTHING, faults).end
    for path in (read, read.with_name(f"{read.stem}_cdc.idx")):
        path.unlink()
    put_segment(area / "b", LATER + 5, segment(LATER + 5, sections_of(9, 1)))

    assert find_gaps(folder, seen, lambda _: None)[0] == []
    plan = plan_segments(folder, seen, head(folder, faults), EVERYTHING, faults)
    assert [(part.origin, part.descriptor.segment) for part in plan.partitions] == [("b", LATER + 5)]
    (error,) = faults_by_node(faults).values()
    assert error.code == PositionLost.code
    assert str(LATER + 5) in error.message
    assert plan.end["a"]["open"] == seen["a"]["open"], (
        "reported until it is there again, or an operator decides"
    )


def test_a_segment_that_vanishes_while_it_is_listed_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = _area(tmp_path)
    put_segment(area / "a", BAD, segment(BAD, sections_of(9, 1)), completed=False, end=60)
    folder, listed, faults = LogFolder(str(area)), list_segments(area), Faults()
    (area / "a" / f"CommitLog-7-{BAD}.log").unlink()
    monkeypatch.setattr(
        "airflow_cdc_provider.sources.cassandra.capture.list_segments", lambda *_, **__: listed
    )
    plan = plan_segments(folder, None, head(folder, faults), EVERYTHING, faults)
    assert len(plan.partitions) == 3
    assert list(faults_by_node(faults)) == ["a"]


HEADERS: Final[list[tuple[int, dict[str, str]]]] = [
    (99, {}),
    (7, {"compressionClass": "com.example.Odd"}),
    (7, {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "k", "encIV": "00" * 16}),
    (7, {"encCipher": "ROT13"}),
]


@pytest.mark.parametrize("completed", [True, False])
def test_a_header_that_cannot_be_read_is_named_and_stops_no_other(completed: bool, tmp_path: Path) -> None:
    area = _area(tmp_path)
    for number, (version, parameters) in enumerate(HEADERS, start=100):
        start = header(number, version, parameters)
        data = start + marker(number, len(start), len(start) + 108) + bytes(100)
        put_segment(area / "a", number, data, end=len(data), completed=completed)
    found, faults = _capture(area)
    assert found == SOUND
    assert {(o, Path(f).name) for o, f in faults} == {("a", f"CommitLog-7-{n}.log") for n in range(100, 104)}


def test_a_nodes_folder_that_cannot_be_read_is_named_and_stops_no_other_node(tmp_path: Path) -> None:
    area = _area(tmp_path)
    offset = head(LogFolder(str(area)))
    (area / "a").rename(tmp_path / "elsewhere")
    (area / "a").symlink_to(tmp_path / "elsewhere")
    faults = Faults()
    plan = plan_segments(
        LogFolder(str(area)), None, {**head(LogFolder(str(area)), faults)}, EVERYTHING, faults
    )
    assert [part.origin for part in plan.partitions] == ["b"]
    assert "it is a link" in str(faults_by_node(faults)["a"])
    assert not find_gaps(LogFolder(str(area)), offset, lambda origin: None)[0]
    assert [space.host for space in measure_nodes(str(area))] == ["b"]


NAMES: Final = [
    f"CommitLog-7-{'9' * 200}.log",
    f"CommitLog-7-{1 << 63}.log",
    f"CommitLog-7-{1 << 64}.log.gz",
    "CommitLog-\u0667-\u0667.log",
    "CommitLog-7-7.log\n",
    "CommitLog-7-7\n8.log",
    "CommitLog-07-7.log",
    "CommitLog--7--7.log",
    "\x1b[31mCommitLog-7-7.log",
]


def test_names_that_no_node_gives_are_ignored(tmp_path: Path) -> None:
    area = _area(tmp_path)
    for name in NAMES:
        (area / "a" / name).write_bytes(segment(7, sections_of(9, 1)))
        put_segment(area / f"x\n{name}", 7, segment(7, sections_of(9, 1)))
        put_segment(area / f".{name}", 7, segment(7, sections_of(9, 1)))
    found, faults = _capture(area)
    assert (found, faults) == (SOUND, {})
    assert len(list_for_sensors(str(area))) == 3


def test_a_segment_that_shrinks_or_changes_its_kind_after_it_was_planned_is_quarantined(
    tmp_path: Path,
) -> None:
    area = _area(tmp_path)
    folder = LogFolder(str(area))
    part = plan_segments(folder, None, head(folder), EVERYTHING).partitions[0]
    path = Path(part.path)
    for _ in range(0, path.stat().st_size, 7):
        os.truncate(path, path.stat().st_size - min(7, path.stat().st_size))
        assert _kinds(part) == [QUARANTINE]
    for make in IRREGULAR.values():
        path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()
        (path.parent / "pipe").unlink(missing_ok=True)
        make(path)
        assert _kinds(part) == [QUARANTINE]
        with pytest.raises(CorruptInput):
            _kinds(dataclasses.replace(part, strict=True))


def _kinds(part: SegmentSlice) -> list[str]:
    return [kind for batch in read_segments(part, TABLES) for kind in batch["kind"].to_pylist()]


def test_a_segment_that_cannot_be_read_for_now_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor of another user, a mount that is away: what is there has to be read later."""
    area = _area(tmp_path)
    folder = LogFolder(str(area))
    part = plan_segments(folder, None, head(folder), EVERYTHING).partitions[0]
    for number, expected in (
        (errno.EACCES, TransientError),
        (errno.ESTALE, TransientError),
        (errno.ENOENT, PositionLost),
    ):

        def fails(*_: Any, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("airflow_cdc_provider.sources.cassandra.commit_log.segments.open_regular", fails)
        with pytest.raises(expected):
            _kinds(part)


def _packed(size: int) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def test_a_packed_segment_is_named_and_not_decompressed_since_no_node_writes_one(tmp_path: Path) -> None:
    area = _area(tmp_path)
    bomb = area / "a" / f"CommitLog-7-{BAD}.log.gz"
    bomb.write_bytes(_packed(32 << 20))
    slow = area / "a" / f"CommitLog-6-{BAD + 2}.log.gz"
    slow.write_bytes(gzip.compress(header(BAD + 2, 6)))
    os.truncate(slow, 2 << 30)
    with bounded(seconds=0.5, mebibytes=16):
        found, faults = _capture(area)
    assert (found, {path for _, path in faults}) == (SOUND, {str(bomb), str(slow)})
    assert "only a recording's segments may be" in str(faults_by_node(faults)["a"])


def test_a_packed_segment_of_a_recording_holds_what_is_plausible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "airflow_cdc_provider.sources.cassandra.commit_log.segments"
    monkeypatch.setattr(f"{module}._ALWAYS_PLAUSIBLE_BYTES", 4 << 20)
    path = tmp_path / f"CommitLog-7-{BAD}.log.gz"
    path.write_bytes(_packed(32 << 20))
    with bounded(seconds=1, mebibytes=16), pytest.raises(CorruptInput, match="at most"):
        SegmentBytes(str(path))
    data = _RANDOM.randbytes(3 << 20)
    path.write_bytes(gzip.compress(data, 1))
    monkeypatch.setattr(f"{module}.LARGEST_SEGMENT_BYTES", len(data))
    with SegmentBytes(str(path)) as source:
        assert (source.length, source.read(1 << 20, 100)) == (len(data), data[1 << 20 :][:100])
    monkeypatch.setattr(f"{module}.LARGEST_SEGMENT_BYTES", len(data) - 1)
    with pytest.raises(CorruptInput, match=f"at most {len(data) - 1} bytes"):
        SegmentBytes(str(path))


def _zstd_of_window(body: bytes, exponent: int) -> bytes:
    """A frame of a raw block that has no length and asks for a window."""
    block = (len(body) << 3 | 1).to_bytes(3, "little") + body
    return b"\x28\xb5\x2f\xfd" + bytes([0, exponent << 3]) + block


COMPRESSORS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "LZ4Compressor": lambda b: struct.pack("<i", len(b)) + bytes(pa.Codec("lz4_raw").compress(b)),
    "SnappyCompressor": lambda b: bytes(pa.Codec("snappy").compress(b)),
    "ZstdCompressor": lambda b: bytes(pa.Codec("zstd").compress(b)),
    "DeflateCompressor": zlib.compress,
}


CLAIMS: Final = [
    *((name, 80 << 20, True) for name in ("LZ4Compressor", "ZstdCompressor", "DeflateCompressor")),
    *(
        (name, n, False)
        for name in (*COMPRESSORS, "NoopCompressor")
        for n in (80 << 20, 1 << 30, (1 << 32) - 1)
    ),
]


@pytest.mark.parametrize(("name", "claimed", "true"), CLAIMS)
def test_compressed_sections_of_implausible_length_are_quarantined(
    name: str, claimed: int, true: bool, tmp_path: Path
) -> None:
    held = bytes(claimed if true else 1 << 16)
    body = claimed.to_bytes(4, "big") + COMPRESSORS.get(name, bytes)(held)
    area = _area(tmp_path)
    start = header(BAD, parameters={"compressionClass": name})
    data = start + marker(BAD, len(start), len(start) + 8 + len(body)) + body
    put_segment(area / "a", BAD, data)
    del held
    with bounded(seconds=1, mebibytes=32):
        found, faults = _capture(area)
    assert (found, faults) == (SOUND, {})


@pytest.mark.parametrize("name", DECODERS)
@given(body=st.binary(max_size=64), length=st.integers(0, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_no_body_yields_more_than_its_section_claims(name: str, body: bytes, length: int) -> None:
    with contextlib.suppress(*UNREADABLE):
        assert len(DECODERS[name](body, length)) <= length + 1


@pytest.mark.parametrize("exponent", [14, 17, 21, 31])
def test_frames_do_not_choose_how_much_memory_they_take(exponent: int) -> None:
    with bounded(seconds=1, mebibytes=32), pytest.raises(UNREADABLE):
        DECODERS["ZstdCompressor"](_zstd_of_window(b"abc", exponent), 3)
    assert DECODERS["ZstdCompressor"](_zstd_of_window(b"abc", 10), 3) == b"abc"


def test_many_sections_that_each_claim_what_is_plausible_are_bounded_together(tmp_path: Path) -> None:
    start = data = header(BAD, parameters={"compressionClass": "ZstdCompressor"})
    body = (60 << 20).to_bytes(4, "big") + COMPRESSORS["ZstdCompressor"](bytes(60 << 20))
    for _ in range(100):
        data += marker(BAD, len(data), len(data) + 8 + len(body)) + body
    assert len(start) < len(data) < 1 << 20
    area = _area(tmp_path)
    put_segment(area / "a", BAD, data)
    with bounded(seconds=3, mebibytes=300):
        assert _capture(area)[0] == SOUND


def _tiny_sections(count: int) -> bytes:
    data = bytearray(header(BAD))
    for _ in range(count):
        data += marker(BAD, len(data), len(data) + 20) + b"\1" * 12
    return bytes(data)


def test_any_number_of_tiny_unreadable_sections_takes_bounded_memory(tmp_path: Path) -> None:
    area = _area(tmp_path)
    put_segment(area / "a", BAD, _tiny_sections(50_000))
    with bounded(seconds=2, mebibytes=96):
        found, faults = _capture(area)
    assert (found, faults) == (SOUND, {})


def test_sections_beyond_the_most_are_quarantined_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_cdc_provider.sources.cassandra.commit_log.sections._MOST_SECTIONS", 100)
    put_segment(tmp_path, BAD, _tiny_sections(101))
    folder = LogFolder(str(tmp_path))
    plan = plan_segments(folder, None, head(folder), EVERYTHING)
    records = [batch for part in plan.partitions for batch in read_segments(part, TABLES)]
    reasons = pa.Table.from_batches(records)["reason"].to_pylist()
    assert len(reasons) == 101
    assert reasons[0].startswith("section-unreadable"), reasons[0]


def test_a_hole_of_two_gibibytes_is_not_read_into_memory(tmp_path: Path) -> None:
    area = _area(tmp_path)
    start = header(BAD)
    size = (1 << 31) - 1
    path = put_segment(area / "a", BAD, start + marker(BAD, len(start), size))
    os.truncate(path, size)
    with bounded(seconds=3, mebibytes=64):
        found, _ = _capture(area)
    assert found == SOUND


@pytest.mark.parametrize("shared", [True, False])
def test_markers_with_wrong_targets_cost_what_lies_between_them(shared: bool, tmp_path: Path) -> None:
    """All of them point to one place behind a hole, or each one to the end of itself."""
    area, size = _area(tmp_path), 24 << 20
    data = bytearray(header(BAD))
    for _ in range(4000):
        data += marker(BAD, len(data), size - 8 if shared else len(data) + 8) + b"\xff" * 8 * (not shared)
    path = put_segment(area / "a", BAD, bytes(data))
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.seek(size - 8)
        file.write(b"\xff" * 8)
    put_index(area / "a", BAD, f"{size}\nCOMPLETED")
    folder, faults = LogFolder(str(area)), Faults()
    with bounded(seconds=1):
        plan = plan_segments(folder, None, head(folder, faults), EVERYTHING, faults)
    assert sum(len(part.damage) for part in plan.partitions) >= 3999


# Transfers.


@pytest.mark.parametrize("which", [".log", "_cdc.idx"])
def test_transfers_copy_and_remove_regular_files_alone(which: str, tmp_path: Path) -> None:
    node = Node(tmp_path / "node" / "cdc_raw")
    hostile = [node.cdc_raw / f"CommitLog-7-{number}{which}" for number in range(100, 100 + len(IRREGULAR))]
    for number in (1, *range(100, 100 + len(IRREGULAR)), 999):
        node.finishes(number, noise(40, number))
    for path, make in zip(hostile, IRREGULAR.values(), strict=True):
        replace(path, make)
    landing, errors = whole(tmp_path / "area" / "landing"), whole(tmp_path / "area" / "errors")
    with bounded(seconds=1):
        assert Transfer(node.segments, landing, after_transfer="delete", errors=errors).run().copied == 2
    landed = {path.name for path in (tmp_path / "area").rglob("Commit*.log")}
    assert landed == {"CommitLog-7-1.log", "CommitLog-7-999.log"}
    assert all(os.path.lexists(path) for path in hostile)
    assert (node.cdc_raw.parent / "secret").read_text() == "307939\nCOMPLETED"


OWN_NAMES: Final = [
    ".transfer.lock",
    "CommitLog-7-1.log",
    "CommitLog-7-1_cdc.idx",
    ".CommitLog-7-1.log.1-1.part",
]


@pytest.mark.parametrize("name", OWN_NAMES)
@pytest.mark.parametrize("kind", IRREGULAR)
def test_transfers_never_write_through_what_lies_in_the_landing_area(
    name: str, kind: str, tmp_path: Path
) -> None:
    node = Node(tmp_path / "node" / "cdc_raw")
    node.finishes(1, noise(40))
    landing = tmp_path / "area" / "landing"
    landing.mkdir(parents=True)
    IRREGULAR[kind](landing / name)
    if kind == "link to nothing":
        replace(landing / name, lambda path: path.symlink_to(tmp_path / "made"))
    try:
        with bounded(seconds=1):
            Transfer(node.segments, whole(landing), errors=whole(tmp_path / "area" / "errors")).run()
    except OSError as error:
        assert name in str(error)
    else:
        assert (landing / "CommitLog-7-1.log").read_bytes() == node.durable(1)
    secret = landing.parent / "secret"
    assert not secret.exists() or secret.read_text() == "307939\nCOMPLETED"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("below", [("host",), ("errors", "host"), ("errors",)])
def test_a_nodes_folder_that_is_a_link_is_not_followed(below: tuple[str, ...], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "CommitLog-7-1.log").write_text("kept")
    root = tmp_path / "landing"
    place = root.joinpath(*below)
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    store = FolderStore(root, *below)
    for act in (
        store.items,
        store.sweep,
        lambda: store.write("CommitLog-7-1.log", [b"x"]),
        lambda: store.remove("CommitLog-7-1.log"),
        lambda: list(store.read("CommitLog-7-1.log")),
        lambda: store.exclusive().__enter__(),
    ):
        with pytest.raises(OSError, match="it is a link, not a folder"):
            act()
    assert [f.name for f in outside.iterdir()] == ["CommitLog-7-1.log"]
    assert (outside / "CommitLog-7-1.log").read_text() == "kept"
    linked = tmp_path / "configured"
    linked.symlink_to(outside)
    assert [item.name for item in FolderStore(linked).items()] == ["CommitLog-7-1.log"], (
        "a configured link is"
    )


HOSTILE_NAMES: Final = [
    "../CommitLog-7-1.log",
    "/etc/CommitLog-7-1.log",
    "CommitLog-7-1.log\nrm x",
    "CommitLog-7-1.log;rm",
    "CommitLog-7-*.log",
    "..",
    ".",
    "",
    "a\0b",
    "-rf",
    "CommitLog-7-1.log ",
    "x/CommitLog-7-1.log",
]


@given(name=st.one_of(st.sampled_from(HOSTILE_NAMES), st.text(max_size=20)))
def test_names_lead_nowhere_else(name: str) -> None:
    if is_name(name):
        assert Path(name).name == name
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set(" */\\;&|$`'\"?[]")
        return
    store = FolderStore(Path("/nonexistent"))
    for act in (lambda: store.write(name, []), lambda: store.remove(name), lambda: list(store.read(name))):
        with pytest.raises((ValueError, OSError)):
            act()
            raise OSError


def test_names_that_a_store_lists_are_ours_or_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    written = SimpleNamespace(timestamp=lambda: 0.0)
    keys = [f"p/host/{name}" for name in (*HOSTILE_NAMES, "CommitLog-7-1.json")]
    entries = [{"Key": key, "Size": 1, "LastModified": written} for key in keys]
    bucket: Any = SimpleNamespace(
        get_paginator=lambda _: SimpleNamespace(paginate=lambda **_: [{"Contents": entries}])
    )
    assert [item.name for item in S3Store(bucket, "b", "p/host").items()] == ["CommitLog-7-1.json"]

    ssh = OpenSshStore("host", "/landing/host")
    line = "-rw-r--r--    ? 0        0        100 Nov 27 17:00 /landing/host/"
    listed = "".join(f"{line}{name}\n" for name in HOSTILE_NAMES)
    monkeypatch.setattr(ssh, "_run", lambda *_: listed)
    with contextlib.closing(SimpleNamespace(close=ssh._sockets.cleanup)):
        # The last part of a path is a name in the folder, whatever precedes it.
        assert {item.name for item in ssh.items()} <= {"CommitLog-7-1.log", "host"}


def test_manifests_are_bounded_and_name_chunks_in_order(tmp_path: Path) -> None:
    def manifest(*ends: Any, **more: Any) -> bytes:
        chunks = [{"from": a, "to": b, "sha256": ""} for a, b in zip([0, *ends], ends, strict=False)]
        return json.dumps({"format": 1, "index": None, "position": 0, "chunks": chunks, **more}).encode()

    for text in (
        manifest(10, 5),
        manifest(-1),
        manifest(1 << 40),
        manifest(10, 10),
        manifest(True),
        manifest("../x"),
        manifest(10, index=7),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b"\xff",
        b"[]",
        b"null",
    ):
        with bounded(seconds=1), pytest.raises(CorruptInput):
            Manifest.from_json("m", text)
    store = FolderStore(tmp_path)
    sparse(tmp_path / "CommitLog-7-1.json", 1 << 32)
    (tmp_path / "CommitLog-7-2.json").write_bytes(manifest(10))
    sparse(tmp_path / "CommitLog-7-2.log.0-10", 1 << 32)
    with bounded(seconds=1):
        segments = ChunkedSegments(store, "host").segments()
        with pytest.raises(CorruptInput, match="differs"):
            list(ChunkedSegments(store, "host").read(segments[1], 0, 10))


@pytest.mark.parametrize("text", [b"[" * 100_000, b"9" * 5000, b"\xff", b"{}", b"[]", b'{"lost": []}'])
def test_notes_of_any_text_report_no_loss(text: bytes, tmp_path: Path) -> None:
    (tmp_path / f"CommitLog-7-1.log{NOTE_SUFFIX}").write_bytes(text)
    with bounded(seconds=1):
        assert not reports_loss(FolderStore(tmp_path), "CommitLog-7-1.log")


def test_notes_that_are_no_files_report_no_loss(tmp_path: Path) -> None:
    (tmp_path / "errors").mkdir()
    for number, make in enumerate(IRREGULAR.values()):
        make(tmp_path / "errors" / f"CommitLog-7-{number}.log{NOTE_SUFFIX}")
    with bounded(seconds=1):
        for number in range(len(IRREGULAR)):
            assert not reports_loss(FolderStore(tmp_path / "errors"), f"CommitLog-7-{number}.log")


def test_a_segment_larger_than_any_is_not_copied_and_the_others_are(tmp_path: Path) -> None:
    node = Node(tmp_path / "cdc_raw")
    for number in (1, 2):
        node.finishes(number, noise(40, number))
    os.truncate(node.log(1), 1 << 40)
    with bounded(seconds=1):
        counts = Transfer(node.segments, whole(tmp_path / "landing"), errors=whole(tmp_path / "errors")).run()
    assert (counts.copied, counts.errors) == (1, 1)
    assert [f.name for f in (tmp_path / "errors").glob("Commit*")] == [f"CommitLog-7-1.log{NOTE_SUFFIX}"]


def _stored(target: Any) -> bytes:
    """Return what a target has of segment 1; empty if a reader would not take it."""
    try:
        return b"".join(target.read(target.landed()["CommitLog-7-1.log"], 0, 1 << 20))
    except (CorruptInput, Vanished, KeyError):
        return b""


def _spoil(folder: Path) -> None:
    for path in folder.glob("CommitLog-7-1.log*"):
        data = bytearray(path.read_bytes())
        data[30:50] = bytes(20)
        path.write_bytes(data)


def _spoil_consistently(folder: Path) -> None:
    _spoil(folder)
    for path in folder.glob("*.json"):
        known = json.loads(path.read_text())
        for chunk in known["chunks"]:
            data = (folder / f"CommitLog-7-1.log.{chunk['from']}-{chunk['to']}").read_bytes()
            chunk["sha256"] = hashlib.sha256(data).hexdigest()
        path.write_text(json.dumps(known))


@pytest.mark.parametrize("layout", [whole, chunked])
@pytest.mark.parametrize("spoil", [_spoil, _spoil_consistently])
@pytest.mark.parametrize("when", ["growing", "finished", "without idx"])
def test_a_nodes_segment_is_removed_only_if_its_copy_is_the_same(
    when: str, spoil: Callable[[Path], None], layout: Callable[[Path], Any], tmp_path: Path
) -> None:
    node, landing = Node(tmp_path / "cdc_raw"), tmp_path / "landing"
    node.grows(1, noise(40))
    if when != "growing":
        node.finishes(1, noise(40, 2))
    Transfer(node.segments, layout(landing)).run()
    spoil(landing)
    if when == "growing":
        node.finishes(1, noise(40, 2))
    if when == "without idx":
        (node.cdc_raw / "CommitLog-7-1_cdc.idx").unlink()

    Transfer(node.segments, layout(landing), after_transfer="delete").run()

    if when == "without idx":  # as if a node had just started it
        assert node.log(1).read_bytes() == node.durable(1)
    else:
        assert not node.log(1).exists()
        assert _stored(layout(landing)) == node.durable(1)


@pytest.mark.parametrize("layout", [whole, chunked])
def test_a_segment_that_the_node_has_not_filled_yet_is_not_removed(
    layout: Callable[[Path], Any], tmp_path: Path
) -> None:
    node, predicted = (Node(tmp_path / name, capacity_bytes=1 << 12) for name in ("cdc_raw", "predicted"))
    node.begins(1)
    predicted.begins(1)
    predicted.says(1, "44\nCOMPLETED")
    Transfer(predicted.segments, layout(tmp_path / "landing")).run()
    Transfer(node.segments, layout(tmp_path / "landing"), after_transfer="delete").run()
    assert node.log(1).exists()


def test_a_quarantined_segment_is_removed_only_if_its_copy_is_the_same(tmp_path: Path) -> None:
    node, errors = Node(tmp_path / "cdc_raw"), tmp_path / "errors"
    node.finishes(1, noise(40))
    node.breaks(1)
    data = node.log(1).read_bytes()
    Transfer(node.segments, whole(tmp_path / "landing"), errors=whole(errors)).run()
    _spoil(errors)
    Transfer(node.segments, whole(tmp_path / "landing"), after_transfer="delete", errors=whole(errors)).run()
    assert not node.log(1).exists()
    assert (errors / "CommitLog-7-1.log").read_bytes() == data


def test_locks_are_held_only_by_who_may_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".transfer.lock").touch(0o644)
    with FolderStore(tmp_path).exclusive():
        assert (tmp_path / ".transfer.lock").stat().st_mode & 0o777 == 0o600
    lock = tmp_path / ".cdc-shipper.lock"
    lock.touch(0o600)  # of a killed one
    with alone(tmp_path):
        assert lock.stat().st_mode & 0o777 == 0o600
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "other"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
        with pytest.raises(TransientError, match="already running"), alone(tmp_path):
            pass
    assert not lock.exists(), "the next one may be another user's"
    with alone(tmp_path):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_shipper_that_may_not_take_the_lock_does_not_run() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / ".cdc-shipper.lock").touch(0o600)
        (folder / "closed").mkdir(0o755)
        os.seteuid(OTHER_USER)
        try:
            with pytest.raises(TransientError, match="another user's"), alone(folder):
                pass
            for place in ("missing", "closed"):
                with pytest.raises(ConfigurationError, match="run as a user of"), alone(folder / place):
                    pass
        finally:
            os.seteuid(0)


def test_a_chunk_that_another_shipper_has_not_named_yet_stays(tmp_path: Path) -> None:
    node, bucket = Node(tmp_path / "cdc_raw"), tmp_path / "bucket"
    node.finishes(1, noise(3000))

    class Interrupted(FolderStore):
        def write(self, name: str, pieces: Any) -> None:
            if name.endswith(".json"):
                chunked(bucket).landed()  # the other one
            super().write(name, pieces)

    target = chunked(bucket)
    target.store = Interrupted(bucket)
    assert Transfer(node.segments, target, after_transfer="delete").run().deleted == 1
    assert _stored(chunked(bucket)) == node.durable(1)


def test_a_segment_is_kept_if_one_of_its_chunks_is_gone_again(tmp_path: Path) -> None:
    node, bucket = Node(tmp_path / "cdc_raw"), tmp_path / "bucket"
    node.finishes(1, noise(3000))

    class Losing(FolderStore):
        def write(self, name: str, pieces: Any) -> None:
            super().write(name, pieces)
            if name.endswith(".json"):
                min(bucket.glob("*.log.*")).unlink()

    target = chunked(bucket)
    target.store = Losing(bucket)
    counts = Transfer(node.segments, target, after_transfer="delete").run()
    assert (counts.deleted, counts.failed) == (0, 1)
    assert node.log(1).read_bytes() == node.durable(1)
    assert Transfer(node.segments, chunked(bucket), after_transfer="delete").run().deleted == 1
    assert _stored(chunked(bucket)) == node.durable(1)


def test_chunks_take_no_memory_by_their_size(tmp_path: Path) -> None:
    size = 100 << 20
    chunks = [{"from": 0, "to": size, "sha256": ""}]
    manifest = {"format": 1, "index": "5\nCOMPLETED", "position": 5, "chunks": chunks}
    (tmp_path / "CommitLog-7-1.json").write_text(json.dumps(manifest))
    sparse(tmp_path / "CommitLog-7-1.log.0-104857600", size)
    with bounded(seconds=2, mebibytes=16):
        assert _stored(chunked(tmp_path)) == b""
    large = {**manifest, "chunks": [{}] * 300_000}
    (tmp_path / "CommitLog-7-1.json").write_text(json.dumps(large))
    with bounded(seconds=1, mebibytes=16):
        (segment,) = chunked(tmp_path).segments()
        with pytest.raises(CorruptInput, match="is too large"):
            chunked(tmp_path).durable_bytes(segment)


def test_a_segment_that_grows_for_ever_has_a_manifest_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_cdc_provider.transfer.chunks._MOST_CHUNKS", 3)
    node = Node(tmp_path / "cdc_raw")
    for number in range(10):
        node.grows(1, noise(100, number))
        Transfer(node.segments, chunked(tmp_path / "bucket", 1)).run()
        manifest = json.loads((tmp_path / "bucket" / "CommitLog-7-1.json").read_text())
        assert len(manifest["chunks"]) <= 6
        assert _stored(chunked(tmp_path / "bucket")) == node.durable(1)


@pytest.fixture
def sftp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], OpenSshStore]]:
    """Replace the program by a server's, which lists a file and sends another one."""
    program = tmp_path / "bin" / "sftp"
    program.parent.mkdir()
    stores = list[OpenSshStore]()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def serving(listed: str) -> OpenSshStore:
        lines = (
            "#!/bin/sh",
            "while read command from to; do",
            f"  echo $command >> {tmp_path}/commands",
            f"  [ $command = ls ] && echo '-rw-r--r-- ? 0 0 {listed} Nov 27 17:00 CommitLog-7-1.json'",
            "  [ $command = get ] && { head -c 40000000 /dev/zero > $to || exit 1; }",
            "done; exit 0",
        )
        program.write_text("\n".join(lines))
        program.chmod(0o755)
        stores.append(OpenSshStore("host", "/landing/host"))
        return stores[-1]

    yield serving
    for store in stores:
        store._sockets.cleanup()


@pytest.mark.parametrize("days", [0.1, 100, 400])
def test_the_age_of_a_chunk_behind_ssh_is_known_at_once(
    sftp: Callable[[str], OpenSshStore], days: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = time.time() - days * 86_400
    printed = time.strftime("%b %e  %Y" if days > 180 else "%b %e %H:%M", time.localtime(then))
    line, removed = "-rw-r--r--    ? 0 0 100 {} /landing/host/CommitLog-7-1.log.{}\n", list[str]()
    store = sftp("x")
    monkeypatch.setattr(
        store, "_run", lambda *_: line.format(printed, "0-5") + line.format("Foo 99 99:99", "0-6")
    )
    old, unknown = store.items()
    assert abs(old.modified - then) <= (2 if days > 180 else 1 / 12) * 86_400
    assert abs(unknown.modified - time.time()) < 60
    monkeypatch.setattr(store, "remove", removed.append)
    ChunkedSegments(store, "host").landed()
    assert removed == ["CommitLog-7-1.log.0-5"]


def test_a_landing_server_does_not_fill_the_disk_of_a_node(
    sftp: Callable[[str], OpenSshStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "tmp"
    here.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(here))
    store = sftp(str(1 << 40))
    with bounded(seconds=1):
        (segment,) = ChunkedSegments(store, "host").landed().values()
    assert segment.size_bytes == 0
    assert "get" not in (tmp_path / "commands").read_text().split()
    store = sftp("100")
    for act in (lambda: store.write("a", [b"x"]), lambda: list(store.read("CommitLog-7-1.json", 0, 1000))):
        with pytest.raises(TransientError, match="refused a command"):
            act()


def _phantom(landing: Path, number: int, size: int) -> None:
    """Make a segment that seems to grow, and takes no room."""
    landing.mkdir(parents=True, exist_ok=True)
    sparse(landing / f"CommitLog-7-{number}.log", size)
    put_index(landing, number, "9")


def test_a_shipper_copies_nothing_back_to_its_node(tmp_path: Path) -> None:
    node, landing = Node(tmp_path / "cdc_raw"), tmp_path / "landing" / "host"
    node.finishes(1000, noise(40))
    node.grows(1001, noise(40))
    _phantom(landing, 5, 1 << 20)
    options = ("cdc_raw", "host_id = host", f"target = {landing.parent}", "errors_folder")
    lines = [line if "=" in line else f"{line} = {tmp_path / line}" for line in options]
    (tmp_path / "ini").write_text("\n".join(["[shipper]", *lines]))
    for _ in range(2):
        assert Shipper(Settings.read(tmp_path / "ini")).ship().lost == 1
    assert not (tmp_path / "errors_folder").exists()
    assert (landing / "CommitLog-7-5.log").exists(), "capture reads it"
    assert (landing / "CommitLog-7-1000.log").read_bytes() == node.durable(1000)


def test_holes_of_lost_segments_fill_no_errors_folder(tmp_path: Path) -> None:
    node, landing, errors = Node(tmp_path / "cdc_raw"), tmp_path / "landing", tmp_path / "errors"
    node.grows(1000, noise(40))
    _phantom(landing, 5, 1 << 32)
    _phantom(landing, 6, 64 << 20)
    with bounded(seconds=2):
        assert Transfer(node.segments, whole(landing), errors=whole(errors)).run().lost == 2
    assert {path.name for path in errors.glob("*.log")} == {"CommitLog-7-6.log"}
    assert (errors / "CommitLog-7-6.log").stat().st_size == 64 << 20
    assert sum(path.stat().st_blocks for path in errors.iterdir()) < 100
    assert {path.name for path in landing.glob("*.log")} == {"CommitLog-7-1000.log"}


class _Refusing(FolderStore):
    """A store in which some files can't be read until they are written."""

    def __init__(self, path: Path, error: Exception, *refused: str) -> None:
        super().__init__(path)
        self.error, self.refused = error, {*refused}

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        if name in self.refused:
            raise self.error
        return super().read(name, begin, end)

    def write(self, name: str, pieces: Any) -> None:
        super().write(name, pieces)
        self.refused -= {name}


REFUSALS: Final = [
    PermissionError(errno.EACCES, "Permission denied"),
    ConfigurationError("access to one object is denied"),
    TransientError("refused a command"),
]
LAYOUTS: Final[dict[Callable[[Path], Any], str]] = {
    whole: "CommitLog-7-{}_cdc.idx",
    chunked: "CommitLog-7-{}.json",
}


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_cannot_be_read_keeps_no_segment_from_a_target(
    layout: Callable[[Path], Any], error: Exception, tmp_path: Path
) -> None:
    node, landing = Node(tmp_path / "cdc_raw"), tmp_path / "landing"
    for number in (5, 6, 7, 10):
        node.finishes(number, noise(40, number))
    Transfer(node.segments, layout(landing)).run()
    node.log(5).unlink()
    node.finishes(11, noise(40))
    target = layout(landing)
    target.store = _Refusing(
        landing,
        error,
        *(LAYOUTS[layout].format(n) for n in (5, 6)),
        "CommitLog-7-7.log",
        "CommitLog-7-7.log.0-68",
    )
    counts = Transfer(node.segments, target, after_transfer="delete", errors=whole(tmp_path / "errors")).run()
    assert (counts.lost, counts.failed, len(target.store.refused)) == (0, 0, 2), counts
    assert not list(node.cdc_raw.glob("*.log"))
    landed = layout(landing).landed().values()
    assert {segment.id: segment.complete for segment in landed} == dict.fromkeys((5, 6, 7, 10, 11), True)


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_cannot_be_read_keeps_no_other_segment_in_its_source(
    layout: Callable[[Path], Any], error: Exception, tmp_path: Path
) -> None:
    node, bucket, landing = Node(tmp_path / "cdc_raw"), tmp_path / "bucket", tmp_path / "landing"
    for number in (5, 6):
        node.finishes(number, noise(40, number))
    Transfer(node.segments, layout(bucket)).run()
    source = layout(bucket)
    source.store = _Refusing(bucket, error, LAYOUTS[layout].format(5))
    with contextlib.suppress(ConfigurationError, OSError):
        counts = Transfer(source, whole(landing)).run()
        assert (counts.copied, counts.failed) == (1, int(layout is chunked))
    assert (landing / "CommitLog-7-6.log").read_bytes() == node.durable(6)


@pytest.mark.parametrize("error", [*REFUSALS, Vanished("x")], ids=lambda error: type(error).__name__)
def test_a_lost_segment_that_cannot_be_read_stops_neither_transfer_nor_clearing(
    error: Exception, tmp_path: Path
) -> None:
    node, landed = Node(tmp_path / "cdc_raw"), Node(tmp_path / "landing")
    node.finishes(1003, noise(40))
    node.grows(1004, noise(40))
    for number in (1000, 1001):
        landed.finishes(number, noise(40))
    for number in (5, 6):
        _phantom(landed.cdc_raw, number, 9)
    target, errors = landed.segments, whole(tmp_path / "errors")
    target.store = _Refusing(landed.cdc_raw, error, "CommitLog-7-5.log")
    counts = Transfer(
        node.segments,
        target,
        after_commit="delete",
        is_captured=lambda s: s.id in (1000, 1001),
        errors=errors,
    ).run()
    assert (counts.copied, counts.lost, counts.failed, counts.deleted) == (2, 2, 1, 2)
    assert {number for number, _ in _ids(target)} == {5, 1003, 1004}


def _ids(segments: WholeSegments) -> list[tuple[int, bool]]:
    return [(segment.id, segment.complete) for segment in segments.segments()]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_what_was_captured_is_archived_whatever_cannot_be_read(error: Exception, tmp_path: Path) -> None:
    landed, archive = Node(tmp_path / "landing"), whole(tmp_path / "archive")
    for number in (1000, 1001, 1002):
        landed.finishes(number, noise(40))
    target = landed.segments
    target.store = _Refusing(landed.cdc_raw, error, "CommitLog-7-1000.log")
    counts = Transfer(None, target, after_commit="archive", is_captured=lambda _: True, archive=archive).run()
    assert (counts.archived, counts.deleted, counts.failed) == (2, 2, 1)
    assert (_ids(target), _ids(archive)) == ([(1000, True)], [(1001, True), (1002, True)])


def test_what_was_captured_is_cleared_whatever_keeps_the_others_from_being_copied(tmp_path: Path) -> None:
    node, landed = Node(tmp_path / "cdc_raw"), Node(tmp_path / "landing")
    node.finishes(1003, noise(40))
    landed.finishes(1000, noise(40))
    (landed.cdc_raw / ".transfer.lock").mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        Transfer(
            node.segments, landed.segments, after_commit="delete", is_captured=lambda s: s.id == 1000
        ).run()
    assert _ids(landed.segments) == []


def test_holes_under_captured_ids_fill_neither_archive_nor_temporary_folder(tmp_path: Path) -> None:
    landing, archive, blocks = tmp_path / "landing", tmp_path / "archive", list[int]()

    class Measuring(CommitLogTransfer):
        def on_success(self, log: Path, index: Path | None) -> None:
            assert log.stat().st_size == 64 << 20
            blocks.append(log.stat().st_blocks)

    for number, size in ((1000, 1 << 32), (1001, 64 << 20)):
        _phantom(landing, number, size)
        put_index(landing, number, "9\nCOMPLETED")
    arguments: dict[str, Any] = {"is_captured": lambda _: True, "transfer_class": Measuring()}
    with bounded(seconds=2):
        Transfer(None, whole(landing), after_commit="archive", archive=whole(archive), **arguments).run()
    assert list(landing.iterdir()) == []
    assert _ids(whole(archive)) == [(1001, True)]
    assert blocks
    assert max(*blocks, *(path.stat().st_blocks for path in archive.iterdir())) < 100


def test_no_file_replaces_a_segment_that_was_archived(tmp_path: Path) -> None:
    landed, archive, keeping = Node(tmp_path / "landing"), tmp_path / "archive", _Keeping()
    landed.finishes(1000, noise(40))
    arguments: dict[str, Any] = {
        "after_commit": "archive",
        "archive": whole(archive),
        "transfer_class": keeping,
    }
    for data in (landed.durable(1000), b"not what the node wrote", landed.durable(1000)):
        landed.log(1000).write_bytes(data)
        landed.says(1000, "5\nCOMPLETED")
        assert Transfer(None, landed.segments, is_captured=lambda _: True, **arguments).run().deleted == 1
        assert (archive / "CommitLog-7-1000.log").read_bytes() == landed.durable(1000)
    assert [content for _, content, _ in keeping.given] == [landed.durable(1000)] * 2, "again after a kill"


def test_who_may_only_read_a_warehouse_cannot_hold_its_commits(tmp_path: Path) -> None:
    reader = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_EX)
    with locked(str(tmp_path)):
        (lock,) = tmp_path.iterdir()
        assert lock.stat().st_mode & 0o777 == 0o600
        assert lock.name.startswith("."), "Iceberg removes no hidden file"
    os.close(reader)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_warehouse_that_another_user_locks_is_named_with_its_owner() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        with locked(name):
            pass
        os.seteuid(OTHER_USER)
        try:
            with pytest.raises(ConfigurationError, match="found a lock of user 0"), locked(name):
                pass
        finally:
            os.seteuid(0)


class _Keeping(CommitLogTransfer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[Path, bytes, str]] = []

    def on_success(self, log: Path, index: Path | None) -> None:
        assert not log.is_symlink()
        assert log.parent.stat().st_mode & 0o777 == 0o700
        self.given.append((log, log.read_bytes(), index.read_text() if index else ""))


def test_a_transfer_class_is_given_no_file_that_a_link_names(tmp_path: Path) -> None:
    area, keeping = _area(tmp_path), _Keeping()
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    data = (area / "a" / f"CommitLog-7-{GOOD}.log").read_bytes()
    target = WholeSegments(FolderStore(area, "a"), "a")
    transfer = Transfer(None, target, after_commit="delete", transfer_class=keeping)
    first, second = target.segments()
    replace(area / "a" / second.name, lambda path: path.symlink_to(secret))
    counts = TransferCounts()
    for listed in (first, second):
        transfer._dispose(target, listed, counts)
    ((log, content, index),) = keeping.given
    assert (log.name, content, index) == (first.name, data, first.index.text if first.index else None)
    assert not log.exists()
    assert (counts.deleted, counts.failed) == (1, 1)
    assert secret.exists()


def test_the_lock_is_still_a_lock(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with store.exclusive(), pytest.raises(TransientError, match="another transfer"), store.exclusive():
        pass
    with store.exclusive():
        pass
