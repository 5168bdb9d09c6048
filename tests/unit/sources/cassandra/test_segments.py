"""Names, index files and headers of segments."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, CorruptInput, PositionLost
from airflow_cdc_provider.sources.cassandra.commit_log.segments import (
    Index,
    SegmentBytes,
    list_segments,
    read_descriptor,
)
from tests.unit.sources.cassandra.commit_logs import header, put_index, put_segment, segment

ID = 1795247392875


def test_segments_are_listed_by_id_not_by_name(tmp_path: Path) -> None:
    for number in (999, 1000, 998):
        put_segment(tmp_path, number, segment(number, ()))
    (tmp_path / "notes.txt").write_text("not a segment")
    (files,) = list_segments(tmp_path, "host").values()
    assert [f.segment for f in files] == [998, 999, 1000]
    assert {f.origin for f in files} == {"host"}


def test_each_folder_with_segments_is_a_node(tmp_path: Path) -> None:
    put_segment(tmp_path / "host-b", 2, segment(2, ()))
    put_segment(tmp_path / "host-a", 1, segment(1, ()))
    (tmp_path / "empty").mkdir()
    assert {origin: [f.segment for f in files] for origin, files in list_segments(tmp_path).items()} == {
        "host-a": [1],
        "host-b": [2],
    }


def test_segments_next_to_folders_with_segments_are_rejected(tmp_path: Path) -> None:
    put_segment(tmp_path / "host-a", 1, segment(1, ()))
    put_segment(tmp_path, 2, segment(2, ()))
    with pytest.raises(ConfigurationError, match="both segments and folders"):
        list_segments(tmp_path)


def test_missing_folder_is_rejected_and_an_empty_one_has_no_segments(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the folder of segments .* doesn't exist"):
        list_segments(tmp_path / "none")
    assert list_segments(tmp_path) == {}
    assert list_segments(tmp_path, "host") == {"host": []}


@pytest.mark.covers("CAS-C40-02")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("600168\nCOMPLETED", Index(600168, completed=True)),
        ("600168\nCOMPLETED\n", Index(600168, completed=True)),
        ("307939", Index(307939, completed=False)),
        ("307", Index(307, completed=False)),
        ("307939\n", Index(307939, completed=False)),
        ("307939\nCOMP", Index(307939, completed=False)),
        ("", None),
    ],
)
def test_truncated_index_is_read(tmp_path: Path, text: str, expected: Index | None) -> None:
    put_segment(tmp_path, ID, segment(ID, ()), completed=False)
    put_index(tmp_path, ID, text)
    ((file,),) = list_segments(tmp_path).values()
    assert file.index == expected
    assert file.complete == (expected is not None and expected.completed)


def test_segments_of_cassandra_3_are_complete_without_an_index(tmp_path: Path) -> None:
    put_segment(tmp_path, ID, segment(ID, (), version=6), completed=False, version=6)
    ((file,),) = list_segments(tmp_path).values()
    assert file.complete


def test_compressed_segment_is_read_and_an_uncompressed_one_takes_precedence(tmp_path: Path) -> None:
    data = segment(ID, [[b"a mutation"]])
    path = put_segment(tmp_path, ID, data)
    packed = path.with_suffix(".log.gz")
    packed.write_bytes(gzip.compress(data))
    ((file,),) = list_segments(tmp_path, recorded=True).values()
    assert file.path == str(path)
    path.unlink()
    ((file,),) = list_segments(tmp_path, recorded=True).values()
    with SegmentBytes(file.path) as source:
        assert (source.length, source.read(0, 1 << 20)) == (len(data), data)


def test_deleted_segment_is_a_lost_position(tmp_path: Path) -> None:
    with pytest.raises(PositionLost, match="was deleted before it was read"):
        SegmentBytes(str(tmp_path / f"CommitLog-7-{ID}.log"))


def test_truncated_compressed_segment_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / f"CommitLog-7-{ID}.log.gz"
    path.write_bytes(gzip.compress(b"x" * 10000)[:-20])
    with pytest.raises(CorruptInput, match="can't be decompressed"):
        SegmentBytes(str(path))


def test_header_is_read_with_its_parameters() -> None:
    parameters = {
        "compressionClass": "org.apache.cassandra.io.compress.LZ4Compressor",
        "compressionParameters": {},
    }
    data = header(ID, 8, parameters)
    descriptor = read_descriptor(data + b"rest", "path")
    assert (descriptor.version, descriptor.segment, descriptor.length) == (8, ID, len(data))
    assert descriptor.compression == "LZ4Compressor"
    assert not descriptor.plain
    assert read_descriptor(header(ID, 6), "path").plain


@pytest.mark.parametrize("at", range(20))
def test_header_with_a_flipped_byte_is_corrupt(at: int) -> None:
    data = bytearray(header(ID))
    data[at] ^= 0x10
    with pytest.raises(CorruptInput, match="header"):
        read_descriptor(bytes(data), "path")


def test_truncated_header_is_corrupt() -> None:
    for length in range(20):
        with pytest.raises(CorruptInput):
            read_descriptor(header(ID)[:length], "path")


@pytest.mark.parametrize("version", [5, 9])
def test_other_versions_are_rejected_by_name(version: int) -> None:
    with pytest.raises(ConfigurationError, match=str(version)):
        read_descriptor(header(ID, version), "path")


@pytest.mark.parametrize("text", [b"{", b"[]", b"7", b'"x"', b"\xff", b"[" * 60_000])
def test_header_with_parameters_other_than_an_object_is_corrupt(text: bytes) -> None:
    words = struct.pack(">iIIi", 7, 5, 0, len(text))
    crc = zlib.crc32(text, zlib.crc32(words))
    data = struct.pack(">iqH", 7, 5, len(text)) + text + struct.pack(">I", crc)
    with pytest.raises(CorruptInput, match="parameters as a JSON object"):
        read_descriptor(data, "path")
