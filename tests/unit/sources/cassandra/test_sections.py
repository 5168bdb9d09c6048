"""The chain of sync markers, and sections of all kinds."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.commit_log.compression import DECODERS, UNREADABLE
from airflow_cdc_provider.sources.cassandra.commit_log.sections import (
    Chain,
    CorruptRange,
    plain_sections,
    walk_sections,
)
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentBytes, read_descriptor
from airflow_cdc_provider.sources.cql.reasons import code
from tests.unit.sources.cassandra.commit_logs import HEADER_BYTES, entry, header, marker, segment

ID = 1795247392875
MUTATIONS: tuple[list[bytes], ...] = (
    [b"a mutation of one", b"another one"],
    [],
    [b"the last mutation " * 20],
)


def put(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / f"CommitLog-7-{ID}.log"
    path.write_bytes(data)
    return str(path)


def walk(path: str, *, complete: bool = True, trust: bool = False) -> Chain:
    with SegmentBytes(path) as source:
        descriptor = read_descriptor(source.read(0, 1 << 17), path)
        return walk_sections(source, descriptor, complete=complete, trust_zero_checksum=trust)


def read(path: str) -> list[bytes | CorruptRange]:
    with SegmentBytes(path) as source:
        descriptor = read_descriptor(source.read(0, 1 << 17), path)
        chain = walk_sections(source, descriptor, complete=True)
        return [plain for _, plain in plain_sections(source, descriptor, chain.sections)]


def plain(mutations: list[bytes]) -> bytes:
    return b"".join(map(entry, mutations))


def codes(chain: Chain) -> list[str]:
    return [code(d.reason) for d in chain.damage]


def test_positions_of_plain_sections_are_file_offsets(tmp_path: Path) -> None:
    path = put(tmp_path, segment(ID, MUTATIONS, size=4096))
    chain = walk(path)
    assert [(s.start, s.stop) for s in chain.sections] == [(s.position, s.end) for s in chain.sections]
    assert read(path) == [plain(m) for m in MUTATIONS]
    assert codes(chain) == []
    assert chain.end == chain.sections[-1].end


def zstd_stream(data: bytes) -> bytes:
    """A frame without its decompressed length."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


COMPRESSORS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("LZ4Compressor", lambda b: struct.pack("<i", len(b)) + bytes(pa.Codec("lz4_raw").compress(b))),
    ("SnappyCompressor", lambda b: bytes(pa.Codec("snappy").compress(b))),
    ("ZstdCompressor", lambda b: bytes(pa.Codec("zstd").compress(b))),
    ("ZstdCompressor", zstd_stream),
    ("DeflateCompressor", zlib.compress),
    ("NoopCompressor", lambda b: b),
    ("org.apache.cassandra.io.compress.DeflateCompressor", zlib.compress),
]


@pytest.mark.parametrize(("name", "compress"), COMPRESSORS)
def test_compressed_sections_are_unpacked_and_positions_are_logical(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    parameters = {"compressionClass": name, "compressionParameters": None}
    path = put(tmp_path, segment(ID, MUTATIONS, parameters=parameters, compress=compress))

    assert read(path) == [plain(m) for m in MUTATIONS]
    position = len(header(ID, parameters=parameters))
    for section, mutations in zip(walk(path).sections, MUTATIONS, strict=True):
        assert section.position == position + 8
        position = section.end
        assert section.end - section.position == len(plain(mutations))


@pytest.mark.parametrize(("name", "compress"), COMPRESSORS[:-1])
@given(data=st.lists(st.binary(min_size=1, max_size=20) | st.just(b"again " * 60), min_size=1).map(b"".join))
def test_a_block_is_unpacked_if_it_holds_as_many_bytes_as_are_claimed(
    name: str, compress: Callable[[bytes], bytes], data: bytes
) -> None:
    block = compress(data)
    assert DECODERS[name](block, len(data)) == data
    for claimed in (max(len(data) - 1, 1), len(data) + 1, len(data) + 1000, 1 << 29):
        if claimed == len(data):
            continue
        if name == "LZ4Compressor":
            block = struct.pack("<i", claimed) + block[4:]
        try:
            found = DECODERS[name](block, claimed)
        except UNREADABLE:
            continue
        # Only the block's bytes are returned, so that the wrong length is detected.
        assert len(found) != claimed or name == "NoopCompressor"
        assert data.startswith(found)


@given(st.binary(max_size=200), st.integers(0, 1 << 20))
def test_any_bytes_are_decompressed_correctly_or_rejected(block: bytes, length: int) -> None:
    for name, decode in DECODERS.items():
        lead = struct.pack("<i", length) if name == "LZ4Compressor" else b""
        with suppress(*UNREADABLE):
            assert decode(lead + block, length) == decode(lead + block, length)


def test_undecodable_section_is_damage_and_the_next_is_read(tmp_path: Path) -> None:
    parameters = {"compressionClass": "DeflateCompressor", "compressionParameters": {}}
    data = bytearray(segment(ID, MUTATIONS, parameters=parameters, compress=zlib.compress))
    data[len(header(ID, parameters=parameters)) + 8 + 4 + 3] ^= 0xFF

    first, _, last = read(put(tmp_path, bytes(data)))

    assert isinstance(first, CorruptRange)
    assert code(first.reason) == "section-unreadable"
    assert last == plain(MUTATIONS[2])


def test_unknown_compression_is_rejected_by_name(tmp_path: Path) -> None:
    odd = put(tmp_path, segment(ID, (), parameters={"compressionClass": "com.example.OddCompressor"}))
    with pytest.raises(ConfigurationError, match="compressed with OddCompressor"):
        read(odd)


@pytest.mark.covers("CAS-C50-09")
def test_marker_of_zeros_ends_the_data(tmp_path: Path) -> None:
    whole = segment(ID, MUTATIONS[:1])
    chain = walk(put(tmp_path, whole + bytes(8) + b"whatever else there is"))
    assert len(chain.sections) == 1
    assert codes(chain) == []


def test_end_of_the_file_ends_the_data_padded_or_not(tmp_path: Path) -> None:
    whole = segment(ID, MUTATIONS)
    for padding in (0, 3, 7, 8, 4096 - len(whole)):
        chain = walk(put(tmp_path, whole + bytes(padding)))
        assert len(chain.sections) == 3
        assert codes(chain) == []


@pytest.mark.parametrize(("at", "expected"), [(0, "marker-target"), (4, "marker-checksum")])
def test_broken_marker_is_located_and_all_entries_are_read_all_the_same(
    tmp_path: Path, at: int, expected: str
) -> None:
    data = bytearray(segment(ID, MUTATIONS, size=4096))
    data[HEADER_BYTES + at] ^= 0xFF
    path = put(tmp_path, bytes(data))

    chain = walk(path)

    assert [(d.position, code(d.reason)) for d in chain.damage] == [(HEADER_BYTES, expected)]
    assert read(path) == [plain(m) for m in MUTATIONS]


@pytest.mark.parametrize("farther", ["next section", "zeros", "end of file"])
def test_marker_that_points_too_far_does_not_hide_the_sections_it_passes(
    tmp_path: Path, farther: str
) -> None:
    whole = segment(ID, MUTATIONS, size=4096)
    sections = walk(put(tmp_path, whole)).sections
    stop = {"next section": sections[2].start + 30, "zeros": 3000, "end of file": 4096}[farther]
    data = whole[:HEADER_BYTES] + struct.pack(">i", stop) + whole[HEADER_BYTES + 4 :]
    path = put(tmp_path, data)
    assert codes(walk(path)) == ["marker-target"]
    assert read(path) == [plain(m) for m in MUTATIONS]


def test_marker_that_points_too_near_costs_its_section_alone(tmp_path: Path) -> None:
    whole = segment(ID, MUTATIONS, size=4096)
    data = whole[:HEADER_BYTES] + struct.pack(">i", HEADER_BYTES + 20) + whole[HEADER_BYTES + 4 :]
    path = put(tmp_path, data)
    assert codes(walk(path)) == ["marker-checksum"]
    assert read(path)[-2:] == [plain(m) for m in MUTATIONS[1:]]


def test_last_marker_broken_still_gives_the_last_section(tmp_path: Path) -> None:
    whole = segment(ID, MUTATIONS)
    data = bytearray(whole.ljust(4096, b"\0"))
    data[walk(put(tmp_path, whole)).sections[-1].start - 1] ^= 0xFF
    path = put(tmp_path, bytes(data))
    assert codes(walk(path)) == ["marker-checksum"]
    last = read(path)[-1]
    assert isinstance(last, bytes)
    assert last.startswith(plain(MUTATIONS[2]))


@pytest.mark.parametrize("stop", [0, HEADER_BYTES, HEADER_BYTES + 7, 1 << 20, -5])
def test_marker_with_an_invalid_target_is_damage(tmp_path: Path, stop: int) -> None:
    whole = segment(ID, MUTATIONS)
    data = header(ID) + marker(ID, HEADER_BYTES, stop) + whole[HEADER_BYTES + 8 :]
    chain = walk(put(tmp_path, data))
    assert codes(chain) == ["marker-target"]
    assert len(chain.sections) == 3


def test_chain_of_a_growing_segment_ends_at_a_marker_half_written(tmp_path: Path) -> None:
    whole = segment(ID, MUTATIONS[:1])
    half = struct.pack(">iI", len(whole) + 30, 0)
    path = put(tmp_path, whole + half + entry(b"not yet synced") + bytes(100))
    chain = walk(path, complete=False)
    assert len(chain.sections) == 1
    assert codes(chain) == []


def test_marker_without_checksum_is_accepted_if_enabled(tmp_path: Path) -> None:
    whole = segment(ID, MUTATIONS[:1])
    body = entry(b"a mutation after it")
    path = put(tmp_path, whole + struct.pack(">iI", len(whole) + 8 + len(body), 0) + body + bytes(100))
    assert len(walk(path, complete=False).sections) == 1
    assert len(walk(path, complete=False, trust=True).sections) == 2
